"""One turn's hooks: who is asked at each point, and what becomes of what they answer.

Interceptors that fail are passed over (the turn goes on as if they were not there) unless they fail closed (``failing``);
approvers that fail have said no. What a hook may not do is undone and logged; what it decides that a point does not know is
passed over with all that came with it.

Nearly all hooks let nearly everything go, at once. So a chain is walked without a coroutine of its own until a hook has something
to say, or has to wait: the methods for the four points of interceptors return None where all let it go, and else what is to be
awaited.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from patchbay.errors import HookAbortError, ToolArgumentsError, ToolDeniedError
from patchbay.hooks.answers import WrongAnswerError, changes_of, ends_without_calls, own
from patchbay.hooks.asked import Asked, Trail
from patchbay.hooks.bounded import Failed, HookTimeoutError, Waiting, failed, first_step, within
from patchbay.hooks.chains import Chains, Link, Mounted
from patchbay.hooks.decisions import AbortTurn, Approval, Ask, Continue, DenyTool, HardAbort, Modify, Respond
from patchbay.hooks.digest import digest_of
from patchbay.hooks.events import NOTHING
from patchbay.hooks.failing import (
    DENIED,
    has_answered_what_is_not_known,
    has_answered_wrongly,
    has_failed,
    log_class,
    log_failure,
)
from patchbay.hooks.injection import Injection, injected, keeps_protected, keeps_system
from patchbay.hooks.records import CallRecord, Recorder
from patchbay.hooks.results import NoOutputError, output_of, respond_with
from patchbay.hooks.scope import HookScope
from patchbay.hooks.views import LLMRequest, LLMResponse, Meta, Source, ToolRequest, ToolResultView, View
from patchbay.tools.output import ToolOutput, as_output

if TYPE_CHECKING:
    from patchbay.hooks.manager import HookManager

_logger = logging.getLogger(__name__)

NOT_APPROVED: Final = "Tool execution denied by approval hook"

REQUEST: Final = "turn.llm.request"
RESPONSE: Final = "turn.llm.response"
BEFORE: Final = "turn.tool.before"
APPROVE: Final = "turn.tool.approve"
AFTER: Final = "turn.tool.after"

Going: TypeAlias = Awaitable[Any] | None
"""None: all let it go. Else what is to be awaited, now."""


class AskedRequest(Source, Protocol):
    """A request to a model while hooks are asked about it."""

    def take(self, changes: Mapping[str, Any], added: Sequence[Injection], /) -> None:
        """Change these members; ``added`` are tools that are a hook's own, from now on."""

    def owner_of(self, name: str, /) -> str | None:
        """Return the hook that has added the tool of this name, "" for one that no hook has; None where there is no such tool."""


class AskedReply(Source, Protocol):
    """A model's answer while hooks are asked about it."""

    def take(self, changes: Mapping[str, Any], /) -> None:
        """Change these members."""


class TurnHooks:
    """The hooks of one turn, as they were mounted when it began. Usable by the calls of a turn side by side."""

    __slots__ = ("_meta", "chains", "manager", "observed", "recorders", "scope")

    def __init__(self, chains: Chains, scope: HookScope, manager: HookManager | None = None) -> None:
        self.chains = chains
        self.scope = scope
        self.manager = manager
        self.recorders: Sequence[Recorder] = manager.recorders if manager is not None else ()
        self._meta: Meta | None = None  # that of this round's records
        self.observed = bool(chains.on_runtime_event)
        """Whether anybody is told of what happens: to be asked before a payload is made."""

    def tell(
        self,
        kind: str,
        trace_path: str,
        iteration: int,
        payload: Mapping[str, Any],
        *,
        severity: str = "info",
        attrs: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Tell the observers, if there are any. The payload is theirs then."""
        if self.manager is not None and self.observed:
            meta = self.scope.meta(trace_path, iteration)
            self.manager.events.tell(kind, meta, self.scope.context, payload, severity=severity, attrs=attrs)

    def record(
        self,
        iteration: int,
        call_id: str,
        tool: str,
        source: str,
        arguments: Mapping[str, Any],
        trail: Trail | None,
        code: str | None,
        result_chars: int,
        seconds: float,
    ) -> None:
        """Have a call that has settled written down (ask ``recorders`` first); ``code`` is "" for one that went well."""
        if (meta := self._meta) is None or meta.iteration != iteration:
            meta = self._meta = self.scope.meta(AFTER, iteration)
        digest = responded_by = ""
        decisions: tuple[tuple[str, str, str], ...] = ()
        if trail is not None:
            digest, decisions, responded_by = trail.digest, tuple(trail.decisions), trail.responded_by
        record = CallRecord(
            time.time(), meta, self.scope.context, call_id, tool, source, digest or digest_of(tool, arguments), decisions,
            responded_by, code != "", code or "", result_chars, seconds,
        )  # fmt: skip
        for recorder in tuple(self.recorders):
            try:
                recorder(record)
            except Exception as error:  # noqa: BLE001  (it only writes down: what it raises is not the call's doing)
                assert self.manager is not None  # whose recorders they are
                self.manager.complaints.say("The recorder %r failed", recorder, kind=repr(recorder), error=error)

    # The points. Each raises HookAbortError, and what a program's own callback raises.

    def before_llm(self, asked: AskedRequest) -> Going:
        """Ask about a request; what hooks change goes into it.

        Awaited is what a program's own callback answers in the model's place, None where the model is to be asked.
        """
        links = self.chains.before_llm
        for each, ask in links:
            answer = None if each.native else first_step(ask, LLMRequest(asked, REQUEST))
            if answer is not None or each.native:
                return self._before_llm(asked, _from(each, links), answer)
        return None

    def after_llm(self, asked: AskedReply) -> Going:
        """Ask about a model's answer; what hooks change goes into it."""
        links = self.chains.after_llm
        for each, ask in links:
            answer = None if each.native else first_step(ask, LLMResponse(asked, RESPONSE))
            if answer is not None or each.native:
                return self._after_llm(asked, _from(each, links), answer)
        return None

    def before_tool(self, asked: Asked) -> Going:
        """Ask about a call; what hooks change goes into it.

        Awaited is the answer of a hook in the tool's place, a ToolOutput; None where the tool is to run. Raises ToolDeniedError,
        and what a change raises.
        """
        links = self.chains.before_tool
        owner = asked.tool.owner
        for each, ask in links:
            if owner and each.name == owner:
                continue  # it is asked when the tool runs
            if each.tools and each.ignores(asked.tool.name):
                continue
            answer: Any
            try:  # as first_step does: a call that costs as much as all else here
                begun = ask(ToolRequest(asked, BEFORE))
                answer = Waiting(begun, begun.send(None))
            except StopIteration as end:
                if end.value is None:
                    continue
                answer = end.value
            except BaseException as error:  # noqa: BLE001  (as there)
                answer = failed(error)
            return self._before_tool(asked, _from(each, links), answer)
        return None

    def after_tool(self, asked: Asked, value: Any) -> Going:
        """Ask about a tool's value. Awaited is what hooks make of it."""
        links = self.chains.after_tool
        for each, ask in links:
            if each.tools and each.ignores(asked.tool.name):
                continue
            answer: Any = None
            if not each.native:
                try:
                    begun = ask(ToolResultView(asked, AFTER, value))
                    answer = Waiting(begun, begun.send(None))
                except StopIteration as end:
                    if end.value is None:
                        continue
                    answer = end.value
                except BaseException as error:  # noqa: BLE001
                    answer = failed(error)
            return self._after_tool(asked, value, _from(each, links), answer)
        return None

    async def approve(self, asked: Asked, *, may_edit: bool = True) -> None:
        """Ask the approvers about exactly this call. Raises ToolDeniedError with the first no, and what finding facts raises.

        Where one of them changes the arguments, which it may once, those who have said yes before are asked again.
        """
        approvers = [link for link in self.chains.approve_tool if not link[0].ignores(asked.tool.name)]
        if not approvers and not asked.needs_person:
            return
        await self._bind(asked)
        asked.decided.approvers = tuple(each.name for each, _ in approvers)
        people = self.manager.people if self.manager is not None else None
        needs_people = people is None or all(each.hook is not people.hook for each, _ in approvers)
        said_yes: list[Link] = []
        while approvers:
            each, ask = approvers.pop(0)
            if await self._approve_by(each, ask, asked, may_edit=may_edit and not asked.decided.edited):
                approvers, said_yes = [*approvers, *said_yes], []
                await self._bind(asked)
            else:
                said_yes.append((each, ask))
        if not asked.needs_person or not needs_people:
            return  # that one was asked last
        if people is None:
            who, why = asked.decided.asks[0]
            reason = f"the hook {who!r} wants a person to decide{f' ({why})' if why else ''}, and no person can be asked here"
            raise ToolDeniedError(NOT_APPROVED, reason, tool_name=asked.tool.name, by=who)
        if await self._approve_by(people, people.asked["approve_tool"], asked, may_edit=may_edit and not asked.decided.edited):
            await self._bind(asked)
            for each, ask in said_yes:
                await self._approve_by(each, ask, asked, may_edit=False)

    async def _bind(self, asked: Asked) -> None:
        """Find the facts about a call as it is now, and the digest that approvals of it are bound to."""
        if asked.tool.facts is not None:
            asked.decided.facts = await asked.find_facts()
        asked.digest()

    async def _approve_by(self, each: Mounted, ask: Any, asked: Asked, *, may_edit: bool) -> bool:
        """Ask one approver; return whether it has changed the arguments. Raises ToolDeniedError."""
        with asked.paused():
            said = await self._approval(each, ask, ToolRequest(asked, APPROVE))
        if isinstance(said, Ask):
            asked.ask_person(each.name, "approve_tool", _words(said.reason))
            return False
        by = said.by or each.name
        asked.decided.note(by, "approve_tool", "approved" if said.approved else "denied", said.reason)
        if not said.approved:
            raise ToolDeniedError(NOT_APPROVED, said.reason, tool_name=asked.tool.name, by=by)
        return said.arguments is not None and self._edited(asked, said.arguments, by, may_edit=may_edit)

    def _edited(self, asked: Asked, arguments: Any, by: str, *, may_edit: bool) -> bool:
        """Give a call the arguments that an approver has approved it with. Raises ToolDeniedError where that cannot be."""
        before = json.dumps(asked.plain)
        try:
            if not asked.change({"arguments": own(dict(arguments))}):
                return False
        except (ToolArgumentsError, WrongAnswerError, TypeError, ValueError) as error:
            reason = f"the arguments that {by} approved do not fit the tool: {error}"
            raise ToolDeniedError(NOT_APPROVED, reason, tool_name=asked.tool.name, by=by) from error
        asked.decided.note(by, "approve_tool", f"edited the arguments: {before:.450} became {json.dumps(asked.plain):.450}")
        if not may_edit:
            reason = "its arguments were edited when another had answered or edited it already"
            raise ToolDeniedError(NOT_APPROVED, reason, tool_name=asked.tool.name, by=by)
        asked.decided.edited = True
        return True

    async def own_response(self, owner: Mounted, asked: Asked) -> ToolOutput:
        """Ask a hook for the result of a tool of its own.

        Raises HookTimeoutError, NoOutputError where it gives none, ToolDeniedError, and what the hook raises.
        """
        decision = await within(owner.timeouts.own_tool, owner.asked["before_tool"], ToolRequest(asked, BEFORE))
        _end_of_turn(owner, "before_tool", decision)
        if isinstance(decision, Ask):
            reason = "its hook wants a person to decide, which it can for tools of others: an approval rule can for its own"
            raise ToolDeniedError(DENIED, reason, tool_name=asked.tool.name, by=owner.name)
        if isinstance(decision, DenyTool):
            raise ToolDeniedError(DENIED, _words(decision.reason), tool_name=asked.tool.name, by=owner.name)
        return respond_with(owner, decision)

    # The rest of a chain, from the first hook on that has something to say

    async def _before_llm(self, asked: AskedRequest, links: Sequence[Link], answer: Any) -> Any:
        policy = self.chains.policy
        for each, ask in links:
            if each.native:
                if (given := await ask(asked)) is not None:
                    return given
                continue
            if answer is None:
                answer = first_step(ask, LLMRequest(asked, REQUEST))
            changes = await self._changes(each, "before_llm", answer, LLMRequest)
            answer = None
            if not changes:
                continue
            if not policy.edit_system and not keeps_system(asked.member("messages", REQUEST), changes.get("messages")):
                each.complain("changed a system message: the messages stay as they were")
                del changes["messages"]
            added: tuple[Injection, ...] = ()
            if asked.member("graceful_terminal", REQUEST):
                changes.pop("tools", None)  # a hook that adds its tools to each request does so here too, and means no harm
            elif "tools" in changes:
                tools = asked.member("tools", REQUEST)
                changes["tools"], added = injected(each, policy, tools, changes["tools"], owner_of=asked.owner_of)
            asked.take(changes, added)
        return None

    async def _after_llm(self, asked: AskedReply, links: Sequence[Link], answer: Any) -> None:
        for each, ask in links:
            if each.native:
                await ask(asked)
                continue
            if answer is None:
                answer = first_step(ask, LLMResponse(asked, RESPONSE))
            changes = await self._changes(each, "after_llm", answer, LLMResponse)
            answer = None
            if ends_without_calls(changes) and changes["finish_reason"] != asked.member("finish_reason", RESPONSE):
                changes["tool_calls"] = []
            written = changes.get("tool_calls")
            if written is not None and not keeps_protected(self.chains.policy, asked.member("tool_calls", RESPONSE), written):
                each.complain("wrote calls of protected tools: the calls stay as they were")
                del changes["tool_calls"]
            if changes:
                asked.take(changes)

    async def _before_tool(self, asked: Asked, links: Sequence[Link], answer: Any) -> Any:
        for each, ask in links:
            if answer is None:
                if each.name == asked.tool.owner or (each.tools and each.ignores(asked.tool.name)):
                    continue
                answer = first_step(ask, ToolRequest(asked, BEFORE))
            decision = await self._decision(each, "before_tool", answer, asked)
            answer = None
            if isinstance(decision, DenyTool):
                reason = _words(decision.reason)
                asked.decided.note(each.name, "before_tool", "denied", reason)
                raise ToolDeniedError(DENIED, reason, tool_name=asked.tool.name, by=each.name)
            if isinstance(decision, Ask):
                asked.ask_person(each.name, "before_tool", _words(decision.reason))
            elif isinstance(decision, Respond):
                if (output := await self._response(each, decision, asked)) is not None:
                    return output
            elif decision is not None:
                await self._change_call(each, decision, asked)
        return None

    async def _after_tool(self, asked: Asked, value: Any, links: Sequence[Link], answer: Any) -> Any:
        for each, ask in links:
            if each.native:
                given = await ask(asked.call, asked.tool, asked.arguments, asked.context, value)
                value = value if given is None else given
                continue
            if answer is None:
                if each.tools and each.ignores(asked.tool.name):
                    continue
                answer = first_step(ask, ToolResultView(asked, AFTER, value))
            changes = await self._changes(each, "after_tool", answer, ToolResultView, asked)
            answer = None
            if "result" not in changes:
                continue
            if self.chains.policy.protects(asked.tool.name):
                each.complain("changed the result of the protected tool %r: it stays", asked.tool.name, kind=asked.tool.name)
                continue
            before = as_output(value)
            try:
                after = output_of(each, before, changes["result"])
            except NoOutputError as error:
                has_answered_wrongly(each, "after_tool", error, asked)
                continue
            if after != before:
                asked.decided.note(each.name, "after_tool", "changed the result")
                value = after
        return value

    # Asking one hook

    async def _decision(self, each: Mounted, point: str, answer: Any, asked: Asked | None = None) -> Any:
        """Return what a hook decided; None for "go on", whether it said so or was passed over.

        ``asked`` is the call that it was asked about, where it was one. Raises HookAbortError, and what a failure is of a hook
        that fails closed.
        """
        if type(answer) is Waiting:
            try:
                answer = await answer.end(each.timeouts.interceptor)
            except Exception as error:  # noqa: BLE001  (whatever it is, it is the hook's)
                answer = Failed(error)
        if type(answer) is Failed:
            has_failed(each, point, answer.error, asked)
            return None
        if answer is None or isinstance(answer, Continue):
            return None
        _end_of_turn(each, point, answer)
        if not isinstance(answer, _KNOWN[point]):
            has_answered_what_is_not_known(each, point, answer, asked)
            return None
        return answer

    async def _changes(
        self, each: Mounted, point: str, answer: Any, kind: type[View], asked: Asked | None = None
    ) -> dict[str, Any]:
        decision = await self._decision(each, point, answer, asked)
        if decision is None:
            return {}
        try:
            return changes_of(each, decision, kind)
        except WrongAnswerError as error:
            has_answered_wrongly(each, point, error, asked)
            return {}

    async def _change_call(self, each: Mounted, decision: Modify, asked: Asked) -> None:
        try:
            changes = changes_of(each, decision, ToolRequest)
        except WrongAnswerError as error:
            has_answered_wrongly(each, "before_tool", error, asked)
            return
        name, policy = asked.tool.name, self.chains.policy
        if (other := changes.get("tool", name)) != name:
            if policy.protects(name) or policy.protects(other):
                each.complain("made a call of %r one of %r, and one of them is protected: it stays", name, other, kind=name)
                asked.decided.note(each.name, "before_tool", f"made it a call of {other!r}: passed over")
                return
            # The hook that the other tool is of will answer in this one's place.
            if (owner := asked.owner_of(other)) and owner != asked.tool.owner and policy.respond_approval != "seed":
                await self.approve(asked, may_edit=False)
        if changed := asked.change(changes):
            asked.decided.note(each.name, "before_tool", f"changed {' and '.join(changed)}")

    async def _approval(self, each: Mounted, ask: Any, view: ToolRequest) -> Approval | Ask:
        try:
            said = await within(each.timeouts.approval, ask, view)
        except HookTimeoutError:
            return Approval(approved=False, reason=f'tool approval hook "{each.name}" timed out')
        except Exception as error:  # noqa: BLE001  (approvers fail closed)
            log_failure(each, "approve_tool", error)
            return Approval(approved=False, reason=f'tool approval hook "{each.name}" failed')
        if isinstance(said, Ask):
            return said
        if isinstance(said, Approval):
            return Approval(said.approved is True, _words(said.reason), _words(said.by), said.arguments)
        if isinstance(said, type):
            log_class(each, "approve_tool", said)
        elif said is not None and not isinstance(said, bool):
            each.complain("answered approve_tool with %.99r, which is no approval", said)
        return Approval(said is True)

    async def _response(self, each: Mounted, decision: Respond, asked: Asked) -> ToolOutput | None:
        """Return the answer of a hook for a tool that is not its own, as far as it may give one. Raises ToolDeniedError."""
        policy = self.chains.policy
        tool = asked.tool.name
        if policy.protects(tool):
            each.complain("answered a call of the protected tool %r: passed over", tool, kind=tool)
            asked.decided.note(each.name, "before_tool", "answered for a protected tool: passed over")
            return None
        try:
            output = respond_with(each, decision)
        except NoOutputError as error:
            has_answered_wrongly(each, "before_tool", error, asked, in_its_place=True)
            return None
        if policy.respond_approval != "seed" or asked.needs_person:
            await self.approve(asked, may_edit=False)
        _logger.info("The hook %r has answered a call of the tool %r in its place", each.name, tool)
        asked.decided.responded_by = each.name
        asked.decided.note(each.name, "before_tool", "answered")
        return output


_KNOWN: Final[Mapping[str, Any]] = {
    "before_llm": Modify,
    "after_llm": Modify,
    "before_tool": (Modify, Respond, DenyTool, Ask),
    "after_tool": Modify,
}


def _from(first: Mounted, links: Sequence[Link]) -> Sequence[Link]:
    place = next(place for place, (each, _) in enumerate(links) if each is first)
    return links[place:]


def _end_of_turn(each: Mounted, point: str, decision: Any) -> None:
    if isinstance(decision, AbortTurn | HardAbort):
        raise HookAbortError(_words(decision.reason), hook=each.name, point=point, hard=isinstance(decision, HardAbort))


def _words(reason: Any) -> str:
    """A reason is shown to models and people; whatever else a hook gave as one is none."""
    return reason if isinstance(reason, str) else ""
