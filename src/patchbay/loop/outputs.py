"""What tools have for the user and not for the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from patchbay.executor import ToolExecution
from patchbay.loop.events import UserOutputEvent


def user_outputs(executions: Sequence[ToolExecution]) -> Iterator[UserOutputEvent]:
    """Yield an event for each call that has something for the user, in call order."""
    for execution in executions:
        output = execution.output
        if output is None:
            continue
        handled = output.response_handled and not execution.is_error
        media = output.media if handled else ()
        if output.shown or media:
            yield UserOutputEvent(execution.call, output.shown, media, handled)


def all_handled(executions: Sequence[ToolExecution]) -> bool:
    """Whether each of these calls has given the user the answer, so that the model need not."""
    outputs = [execution.output for execution in executions]
    return bool(outputs) and all(
        output is not None and output.response_handled and not execution.is_error
        for output, execution in zip(outputs, executions, strict=True)
    )
