"""The desk: an approve hook that goes by a policy, and where calls wait for somebody's yes.

What lives here: who waits for what, and what a decision means for those who do. What does not: what is kept (``store``), and how
people are asked (HTTP, the terminal): they look at what is pending, and decide. The first decision of a request is the one.

Whatever goes wrong on the way is a no: this is an approver, and those fail closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final, Protocol, get_args

from patchbay.approvals.policy import ApprovalPolicy, Rule, role_of
from patchbay.approvals.request import MOST, Answer, ApprovalRequest, SessionGrant, State, Verdict
from patchbay.approvals.store import ApprovalStore
from patchbay.approvals.tables import covered_by
from patchbay.approvals.told import tell_decided, tell_requested
from patchbay.approvals.waits import Waits
from patchbay.errors import ApprovalConflictError, ApprovalForbiddenError, ApprovalNotFoundError, InvalidRequestError
from patchbay.hooks import PROCESS, Approval, HookManager, HookTimeouts, Mounted, ToolRequest

KEPT: Final = 3600.0
"""Seconds for which a decision that no run was there for is kept for the same call."""

SESSION: Final = 24 * 3600.0
"""Seconds for which an approval for the session holds."""

MOST_WAITING: Final = 1000
"""How many calls may wait at the same time; those that come then are denied."""

MOST_REASON: Final = 2000
MOST_BY: Final = 100

_SLACK: Final = 30.0
_LOOK: Final = 1.0
_UNTOLD: Final = 256
_MOST_META: Final = 16 * 1024
_LAST: Final = PROCESS + 1
_ID: Final = re.compile(r"[0-9a-f]{12}")
_FINAL: Final[dict[Verdict, State]] = {"approve": State.APPROVED, "approve_session": State.APPROVED, "deny": State.DENIED}

_logger = logging.getLogger(__name__)


class Asker(Protocol):
    """A way to ask a person here and now."""

    async def ask(self, request: ApprovalRequest, /) -> Answer | None:
        """Return the person's answer, None where there is none to be had. Cancelled where somebody else has decided."""


class ApprovalDesk:
    """Decides about calls as ``policy`` says, and has people asked; ``store`` (or its URL) keeps what is asked, else memory does.

    ``mount`` it on the hooks of a program. People decide by ``decide``: over HTTP (``patchbay.server.approvals``), or at the
    terminal (``terminal``). ``keep`` is for how many seconds a decision that no run was there for is kept: after a restart the
    same call of the same session has it, once. For one event loop at a time. Raises ConfigurationError.
    """

    def __init__(
        self,
        policy: ApprovalPolicy | None = None,
        store: ApprovalStore | str | None = None,
        *,
        terminal: Asker | None = None,
        keep: float = KEPT,
        session: float = SESSION,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.policy = policy if policy is not None else ApprovalPolicy()
        self.store = store if isinstance(store, ApprovalStore) else ApprovalStore(store or "sqlite://")
        self.name = "approvals"
        self._owns_store = self.store is not store
        self._terminal = terminal
        self._doors = {"terminal"} if terminal is not None else set()
        self._keep = keep
        self._session = session
        self._clock = clock
        self._waiting = Waits(self.store)
        self._managers: weakref.WeakSet[HookManager] = weakref.WeakSet()
        self._about_to_wait = ""
        self._opening = asyncio.Lock()
        self._watchers: set[asyncio.Queue[ApprovalRequest | None]] = set()
        self._withdrawing: set[asyncio.Task[None]] = set()
        self._leaving = False

    def mount(self, hooks: HookManager, name: str = "approvals") -> None:
        """Ask this desk about every call, after all other approvers, and tell the observers there of calls that wait.

        Raises ConfigurationError where the policies do not fit.
        """
        hooks.policy = self.policy.of_hooks(hooks.policy)
        if passed_by := self.policy.passed_by(hooks.policy):
            _logger.warning(
                "respond_approval is %r: tools that hooks add are carried out without asking, "
                "and these rules are not about them: %s",
                hooks.policy.respond_approval,
                ", ".join(passed_by),
            )
        self.name = name
        usual = hooks.timeouts
        timeouts = HookTimeouts(usual.observer, usual.interceptor, self.policy.longest + _SLACK, usual.tool)
        hooks.people = hooks.mount(name, self, timeouts=timeouts, group=_LAST)
        self._managers.add(hooks)

    def stand_by(self, hooks: HookManager) -> None:
        """Ask people about the calls for which a hook wants that, and about no others."""
        timeouts = HookTimeouts(approval=self.policy.longest + _SLACK)
        hooks.people = Mounted(self.name, self, 0, _LAST, timeouts, {"approve_tool": self.approve_tool})
        self._managers.add(hooks)

    def open_door(self, door: str) -> None:
        """Say that people can be reached by ``door`` ("http"). A call that nobody can be asked about is denied at once."""
        self._doors.add(door)

    def leave(self) -> None:
        """Say that the program is about to end: requests of runs that are stopped from now on stay, for when it is back."""
        self._leaving = True
        self._tell_all(None)

    async def aclose(self) -> None:
        """Let those who wait go, with a no, and leave their requests as they are."""
        self.leave()
        await self._waiting.aclose()
        if self._withdrawing:
            await asyncio.wait(self._withdrawing)
        if self._owns_store:
            await self.store.close()

    # For the hooks

    async def approve_tool(self, call: ToolRequest) -> Approval:
        """Decide about a call, which may take as long as the rule's deadline."""
        rule = self.policy.rule_for(call)
        if rule.outcome == "allow" and not call.asks:
            return Approval(approved=True, by=_policy(rule))
        if rule.outcome == "deny":
            return _no(rule, rule.reason or "the policy does not allow it")
        if rule.outcome == "ask" and "hooks" in rule.who:
            if all(each == self.name for each in call.approvers):
                return _no(rule, "no hook is there to approve it")
            if not rule.asks_people and not call.asks:
                return Approval(approved=True, reason="as the other approvers say", by=_policy(rule))
        if not rule.asks_people:
            rule = self.policy.asked_for([who for who, _ in call.asks])
        if self._doors.isdisjoint(rule.who):
            return _no(rule, "it needs a person's approval, and nobody can be asked here")
        if len(self._waiting) >= MOST_WAITING:
            return _no(rule, "too many calls wait for approval")
        try:
            arguments = json.dumps(call.arguments, allow_nan=False)
        except (ValueError, RecursionError):
            return _no(rule, "it needs a person's approval, and its arguments cannot be shown")
        if len(arguments) > MOST:
            return _no(rule, f"it needs a person's approval, and nobody can read {len(arguments)} characters of arguments")
        return await self._asked(call, arguments, rule)

    # For people

    async def pending(self) -> list[ApprovalRequest]:
        """Return what waits to be decided, the oldest first."""
        now, waiting = self._clock(), self._waited_for()
        found = await self.store.pending(now=now)
        waiting |= self._waited_for()  # a run may have come meanwhile, and what it waits for been found already
        return [each for each in (_as_of(each, now, waiting) for each in found) if each.state is State.PENDING]

    async def recent(self, limit: int = 100) -> list[ApprovalRequest]:
        """Return the last requests, whatever became of them, the newest first."""
        now, waiting = self._clock(), self._waited_for()
        found = await self.store.recent(limit)
        waiting |= self._waited_for()
        return [_as_of(each, now, waiting) for each in found]

    async def get(self, request_id: str) -> ApprovalRequest:
        """Return a request. Raises ApprovalNotFoundError."""
        waiting = self._waited_for()
        found = await self.store.get(request_id) if _ID.fullmatch(request_id) else None
        if found is None:
            raise ApprovalNotFoundError(request_id)
        return _as_of(found, self._clock(), waiting | self._waited_for())

    async def decide(
        self,
        request_id: str,
        verdict: Verdict,
        *,
        reason: str = "",
        by: str = "",
        door: str = "http",
        digest: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> ApprovalRequest:
        """Decide a request, for whoever came by ``door``, and return it as it is then. ``reason`` is told to the model.

        With ``arguments`` the call is approved with those, which must fit its tool, and runs with them.

        ``by`` is who; ``digest`` that of what they were shown, if they say so. Raises ApprovalNotFoundError;
        ApprovalForbiddenError where the request is not for that door; ApprovalConflictError where it is decided, its time is up,
        or it can not be decided so; InvalidRequestError for a verdict that is none. ``awaited`` of what is returned says whether
        a run waited for it: else the decision is for the same call of the same session, when it comes again.
        """
        if verdict not in get_args(Verdict):
            raise InvalidRequestError(f"{verdict!r} is no decision: use one of {', '.join(get_args(Verdict))}.")
        request = await self.get(request_id)
        if door not in request.who:
            raise ApprovalForbiddenError(f"This call is not to be decided by {door}: its rule says {', '.join(request.who)}.")
        for_session = verdict == "approve_session"
        if request.state is State.PENDING:
            if not request.is_genuine or (digest and digest != request.digest):
                raise ApprovalConflictError("What was shown is not what the call would run with.")
            if for_session and not covered_by(request):
                raise ApprovalConflictError("This call can be approved alone, and not for the session.")
            if arguments is not None:
                if verdict != "approve":
                    raise InvalidRequestError(
                        f"A call cannot be given other arguments by {verdict!r}: approve it.", param="arguments"
                    )
                request.check_edited(arguments)
            decided = replace(
                request,
                edited=arguments,
                state=_FINAL[verdict],
                by=by[:MOST_BY] or door,
                reason=reason[:MOST_REASON],
                for_session=for_session,
            )
            if await self.store.decide(decided, now=self._clock()):
                settled = replace(await self.get(request_id), awaited=request.awaited)
                self._waiting.wake(None if for_session else request_id)
                self._tell_all(settled)
                return settled
            request = await self.get(request_id)
        raise ApprovalConflictError(f"The request is {_words(request)} already.")

    async def sessions(self) -> list[SessionGrant]:
        """Return the yeses for a session that hold, the oldest first. Each is known by the id of its request."""
        since = self._clock() - self._session
        granted = await self.store.granted(session_since=since)
        return [SessionGrant(each, (each.decided or each.created) + self._session) for each in granted]

    async def revoke(self, request_id: str) -> SessionGrant:
        """Take a yes for the session back, and return it: what comes from now on is asked about.

        Raises ApprovalNotFoundError where none holds that this request was given.
        """
        for each in await self.sessions():
            if each.request.id == request_id and await self.store.revoke(each.request):
                _logger.info("The approval %s for a session is taken back: %.200r", request_id, each.request.tool)
                return each
        raise ApprovalNotFoundError(request_id)

    async def watch(self) -> AsyncGenerator[ApprovalRequest, None]:
        """Yield each request when it is asked and when it is decided, in this process.

        Ends with the desk, and where the reader is too slow: then look at what is pending, and begin again.
        """
        queue: asyncio.Queue[ApprovalRequest | None] = asyncio.Queue(_UNTOLD)
        self._watchers.add(queue)
        try:
            while not self._leaving and (request := await queue.get()) is not None:
                yield request
        finally:
            self._watchers.discard(queue)

    # A call that waits

    async def _asked(self, call: ToolRequest, arguments: str, rule: Rule) -> Approval:
        while True:
            request = self._request(call, arguments, rule)
            is_told = False
            try:
                async with self._opening:
                    found = await self._opened(request)
                    if found.used is not None:
                        return Approval(approved=True, reason=f"for the session, by {found.id}", by=found.by)
                request = replace(found, awaited=True)
                if request.state is State.PENDING:
                    self._tell_all(request)
                    tell_requested(self._managers, call, request)
                    is_told = True
                    found = await self._settled(request)
                    tell_decided(self._managers, call, found)
                    is_told = False
                if (found.tool, found.digest) != (call.tool, call.digest):
                    raise RuntimeError("what was decided about is another call")  # noqa: TRY301  (it ends as all that fails here)
                if await self.store.take(found.id, now=self._clock()):
                    if found.edited is not None:
                        call.arguments = dict(found.edited)
                        if (now := self.policy.rule_for(call)).outcome == "deny":
                            return _no(now, "the policy does not allow the call as it was edited")
                    return self._approval(found)
            except BaseException:
                if is_told and not self._leaving:
                    tell_decided(self._managers, call, replace(request, state=State.WITHDRAWN))
                await self._withdraw(request)
                raise
            finally:
                self._waiting.end(request.id)
            # Another run of the same call has used the decision, or has withdrawn the request: this one needs its own.

    def _waited_for(self) -> frozenset[str]:
        """Return the requests that runs of this desk wait for, or will as soon as they know that it is kept."""
        return frozenset((*self._waiting, self._about_to_wait))

    async def _opened(self, request: ApprovalRequest) -> ApprovalRequest:
        """Keep a request, or find what there is for its call; if that is pending, this run waits for it from now on."""
        now = self._clock()
        self._about_to_wait = request.id
        try:
            found = await self.store.open(
                request,
                now=now,
                decided_since=now - self._keep,
                session_since=now - self._session,
                waited_for=frozenset(self._waiting),
            )
            if found.state is State.PENDING:
                self._waiting.begin(found.id)
            return found
        finally:
            self._about_to_wait = ""

    async def _settled(self, request: ApprovalRequest) -> ApprovalRequest:
        """Wait until a request is decided, or its time is up."""
        event = self._waiting[request.id]
        asking = asyncio.create_task(self._ask_here(request)) if self._terminal and "terminal" in request.who else None
        look = _LOOK if self.store.is_shared else None
        try:
            while True:
                was_woken = event.is_set()
                event.clear()  # before it looks: what comes meanwhile wakes it again
                left = request.deadline - self._clock()
                if left <= 0:
                    await self.store.expire(request.id, now=self._clock())
                if (found := await self._found(request, must=left <= 0)).state is not State.PENDING:
                    if found.state is State.EXPIRED:
                        self._tell_all(found)
                    return found
                if self._leaving and (was_woken or event.is_set()):
                    raise RuntimeError("the desk is closed")
                try:
                    async with asyncio.timeout(left if look is None else min(left, look)):
                        await event.wait()
                except TimeoutError:
                    pass
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.wait([asking])

    async def _found(self, request: ApprovalRequest, *, must: bool) -> ApprovalRequest:
        try:
            found = await self.store.get(request.id)
        except Exception:
            if must:
                raise
            _logger.warning("The request for approval %s could not be looked up", request.id, exc_info=True)
            return request
        if found is None:
            raise ApprovalNotFoundError(request.id)
        return found

    async def _ask_here(self, request: ApprovalRequest) -> None:
        assert self._terminal is not None
        try:
            answer = await self._terminal.ask(request)
            if answer is None and self._doors & {*request.who} == {"terminal"}:
                answer = Answer("deny", "nobody is at the terminal")
            if answer is not None:
                await self.decide(
                    request.id, answer.verdict, reason=answer.reason, by=answer.by, door="terminal", arguments=answer.arguments
                )
        except ApprovalConflictError:
            pass  # somebody else was faster
        except Exception:
            _logger.exception("The request for approval %s could not be put to the terminal", request.id)

    async def _withdraw(self, request: ApprovalRequest) -> None:
        """End a request that nobody waits for any more. Goes on by itself where this is cancelled too."""
        if self._leaving:
            return
        task = asyncio.create_task(self._withdrawn(request.id))
        self._withdrawing.add(task)
        task.add_done_callback(self._withdrawing.discard)
        await asyncio.shield(task)

    async def _withdrawn(self, request_id: str) -> None:
        try:
            await self.store.withdraw(request_id, now=self._clock())
            if (found := await self.store.get(request_id)) is not None:
                self._tell_all(found)
        except Exception:
            _logger.exception("The request for approval %s could not be withdrawn", request_id)

    def _approval(self, found: ApprovalRequest) -> Approval:
        if found.state is State.EXPIRED:
            words = f"nobody decided within {round(found.deadline - found.created, 3):g} s"
            return Approval(found.at_deadline == "allow", words, f"policy ({found.rule})")
        for_session = found.for_session and found.state is State.APPROVED
        said = ["for the session", found.reason] if for_session else [found.reason]
        return Approval(found.state is State.APPROVED, ": ".join(filter(None, said)), found.by, found.edited)

    def _request(self, call: ToolRequest, arguments: str, rule: Rule) -> ApprovalRequest:
        now = self._clock()
        meta = call.meta
        about = {"meta": asdict(meta), "context": call.context, "annotations": call.annotations}
        if len(json.dumps(about, default=str)) > _MOST_META:
            about = {"meta": asdict(meta)}
        return ApprovalRequest(
            id=secrets.token_hex(6),
            created=now,
            deadline=now + rule.deadline,
            tool=call.tool,
            arguments=arguments,
            digest=call.digest,
            facts=call.facts,
            source=call.source,
            endpoint=call.endpoint,
            call_id=call.call_id,
            role=role_of(call),
            agent=meta.agent_id,
            session_key=meta.session_key,
            turn=meta.turn_id,
            parent_turn=meta.parent_turn_id,
            rule=rule.name,
            why="; ".join(f"{who}: {why}" if why else who for who, why in call.asks)[:MOST_REASON],
            who=rule.who,
            session=rule.session if meta.session_key else "never",
            at_deadline=rule.at_deadline,
            meta=about,
            parameters=call.parameters if len(json.dumps(call.parameters, default=str)) <= _MOST_META else None,
        )

    def _tell_all(self, request: ApprovalRequest | None) -> None:
        for queue in list(self._watchers):
            try:
                queue.put_nowait(request)
            except asyncio.QueueFull:  # it is told no more, and ends when it has read what there is
                self._watchers.discard(queue)
                queue.get_nowait()
                queue.put_nowait(None)


def _policy(rule: Rule) -> str:
    return f"policy ({rule.name})"


def _no(rule: Rule, reason: str) -> Approval:
    return Approval(approved=False, reason=reason, by=_policy(rule))


def _as_of(request: ApprovalRequest, now: float, waiting: frozenset[str]) -> ApprovalRequest:
    """Return a request as it is now: whoever would have told of its end may be gone. ``waiting`` are those that runs wait for."""
    if not request.awaited and request.id in waiting:
        request = replace(request, awaited=True)
    if request.state is State.PENDING and not request.awaited and not request.session_key:
        return replace(request, state=State.WITHDRAWN)  # no other run could ever have the decision
    if request.state is State.PENDING and request.deadline <= now:
        return replace(request, state=State.EXPIRED, decided=request.deadline)
    return request


def _words(request: ApprovalRequest) -> str:
    return f"{request.state} by {request.by}" if request.by else str(request.state)
