"""A plugin's handler as a tool: called by keyword, told as it goes along, its outcome made the body of a callback's answer.

What lives here: how a handler is called and what becomes of what it gives back. What does not: its schema (``FunctionTool``),
deadlines (the executor), and what makes which body (``envelope``).
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.plugins.envelope import Body, body_of
from patchbay.plugins.sdk.llm_tool import LlmToolMeta
from patchbay.plugins.sdk.outcome import Err, Ok
from patchbay.tools import FunctionTool, Progress, ToolContext
from patchbay.tools.results import describe
from patchbay.tools.threads import run_in_thread


class PluginTool(FunctionTool):
    """A handler that takes a call's arguments by keyword, and ``tool_context`` if it asks for it.

    What a generator yields is told as progress the moment it is yielded: a str as its message, a Progress as it is, all else as
    its data. The last one that is no Progress is the result, unless the generator returns one; an ``Ok`` or ``Err`` is the result
    at once, and ends it.

    ``limit`` is the tool's own in seconds; ``timeout`` stays None, since what a caller was promised may be less. Raises
    ConfigurationError for a schema that cannot be used, or that has not what the handler needs.
    """

    def __init__(self, handler: Callable[..., Any], meta: LlmToolMeta) -> None:
        super().__init__(
            handler,
            name=meta.name,
            description=meta.description or None,
            parameters=None if meta.parameters is None else _as_json_schema(meta.name, meta.parameters),
            annotations=meta.annotations,
        )
        self.meta = meta
        self.limit = float(meta.timeout)
        self.check()

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Body:
        """Call the handler and return the body for what it gave."""
        args, kwargs = self._binding(arguments, context)
        try:
            if self.is_async:
                value = self.function(*args, **kwargs)
            else:
                value = await run_in_thread(functools.partial(_call, self.function, args, kwargs, context))
            while inspect.isawaitable(value):
                value = await value
            if isinstance(value, AsyncIterator):
                value = await _last(value, context)
        except KeyboardInterrupt as error:  # raised by the handler itself; it would end the event loop and all other calls
            raise RuntimeError(describe(error)) from error
        return body_of(value)

    def _takes_a_dict(self, schema: Mapping[str, Any]) -> None:
        """Never: a plugin's handlers are called by keyword. Refuses a handler that no call could be right for."""
        properties = schema.get("properties")
        for name, parameter in self._schema.signature.parameters.items():
            required = parameter.default is parameter.empty and parameter.kind not in _VARIABLE
            if required and properties and name not in properties and name not in self._schema.injected:
                raise ConfigurationError(f"The handler of tool {self.name!r} needs {name!r}, which its schema does not have.")


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _as_json_schema(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema as what will be read at the other end: tuples are lists there, and what is not JSON is refused here."""
    try:
        schema = json.loads(json.dumps(parameters, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"parameters of tool {name!r} are no JSON: {error}") from None
    if schema.setdefault("type", "object") != "object":
        raise ConfigurationError(f"parameters of tool {name!r} must be of type 'object', not {schema['type']!r}.")
    return dict(schema)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: ToolContext) -> Any:
    """Call in the thread; a generator's body runs while it is read, so it is read here too."""
    value = function(*args, **kwargs)
    if not isinstance(value, Iterator):
        return value
    last: Any = None
    try:
        while not (isinstance(last, Ok | Err) or context.cancelled.is_set()):
            last = _tell(context, next(value), last)
    except StopIteration as end:
        return last if end.value is None else end.value
    if (close := getattr(value, "close", None)) is not None:
        close()
    return last


async def _last(values: AsyncIterator[Any], context: ToolContext) -> Any:
    last: Any = None
    try:
        async for each in values:
            last = _tell(context, each, last)
            if isinstance(last, Ok | Err):
                break
    finally:
        if (close := getattr(values, "aclose", None)) is not None:
            await close()
    return last


def _tell(context: ToolContext, value: Any, last: Any) -> Any:
    """Tell of a value that was yielded, and return what the result is if nothing more comes."""
    if isinstance(value, Progress):
        context.progress(value.message, fraction=value.fraction, data=value.data)
        return last
    if isinstance(value, str):
        context.progress(value)
    elif not isinstance(value, Ok | Err):
        context.progress(data=value)
    return value
