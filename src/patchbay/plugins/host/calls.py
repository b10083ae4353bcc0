"""Calls of one plugin that are in flight, and the cache of calls that carried an idempotency key."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from patchbay.plugins import envelope
from patchbay.plugins.connection import MessageConnection
from patchbay.plugins.errors import FrameError
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.protocol import ENTRY_PREFIX, CancelRun, Message, Progress, Result, Trigger, host_deadline

NOT_BEGUN: Final = "ended before the call began: it did not run"
IN_FLIGHT: Final = "ended while the call was under way: it may have run, with unknown effects"
NOT_KEPT: Final = envelope.failure(
    "this call was carried out already, and its answer was too long to be kept", error="ANSWER_NOT_KEPT", code="answer_not_kept"
).encode()
"""Replaces an answer that was dropped for its size. The call does not run again."""


class KeyReusedError(Exception):
    """The key belongs to another call."""


class IdempotencyCache:
    """Maps idempotency keys to calls in flight, and to the answers of the last ``most`` completed ones, for ``seconds``.

    ``bytes_most`` bounds the answers: the oldest are replaced by NOT_KEPT. Calls in flight are bounded by their owner. The cache
    ends with the host's process; a handler that needs more has the key itself.
    """

    def __init__(self, *, most: int, bytes_most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._bytes_most = bytes_most
        self._seconds = seconds
        self._clock = clock
        self._in_flight: dict[str, tuple[bytes, str]] = {}
        self._completed: OrderedDict[str, tuple[bytes, float]] = OrderedDict()  # digest and time, oldest first
        self._answers: OrderedDict[str, bytes] = OrderedDict()  # oldest first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._in_flight) + len(self._completed)

    def find(self, key: str, digest: bytes) -> str | bytes | None:
        """Return the request id of a call in flight, the answer of a completed one, None for a new key.

        Raises KeyReusedError where the key belongs to a call with another digest.
        """
        self._evict()
        found: str | bytes
        if key in self._in_flight:
            known, found = self._in_flight[key]
        elif key in self._completed:
            known, found = self._completed[key][0], self._answers.get(key, NOT_KEPT)
        else:
            return None
        if known != digest:
            raise KeyReusedError
        return found

    def add_call(self, key: str, digest: bytes, req_id: str) -> None:
        """Record a call in flight."""
        self._in_flight[key] = (digest, req_id)

    def add_answer(self, key: str, body: bytes | None) -> None:
        """Record the answer of a call; None for one that never ran, whose key is free again."""
        digest, _ = self._in_flight.pop(key, (None, ""))
        if digest is None or body is None:
            return
        self._completed[key] = (digest, self._clock())
        if len(body) <= self._bytes_most:
            self._answers[key] = body
            self._bytes += len(body)
        self._evict()

    def _evict(self) -> None:
        while self._bytes > self._bytes_most:
            self._bytes -= len(self._answers.popitem(last=False)[1])
        while self._completed:
            oldest, (_, since) = next(iter(self._completed.items()))
            if len(self._completed) <= self._most and self._clock() - since <= self._seconds:
                break
            del self._completed[oldest]
            self._bytes -= len(self._answers.pop(oldest, b""))


@dataclass(slots=True)
class _InFlight:
    """One call. ``begun``: its handler may have been reached. ``key`` may be empty."""

    req_id: str
    name: str
    timeout: float
    size: int
    key: str
    begun: bool = False
    callers: list[asyncio.Future[bytes]] = field(default_factory=list)
    listeners: list[Callable[[Progress], object]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    grace: asyncio.TimerHandle | None = None


class InFlightCalls:
    """The calls of the plugin ``plugin_id``, in all of its processes. For one event loop.

    ``attach`` the connection of each process, and ``detach`` it at its end. Each call gets one answer (the bytes of a body of
    ``plugins.envelope``): the worker's RESULT, or that of its deadline, of the end of the connection, of a missing process, or of
    too many calls. ``policy`` bounds the calls, the bytes of their arguments, and the idempotency cache.
    """

    def __init__(self, plugin_id: str, policy: HostPolicy | None = None) -> None:
        self.refusing = ""
        """Why no call is accepted ("is frozen"), "" where they are."""
        self._plugin_id = plugin_id
        self._policy = policy = policy or HostPolicy()
        self._connection: MessageConnection | None = None
        self._calls: dict[str, _InFlight] = {}
        self._bytes = 0
        self._ids = itertools.count(1)
        self._cache = IdempotencyCache(most=policy.answers_most, bytes_most=policy.answer_bytes_most, seconds=policy.answers_kept)

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def is_attached(self) -> bool:
        """Whether there is a process."""
        return self._connection is not None

    def attach(self, connection: MessageConnection) -> None:
        """Send calls over this connection from now on."""
        self._connection = connection

    def detach(self, connection: MessageConnection) -> None:
        """Answer every call of a connection that has ended."""
        if self._connection is not connection:
            return
        self._connection = None
        for call in tuple(self._calls.values()):
            # A BEGUN may be among what was not read.
            ran = call.begun or not connection.was_read_to_end
            body = envelope.not_running(
                self._plugin_id, why=IN_FLIGHT if ran else NOT_BEGUN, ran="unknown" if ran else "no"
            ).encode()
            self._answer(call, body, ran=ran)

    async def call(
        self,
        name: str,
        args: str,
        *,
        within: float,
        call_id: str = "",
        idempotency_key: str = "",
        grace: float = 0.0,
        on_progress: Callable[[Progress], object] | None = None,
        trace: dict[str, str] | None = None,
    ) -> bytes:
        """Run one call and return the body that answers it, a little before ``within`` seconds at the latest.

        ``args`` is the JSON text of an object. A call whose ``idempotency_key`` is in flight joins that call, one whose key was
        answered gets the same answer, and a key of another call is refused. ``on_progress`` must not raise. Cancelling the last
        caller cancels the call in the plugin; one with a key continues for ``grace`` seconds, so that its caller can come back.
        ``trace`` are the headers of its trace.
        """
        if not idempotency_key:
            call = self._send_call(name, args, within, call_id, "", trace or {})
        else:
            digest = hashlib.blake2b(f"{name}\n{args}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
            try:
                found = self._cache.find(idempotency_key, digest)
            except KeyReusedError:
                return self._key_reused(idempotency_key)
            if isinstance(found, bytes):
                return found
            if found is not None:
                call = self._calls[found]
            else:
                call = self._send_call(name, args, within, call_id, idempotency_key, trace or {})
                if isinstance(call, _InFlight):
                    self._cache.add_call(idempotency_key, digest, call.req_id)
        return call if isinstance(call, bytes) else await self._wait(call, grace, on_progress)

    def on_begun(self, req_id: str) -> None:
        """Handle a BEGUN."""
        if (call := self._calls.get(req_id)) is not None:
            call.begun = True

    def on_progress(self, progress: Progress) -> None:
        """Handle a PROGRESS."""
        if (call := self._calls.get(progress.req_id)) is not None:
            for listener in tuple(call.listeners):
                listener(progress)

    def on_result(self, result: Result) -> None:
        """Handle a RESULT."""
        if (call := self._calls.get(result.req_id)) is not None:
            self._answer(call, result.data, ran=result.ran)

    def _send_call(self, name: str, args: str, within: float, call_id: str, key: str, trace: dict[str, str]) -> _InFlight | bytes:
        """Send a call to the worker; return the answer at once where that cannot be done."""
        if self.refusing:
            return envelope.not_running(self._plugin_id, why=self.refusing).encode()
        if self._connection is None:
            return envelope.not_running(self._plugin_id).encode()
        size = len(args)
        if len(self._calls) >= self._policy.calls_most or self._bytes + size > self._policy.call_bytes_most:
            return self._busy()
        req_id = f"c{next(self._ids)}"
        trigger = Trigger(
            req_id=req_id,
            entry_id=ENTRY_PREFIX + name,
            args=args,
            timeout=within,
            run_id=req_id,
            call_id=call_id,
            idempotency_key=key,
            trace=trace,
        )
        try:
            self._connection.send(trigger)
        except FrameError as error:
            return envelope.failure(
                f"the arguments cannot be sent: {error}", error="INVALID_ARGUMENTS", code="invalid_arguments", ran="no"
            ).encode()
        call = self._calls[req_id] = _InFlight(req_id, name, within, size, key)
        self._bytes += size
        call.timer = asyncio.get_running_loop().call_later(host_deadline(within), self._expire, call)
        return call

    async def _wait(self, call: _InFlight, grace: float, on_progress: Callable[[Progress], object] | None) -> bytes:
        """Wait for a call's answer, as one of its callers."""
        if call.grace is not None:
            call.grace.cancel()
            call.grace = None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        call.callers.append(answer)
        if on_progress is not None:
            call.listeners.append(on_progress)
        try:
            return await answer
        except asyncio.CancelledError:
            call.callers.remove(answer)
            if on_progress is not None:
                call.listeners.remove(on_progress)
            if not call.callers and call.req_id in self._calls:
                cancel = CancelRun(run_id=call.req_id)
                if call.key and grace > 0:
                    call.grace = loop.call_later(grace, self._send, cancel)
                else:
                    self._send(cancel)
                if not call.key:
                    self._remove(call)
            raise

    def _answer(self, call: _InFlight, body: bytes, *, ran: bool = True) -> None:
        """Answer all callers of a call. ``ran``: its handler may have been reached, so its key stays taken."""
        self._remove(call)
        if call.key:
            self._cache.add_answer(call.key, body if ran else None)
        for caller in call.callers:
            if not caller.done():
                caller.set_result(body)

    def _expire(self, call: _InFlight) -> None:
        self._answer(call, envelope.timed_out(call.name, call.timeout).encode())
        self._send(CancelRun(run_id=call.req_id))

    def _remove(self, call: _InFlight) -> None:
        del self._calls[call.req_id]
        self._bytes -= call.size
        for timer in (call.timer, call.grace):
            if timer is not None:
                timer.cancel()

    def _send(self, message: Message) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def _busy(self) -> bytes:
        message = f"plugin {self._plugin_id!r} has {len(self._calls)} calls under way, and takes no more now: call again later"
        return envelope.failure(message, error="PLUGIN_BUSY", code="plugin_busy", ran="no").encode()

    def _key_reused(self, key: str) -> bytes:
        message = (
            f"the idempotency key {key!r} stands for another call of plugin {self._plugin_id!r}: this one did not run. "
            "A key is for one call, and for the same call when it is sent again"
        )
        return envelope.failure(message, error="IDEMPOTENCY_KEY_REUSED", code="idempotency_key_reused", ran="no").encode()
