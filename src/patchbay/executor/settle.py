"""What a model is told of a call that failed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from patchbay.errors import HookAbortError, ToolError
from patchbay.tools import Tool, render_error

NAME_SHOWN = 100
"""How much of a name is repeated: it is whatever the model wrote."""

NOT_BEGUN = " It had not begun."
_THREAD_RUNS_ON = " It could not be interrupted and may still be running: its effects may still happen."
_HAD_RUN = " (The tool itself had run: its effects stand.)"


def told(name: str, error: BaseException) -> tuple[str, str]:
    """Return what the model is told of a failure, and its code."""
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
    """Return what the model is told of a call whose arguments an approver has changed."""
    text = json.dumps(arguments, ensure_ascii=False)
    return f"[An approver changed the arguments of this call, which was approved with: {text:.2000}]"


def note(tool: Tool, *, begun: bool, has_run: bool, stopped: bool) -> str:
    """Return what is to be added: that the tool had ended well, or, of one that was stopped, that it had not begun or runs on."""
    if has_run:
        return _HAD_RUN
    if not stopped:
        return ""
    if not begun:
        return NOT_BEGUN
    return "" if tool.interruptible else _THREAD_RUNS_ON
