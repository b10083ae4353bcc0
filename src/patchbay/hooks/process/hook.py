"""A hook that is another process: the methods of every hook, each a request and its reply.

What lives here: which params a method sends and which decision its reply is. What does not: who is asked when, for how long, and
what a failure means (``patchbay.hooks.turn``); the process itself (``supervisor``, ``child``).
"""

from __future__ import annotations

import logging
from typing import Any

from patchbay.hooks.decisions import Approval, Ask, Decision, Modify
from patchbay.hooks.process import answers, params
from patchbay.hooks.process.child import HookProcess
from patchbay.hooks.process.envelope import enveloped
from patchbay.hooks.process.errors import HookProcessError, HookReplyError
from patchbay.hooks.process.offers import read_offers
from patchbay.hooks.process.shapes import Findings, WrongTypeError, kind_of
from patchbay.hooks.process.spec import MODES, ProcessSpec
from patchbay.hooks.process.supervisor import State, Supervisor
from patchbay.hooks.views import Event, LLMRequest, LLMResponse, ToolRequest, ToolResultView
from patchbay.types import ToolSpec

VERSION = 1
"""Of the protocol."""

_OVER = ("given up", "closed")
_MOST_AT_ONCE = 5
_MOST_ODDITIES = 50
"""How much that is odd about a hook's answers is told, in one error and altogether."""

_logger = logging.getLogger(__name__)


class ProcessHook:
    """The hook of a ProcessSpec: ``start`` it, mount it for its ``methods``, ``aclose`` it (the manager does).

    ``tools`` are those that the process has offered in its answer to hello (policy P9). They are added to each request, also
    where the process is not asked about requests or fails to answer, for as long as it runs or is to be started again. Where it
    answers too late they are not: then nothing of what it does counts. Whether it fails closed its spec says, and mounting it
    goes by that.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.tools: tuple[ToolSpec, ...] = ()
        self._around = params.Around(flat=spec.flat_context)
        self._asks_llm = "llm" in spec.modes
        self._told: set[tuple[str, str]] = set()
        self._supervisor = Supervisor(spec, self._greet)

    @property
    def name(self) -> str:
        """The hook's name."""
        return self.spec.name

    @property
    def fail_closed(self) -> bool:
        """Whether its failures are a no."""
        return self.spec.fail_closed

    @property
    def state(self) -> State:
        """How its process is."""
        return self._supervisor.state

    @property
    def restarts(self) -> int:
        """How often its process was started again."""
        return self._supervisor.restarts

    @property
    def pid(self) -> int:
        """The id of its process. Raises HookProcessError where there is none."""
        return self._supervisor.process.pid

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that it is to be mounted for."""
        methods = self.spec.methods
        # Of a hook that is for tools any process, also a later one, may offer some of its own.
        return ("before_llm", *methods) if "tool" in self.spec.modes and not self._asks_llm else methods

    async def start(self) -> None:
        """Start the process and say hello. Raises HookProcessError."""
        await self._supervisor.start()

    async def aclose(self) -> None:
        """End the process."""
        await self._supervisor.aclose()

    async def before_llm(self, request: LLMRequest) -> Decision | None:
        """Ask ``hook.before_llm``, and add the tools that the process has offered."""
        own = [] if request.graceful_terminal or self.state in _OVER else [tool.to_openai() for tool in self.tools]
        if own:
            names = {_name_of(tool) for tool in request.tools}
            own = [tool for tool in own if _name_of(tool) not in names]
        if own:
            request.tools = [*request.tools, *own]
        if not self._asks_llm:
            return Modify({"tools": request.tools}) if own else None
        try:
            decision = await self._about_request(request)
        except HookProcessError as error:
            if not own or self.fail_closed:
                raise
            # It has no say in this request, as any hook that fails; what it has offered it has offered.
            _logger.warning("The hook %r failed at before_llm: %s", self.name, error)
            decision = None
        if own and (decision is None or (isinstance(decision, Modify) and "tools" not in decision.changes)):
            return Modify({**(decision.changes if decision is not None else {}), "tools": request.tools})
        return decision

    async def _about_request(self, request: LLMRequest) -> Decision | None:
        asked = params.llm_request(request, self._around)
        shown = {"model": asked.model, "messages": asked.messages, "tools": asked.tools, "options": asked.options}
        answer, findings = await self._ask("before_llm", asked, shown)
        decision: Decision | None = answers.llm_decision(answer, findings, request, shown)
        self._tell("before_llm", findings)
        return decision

    async def after_llm(self, response: LLMResponse) -> Decision | None:
        """Ask ``hook.after_llm``."""
        asked = params.llm_response(response, self._around)
        answer, findings = await self._ask("after_llm", asked)
        decision: Decision | None = answers.response_decision(answer, findings, asked.response)
        self._tell("after_llm", findings)
        return decision

    async def before_tool(self, call: ToolRequest) -> Decision | None:
        """Ask ``hook.before_tool``."""
        asked = params.tool_call(call, self._around)
        answer, findings = await self._ask("before_tool", asked)
        decision: Decision | None = answers.call_decision(answer, findings, {"tool": asked.tool, "arguments": asked.arguments})
        self._tell("before_tool", findings)
        return decision

    async def after_tool(self, result: ToolResultView) -> Decision | None:
        """Ask ``hook.after_tool``."""
        asked = params.tool_result(result, self._around)
        answer, findings = await self._ask("after_tool", asked)
        decision: Decision | None = answers.result_decision(answer, findings, asked.result)
        self._tell("after_tool", findings)
        return decision

    async def approve_tool(self, call: ToolRequest) -> Approval | Ask:
        """Ask ``hook.approve_tool``."""
        asked = params.tool_call(call, self._around, digest=call.digest, facts=call.facts)
        answer, findings = await self._ask("approve_tool", asked)
        self._tell("approve_tool", findings)
        return answers.approval(answer)

    async def on_runtime_event(self, event: Event) -> None:
        """Tell of an event, if it is of a kind that this hook observes, and its process is there."""
        kinds = self.spec.kinds
        if (kinds is None or event.kind in kinds) and (process := self._supervisor.running) is not None:
            process.tell("hook.runtime_event", enveloped(event))

    async def _ask(self, point: str, asked: Any, shown: Any = None) -> tuple[dict[str, Any], Findings]:
        result = await self._supervisor.process.call(f"hook.{point}", asked)
        findings = Findings()
        try:
            return answers.read_answer(point, result, findings, shown=shown), findings
        except WrongTypeError as error:
            raise HookReplyError(f"its answer to hook.{point} is refused: {error}") from None

    def _tell(self, point: str, findings: Findings) -> None:
        """Log what was odd about a reply, each thing once.

        Raises HookReplyError instead where the hook is to be strict; where it fails closed, for what was meant and has no effect.
        """
        if not findings.found:
            return
        refused = findings.found if self.spec.strict else findings.lost if self.fail_closed else ()
        if refused:
            words = "; ".join([words for about, words in findings if about in refused][:_MOST_AT_ONCE])
            raise HookReplyError(f"its answer to hook.{point} is refused: {words}")
        for about, words in findings:
            if len(self._told) < _MOST_ODDITIES and (point, about) not in self._told:
                self._told.add((point, about))
                _logger.warning("The hook %r answered hook.%s oddly (told once): %s", self.name, point, words)

    async def _greet(self, process: HookProcess) -> None:
        result = await process.call("hook.hello", hello_params(self.spec))
        if result is not None and not isinstance(result, dict):
            raise HookReplyError(f"the result must be an object, not {kind_of(result)}")
        self.tools = self._offered(tools_of(result))

    def _offered(self, tools: Any) -> tuple[ToolSpec, ...]:
        """Return the tools of a hello; what is none is left out with a warning."""
        if tools is None:
            return ()
        if "tool" not in self.spec.modes:
            _logger.warning("The hook %r offers tools, but is not asked before_tool, so nobody would answer them", self.name)
            return ()
        offered, problems = read_offers(tools)
        for problem in problems:
            _logger.warning("The hook %r offers a tool that is none: %s", self.name, problem)
        return offered


def tools_of(hello: dict[str, Any] | None) -> Any:
    """Return what stands as ``tools`` in the answer to hello."""
    return next((each for name, each in (hello or {}).items() if name.lower() == "tools"), None)


def hello_params(spec: ProcessSpec) -> dict[str, Any]:
    """Return the params of ``hook.hello``."""
    hello: dict[str, Any] = {"name": spec.name, "version": VERSION}
    if modes := [mode for mode in MODES if mode in spec.modes]:
        hello["modes"] = modes
    # What our own SDK wants to know of its host; others pass it over.
    hello |= {"merges": True, "asks": True, "line_limit": spec.limits.line}
    if spec.media_folder is not None:
        hello["media_dir"] = str(spec.media_folder)
    return hello


def _name_of(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
