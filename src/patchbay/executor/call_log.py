"""The record of a run's calls, by which a run whose process was killed goes on in another one."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from patchbay.errors import HookAbortError, ToolError
from patchbay.executor.results import ToolExecution
from patchbay.tools import Tool, ToolActions, render_result
from patchbay.tools.output import OutputError, ToolOutput
from patchbay.tools.results import describe
from patchbay.types import Attachment, ToolCall, ToolResult


class CallLog(Protocol):
    """Records the outcome of each call once. A call is named by the number of its reply in the run, and its place in it."""

    def next_reply(self) -> int:
        """Return the number of the reply whose calls are run now."""
        ...

    async def settle(self, reply: int, place: int, call: ToolCall, run: Callable[[], Awaitable[ToolExecution]]) -> ToolExecution:
        """Return the recorded outcome of a call; without one, that of ``run()``, once it is recorded."""
        ...

    async def begin(self, reply: int, place: int, tool: Tool) -> None:
        """Record that the tool begins. Raises InterruptedCallError if it began in another process, and may not run twice."""
        ...


class InterruptedCallError(ToolError):
    """The process of the call ended before there was a result."""

    code = "interrupted_call"
    ran: Final = "unknown"

    def __init__(self, tool_name: str) -> None:
        super().__init__(
            f"the process ended during the call of {tool_name!r}: it may have run, in part or to its end. It was not run again",
            tool_name=tool_name,
        )


class RecordedCallError(ToolError):
    """The error of a call, from its record."""

    def __init__(self, message: str, *, for_model: str, code: str, ran: str, tool_name: str) -> None:
        super().__init__(message, tool_name=tool_name)
        self.code = code
        self.ran = ran
        self._for_model = for_model

    @property
    def for_model(self) -> str:
        """The text that the model got."""
        return self._for_model


class _Abort(msgspec.Struct):
    reason: str
    hook: str
    point: str
    hard: bool


class _Record(msgspec.Struct, omit_defaults=True):
    """An execution as JSON. Of a value that JSON cannot express, only the text for the model is kept."""

    name: str
    content: str
    arguments: dict[str, Any] | None = None
    value: Any = None
    output: ToolOutput | None = None
    attachments: tuple[Attachment, ...] = ()
    code: str | None = None
    error: str | None = None
    ran: str = "yes"
    abort: _Abort | None = None
    seconds: float = 0.0
    actions: ToolActions | None = None


def encode_execution(execution: ToolExecution) -> str:
    """Return an execution as the ASCII text of a JSON object."""
    result, error, output = execution.result, execution.error, execution.output
    abort = _Abort(error.reason, error.hook, error.point, error.hard) if isinstance(error, HookAbortError) else None
    record = _Record(
        result.name,
        result.content,
        arguments=execution.arguments,
        value=execution.value if output is None else None,
        output=output,
        attachments=result.attachments,
        code=result.code,
        error=None if error is None else str(error) if isinstance(error, ToolError) else describe(error),
        ran=execution.ran,
        abort=abort,
        seconds=execution.seconds,
        actions=execution.actions,
    )
    try:
        return json.dumps(msgspec.to_builtins(record, str_keys=True, enc_hook=render_result))
    except Exception:  # noqa: BLE001  (values of a tool may raise anything)
        record.value, record.arguments = result.content, None if execution.arguments is None else {}
        return json.dumps(msgspec.to_builtins(record, str_keys=True, enc_hook=render_result))


def decode_execution(call: ToolCall, text: str) -> ToolExecution:
    """Return the execution of ``call`` that ``encode_execution`` has written."""
    record = msgspec.convert(json.loads(text), _Record)
    error: Exception | None = None
    if record.abort is not None:
        error = HookAbortError(record.abort.reason, hook=record.abort.hook, point=record.abort.point, hard=record.abort.hard)
    elif record.error is not None and record.output is not None:
        error = OutputError(record.output, tool_name=record.name)
    elif record.error is not None:
        error = RecordedCallError(
            record.error, for_model=record.content, code=record.code or ToolError.code, ran=record.ran, tool_name=record.name
        )
    return ToolExecution(
        call,
        record.arguments,
        record.output if record.output is not None and error is None else record.value,
        ToolResult(call.id, record.name, record.content, error is not None, record.code, record.attachments),
        error,
        record.seconds,
        record.actions,
    )


def may_run_twice(annotations: Mapping[str, Any]) -> bool:
    """Whether a tool with these annotations, by our names, may be run again after its process was killed."""
    return bool(annotations.get("read_only") or annotations.get("idempotent"))
