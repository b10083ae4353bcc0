"""The SDK's Hook: decorators, the hook's own tools, and the loop that answers its host over JSON-RPC lines on standard streams.

The author's functions run in threads. Streams are read and written as bytes, independent of the locale; replies are written
whole, in order of completion. Standard output belongs to the protocol: what the process prints goes to standard error.
"""

from __future__ import annotations

import base64
import inspect
import json
import mimetypes
import os
import queue
import signal
import sys
import threading
import traceback
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final, TypedDict, TypeVar, Unpack, overload

from patchbay._trace import TRACE, parse
from patchbay.background import run_blocking
from patchbay.errors import ConfigurationError, ToolError
from patchbay.hooks.process.protocol import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    POINTS,
    SERVER_ERROR,
    decode_event,
    decode_params,
    encode_decision,
)
from patchbay.hooks.types import Continue, Modify, Respond, View
from patchbay.tools import FunctionTool, ToolContext, Validation, render_error
from patchbay.tools.output import OutputError, ToolOutput, as_output
from patchbay.tools.results import read_items
from patchbay.tools.threads import start_in_thread
from patchbay.types import Attachment


class HookTool(FunctionTool):
    """A function as a tool of a hook. Its schema is built on first use."""

    def definition(self) -> dict[str, Any]:
        """Return the definition for the host. Raises ConfigurationError if the function has no schema."""
        return self.spec.to_openai()

    def output(
        self, arguments: Mapping[str, Any], *, call_id: str = "", iteration: int = 1, media_dir: Path | None = None
    ) -> ToolOutput:
        """Call the function and wait; an exception becomes an error output for the model.

        Images and files are written to ``media_dir`` if the host has one. Blocks. An async function runs in the background loop
        (``patchbay.background``).
        """
        raw = json.dumps(arguments, ensure_ascii=False)
        context = ToolContext(call_id=call_id, name=self.name, raw_arguments=raw, iteration=iteration)
        try:
            value = self._value(self.validate(raw, Validation()), context)
            return _with_media(as_output(value), media_dir)
        except OutputError as error:
            return error.output
        except ToolError as error:
            return ToolOutput(error.for_model, is_error=True)
        except Exception as error:  # noqa: BLE001  (an author's function may raise anything)
            return ToolOutput(render_error(self.name, error), is_error=True)

    def _value(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        if self.is_async:
            return run_blocking(self.run(arguments, context))
        args, kwargs = self._binding(arguments, context)
        value = finished(self.function(*args, **kwargs))
        return read_items(value) if isinstance(value, Iterator) else value


def finished(value: Any) -> Any:
    """Return a handler's result; awaitables and async iterators are waited for. Blocks."""
    if inspect.isawaitable(value):
        return run_blocking(_awaited(value))
    return run_blocking(_read(value)) if isinstance(value, AsyncIterator) else value


async def _awaited(value: Any) -> Any:
    while inspect.isawaitable(value):
        value = await value
    return value


async def _read(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def _with_media(output: ToolOutput, folder: Path | None) -> ToolOutput:
    """Return an output with attachments as file paths or data URLs."""
    if not output.attachments:
        return output
    refs = (_data_url(each) if folder is None else _write_to(folder, each) for each in output.attachments)
    return replace(output, media=(*output.media, *refs), attachments=())


def _data_url(attachment: Attachment) -> str:
    return f"data:{attachment.media_type};base64,{base64.b64encode(attachment.data).decode()}"


def _write_to(folder: Path, attachment: Attachment) -> str:
    path = folder / f"{uuid.uuid4().hex}{mimetypes.guess_extension(attachment.media_type) or ''}"
    path.write_bytes(attachment.data)
    return str(path)


F = TypeVar("F", bound=Callable[..., Any])

LINE_LIMIT: Final = 1024 * 1024 - 1
"""The longest line that a host reads by default."""


class HookToolOptions(TypedDict, total=False):
    """The options of ``@hook.tool``."""

    name: str | None
    description: str | None
    parameters: Mapping[str, Any] | None


class UnknownMethodError(LookupError):
    """The hook does not have the method."""


class Hook:
    """A hook in a process of its own. Decorate functions, then ``run``.

    The functions get the same views and return the same decisions (``Modify``, ``Respond``, ``DenyTool``, ...; None goes on)
    as the methods of an in-process hook. They may be async; others run in threads, so several may run at a time. The
    functions of one point run in order: each sees the changes of those before, and a decision that settles the matter is the
    last. An exception is reported to the host as a failure: it goes on without this hook, and an approver has denied.

    ``name`` is the hook's own; the host's configuration has another.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.tools: dict[str, HookTool] = {}
        self._handlers: dict[str, list[Callable[..., Any]]] = {point: [] for point in POINTS}
        self._observers: list[Callable[..., Any]] = []
        self._known_as = ""
        self._merges = False
        self._asks = True
        self._may_answer = True
        self.media_dir: Path | None = None
        """The host's folder for files, None if it has none and before hello."""
        self.line_limit = LINE_LIMIT
        """The longest line that the host reads, in bytes."""

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, **options: Unpack[HookToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: F | None = None, /, **options: Unpack[HookToolOptions]) -> F | Callable[[F], F]:
        """Offer a function to the model: as ``@hook.tool``, or as ``@hook.tool(name=...)``.

        Its name, docstring and annotations make the definition, unless ``description`` or ``parameters`` (a JSON Schema)
        do. It is given checked arguments, and may return a string, data, or a ToolOutput. Raises ConfigurationError for a second
        tool of a name.
        """

        def offer(function: F) -> F:
            tool = HookTool(function, **options)
            if tool.name in self.tools:
                raise ConfigurationError(f"This hook has a tool {tool.name!r} already.")
            self.tools[tool.name] = tool
            return function

        return offer if function is None else offer(function)

    def before_llm(self, function: F) -> F:
        """Call ``function(request)`` before each request to a model."""
        return self._register("before_llm", function)

    def after_llm(self, function: F) -> F:
        """Call ``function(response)`` with each answer of a model."""
        return self._register("after_llm", function)

    def before_tool(self, function: F) -> F:
        """Call ``function(call)`` before each call of any tool."""
        return self._register("before_tool", function)

    def after_tool(self, function: F) -> F:
        """Call ``function(result)`` with each result of a tool."""
        return self._register("after_tool", function)

    def approve_tool(self, function: F) -> F:
        """Call ``function(call)`` to approve a call: return True or ``Approval(True)``. All approvers must agree."""
        return self._register("approve_tool", function)

    def observer(self, function: F) -> F:
        """Call ``function(event)`` with each event, one after the other."""
        self._observers.append(_callable(function, "observer"))
        return function

    def run(self) -> None:
        """Serve the host on standard input and output until it closes them or sends SIGTERM.

        From then on ``print`` writes to standard error.
        """
        _serve(self)

    def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ``result`` of a request. Blocks; tests may call it without ``run``.

        Raises UnknownMethodError, and what the functions raise.
        """
        point = method.removeprefix("hook.")
        if method == "hook.hello":
            return self._hello(params)
        if method in ("hook.runtime_event", "hook.event"):
            self.observe(params)
            return {}
        if method != f"hook.{point}" or point not in self._handlers:
            raise UnknownMethodError(f"unknown method {method!r}")
        handlers = self._handlers[point]
        if point == "approve_tool" and not handlers:
            raise UnknownMethodError("this hook has no function for approve_tool")
        view = decode_params(point, params)
        TRACE.set(parse(params))  # of the hook's own tools
        if point == "approve_tool":
            return self._approval(handlers, view, params)
        decision = self._decision(handlers, view)
        if point == "before_tool" and (decision is None or isinstance(decision, Modify)):
            decision = self._own_response(view, params) or decision
        if point == "before_llm" and self.tools and self._may_answer and (decision is None or isinstance(decision, Modify)):
            decision = self._with_tools(view, decision)
        return encode_decision(point, decision, view, params, merges=self._merges, asks=self._asks)

    def asks(self, method: str) -> bool:
        """Return whether a request calls an author's function: others are answered at once."""
        point = method.removeprefix("hook.")
        return bool(self._handlers.get(point)) or (point == "before_tool" and bool(self.tools))

    def observe(self, params: Mapping[str, Any]) -> None:
        """Call the observers with an event. Raises what they raise."""
        if self._observers:
            event = decode_event(params)
            for function in self._observers:
                finished(function(event))

    def _register(self, point: str, function: F) -> F:
        self._handlers[point].append(_callable(function, point))
        return function

    def _hello(self, params: Mapping[str, Any]) -> dict[str, Any]:
        self._known_as = str(params.get("name") or "")
        self._merges = params.get("merges") is True
        self._asks = params.get("asks") is True
        limit = params.get("line_limit")
        folder = params.get("media_dir")
        self.media_dir = Path(folder) if isinstance(folder, str) and folder else None
        self.line_limit = limit if isinstance(limit, int) and limit > 0 else LINE_LIMIT
        modes = params.get("modes")
        self._may_answer = not modes or "tool" in modes
        result: dict[str, Any] = {"ok": True, "name": self.name or self._known_as}
        if self.tools and not self._may_answer:
            sys.stderr.write("patchbay: the tools of this hook are not offered: put before_tool into its 'intercept'\n")
        elif self.tools:
            result["tools"] = [tool.definition() for tool in self.tools.values()]
        return result

    def _decision(self, handlers: list[Callable[..., Any]], view: View) -> Any:
        """Call the functions in order, and merge their changes into one Modify."""
        changes: dict[str, Any] = {}
        for function in handlers:
            decision = finished(function(view))
            if decision is None or isinstance(decision, Continue):
                continue
            if not isinstance(decision, Modify):
                return decision
            made = decision.changes.changes() if isinstance(decision.changes, View) else decision.changes
            if not isinstance(made, Mapping):
                return decision
            changes |= made
            for name, value in made.items():
                setattr(view, name, value)
        return Modify(changes) if changes else None

    def _approval(self, handlers: list[Callable[..., Any]], view: View, params: Mapping[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = {"approved": False}
        for function in handlers:
            reply = encode_decision("approve_tool", finished(function(view)), view, params, merges=self._merges, asks=self._asks)
            if not reply["approved"]:
                break
        return reply

    def _own_response(self, view: Any, params: Mapping[str, Any]) -> Respond | None:
        """Return the result of this hook's own tool, None for another's."""
        tool = self.tools.get(view.tool)
        # A host that sends a tool's source also asks about other tools that share a name with one of ours.
        if tool is None or params.get("source", f"hook:{self._known_as}") != f"hook:{self._known_as}":
            return None
        output = tool.output(view.arguments, call_id=view.call_id, iteration=view.meta.iteration, media_dir=self.media_dir)
        return Respond(output)

    def _with_tools(self, view: Any, decision: Modify | None) -> Modify | None:
        """Add this hook's tools to a request if they are missing: old hosts do not take them from hello."""
        if view.graceful_terminal:
            return decision
        names = {tool.get("function", {}).get("name") for tool in view.tools}
        missing = [tool.definition() for name, tool in self.tools.items() if name not in names]
        if not missing:
            return decision
        return Modify({**(decision.changes if decision is not None else {}), "tools": [*view.tools, *missing]})


def _callable(function: F, what: str) -> F:
    if not callable(function):
        raise TypeError(f"@{what} marks functions, not {type(function).__name__}.")
    return function


_GRACE: Final = 1.5
"""Seconds that calls in progress may take after the host has closed our input; it waits two."""

_MAX_EVENTS: Final = 1000

_SMALLER: Final = "return an image or a file as a patchbay.Attachment, or set max_line_bytes in the hook's entry"

_MAX_MESSAGE: Final = 500
"""Characters of an error that are sent: the host shows no more."""


class _Server:
    """Serves one Hook: feed ``serve`` with lines; ``write`` gets each reply as a line, from any thread, one at a time."""

    def __init__(self, hook: Hook, write: Callable[[bytes], object]) -> None:
        self._hook = hook
        self._write = write
        self._lock = threading.Lock()
        self._idle = threading.Condition()
        self._running = 0
        self._events: queue.Queue[Mapping[str, Any]] = queue.Queue(_MAX_EVENTS)
        self._has_observer = False

    def serve(self, lines: Iterable[bytes]) -> None:
        """Answer requests to the end of the lines, then wait briefly for those in progress."""
        for line in lines:
            self._receive(line)
        with self._idle:
            self._idle.wait_for(lambda: self._running == 0, timeout=_GRACE)

    def _receive(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            _complain(f"a line that is not JSON: {error}")
            return
        if not isinstance(message, dict) or not isinstance(method := message.get("method"), str):
            _complain("a line that is not a request")
            return
        request_id, params = message.get("id"), message.get("params")
        if params is not None and not isinstance(params, dict):
            if request_id:
                self._reply(request_id, error=(INVALID_PARAMS, f"the params of {method} must be an object"))
            return
        params = params or {}
        if not request_id:
            self._handle_notification(method, params)
        elif self._hook.asks(method):
            with self._idle:
                self._running += 1
            try:
                start_in_thread(lambda: self._work(request_id, method, params))
            except RuntimeError:  # out of threads: answer here, and block
                self._work(request_id, method, params)
        else:
            self._answer(request_id, method, params)

    def _work(self, request_id: Any, method: str, params: Mapping[str, Any]) -> None:
        try:
            self._answer(request_id, method, params)
        except BaseException as error:  # noqa: BLE001  (sys.exit() ends the hook's thread, not the call)
            self._reply(request_id, error=(SERVER_ERROR, type(error).__name__))
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def _answer(self, request_id: Any, method: str, params: Mapping[str, Any]) -> None:
        try:
            self._reply(request_id, self._hook.answer(method, params))
        except UnknownMethodError as error:
            self._reply(request_id, error=(METHOD_NOT_FOUND, str(error)))
        except Exception as error:  # noqa: BLE001  (an author's function may raise anything)
            traceback.print_exc(file=sys.stderr)
            self._reply(request_id, error=(SERVER_ERROR, f"{type(error).__name__}: {error}"))

    def _reply(self, request_id: Any, result: Any = None, *, error: tuple[int, str] | None = None) -> None:
        payload: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id}
        if error is None:
            payload["result"] = result
        else:
            payload["error"] = {"code": error[0], "message": error[1][:_MAX_MESSAGE]}
        line = json.dumps(payload, allow_nan=False, separators=(",", ":")).encode()
        if len(line) > self._hook.line_limit and error is None:
            words = f"the answer has {len(line)} bytes, and the host reads {self._hook.line_limit}: {_SMALLER}"
            self._reply(request_id, error=(SERVER_ERROR, words))
            return
        with self._lock:
            try:
                self._write(line + b"\n")
            except OSError:
                pass  # the host is gone: our input will end too

    def _handle_notification(self, method: str, params: Mapping[str, Any]) -> None:
        if method not in ("hook.runtime_event", "hook.event"):
            return
        if not self._has_observer:
            self._has_observer = True
            start_in_thread(self._observe)
        try:
            self._events.put_nowait(params)
        except queue.Full:
            pass  # dropped, as at the host

    def _observe(self) -> None:
        while True:
            params = self._events.get()
            try:
                self._hook.observe(params)
            except BaseException:  # noqa: BLE001  (as above; sys.exit() ends this event alone)
                traceback.print_exc(file=sys.stderr)


def _serve(hook: Hook) -> None:
    """Serve a hook on the standard streams of the process."""
    if sys.stdin is not None and sys.stdin.isatty():
        sys.stderr.write("This is a hook: a host starts it and talks to it. To try it: patchbay hooks doctor COMMAND\n")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    requests, replies = _detach_streams()
    try:
        _Server(hook, lambda line: _write_all(replies, line)).serve(iter(requests.readline, b""))
    except KeyboardInterrupt:
        sys.exit(130)


def _detach_streams() -> tuple[BinaryIO, int]:
    """Return standard input and the descriptor of standard output, and detach them from the rest of the process.

    Output that is still buffered goes to standard error.
    """
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.flush()
    sys.stdout = sys.stderr
    reconfigure = getattr(sys.stderr, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    return requests, replies


def _write_all(descriptor: int, line: bytes) -> None:
    left = memoryview(line)
    while left:
        left = left[os.write(descriptor, left) :]


def _complain(words: str) -> None:
    sys.stderr.write(f"patchbay: the host sent {words}\n")
