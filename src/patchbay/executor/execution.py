"""What became of one call, as data."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal, cast

from patchbay.errors import ToolTimeoutError
from patchbay.tools.actions import ToolActions
from patchbay.tools.output import OutputError, ToolOutput
from patchbay.types import ToolCall, ToolResult


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
