"""The hooks of one turn: runs the chain of each point and applies the decisions.

A failing interceptor is skipped unless it fails closed; a failing approver denies.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from patchbay.errors import ToolArgumentsError, ToolDeniedError
from patchbay.hooks.calls import DecisionLog, PendingCall
from patchbay.hooks.deadlines import HookTimeoutError, HookWarnings, call_within
from patchbay.hooks.events import (
    NOTHING,
    NOTICEABLE,
    CallRecord,
    EventDispatcher,
    HookRecord,
    HookRecorder,
    Recorder,
    digest_of,
)
from patchbay.hooks.registered import (
    DENIED,
    Chains,
    InvalidDecisionError,
    InvalidOutputError,
    Link,
    RegisteredHook,
    as_text,
    changes_of,
    check_abort,
    copy_json_exactly,
    ends_without_calls,
    on_failure,
    on_wrong_answer,
    outcome_of,
    output_of,
    respond_with,
    unknown_answer,
    warn_of_failure,
)
from patchbay.hooks.tools import Injection, keeps_protected, keeps_system, merge_tools
from patchbay.hooks.types import (
    TRACE_PATHS,
    Approval,
    Ask,
    Continue,
    DenyTool,
    HookScope,
    LLMRequest,
    LLMResponse,
    Meta,
    Modify,
    Respond,
    Source,
    ToolRequest,
    ToolResultView,
    View,
)
from patchbay.tools.output import ToolOutput, as_output
from patchbay.types import NO_USAGE, Usage

_logger = logging.getLogger(__name__)

NOT_APPROVED: Final = "Tool execution denied by approval hook"
_DENIED_BY_PERSON: Final = "Tool execution denied by a person"

REQUEST, RESPONSE, BEFORE, APPROVE, AFTER = TRACE_PATHS.values()


class RequestHookView(Source, Protocol):
    """A request to a model under review by hooks."""

    def apply(self, changes: Mapping[str, Any], added: Sequence[Injection], /) -> None:
        """Change these members; ``added`` are new tools that a hook owns."""

    def owner_of(self, name: str, /) -> str | None:
        """Return the hook that added this tool, "" if no hook did, None if there is no such tool."""


class ResponseHookView(Source, Protocol):
    """A model's answer under review by hooks."""

    def apply(self, changes: Mapping[str, Any], /) -> None:
        """Change these members."""


class HookServices:
    """State that all turns of a manager share."""

    def __init__(self) -> None:
        self.events = EventDispatcher()
        self.warnings = HookWarnings()
        self.people: RegisteredHook | None = None
        """The approver that asks a person where a hook wants that, registered or not."""
        self.recorders: list[Recorder] = []
        """Each gets a record of every settled call, with or without hooks; their exceptions are logged."""
        self.hook_recorders: list[HookRecorder] = []
        """Each gets a record of every answer of a hook that took a while or decided something."""


class TurnHooks:
    """The hooks of one turn, as registered when it began. Safe for concurrent calls of the turn."""

    __slots__ = ("_meta", "chains", "iteration", "manager", "observed", "recorders", "scope", "usage")

    def __init__(self, chains: Chains, scope: HookScope, manager: HookServices) -> None:
        self.chains = chains
        self.scope = scope
        self.recorders = manager.recorders
        self.manager = manager
        self._meta: Meta | None = None  # that of this round's records
        self.observed = bool(chains.on_runtime_event)
        """Whether there are observers; check it before building a payload."""
        self.iteration = 0
        """The round of the last event that was of one."""
        self.usage: Usage = NO_USAGE
        """That of the last answer, for the records of its calls."""

    def emit(
        self,
        kind: str,
        trace_path: str,
        iteration: int,
        payload: Mapping[str, Any],
        *,
        severity: str = "info",
        attrs: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Emit an event to the observers, if any. The payload must not be changed afterwards."""
        if self.observed:
            self.iteration = iteration or self.iteration
            meta = self.scope.meta(trace_path, iteration)
            self.manager.events.emit(kind, meta, self.scope.context, payload, severity=severity, attrs=attrs)

    def record(
        self,
        iteration: int,
        call_id: str,
        tool: str,
        source: str,
        arguments: Mapping[str, Any],
        log: DecisionLog | None,
        code: str | None,
        result_chars: int,
        seconds: float,
    ) -> None:
        """Send the record of a settled call to the recorders (check ``recorders`` first); ``code`` is "" for success."""
        if (meta := self._meta) is None or meta.iteration != iteration:
            meta = self._meta = self.scope.meta(AFTER, iteration)
        digest = responded_by = ""
        decisions: tuple[tuple[str, str, str], ...] = ()
        if log is not None:
            digest, decisions, responded_by = log.digest, tuple(log.decisions), log.responded_by
        record = CallRecord(
            time.time(), meta, self.scope.context, call_id, tool, source, digest or digest_of(tool, arguments), decisions,
            responded_by, code != "", code or "", result_chars, seconds, self.usage.prompt_tokens, self.usage.completion_tokens,
        )  # fmt: skip
        for recorder in tuple(self.recorders):
            try:
                recorder(record)
            except Exception as error:  # noqa: BLE001  (a recorder's failure is not the call's)
                self.manager.warnings.warn("The recorder %r failed", recorder, kind=repr(recorder), error=error)

    # The points. Each raises HookAbortError, and what a program's own callback raises.

    async def before_llm(self, request: RequestHookView) -> Any:
        """Run the hooks before a request; their changes go into it.

        Returns what a program's own callback answers in the model's place, None if the model is to be called.
        """
        policy = self.chains.policy
        for hook, method in self.chains.before_llm:
            if hook.native:
                if (given := await self._timed(hook, "before_llm", method(request))) is not None:
                    return given
                continue
            changes = await self._changes(hook, "before_llm", method, LLMRequest(request, REQUEST))
            if not changes:
                continue
            if not policy.edit_system and not keeps_system(request.member("messages", REQUEST), changes.get("messages")):
                hook.warn("changed a system message: the messages stay as they were")
                del changes["messages"]
            added: tuple[Injection, ...] = ()
            if request.member("graceful_terminal", REQUEST):
                changes.pop("tools", None)  # not worth a warning: a hook may add its tools to every request
            elif "tools" in changes:
                tools = request.member("tools", REQUEST)
                changes["tools"], added = merge_tools(hook, policy, tools, changes["tools"], owner_of=request.owner_of)
            request.apply(changes, added)
        return None

    async def after_llm(self, response: ResponseHookView) -> None:
        """Run the hooks on a model's answer; their changes go into it."""
        for hook, method in self.chains.after_llm:
            if hook.native:
                await self._timed(hook, "after_llm", method(response))
                continue
            changes = await self._changes(hook, "after_llm", method, LLMResponse(response, RESPONSE))
            if ends_without_calls(changes) and changes["finish_reason"] != response.member("finish_reason", RESPONSE):
                changes["tool_calls"] = []
            written = changes.get("tool_calls")
            if written is not None and not keeps_protected(self.chains.policy, response.member("tool_calls", RESPONSE), written):
                hook.warn("wrote calls of protected tools: the calls stay as they were")
                del changes["tool_calls"]
            if changes:
                response.apply(changes)

    async def before_tool(self, call: PendingCall) -> ToolOutput | None:
        """Run the hooks before a call; their changes go into it.

        Returns a hook's output in the tool's place, None if the tool is to run. Raises ToolDeniedError, and what a change raises.
        """
        for hook, method in self.chains.before_tool:
            if hook.name == call.tool.owner or hook.ignores(call.tool.name):
                continue  # the owner answers when the tool runs
            decision = await self._decision(hook, "before_tool", method, ToolRequest(call, BEFORE), call)
            if isinstance(decision, DenyTool):
                reason = as_text(decision.reason)
                call.log.add(hook.name, "before_tool", "denied", reason)
                raise ToolDeniedError(DENIED, reason, tool_name=call.tool.name, by=hook.name)
            if isinstance(decision, Ask):
                call.request_human(hook.name, "before_tool", as_text(decision.reason))
            elif isinstance(decision, Respond):
                if (output := await self._response(hook, decision, call)) is not None:
                    return output
            elif decision is not None:
                await self._change_call(hook, decision, call)
        return None

    async def after_tool(self, call: PendingCall, value: Any) -> Any:
        """Run the hooks on a tool's value; return it as they changed it."""
        for hook, method in self.chains.after_tool:
            if hook.ignores(call.tool.name):
                continue
            if hook.native:
                asked = method(call.call, call.tool, call.arguments, call.context, value)
                given = await self._timed(hook, "after_tool", asked, call)
                value = value if given is None else given
                continue
            changes = await self._changes(hook, "after_tool", method, ToolResultView(call, AFTER, value), call)
            if "result" not in changes:
                continue
            if self.chains.policy.protects(call.tool.name):
                hook.warn("changed the result of the protected tool %r: it stays", call.tool.name, kind=call.tool.name)
                continue
            before = as_output(value)
            try:
                after = output_of(hook, before, changes["result"])
            except InvalidOutputError as error:
                on_wrong_answer(hook, "after_tool", error, call)
                continue
            if after != before:
                call.log.add(hook.name, "after_tool", "changed the result")
                value = after
        return value

    async def approve(self, call: PendingCall, *, may_edit: bool = True) -> None:
        """Ask the approvers about exactly this call. Raises ToolDeniedError at the first denial, and what finding facts raises.

        An approver may change the arguments once; those that approved before are then asked again.
        """
        approvers = [link for link in self.chains.approve_tool if not link[0].ignores(call.tool.name)]
        if not approvers and not call.needs_human:
            return
        await self._find_facts(call)
        call.log.approvers = tuple(hook.name for hook, _ in approvers)
        people = self.manager.people
        not_yet_asked = people is None or all(hook.hook is not people.hook for hook, _ in approvers)
        approved: list[Link] = []
        while approvers:
            hook, method = approvers.pop(0)
            if await self._approve_by(hook, method, call, may_edit=may_edit and not call.log.edited):
                approvers, approved = [*approvers, *approved], []
                await self._find_facts(call)
            else:
                approved.append((hook, method))
        if not call.needs_human or not not_yet_asked:
            return  # the people's approver was in the chain
        if people is None:
            who, why = call.log.asks[0]
            reason = f"the hook {who!r} wants a person to decide{f' ({why})' if why else ''}, and no person can be asked here"
            raise ToolDeniedError(NOT_APPROVED, reason, tool_name=call.tool.name, by=who)
        if await self._approve_by(people, people.methods["approve_tool"], call, may_edit=may_edit and not call.log.edited):
            await self._find_facts(call)
            for hook, method in approved:
                await self._approve_by(hook, method, call, may_edit=False)

    async def _find_facts(self, call: PendingCall) -> None:
        """Look up the facts about the call, and compute the digest that approvals are bound to."""
        if call.tool.facts is not None:
            call.log.facts = await call.find_facts()
        log = call.log
        log.digest = digest_of(call.tool.name, call.json_arguments, log.facts or {})

    async def _approve_by(self, hook: RegisteredHook, method: Any, call: PendingCall, *, may_edit: bool) -> bool:
        """Ask one approver; return whether it changed the arguments. Raises ToolDeniedError."""
        with call.paused():
            answer = await self._approval(hook, method, call)
        if isinstance(answer, Ask):
            call.request_human(hook.name, "approve_tool", as_text(answer.reason))
            return False
        by = answer.by or hook.name
        call.log.add(by, "approve_tool", "approved" if answer.approved else "denied", answer.reason)
        if not answer.approved:
            denied = _DENIED_BY_PERSON if answer.by_person else NOT_APPROVED
            raise ToolDeniedError(denied, answer.reason, tool_name=call.tool.name, by=by)
        return answer.arguments is not None and self._edited(call, answer.arguments, by, may_edit=may_edit)

    def _edited(self, call: PendingCall, arguments: Any, by: str, *, may_edit: bool) -> bool:
        """Apply the arguments of an approval. Raises ToolDeniedError if they do not fit or may not change."""
        before = json.dumps(call.json_arguments)
        try:
            if not call.change({"arguments": copy_json_exactly(dict(arguments))}):
                return False
        except (ToolArgumentsError, InvalidDecisionError, TypeError, ValueError) as error:
            reason = f"the arguments that {by} approved do not fit the tool: {error}"
            raise ToolDeniedError(NOT_APPROVED, reason, tool_name=call.tool.name, by=by) from error
        call.log.add(by, "approve_tool", f"edited the arguments: {before:.450} became {json.dumps(call.json_arguments):.450}")
        if not may_edit:
            reason = "its arguments were edited when another had answered or edited it already"
            raise ToolDeniedError(NOT_APPROVED, reason, tool_name=call.tool.name, by=by)
        call.log.edited = True
        return True

    # One hook

    def _timed(self, hook: RegisteredHook, point: str, asked: Awaitable[Any], call: PendingCall | None = None) -> Awaitable[Any]:
        """Return what ``asked`` returns or raises, for a HookRecord if anything wants one."""
        return self._recorded(hook, point, asked, call) if self.manager.hook_recorders else asked

    async def _recorded(self, hook: RegisteredHook, point: str, asked: Awaitable[Any], call: PendingCall | None) -> Any:
        began = time.perf_counter()
        try:
            answer = await asked
        except BaseException as error:
            self._record_hook(hook, point, began, error, call)
            raise
        if answer is not None or point == "approve_tool" or time.perf_counter() - began >= NOTICEABLE:
            self._record_hook(hook, point, began, answer, call)
        return answer

    def _record_hook(self, hook: RegisteredHook, point: str, began: float, answer: Any, call: PendingCall | None) -> None:
        seconds = time.perf_counter() - began
        decision, reason = outcome_of(hook, point, answer)
        if not decision and seconds < NOTICEABLE:
            return
        tool, call_id = (call.tool.name, call.call.id) if call is not None else ("", "")
        record = HookRecord(hook.name, point, time.time() - seconds, seconds, decision, reason, tool, call_id)
        for recorder in self.manager.hook_recorders:
            recorder(self.scope, record)

    async def _decision(
        self, hook: RegisteredHook, point: str, method: Callable[..., Any], view: View, call: PendingCall | None = None
    ) -> Any:
        """Return a hook's decision, None for "go on" and for a failure that is skipped.

        Raises HookAbortError, and what ``on_failure`` raises for a hook that fails closed.
        """
        try:
            answer = await self._timed(hook, point, call_within(hook.timeouts.interceptor, method, view), call)
        except Exception as error:  # noqa: BLE001  (a hook may raise anything)
            on_failure(hook, point, error, call)
            return None
        if answer is None or isinstance(answer, Continue):
            return None
        check_abort(hook, point, answer)
        if not isinstance(answer, _DECISIONS[point]):
            on_wrong_answer(hook, point, unknown_answer(answer), call)
            return None
        return answer

    async def _changes(
        self, hook: RegisteredHook, point: str, method: Callable[..., Any], view: View, call: PendingCall | None = None
    ) -> dict[str, Any]:
        decision = await self._decision(hook, point, method, view, call)
        if decision is None:
            return {}
        try:
            return changes_of(hook, decision, type(view))
        except InvalidDecisionError as error:
            on_wrong_answer(hook, point, error, call)
            return {}

    async def _change_call(self, hook: RegisteredHook, decision: Modify, call: PendingCall) -> None:
        try:
            changes = changes_of(hook, decision, ToolRequest)
        except InvalidDecisionError as error:
            on_wrong_answer(hook, "before_tool", error, call)
            return
        name, policy = call.tool.name, self.chains.policy
        if (other := changes.get("tool", name)) != name:
            if policy.protects(name) or policy.protects(other):
                hook.warn("made a call of %r one of %r, and one of them is protected: it stays", name, other, kind=name)
                call.log.add(hook.name, "before_tool", f"made it a call of {other!r}: passed over")
                return
            # The owner of the other tool will answer in this tool's place.
            if (owner := call.owner_of(other)) and owner != call.tool.owner and policy.respond_approval != "never":
                await self.approve(call, may_edit=False)
        if changed := call.change(changes):
            call.log.add(hook.name, "before_tool", f"changed {' and '.join(changed)}")

    async def _approval(self, hook: RegisteredHook, method: Any, call: PendingCall) -> Approval | Ask:
        people, asked = self.manager.people, call_within(hook.timeouts.approval, method, ToolRequest(call, APPROVE))
        asks_people = hook.native or (people is not None and people.hook is hook.hook)  # approvals have records of their own
        try:
            answer = await (asked if asks_people else self._timed(hook, "approve_tool", asked, call))
        except HookTimeoutError:
            return Approval(approved=False, reason=f'tool approval hook "{hook.name}" timed out')
        except Exception as error:  # noqa: BLE001  (approvers fail closed)
            warn_of_failure(hook, "approve_tool", error)
            return Approval(approved=False, reason=f'tool approval hook "{hook.name}" failed')
        if isinstance(answer, Ask):
            return answer
        if isinstance(answer, Approval):
            return Approval(
                answer.approved is True, as_text(answer.reason), as_text(answer.by), answer.arguments, answer.by_person is True
            )
        if answer is not None and not isinstance(answer, bool):
            hook.warn("answered approve_tool wrongly: %s", unknown_answer(answer))
        return Approval(answer is True)

    async def _response(self, hook: RegisteredHook, decision: Respond, call: PendingCall) -> ToolOutput | None:
        """Return a hook's answer for a tool that is not its own, if it may give one. Raises ToolDeniedError."""
        policy = self.chains.policy
        tool = call.tool.name
        if policy.protects(tool):
            hook.warn("answered a call of the protected tool %r: passed over", tool, kind=tool)
            call.log.add(hook.name, "before_tool", "answered for a protected tool: passed over")
            return None
        try:
            output = respond_with(hook, decision)
        except InvalidOutputError as error:
            on_wrong_answer(hook, "before_tool", error, call, is_response=True)
            return None
        if policy.respond_approval != "never" or call.needs_human:
            await self.approve(call, may_edit=False)
        _logger.info("The hook %r has answered a call of the tool %r in its place", hook.name, tool)
        call.log.responded_by = hook.name
        call.log.add(hook.name, "before_tool", "answered")
        return output


_DECISIONS: Final[Mapping[str, Any]] = {
    "before_llm": Modify,
    "after_llm": Modify,
    "before_tool": (Modify, Respond, DenyTool, Ask),
    "after_tool": Modify,
}
