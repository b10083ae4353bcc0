"""The outcome of a call: its execution as data, and the message for the model about a failure."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from patchbay.errors import HookAbortError, ToolError, ToolTimeoutError
from patchbay.media.content import may_have_base64
from patchbay.tools import Tool, render_error
from patchbay.tools.context import ToolActions
from patchbay.tools.output import OutputError, ToolOutput
from patchbay.types import ToolCall, ToolResult

if TYPE_CHECKING:
    from patchbay.media import MediaStore


@dataclass(frozen=True)
class ToolExecution:
    """What became of one call.

    ``arguments`` are those the tool was given, coerced and with defaults (None: it was not run); ``call.raw_arguments`` is what
    the model wrote. ``value`` is what the tool returned (or an ``after`` hook made of it), ``result`` what the model is shown.
    ``error`` is None on success, else a ToolError or whatever the tool raised. ``seconds`` is how long the tool ran. ``actions``
    is what the tool asked of its run, its changes of the state included; None where the call failed.
    """

    call: ToolCall
    arguments: dict[str, Any] | None
    value: Any
    result: ToolResult
    error: BaseException | None = None
    seconds: float = 0.0
    actions: ToolActions | None = None

    @property
    def is_error(self) -> bool:
        """Whether the call failed."""
        return self.error is not None

    @property
    def ran(self) -> Literal["no", "yes", "unknown"]:
        """Whether the tool ran: "unknown" where it was stopped, or its process did not say."""
        if self.arguments is None:
            return "no"
        if isinstance(self.error, ToolTimeoutError | asyncio.CancelledError):
            return "unknown"
        said = getattr(self.error, "ran", None)  # of what other processes answered
        return cast('Literal["no", "yes", "unknown"]', said) if said in ("no", "unknown") else "yes"

    @property
    def content(self) -> str:
        """What the model is shown."""
        return self.result.content

    @property
    def output(self) -> ToolOutput | None:
        """What the call has for the model and for the user apart; None where its tool did not tell them apart."""
        if isinstance(self.value, ToolOutput):
            return self.value
        return self.error.output if isinstance(self.error, OutputError) else None


NAME_SHOWN = 100
"""How much of a name is repeated: it is whatever the model wrote."""


NOT_BEGUN = " It had not begun."


_THREAD_RUNS_ON = " It could not be interrupted and may still be running: its effects may still happen."


_HAD_RUN = " (The tool itself had run: its effects stand.)"


def error_for_model(name: str, error: BaseException) -> tuple[str, str]:
    """Return the message for the model about a failure, and its code."""
    if isinstance(error, ToolError | HookAbortError):
        try:
            return str(error.for_model), error.code
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001  (a tool's own error class may do anything here)
            return render_error(name, error), ToolError.code
    if isinstance(error, asyncio.CancelledError):
        return f"Error: tool {name[:NAME_SHOWN]!r} was cancelled before it finished.", "cancelled"
    return render_error(name, error), ToolError.code


def edited_note(arguments: dict[str, Any]) -> str:
    """Return the note for the model on a call whose arguments an approver has changed."""
    text = json.dumps(arguments, ensure_ascii=False)
    return f"[An approver changed the arguments of this call, which was approved with: {text:.2000}]"


def effects_note(tool: Tool, *, begun: bool, has_run: bool, stopped: bool) -> str:
    """Return what is to be added: that the tool had ended well, or, of one that was stopped, that it had not begun or runs on."""
    if has_run:
        return _HAD_RUN
    if not stopped:
        return ""
    if not begun:
        return NOT_BEGUN
    return "" if tool.interruptible else _THREAD_RUNS_ON


def checked_media(given: Any) -> MediaStore | None:
    """Return the media store that was given. Raises TypeError for anything else."""
    if given is None:
        return None
    from patchbay.media import MediaStore

    if not isinstance(given, MediaStore):
        raise TypeError(f"media must be a MediaStore, not {type(given).__name__}.")
    return given


def has_files(output: ToolOutput) -> bool:
    """Whether there is anything to be done about an output's files before it is one."""
    return bool(
        output.media or (output.response_handled and output.attachments) or (output.is_error and may_have_base64(output.for_llm))
    )
