"""A handler's outcome, and the JSON body that answers its callback."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

import msgspec

from patchbay.errors import ToolArgumentsError, ToolError, ToolTimeoutError
from patchbay.plugins.errors import PluginError
from patchbay.tools import render_result, well_formed
from patchbay.tools.envelope import is_envelope, is_true
from patchbay.tools.results import describe

T = TypeVar("T")
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Ok(Generic[T]):
    """Success with a value."""

    value: T


@dataclass(frozen=True, slots=True)
class Err(Generic[E]):
    """Failure: ``error`` is a text for the model, an exception (as if it had been raised), or any other value."""

    error: E


Result: TypeAlias = Ok[T] | Err[E]
"""Either of them, for annotations: ``Result[dict, str]``."""


def unwrap(result: Ok[T] | Err[E]) -> T:
    """Return the value of an Ok. Raises the error of an Err: itself if it is an exception, else as a PluginError."""
    if isinstance(result, Ok):
        return result.value
    if not isinstance(result, Err):
        raise TypeError(f"unwrap() takes an Ok or an Err, not {type(result).__name__}.")
    if isinstance(result.error, BaseException):
        raise result.error
    raise PluginError(str(result.error))


def unwrap_or(result: Ok[T] | Err[E], default: T) -> T:
    """Return the value of an Ok, and ``default`` for an Err."""
    return result.value if isinstance(result, Ok) else default


class Body(str):
    """The JSON text of one body. ``error`` is the short name of the failure, None on success."""

    __slots__ = ("error",)

    error: str | None

    def __new__(cls, text: str, *, error: str | None = None) -> Self:
        """Create a body of JSON text."""
        body = super().__new__(cls, text)
        body.error = None if error is None else well_formed(error)
        return body


def as_json(value: Any) -> str:
    """Return any value as JSON text, as rendered for models; values that JSON cannot express become text."""
    if value is None:
        return "null"
    # In a list: alone, a string would be rendered without quotes.
    text = render_result([value])[1:-1]
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        return json.dumps(text)
    return text


def body_of(value: Any) -> Body:
    """Return the body for a tool's result; ``Ok`` and ``Err`` are unwrapped, also nested."""
    while isinstance(value, Ok):
        value = value.value
    if isinstance(value, Err):
        return _refusal(value.error)
    if is_envelope(value):
        return _envelope(value)
    return Body(f'{{"output":{as_json(value)},"is_error":false}}')


def body_of_failure(name: str, error: BaseException, *, ran: Literal["no", "yes", "unknown"] = "yes") -> Body:
    """Return the body for a failed call of the tool ``name``: ``error`` is what it raised, or why it did not run."""
    if isinstance(error, ToolTimeoutError):
        return timed_out(name, error.limit)
    if isinstance(error, ToolArgumentsError):
        return failure(error.for_model, error="INVALID_ARGUMENTS", code=error.code, ran=ran)
    if isinstance(error, ToolError):
        return failure(_for_model(error), error=type(error).__name__, code=error.code, ran=ran)
    return failure(describe(error), error=type(error).__name__, code=ToolError.code, ran=ran)


def failure(message: str, *, error: str, code: str, ran: Literal["no", "yes", "unknown"] = "yes") -> Body:
    """Return the body of a failure: ``message`` is for the model, ``error`` its short name, ``code`` for programs.

    ``ran``: whether the handler ran; left out of the body if it did.
    """
    body = {"output": {"error": message}, "is_error": True, "error": error, "code": code}
    return Body(as_json(body if ran == "yes" else {**body, "ran": ran}), error=error)


def not_registered(plugin_id: str, name: str) -> Body:
    """Return the body for an unknown tool."""
    message = f"tool {name!r} is not registered for plugin {plugin_id!r}"
    return failure(message, error="TOOL_NOT_REGISTERED", code="unknown_tool", ran="no")


def not_running(plugin_id: str, *, why: str = "is not running", ran: Literal["no", "unknown"] = "no") -> Body:
    """Return the body for a plugin that accepts no calls, or has ended during this one."""
    return failure(f"plugin {plugin_id!r} {why}", error="PLUGIN_NOT_RUNNING", code="plugin_not_running", ran=ran)


def timed_out(name: str, seconds: float) -> Body:
    """Return the body for a tool that was cancelled at its timeout."""
    message = f"tool {name!r} timed out after {float(seconds)}s"
    return failure(message, error="TOOL_TIMEOUT", code=ToolTimeoutError.code, ran="unknown")


def cancelled(name: str, *, ran: Literal["no", "unknown"]) -> Body:
    """Return the body for a cancelled call."""
    when = "before it began: it did not run" if ran == "no" else "before it gave a result: it may have run, in part or to its end"
    return failure(f"tool {name!r} was cancelled {when}", error="TOOL_CANCELLED", code="cancelled", ran=ran)


def too_large(name: str, size: int, limit: int) -> Body:
    """Return the body that replaces one that is too long to be sent."""
    message = f"the result of tool {name!r} has {size} bytes, more than {limit}: ask for less"
    return failure(message, error="RESULT_TOO_LARGE", code="result_too_large")


def _refusal(error: Any) -> Body:
    while isinstance(error, Ok | Err):
        error = error.value if isinstance(error, Ok) else error.error
    if isinstance(error, BaseException):
        return body_of_failure("", error)
    if isinstance(error, str) and error:
        return failure(error, error=error, code=ToolError.code)
    return Body(
        f'{{"output":{as_json(error)},"is_error":true,"error":"TOOL_ERROR","code":"{ToolError.code}"}}', error="TOOL_ERROR"
    )


def _envelope(value: Mapping[str, Any]) -> Body:
    body = dict(value)
    body["is_error"] = failed = is_true(body.get("is_error"))
    error = body.get("error")
    if error is not None and not isinstance(error, str):
        error = body["error"] = as_json(error)
    return Body(as_json(body), error=(error or "TOOL_ERROR") if failed else None)


def _for_model(error: ToolError) -> str:
    try:
        return str(error.for_model)
    except Exception:  # noqa: BLE001  (a tool's own error class may raise anything)
        return describe(error)
