"""The approval service: an approve hook that follows a policy, and holds calls until a person decides them.

The store is the truth, and the events in memory only wake its readers; the first decision of a request counts. An error denies
the call, as for every approver.
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
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Final, Protocol, get_args

from patchbay.approvals.notify import Notifier
from patchbay.approvals.permissions import Permission, make_permission
from patchbay.approvals.policy import ApprovalPolicy, Rule, role_of
from patchbay.approvals.request import (
    MAX_ARGUMENTS,
    Answer,
    ApprovalRequest,
    SessionGrant,
    State,
    Verdict,
    is_policy,
    policy_decider,
)
from patchbay.approvals.store import ApprovalStore, grant_key
from patchbay.errors import ApprovalConflictError, ApprovalForbiddenError, ApprovalNotFoundError, InvalidRequestError
from patchbay.hooks import PROCESS, Approval, HookManager, HookTimeouts, RegisteredHook, ToolRequest

KEEP: Final = 3600.0
"""Seconds that an unused decision is kept for the same call."""

SESSION: Final = 24 * 3600.0
"""Seconds that an approval for the session is in force."""

MAX_WAITING: Final = 1000
"""Calls that may wait at the same time; further ones are denied."""

MAX_REASON: Final = 2000
MAX_BY: Final = 100

HEARTBEAT: Final = 1.0
"""Seconds between two records in a shared store of the requests that runs wait for."""

WATCHER_QUEUE: Final = 256
"""Changes that wait for a reader of ``watch``."""

REQUESTED: Final = "agent.approval.requested"
DECIDED: Final = "agent.approval.decided"

_SLACK: Final = 30.0
_POLL: Final = 1.0
_MAX_META: Final = 16 * 1024
_LAST: Final = PROCESS + 1
_ID: Final = re.compile(r"[0-9a-f]{12}")

_logger = logging.getLogger(__name__)


class Asker(Protocol):
    """A way to ask a person directly, such as a terminal."""

    async def ask(self, request: ApprovalRequest, /) -> Answer | None:
        """Return the person's answer, or None. Cancelled when the request is decided elsewhere."""


class ApprovalService:
    """Decides about tool calls by a policy, and lets people decide where it asks; ``store`` (or its URL) is in memory by default.

    ``mount`` it on a HookManager. People decide by ``decide``: over HTTP (``patchbay.server.admin_api``) or at the ``terminal``.
    An unused decision is kept for ``keep`` seconds: after a restart the same call of the same session uses it, once. For one
    event loop at a time. Raises ConfigurationError.
    """

    def __init__(
        self,
        policy: ApprovalPolicy | None = None,
        store: ApprovalStore | str | None = None,
        *,
        terminal: Asker | None = None,
        keep: float = KEEP,
        session: float = SESSION,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.policy = policy if policy is not None else ApprovalPolicy()
        self.store = store if isinstance(store, ApprovalStore) else ApprovalStore(store or "sqlite://")
        self.name = "approvals"
        self._owns_store = self.store is not store
        self._terminal = terminal
        self._channels = {"terminal"} if terminal is not None else set()
        self._keep = keep
        self._session = session
        self._clock = clock
        self._waiting = _Waiters(self.store)
        self._managers: weakref.WeakSet[HookManager] = weakref.WeakSet()
        self._opening_id = ""
        self._opening = asyncio.Lock()
        self._watchers: set[asyncio.Queue[ApprovalRequest | None]] = set()
        self._withdrawing: set[asyncio.Task[None]] = set()
        self._notifier = Notifier()
        self._leaving = False

    def mount(self, hooks: HookManager, name: str = "approvals") -> None:
        """Register as the last approver of these hooks, and send them events about waiting calls.

        Raises ConfigurationError if the policies conflict.
        """
        hooks.policy = self.policy.apply_to(hooks.policy)
        if bypassed := self.policy.bypassed_by(hooks.policy):
            _logger.warning(
                "respond_approval is %r: tools that hooks add run without approval, and these rules do not cover them: %s",
                hooks.policy.respond_approval,
                ", ".join(bypassed),
            )
        self.name = name
        usual = hooks.timeouts
        timeouts = HookTimeouts(usual.observer, usual.interceptor, self.policy.longest + _SLACK, usual.tool)
        hooks.people = hooks.mount(name, self, timeouts=timeouts, group=_LAST)
        self._managers.add(hooks)

    def stand_by(self, hooks: HookManager) -> None:
        """Ask people only about the calls for which a hook requests it."""
        timeouts = HookTimeouts(approval=self.policy.longest + _SLACK)
        hooks.people = RegisteredHook(self.name, self, 0, _LAST, timeouts, {"approve_tool": self.approve_tool})
        self._managers.add(hooks)

    def accept_decisions(self, channel: str) -> None:
        """Accept decisions over ``channel`` ("http"). A call that no person can decide is denied at once."""
        self._channels.add(channel)

    def leave(self) -> None:
        """Prepare for shutdown: requests of runs that are stopped from now on stay pending for the next start."""
        self._leaving = True
        self._publish(None)

    async def aclose(self) -> None:
        """Deny the waiting calls, leave their requests pending, and close the store if it is its own."""
        self.leave()
        await self._notifier.aclose()
        await self._waiting.aclose()
        if self._withdrawing:
            await asyncio.wait(self._withdrawing)
        if self._owns_store:
            await self.store.close()

    # For hooks

    async def approve_tool(self, call: ToolRequest) -> Approval:
        """Decide about a call; waits up to the rule's deadline."""
        rule = self.policy.rule_for(call)
        if rule.outcome == "allow" and not call.asks:
            return Approval(approved=True, by=policy_decider(rule.name))
        if rule.outcome == "deny":
            return _denial(rule, rule.reason or "the policy does not allow it")
        if rule.outcome == "ask" and "hooks" in rule.who:
            if all(each == self.name for each in call.approvers):
                return _denial(rule, "no hook is there to approve it")
            if not rule.asks_people and not call.asks:
                return Approval(approved=True, reason="as the other approvers say", by=policy_decider(rule.name))
        if not rule.asks_people:
            rule = self.policy.rule_for_hooks([who for who, _ in call.asks])
        if self._channels.isdisjoint(rule.who):
            return _denial(rule, "it needs a person's approval, and no person can be asked here")
        if len(self._waiting) >= MAX_WAITING:
            return _denial(rule, "too many calls wait for approval")
        try:
            arguments = json.dumps(call.arguments, allow_nan=False)
        except (ValueError, RecursionError):
            return _denial(rule, "it needs a person's approval, and its arguments cannot be shown")
        if len(arguments) > MAX_ARGUMENTS:
            return _denial(
                rule, f"it needs a person's approval, and its arguments are too long to show ({len(arguments)} characters)"
            )
        return await self._ask_people(call, arguments, rule)

    # For people

    async def pending(self) -> list[ApprovalRequest]:
        """Return the pending requests, oldest first."""
        now, waiting = self._clock(), self._waited_for()
        found = await self.store.pending(now=now)
        waiting |= self._waited_for()  # a run may have begun to wait for a request that was read before
        return [each for each in (_current(each, now, waiting) for each in found) if each.state is State.PENDING]

    async def recent(self, limit: int = 100) -> list[ApprovalRequest]:
        """Return the last requests in any state, newest first."""
        now, waiting = self._clock(), self._waited_for()
        found = await self.store.recent(limit)
        waiting |= self._waited_for()
        return [_current(each, now, waiting) for each in found]

    async def get(self, request_id: str) -> ApprovalRequest:
        """Return a request. Raises ApprovalNotFoundError."""
        waiting = self._waited_for()
        found = await self.store.get(request_id) if _ID.fullmatch(request_id) else None
        if found is None:
            raise ApprovalNotFoundError(request_id)
        return _current(found, self._clock(), waiting | self._waited_for())

    async def decide(
        self,
        request_id: str,
        verdict: Verdict,
        *,
        reason: str = "",
        by: str = "",
        channel: str = "http",
        digest: str = "",
        arguments: Mapping[str, Any] | None = None,
        permission: Mapping[str, Any] | None = None,
    ) -> ApprovalRequest:
        """Decide a pending request over ``channel``, and return it. ``reason`` is sent to the model, ``by`` is recorded.

        "approve_always" writes a standing permission, the narrowest one or with the criteria of ``permission``
        (``patchbay.approvals.permissions.make_permission``).

        With ``arguments`` the call is approved and runs with those, which must match the tool's schema. ``digest`` is that of the
        call that the person reviewed. ``awaited`` of the result is False if no run waits: the decision is then for the same call
        of the session. Raises ApprovalNotFoundError; ApprovalForbiddenError if the rule excludes the channel;
        ApprovalConflictError if the request is not pending, or cannot be decided so; InvalidRequestError for an unknown verdict
        or invalid arguments.
        """
        if verdict not in get_args(Verdict):
            raise InvalidRequestError(f"{verdict!r} is not a decision: use one of {', '.join(get_args(Verdict))}.")
        request = await self.get(request_id)
        if channel not in request.who:
            raise ApprovalForbiddenError(f"{channel} may not decide this call; its rule allows {', '.join(request.who)}.")
        if permission is not None and verdict != "approve_always":
            raise InvalidRequestError(f"A permission cannot be given by {verdict!r}.", param="permission")
        for_session, for_always = verdict == "approve_session", verdict == "approve_always"
        if request.state is State.PENDING:
            if not request.is_genuine or (digest and digest != request.digest):
                raise ApprovalConflictError("What was shown is not what the call would run with.")
            if for_session and not grant_key(request):
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
                state=State.DENIED if verdict == "deny" else State.APPROVED,
                by=by[:MAX_BY] or channel,
                reason=reason[:MAX_REASON],
                for_session=for_session,
                for_always=for_always,
            )
            now = self._clock()
            written = make_permission(request, permission, by=decided.by, now=now) if for_always else None
            if await self.store.decide(decided, written, now=now):
                stored = replace(await self.get(request_id), awaited=request.awaited)
                self.wake(None if for_session or for_always else request_id)
                self._publish(stored)
                return stored
            request = await self.get(request_id)
        by = f" by {request.by}" if request.by else ""
        raise ApprovalConflictError(f"The request is {request.state}{by} already.")

    @property
    def waiting(self) -> frozenset[str]:
        """Ids of the requests that runs of this process wait for."""
        return frozenset(self._waiting)

    def wake(self, request_id: str | None = None) -> None:
        """Make the run of this request, or every run, read its request again, after a change of the clock or the store."""
        self._waiting.wake(request_id)

    async def sessions(self) -> list[SessionGrant]:
        """Return the session approvals in force, oldest first."""
        granted = await self.store.granted(session_since=self._clock() - self._session)
        return [SessionGrant(each, (each.decided or each.created) + self._session) for each in granted]

    async def revoke(self, request_id: str) -> SessionGrant:
        """Revoke the session approval of this request, so that further calls need one. Raises ApprovalNotFoundError."""
        for each in await self.sessions():
            if each.request.id == request_id and await self.store.revoke(each.request):
                _logger.info("Revoked session approval %s of %.200r", request_id, each.request.tool)
                return each
        raise ApprovalNotFoundError(request_id)

    async def permissions(self) -> list[Permission]:
        """Return the standing permissions, oldest first."""
        return await self.store.permissions()

    async def revoke_permission(self, permission_id: str) -> Permission:
        """Revoke a standing permission, so that further calls need approval. Raises ApprovalNotFoundError."""
        found = await self.store.revoke_permission(permission_id) if _ID.fullmatch(permission_id) else None
        if found is None:
            raise ApprovalNotFoundError(permission_id)
        _logger.info("Revoked the standing permission %s of %.200r", permission_id, found.tool)
        return found

    async def watch(self) -> AsyncGenerator[ApprovalRequest, None]:
        """Yield each request when this process creates or decides it.

        Ends with the service, and if the reader is too slow: list the pending requests, and watch again.
        """
        queue: asyncio.Queue[ApprovalRequest | None] = asyncio.Queue(WATCHER_QUEUE)
        self._watchers.add(queue)
        try:
            while not self._leaving and (request := await queue.get()) is not None:
                yield request
        finally:
            self._watchers.discard(queue)

    # A waiting call

    async def _ask_people(self, call: ToolRequest, arguments: str, rule: Rule) -> Approval:
        while True:
            request = self._request(call, arguments, rule)
            announced = False
            try:
                async with self._opening:
                    found = await self._open(request)
                    if found.used is not None:
                        why = "by the standing permission" if found.for_always else "for the session, by"
                        return Approval(approved=True, reason=f"{why} {found.id}", by=found.by)
                request = replace(found, awaited=True)
                if request.state is State.PENDING:
                    self._publish(request)
                    self._emit_requested(call, request)
                    if (notify := self.policy.notify) is not None:
                        self._notifier.put(notify, request)
                    announced = True
                    found = await self._wait(request)
                    self._emit_decided(call, found)
                    announced = False
                if (found.tool, found.digest) != (call.tool, call.digest):
                    raise RuntimeError("the decision is about another call")  # noqa: TRY301  (handled as every error here)
                if await self.store.use_decision(found.id, now=self._clock()):
                    if found.edited is not None:
                        call.arguments = dict(found.edited)
                        if (now := self.policy.rule_for(call)).outcome == "deny":
                            edited = f"by {found.by}: {json.dumps(found.edited):.450}"
                            return _denial(now, f"the policy does not allow the call as it was edited {edited}")
                    return _approval(found)
            except BaseException:
                if announced and not self._leaving:
                    self._emit_decided(call, replace(request, state=State.WITHDRAWN))
                await self._withdraw(request)
                raise
            finally:
                self._waiting.remove(request.id)
            # Another run of the same call used the decision, or withdrew the request: ask again.

    def _waited_for(self) -> frozenset[str]:
        """Return the requests that runs here wait for, and the one that is being stored."""
        return frozenset((*self._waiting, self._opening_id))

    async def _open(self, request: ApprovalRequest) -> ApprovalRequest:
        now = self._clock()
        self._opening_id = request.id
        try:
            found = await self.store.open(
                request,
                now=now,
                decided_since=now - self._keep,
                session_since=now - self._session,
                waited_for=self.waiting,
            )
            if found.state is State.PENDING:
                self._waiting.add(found.id)
            return found
        finally:
            self._opening_id = ""

    async def _wait(self, request: ApprovalRequest) -> ApprovalRequest:
        """Wait until a request is decided or expires."""
        event = self._waiting[request.id]
        asking = asyncio.create_task(self._ask_terminal(request)) if self._terminal and "terminal" in request.who else None
        poll = _POLL if self.store.is_shared else None
        try:
            while True:
                was_woken = event.is_set()
                event.clear()  # before the read, so that no later change is missed
                left = request.deadline - self._clock()
                if left <= 0:
                    await self.store.expire(request.id, now=self._clock())
                if (found := await self._read(request, must=left <= 0)).state is not State.PENDING:
                    if found.state is State.EXPIRED:
                        self._publish(found)
                    return found
                if self._leaving and (was_woken or event.is_set()):
                    raise RuntimeError("the approval service is closed")
                with suppress(TimeoutError):
                    async with asyncio.timeout(left if poll is None else min(left, poll)):
                        await event.wait()
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.wait([asking])

    async def _read(self, request: ApprovalRequest, *, must: bool) -> ApprovalRequest:
        try:
            found = await self.store.get(request.id)
        except Exception:
            if must:
                raise
            _logger.warning("Could not read approval request %s", request.id, exc_info=True)
            return request
        if found is None:
            raise ApprovalNotFoundError(request.id)
        return found

    async def _ask_terminal(self, request: ApprovalRequest) -> None:
        assert self._terminal is not None
        try:
            answer = await self._terminal.ask(request)
            if answer is None and self._channels & {*request.who} == {"terminal"}:
                answer = Answer("deny", "no person is at the terminal", by=policy_decider(request.rule))
            if answer is not None:
                with suppress(ApprovalConflictError):  # decided elsewhere first
                    await self.decide(
                        request.id,
                        answer.verdict,
                        reason=answer.reason,
                        by=answer.by,
                        channel="terminal",
                        arguments=answer.arguments,
                    )
        except Exception:
            _logger.exception("Could not ask at the terminal about approval request %s", request.id)

    async def _withdraw(self, request: ApprovalRequest) -> None:
        """Withdraw the request of a stopped run, in a task that outlives a cancellation."""
        if self._leaving:
            return

        async def withdraw() -> None:
            try:
                await self.store.withdraw(request.id, now=self._clock())
                if (found := await self.store.get(request.id)) is not None:
                    self._publish(found)
            except Exception:
                _logger.exception("Could not withdraw approval request %s", request.id)

        task = asyncio.create_task(withdraw())
        self._withdrawing.add(task)
        task.add_done_callback(self._withdrawing.discard)
        await asyncio.shield(task)

    def _request(self, call: ToolRequest, arguments: str, rule: Rule) -> ApprovalRequest:
        now = self._clock()
        meta = call.meta
        details = {"meta": asdict(meta), "context": call.context, "annotations": call.annotations}
        if len(json.dumps(details, default=str)) > _MAX_META:
            details = {"meta": asdict(meta)}
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
            why="; ".join(f"{who}: {why}" if why else who for who, why in call.asks)[:MAX_REASON],
            who=rule.who,
            session=rule.session if meta.session_key else "never",
            always="never" if call.asks else rule.session,
            at_deadline=rule.at_deadline,
            meta=details,
            parameters=call.parameters if len(json.dumps(call.parameters, default=str)) <= _MAX_META else None,
        )

    def _publish(self, request: ApprovalRequest | None) -> None:
        for queue in list(self._watchers):
            try:
                queue.put_nowait(request)
            except asyncio.QueueFull:  # end this reader
                self._watchers.discard(queue)
                queue.get_nowait()
                queue.put_nowait(None)

    def _emit_requested(self, call: ToolRequest, request: ApprovalRequest) -> None:
        if not any(each.events.observers for each in self._managers):
            return
        payload = {
            "ID": request.id,
            "Tool": request.tool,
            "Arguments": json.loads(request.arguments),
            **({"Facts": dict(request.facts)} if request.facts else {}),
            "Who": list(request.who),
            "Rule": request.rule,
            **({"Why": request.why} if request.why else {}),
            "Deadline": request.deadline,
            "AtDeadline": request.at_deadline,
        }
        self._emit(REQUESTED, call, payload, "info")

    def _emit_decided(self, call: ToolRequest, request: ApprovalRequest) -> None:
        runs = request.state is State.APPROVED or (request.state is State.EXPIRED and request.at_deadline == "allow")
        payload = {
            "ID": request.id,
            "Tool": request.tool,
            "Decision": str(request.state),
            "By": request.by,
            "Reason": request.reason,
            "ForSession": request.for_session,
        }
        self._emit(DECIDED, call, payload, "info" if runs else "warn")

    def _emit(self, kind: str, call: ToolRequest, payload: dict[str, Any], severity: str) -> None:
        for each in self._managers:
            each.events.emit(kind, call.meta, call.context, payload, severity=severity, attrs={"call_id": call.call_id})


class _Waiters(dict[str, asyncio.Event]):
    """The requests that runs of this process wait for, each with the event that wakes its run; a shared store has heartbeats."""

    def __init__(self, store: ApprovalStore) -> None:
        super().__init__()
        self._store = store
        self._heartbeat: asyncio.Task[None] | None = None

    def add(self, request_id: str) -> None:
        """Add a request."""
        self[request_id] = asyncio.Event()
        if self._heartbeat is None and self._store.is_shared:
            self._heartbeat = asyncio.get_running_loop().create_task(self._send_heartbeats())

    def remove(self, request_id: str) -> None:
        """Remove a request if it is there."""
        self.pop(request_id, None)
        if not self and self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    def wake(self, request_id: str | None = None) -> None:
        """Wake the run that waits for this request, or all runs."""
        for each, event in self.items():
            if request_id is None or each == request_id:
                event.set()

    async def aclose(self) -> None:
        """Wake all runs, and stop the heartbeats."""
        self.wake()
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.cancel()
            await asyncio.wait([heartbeat])

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT)
            try:
                await self._store.heartbeat(tuple(self))
            except Exception:
                _logger.warning("Could not record which approval requests are waited for", exc_info=True)


def _denial(rule: Rule, reason: str) -> Approval:
    return Approval(approved=False, reason=reason, by=policy_decider(rule.name))


def _approval(found: ApprovalRequest) -> Approval:
    """Return the answer to the hooks for a decided or expired request."""
    if found.state is State.EXPIRED:
        reason = f"no decision within {round(found.deadline - found.created, 3):g} s"
        return Approval(found.at_deadline == "allow", reason, policy_decider(found.rule))
    scope = "for the session" if found.for_session else "always" if found.for_always else ""
    reasons = [scope, found.reason] if found.state is State.APPROVED else [found.reason]
    return Approval(
        found.state is State.APPROVED,
        ": ".join(filter(None, reasons)),
        found.by,
        found.edited,
        by_person=not is_policy(found.by),
    )


def _current(request: ApprovalRequest, now: float, waiting: frozenset[str]) -> ApprovalRequest:
    """Return a request with its present state, which the process that waited may not have stored."""
    if not request.awaited and request.id in waiting:
        request = replace(request, awaited=True)
    if request.state is State.PENDING and not request.awaited and not request.session_key:
        return replace(request, state=State.WITHDRAWN)  # without a session no other run can use the decision
    if request.state is State.PENDING and request.deadline <= now:
        return replace(request, state=State.EXPIRED, decided=request.deadline)
    return request
