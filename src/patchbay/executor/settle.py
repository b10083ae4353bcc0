"""What a model is told of a call that failed."""

from __future__ import annotations

import asyncio

from patchbay.errors import ToolError
from patchbay.tools import Tool, render_error

NAME_SHOWN = 100
"""How much of a name is repeated: it is whatever the model wrote."""

_THREAD_RUNS_ON = " It could not be interrupted and may still be running: its effects may still happen."
_HAD_RUN = " (The tool itself had run: its effects stand.)"


def told(name: str, error: BaseException) -> tuple[str, str]:
    """Return what the model is told of a failure, and its code."""
    if isinstance(error, ToolError):
        try:
            return str(error.for_model), error.code
        except Exception:  # noqa: BLE001  (a tool's own error class may do anything here)
            return render_error(name, error), ToolError.code
    if isinstance(error, asyncio.CancelledError):
        return f"Error: tool {name[:NAME_SHOWN]!r} was cancelled before it finished.", "cancelled"
    return render_error(name, error), ToolError.code


def note(tool: Tool, *, is_running: bool, has_run: bool) -> str:
    """Return what is to be added: that the tool may run on, or that it had ended well before something else failed."""
    if has_run:
        return _HAD_RUN
    return _THREAD_RUNS_ON if is_running and not tool.interruptible else ""
