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
    """The outcome of one call.

    ``arguments`` are the tool's, coerced and with defaults (None: it did not run); ``call.raw_arguments`` is the model's text.
    ``value`` is the tool's return value (or an ``after`` hook's), ``result`` the message for the model. ``error`` is None on
    success, else a ToolError or the tool's exception. ``seconds`` is how long the tool ran. ``actions`` are the tool's actions,
    with its changes of the state; None if the call failed.
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
        ran = getattr(self.error, "ran", None)  # as another process reported it
        return cast('Literal["no", "yes", "unknown"]', ran) if ran in ("no", "unknown") else "yes"

    @property
    def content(self) -> str:
        """The text for the model."""
        return self.result.content

    @property
    def output(self) -> ToolOutput | None:
        """The call's ToolOutput, which separates text for the model and for the user; None if the tool returned no such value."""
        if isinstance(self.value, ToolOutput):
            return self.value
        return self.error.output if isinstance(self.error, OutputError) else None


NAME_SHOWN = 100
"""The most characters of a name in messages: a model may write any length."""

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
    """Return a note that the tool had ended well, or that a stopped tool had not begun or may run on; "" if there is none."""
    if has_run:
        return _HAD_RUN
    if not stopped:
        return ""
    if not begun:
        return NOT_BEGUN
    return "" if tool.interruptible else _THREAD_RUNS_ON


def checked_media(given: Any) -> MediaStore | None:
    """Return the ``media`` option. Raises TypeError for anything but a MediaStore or None."""
    if given is None:
        return None
    from patchbay.media import MediaStore

    if not isinstance(given, MediaStore):
        raise TypeError(f"media must be a MediaStore, not {type(given).__name__}.")
    return given


def has_files(output: ToolOutput) -> bool:
    """Whether an output has files to be stored."""
    return bool(
        output.media or (output.response_handled and output.attachments) or (output.is_error and may_have_base64(output.for_llm))
    )
