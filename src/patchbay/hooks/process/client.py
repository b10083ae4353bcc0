"""ProcessHook: a hook in another process, with supervised restarts.

Beyond the contract's members a call carries ``call_id``, ``source``, ``endpoint``, ``annotations`` and, for approval,
``digest`` and ``facts``; a hook that does not know them ignores them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from patchbay._config import json_kind
from patchbay._ratelimit import LogRateLimiter
from patchbay._text import escape_controls
from patchbay._trace import trace_headers
from patchbay.hooks.process.child import HookProcess, HookProcessError, HookReplyError, ProcessSpec
from patchbay.hooks.process.protocol import META_NAMES, MODES, VERSION, encode_event, encode_messages, encode_output, encode_tools
from patchbay.hooks.process.replies import Findings, InvalidReplyError, parse_tools, read_decision
from patchbay.hooks.tools import tool_name
from patchbay.hooks.types import (
    Approval,
    Ask,
    Decision,
    Event,
    LLMRequest,
    LLMResponse,
    Modify,
    ToolRequest,
    ToolResultView,
)
from patchbay.types import ToolSpec


class WireMeta(msgspec.Struct, rename=META_NAMES):
    """``meta`` with all seven members."""

    agent_id: str
    turn_id: str
    parent_turn_id: str
    session_key: str
    iteration: int
    trace_path: str
    source: str


class Params(msgspec.Struct, kw_only=True):
    """The params of a request in the contract's order; members that are not set are left out."""

    meta: WireMeta
    context: Any = msgspec.UNSET
    channel: Any = msgspec.UNSET
    chat_id: Any = msgspec.UNSET
    model: Any = msgspec.UNSET
    messages: Any = msgspec.UNSET
    tools: Any = msgspec.UNSET
    options: Any = msgspec.UNSET
    graceful_terminal: Any = msgspec.UNSET
    response: Any = msgspec.UNSET
    tool: Any = msgspec.UNSET
    arguments: Any = msgspec.UNSET
    call_id: Any = msgspec.UNSET
    digest: Any = msgspec.UNSET
    facts: Any = msgspec.UNSET
    result: Any = msgspec.UNSET
    source: Any = msgspec.UNSET
    endpoint: Any = msgspec.UNSET
    annotations: Any = msgspec.UNSET
    duration: Any = msgspec.UNSET
    traceparent: Any = msgspec.UNSET
    tracestate: Any = msgspec.UNSET


def _common(view: Any, *, flat: bool) -> dict[str, Any]:
    """Return the members that every point has."""
    meta, context = view.meta, view.context
    members: dict[str, Any] = {"meta": WireMeta(**{name: getattr(meta, name) for name in META_NAMES}), **trace_headers()}
    if context:
        members["context"] = {name: value for name, value in context.items() if value}
        if flat and isinstance(inbound := context.get("inbound"), Mapping):
            members["channel"] = str(inbound.get("channel") or "")
            members["chat_id"] = str(inbound.get("chat_id") or "")
    return members


def _response(view: LLMResponse) -> dict[str, Any]:
    response: dict[str, Any] = {
        "content": view.content,
        "finish_reason": view.finish_reason,
        "reasoning": view.reasoning,
        "reasoning_details": None,
    }
    if view.tool_calls:
        response["tool_calls"] = view.tool_calls
    if any(view.usage.values()):
        response["usage"] = dict(view.usage)
    return response


_CALL: Final = ("tool", "arguments", "call_id", "source", "endpoint", "annotations")
_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "before_llm": ("model", "messages", "tools", "options", "graceful_terminal"),
    "after_llm": ("model", "response"),
    "before_tool": _CALL,
    "after_tool": ("tool", "arguments", "call_id", "result", "duration"),
    "approve_tool": (*_CALL, "digest", "facts"),
}
_ALWAYS: Final = frozenset({"meta", "model", "response", "tool", "result", "source", "duration"})
"""Members that are sent even if they are empty."""

_ENCODERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "messages": lambda view: encode_messages(view.messages),
    "tools": lambda view: encode_tools(view.tools),
    "response": _response,
    "result": lambda view: encode_output(view.result),
    "duration": lambda view: int(view.duration * 1e9),  # whole nanoseconds
}


def params_of(point: str, view: Any, *, flat: bool = False) -> dict[str, Any]:
    """Return the members of a request at a point; ``flat`` adds ``channel`` and ``chat_id``, as in hosts before 0.2.7."""
    members = {name: _ENCODERS[name](view) if name in _ENCODERS else getattr(view, name) for name in _MEMBERS[point]}
    return members | _common(view, flat=flat)


def encode_params(params: Mapping[str, Any]) -> Params:
    """Return the params of a request as they are sent."""
    return Params(**{name: value for name, value in params.items() if value or name in _ALWAYS})


State = Literal["not started", "running", "waiting to be started again", "given up", "closed"]

_logger = logging.getLogger(__name__)

_ENDED: Final = ("given up", "closed")
_MAX_FINDINGS_OF_ERROR: Final = 5
_MAX_LOGGED_FINDINGS: Final = 50


class ProcessHook:
    """The hook of a ProcessSpec: ``start`` it, mount it for its ``methods``, ``aclose`` it (the manager does).

    Runs its processes one after the other; ``restarts`` counts those after the first. ``tools`` are what the process offered in
    its answer to hello (policy P9). They are added to every request while the process runs or waits for a restart, even if it is
    not asked about requests or fails to answer; not if it answers too late.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.name = name = spec.name
        self.fail_closed = spec.fail_closed
        self.tools: tuple[ToolSpec, ...] = ()
        self.state: State = "not started"
        self.restarts = 0
        self._process: HookProcess | None = None
        self._latest: HookProcess | None = None
        self._why = "it was not started"
        self._watch: asyncio.Task[None] | None = None
        self._closing = asyncio.Lock()
        self._asks_llm = "llm" in spec.modes
        self._logged: set[tuple[str, str]] = set()
        printed = "The hook %r printed a line that is not a reply: %s"
        self._stray = LogRateLimiter(lambda text: _logger.warning(printed, name, escape_controls(text)))
        self._stderr = LogRateLimiter(lambda text: _logger.warning("[%s] %s", name, escape_controls(text)))

    @property
    def process(self) -> HookProcess:
        """The current process. Raises HookProcessError, with the reason, if there is none."""
        if self._process is None:
            raise HookProcessError(self._why)
        return self._process

    @property
    def pid(self) -> int:
        """The process id. Raises HookProcessError if there is no process."""
        return self.process.pid

    @property
    def running(self) -> HookProcess | None:
        """The current process if it can be notified, else None."""
        return self._process if self._process is not None and self._process.end is None else None

    async def start(self) -> None:
        """Start the process and say hello. Raises HookProcessError; there is no retry then."""
        self._refuse_if_closed()
        process = await self._started()
        self._refuse_if_closed()  # closed meanwhile, and that process with it
        self._process, self.state = process, "running"
        self._watch = asyncio.get_running_loop().create_task(self._keep_running(process))

    async def aclose(self) -> None:
        """End the process for good."""
        self.state, self._why = "closed", "it was closed"
        async with self._closing:  # a second caller waits too
            if self._watch is not None:
                self._watch.cancel()
                await asyncio.wait([self._watch])
            self._process = None
            if self._latest is not None:
                await self._latest.close()
            self._flush()

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to mount it for."""
        methods = self.spec.methods
        # A process of a tool hook, also a restarted one, may offer tools of its own.
        return ("before_llm", *methods) if "tool" in self.spec.modes and not self._asks_llm else methods

    async def before_llm(self, request: LLMRequest) -> Decision | None:
        """Send ``hook.before_llm``, and add the tools that the process offers."""
        own = [] if request.graceful_terminal or self.state in _ENDED else [tool.to_openai() for tool in self.tools]
        if own:
            names = {tool_name(tool) for tool in request.tools}
            own = [tool for tool in own if tool_name(tool) not in names]
        if own:
            request.tools = [*request.tools, *own]
        if not self._asks_llm:
            return Modify({"tools": request.tools}) if own else None
        try:
            decision: Decision | None = await self._ask("before_llm", request)
        except HookProcessError as error:
            if not own or self.fail_closed:
                raise
            # A failing hook is skipped; its tools stay on offer.
            _logger.warning("The hook %r failed at before_llm: %s", self.name, error)
            decision = None
        if own and (decision is None or (isinstance(decision, Modify) and "tools" not in decision.changes)):
            return Modify({**(decision.changes if decision is not None else {}), "tools": request.tools})
        return decision

    async def after_llm(self, response: LLMResponse) -> Decision | None:
        """Send ``hook.after_llm``."""
        decision: Decision | None = await self._ask("after_llm", response)
        return decision

    async def before_tool(self, call: ToolRequest) -> Decision | None:
        """Send ``hook.before_tool``."""
        decision: Decision | None = await self._ask("before_tool", call)
        return decision

    async def after_tool(self, result: ToolResultView) -> Decision | None:
        """Send ``hook.after_tool``."""
        decision: Decision | None = await self._ask("after_tool", result)
        return decision

    async def approve_tool(self, call: ToolRequest) -> Approval | Ask:
        """Send ``hook.approve_tool``."""
        decision: Approval | Ask = await self._ask("approve_tool", call)
        return decision

    async def on_runtime_event(self, event: Event) -> None:
        """Send an event that this hook observes, if the process runs."""
        kinds = self.spec.kinds
        if (kinds is None or event.kind in kinds) and (process := self.running) is not None:
            process.notify("hook.runtime_event", encode_event(event))

    async def _ask(self, point: str, view: Any) -> Any:
        """Send a request, and return the decision in its reply. Raises HookProcessError."""
        params = params_of(point, view, flat=self.spec.flat_context)
        result = await self.process.call(f"hook.{point}", encode_params(params))
        findings: Findings = {}
        try:
            decision = read_decision(point, result, findings, params, view)
        except (InvalidReplyError, RecursionError) as error:
            raise HookReplyError(f"its answer to hook.{point} is refused: {error}") from None
        if findings and (self.spec.strict or self.fail_closed):  # what is passed over may be what the hook meant
            words = "; ".join([*findings.values()][:_MAX_FINDINGS_OF_ERROR])
            raise HookReplyError(f"its answer to hook.{point} is refused: {words}")
        for about, words in findings.items():
            if len(self._logged) < _MAX_LOGGED_FINDINGS and (point, about) not in self._logged:
                self._logged.add((point, about))
                _logger.warning("The hook %r answered hook.%s oddly (logged once): %s", self.name, point, words)
        return decision

    def _refuse_if_closed(self) -> None:
        if self.state == "closed":
            raise HookProcessError(self._why)

    async def _started(self) -> HookProcess:
        process = self._latest = HookProcess(self.spec, stray=self._stray.log, stderr=self._stderr.log)
        limit = self.spec.limits.hello
        try:
            await process.start()
            try:
                async with asyncio.timeout(limit):
                    await self._greet(process)
            except TimeoutError:
                raise HookProcessError(f"hook.hello failed: no answer within {limit:g} s") from None
            except HookProcessError as error:
                raise HookProcessError(f"hook.hello failed: {error}") from None
        except HookProcessError as error:
            await process.close()  # its output is complete then
            output = f" ({escape_controls(process.last_words):.300})" if process.last_words else ""
            raise HookProcessError(f"{error}{output}") from None
        except BaseException:
            await process.close()
            raise
        return process

    async def _keep_running(self, process: HookProcess) -> None:
        """Replace the process whenever it ends; end it if the event loop ends without ``aclose``."""
        try:
            await self._restart_loop(process)
        finally:
            if self.state == "running" and self._latest is not None:
                self.state, self._process = "closed", None
                await self._latest.close()

    async def _restart_loop(self, process: HookProcess) -> None:
        """Restart the process each time it ends, until that has failed too often."""
        name, limits = self.name, self.spec.limits
        backoff, since = limits.backoff(), time.monotonic()
        while True:
            why = await process.ended()
            self._process, self._why = None, why
            await process.close()
            self._flush()
            lasted = time.monotonic() - since
            replaced: HookProcess | None = None
            while replaced is None:
                delay, lasted = backoff.fail(lasted=lasted), 0.0
                if backoff.is_exhausted:
                    self.state = "given up"
                    _logger.error("The hook %r has ended and is not started again: %s", name, why)
                    return
                self.state = "waiting to be started again"
                self._why = f"{why}; it is about to be started again"
                _logger.warning("The hook %r has ended: %s; it is started again in %.1f s", name, why, delay)
                await asyncio.sleep(delay)
                try:
                    replaced = await self._started()
                except HookProcessError as error:
                    why = str(error)
            process, since = replaced, time.monotonic()
            self.restarts += 1
            self._process, self.state = process, "running"

    def _flush(self) -> None:
        self._stray.flush()
        self._stderr.flush()

    async def _greet(self, process: HookProcess) -> None:
        result = await process.call("hook.hello", hello_params(self.spec))
        if result is not None and not isinstance(result, dict):
            raise HookReplyError(f"the result must be an object, not {json_kind(result)}")
        self.tools = self._offered(tools_of(result))

    def _offered(self, tools: Any) -> tuple[ToolSpec, ...]:
        """Return the tools in an answer to hello; invalid ones are left out with a warning."""
        if tools is None:
            return ()
        if "tool" not in self.spec.modes:
            _logger.warning(
                "The hook %r offers tools, but before_tool is not enabled for it, so their calls would have no answer", self.name
            )
            return ()
        offered, problems = parse_tools(tools)
        for problem in problems:
            _logger.warning("The hook %r offers an invalid tool: %s", self.name, problem)
        return offered


def tools_of(hello: dict[str, Any] | None) -> Any:
    """Return the ``tools`` in the answer to hello."""
    return next((each for name, each in (hello or {}).items() if name.lower() == "tools"), None)


def hello_params(spec: ProcessSpec) -> dict[str, Any]:
    """Return the params of ``hook.hello``."""
    hello: dict[str, Any] = {"name": spec.name, "version": VERSION}
    if modes := [mode for mode in MODES if mode in spec.modes]:
        hello["modes"] = modes
    # For our own SDK; others ignore these.
    hello |= {"merges": True, "asks": True, "line_limit": spec.limits.line}
    if spec.media_folder is not None:
        hello["media_dir"] = str(spec.media_folder)
    return hello
