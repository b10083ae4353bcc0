"""The tools of a plugin: their options, the handlers behind them, and the states of their registrations."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import math
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

import msgspec

from patchbay.errors import ConfigurationError
from patchbay.plugins.connection import encode
from patchbay.plugins.envelope import Body, Err, Ok, body_of
from patchbay.plugins.errors import EntryConflictError, FrameError, RegistrationError
from patchbay.plugins.protocol import (
    DEFAULT_TIMEOUT,
    MAX_TIMEOUT,
    LlmToolRegister,
    LlmToolState,
    LlmToolUnregister,
    Message,
    ToolStateName,
)
from patchbay.tools import FunctionTool, Progress, ToolContext
from patchbay.tools.results import describe
from patchbay.tools.threads import run_in_thread
from patchbay.tools.tool import checked_annotations

F = TypeVar("F", bound=Callable[..., Any])

_INTERNAL: Final = ("plugin_id", "registration")
"""Fields of a registration that are not for a plugin's author."""

_TOOL_MARK: Final = "__patchbay_llm_tool__"
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


@dataclass(frozen=True)
class LlmToolMeta:
    """The options of a tool. ``parameters`` None: derived from the handler's signature. ``timeout`` is in seconds.

    ``annotations`` describe the tool to approvers. Raises TypeError for an option of the wrong type, ConfigurationError (a
    ValueError) for a name that is invalid in a URL, for a timeout that is not above 0 and at most 300, and for annotations that
    are not booleans.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    timeout: float = DEFAULT_TIMEOUT
    role: str | None = None
    annotations: Mapping[str, bool] | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if not isinstance(self.description, str):
            raise TypeError(f"description of tool {self.name!r} must be a str, not {type(self.description).__name__}.")
        if self.parameters is not None and not isinstance(self.parameters, dict):
            kind = type(self.parameters).__name__
            raise TypeError(f"parameters of tool {self.name!r} must be a dict (a JSON Schema), not {kind}.")
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float):
            raise TypeError(f"timeout of tool {self.name!r} must be a number of seconds, not {type(self.timeout).__name__}.")
        if not math.isfinite(self.timeout) or not 0 < self.timeout <= MAX_TIMEOUT:
            raise ConfigurationError(
                f"timeout of tool {self.name!r} must be above 0 and at most {MAX_TIMEOUT:g} seconds, not {self.timeout!r}."
            )
        if self.role is not None and not isinstance(self.role, str):
            raise TypeError(f"role of tool {self.name!r} must be a str, or None for all; not {type(self.role).__name__}.")
        object.__setattr__(self, "role", self.role or None)
        try:
            object.__setattr__(self, "annotations", checked_annotations(self.annotations or {}))
        except ConfigurationError as error:
            raise ConfigurationError(f"Tool {self.name!r}: {error}.") from None


def check_name(name: str, *, what: str = "A tool's name") -> None:
    """Raise ConfigurationError for a name that a URL's path would have to escape, TypeError for another type."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {type(name).__name__}.")
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(f"{what} must be 1 to 64 of A-Z, a-z, 0-9, '_', '.', '-'; not {name!r}.")


class LlmToolOptions(TypedDict, total=False):
    """The options of ``@llm_tool``."""

    name: str | None
    description: str
    parameters: Mapping[str, Any] | None
    timeout: float
    role: str | None
    annotations: Mapping[str, bool] | None


@overload
def llm_tool(method: F, /) -> F: ...
@overload
def llm_tool(**options: Unpack[LlmToolOptions]) -> Callable[[F], F]: ...
def llm_tool(method: F | None = None, /, **options: Unpack[LlmToolOptions]) -> F | Callable[[F], F]:
    """Mark a method, sync or async, that a model may call with keyword arguments.

    By default ``name`` is the method's, ``description`` comes from its docstring, ``parameters`` (a JSON Schema) from its
    signature. ``timeout`` is in seconds, at most 300; ``role`` None is for all roles. ``annotations`` describe the tool to
    approvers of its calls: ``{"destructive": True}``. Raises as LlmToolMeta.
    """

    def mark(method: F) -> F:
        target = marked_function(method, "llm_tool")
        name = options.get("name")
        given: dict[str, Any] = {**options, "name": target.__name__ if name is None else name}
        setattr(target, _TOOL_MARK, LlmToolMeta(**given))
        return method

    return mark if method is None else mark(method)


def marked_function(method: Any, decorator: str) -> Any:
    """Return the function that a decorator marks. Raises TypeError for anything else."""
    target = getattr(method, "__func__", method)
    if not inspect.isroutine(target):
        raise TypeError(f"@{decorator} marks methods, not {type(method).__name__}.")
    return target


def functions_of(plugin_class: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions behind a class's methods by name, without evaluating properties."""
    for name in sorted(dir(plugin_class)):
        member = inspect.getattr_static(plugin_class, name)
        function = getattr(member, "__func__", member)
        if inspect.isroutine(function):
            yield name, function


def tools_of(plugin_class: type) -> Iterator[tuple[str, LlmToolMeta]]:
    """Yield the names of a class's marked methods, sorted, with their options."""
    for name, function in functions_of(plugin_class):
        if (meta := getattr(function, _TOOL_MARK, None)) is not None:
            yield name, meta


class PluginTool(FunctionTool):
    """A handler that is called with keyword arguments, and with ``tool_context`` if it declares it.

    Values that a generator yields are sent as progress at once: a str as message, a Progress as it is, others as data. The last
    one that is not a Progress is the result, unless the generator returns one; an ``Ok`` or ``Err`` is the result at once.

    ``limit`` is the tool's own in seconds; ``timeout`` stays None, since a call's may be shorter. Raises ConfigurationError for
    a schema that is invalid, or that lacks a parameter of the handler.
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
        """Call the handler and return the body for its result."""
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
        except KeyboardInterrupt as error:  # of the handler itself: it would end the event loop
            raise RuntimeError(describe(error)) from error
        return body_of(value)

    def _takes_a_dict(self, schema: Mapping[str, Any]) -> None:
        """Return None, since handlers are called by keyword. Raises ConfigurationError for one that its schema cannot satisfy."""
        properties = schema.get("properties")
        for name, parameter in self._schema.signature.parameters.items():
            required = parameter.default is parameter.empty and parameter.kind not in _VARIABLE
            if required and properties and name not in properties and name not in self._schema.injected:
                raise ConfigurationError(f"The handler of tool {self.name!r} needs {name!r}, which its schema does not have.")


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _as_json_schema(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema after a round trip through JSON. Raises ConfigurationError for one that is not JSON."""
    try:
        schema = json.loads(json.dumps(parameters, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"parameters of tool {name!r} are not JSON: {error}") from None
    if schema.setdefault("type", "object") != "object":
        raise ConfigurationError(f"parameters of tool {name!r} must be of type 'object', not {schema['type']!r}.")
    return dict(schema)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: ToolContext) -> Any:
    """Call a sync handler in its thread; a generator is exhausted there too."""
    value = function(*args, **kwargs)
    if not isinstance(value, Iterator):
        return value
    last: Any = None
    try:
        while not (isinstance(last, Ok | Err) or context.cancelled.is_set()):
            last = _report(context, next(value), last)
    except StopIteration as end:
        return last if end.value is None else end.value
    if (close := getattr(value, "close", None)) is not None:
        close()
    return last


async def _last(values: AsyncIterator[Any], context: ToolContext) -> Any:
    last: Any = None
    try:
        async for each in values:
            last = _report(context, each, last)
            if isinstance(last, Ok | Err):
                break
    finally:
        if (close := getattr(values, "aclose", None)) is not None:
            await close()
    return last


def _report(context: ToolContext, value: Any, last: Any) -> Any:
    """Send a yielded value as progress, and return the result if nothing more comes."""
    if isinstance(value, Progress):
        context.progress(value.message, fraction=value.fraction, data=value.data)
        return last
    if isinstance(value, str):
        context.progress(value)
    elif not isinstance(value, Ok | Err):
        context.progress(data=value)
    return value


@dataclass(frozen=True, slots=True)
class ToolState:
    """The state of a registration: "pending", "active", "refused" or "stale", and the reason where there is one."""

    state: ToolStateName = "pending"
    reason: str = ""


class ToolTable:
    """The tools of a plugin and the states of their registrations. Thread-safe.

    Changes are sent to the host by ``send`` once ``register_all`` was called. ``tools`` is replaced and never changed.
    """

    def __init__(self, plugin_id: str, send: Callable[[Message], None]) -> None:
        self.tools: dict[str, PluginTool] = {}
        self._plugin_id = plugin_id
        self._send = send
        self._lock = threading.RLock()
        self._open = False
        self._count = 0
        self._numbers: dict[str, int] = {}
        self._states: dict[str, ToolState] = {}
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def add(self, handler: Callable[..., Any], meta: LlmToolMeta) -> None:
        """Add a tool. Raises EntryConflictError for a name that is in use, ConfigurationError for a tool that cannot work."""
        if meta.name in self.tools:
            raise EntryConflictError(meta.name)
        tool = PluginTool(handler, meta)
        with self._lock:
            if meta.name in self.tools:  # added by another thread
                raise EntryConflictError(meta.name)
            self._count += 1
            message = self._registration(tool, self._count)
            try:
                encode(message)
            except FrameError as error:
                raise ConfigurationError(f"Tool {meta.name!r} cannot be registered: {error}") from None
            self._numbers[meta.name] = self._count
            self._states[meta.name] = ToolState()
            self.tools = {**self.tools, meta.name: tool}
            if self._open:
                self._send(message)

    def remove(self, name: str) -> bool:
        """Remove a tool, and return whether there was one."""
        with self._lock:
            tool = self.tools.get(name)
            if tool is None:
                return False
            self.tools = {key: each for key, each in self.tools.items() if key != name}
            number = self._numbers.pop(name)
            del self._states[name]
            if self._open:
                self._send(LlmToolUnregister(plugin_id=self._plugin_id, name=name, role=tool.meta.role, registration=number))
            self._wake()
        return True

    def listed(self) -> list[dict[str, Any]]:
        """Return the tools as plain dicts."""
        registrations = [msgspec.structs.asdict(self._registration(tool, 0)) for tool in self.tools.values()]
        return [{name: value for name, value in each.items() if name not in _INTERNAL} for each in registrations]

    def register_all(self) -> None:
        """Send all tools to the host, and every change from now on."""
        with self._lock:
            self._open = True
            for tool in self.tools.values():
                self._send(self._registration(tool, self._numbers[tool.name]))

    def set_state(self, message: LlmToolState) -> None:
        """Set the state of a registration; one of an earlier registration of the name is ignored."""
        with self._lock:
            if self._numbers.get(message.name) == message.registration:
                self._states[message.name] = ToolState(message.state, message.reason)
                self._wake()

    def state(self, name: str) -> ToolState:
        """Return the state of a tool. Raises KeyError where there is none of this name."""
        return self._states[name]

    async def registered(self, names: Iterable[str] = ()) -> None:
        """Wait until models can call these tools (default: all there are now). Raises RegistrationError for a refused one.

        A tool that is removed meanwhile is not waited for; an unknown name raises KeyError.
        """
        with self._lock:
            wanted = {name: self._numbers[name] for name in (tuple(names) or tuple(self.tools))}
        loop = asyncio.get_running_loop()
        while True:
            with self._lock:
                if all(self._is_done(name, number) for name, number in wanted.items()):
                    return
                waiter = loop.create_future()
                self._waiters.append((loop, waiter))
            try:
                await waiter
            finally:
                with self._lock:
                    self._waiters = [each for each in self._waiters if each[1] is not waiter]

    def _is_done(self, name: str, number: int) -> bool:
        """Whether models can call a tool, or it was removed. Raises RegistrationError where it was refused."""
        if self._numbers.get(name) != number:
            return True
        state = self._states[name]
        if state.state == "refused":
            raise RegistrationError(name, reason=state.reason)
        return state.state == "active"

    def _registration(self, tool: PluginTool, number: int) -> LlmToolRegister:
        return LlmToolRegister(
            plugin_id=self._plugin_id,
            name=tool.name,
            description=tool.description,
            parameters=dict(tool.parameters),
            timeout_seconds=tool.limit,
            role=tool.meta.role,
            annotations=dict(tool.meta.annotations or {}),
            registration=number,
        )

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for loop, waiter in waiters:
            try:
                loop.call_soon_threadsafe(_set, waiter)
            except RuntimeError:  # its loop is closed
                pass


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
