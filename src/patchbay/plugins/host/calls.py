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
from patchbay.plugins.errors import FrameError
from patchbay.plugins.protocol import (
    ENTRY_PREFIX,
    CancelRun,
    Connection,
    Message,
    Progress,
    Result,
    Trigger,
    host_deadline,
)

NOT_KEPT: Final = envelope.failure(
    "this call was carried out already, and its answer was too long to be kept", error="ANSWER_NOT_KEPT", code="answer_not_kept"
).encode()
"""The answer in the place of one that was let go for its size. The call is not carried out again all the same."""


class KeyReusedError(Exception):
    """The key stands for another call."""


@dataclass(slots=True)
class _Over:
    """A call that is over. ``body`` is its answer, ``since`` when it was given."""

    digest: bytes
    body: bytes
    since: float


class IdempotencyCache:
    """Keeps for each key what became of its call: the last ``most`` that are over, for ``seconds``, with so much of answers.

    Those under way are always kept: whoever begins them bounds them. What is too old is let go when the next call comes.
    """

    def __init__(self, *, most: int, bytes_most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._bytes_most = bytes_most
        self._seconds = seconds
        self._clock = clock
        self._under_way: dict[str, tuple[bytes, str]] = {}
        self._over: OrderedDict[str, _Over] = OrderedDict()  # in the order of their ends
        self._with_body: OrderedDict[str, None] = OrderedDict()  # those whose answer is kept, in the same order
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._under_way) + len(self._over)

    def find(self, key: str, digest: bytes) -> str | bytes | None:
        """Return what there is of a call: the id of its request while that is under way, then its answer; None for a new one.

        Raises KeyReusedError where the key is that of a call with another digest.
        """
        self._let_go()
        if (under_way := self._under_way.get(key)) is not None:
            known, found = under_way[0], under_way[1]
            return _same(known, digest, found)
        if (over := self._over.get(key)) is not None:
            return _same(over.digest, digest, over.body)
        return None

    def begin(self, key: str, digest: bytes, req_id: str) -> None:
        """Note that a call of a new key is under way."""
        self._under_way[key] = (digest, req_id)

    def end(self, key: str, body: bytes | None) -> None:
        """Note how a call has ended: its answer, or None for one that never ran, which may come again."""
        under_way = self._under_way.pop(key, None)
        if under_way is None or body is None:
            return
        self._over[key] = _Over(under_way[0], body, self._clock())
        self._with_body[key] = None
        self._bytes += len(body)
        self._let_go()

    def _let_go(self) -> None:
        while self._over:
            oldest = next(iter(self._over))
            if len(self._over) <= self._most and self._clock() - self._over[oldest].since <= self._seconds:
                break
            if oldest in self._with_body:
                self._drop_body(oldest)
            del self._over[oldest]
        while self._bytes > self._bytes_most:
            # The newest goes first where it alone is too much: it would take all others with it.
            newest = next(reversed(self._with_body))
            alone = len(self._over[newest].body) > self._bytes_most
            self._drop_body(newest if alone else next(iter(self._with_body)))

    def _drop_body(self, key: str) -> None:
        over = self._over[key]
        self._bytes -= len(over.body)
        over.body = NOT_KEPT
        del self._with_body[key]


def digest_of(name: str, args: str) -> bytes:
    """Return what tells one call from another: its tool and its arguments, byte for byte."""
    return hashlib.blake2b(f"{name}\n{args}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def reused(plugin_id: str, key: str) -> bytes:
    """Return the answer of a call whose key stands for another call."""
    message = (
        f"the idempotency key {key!r} stands for another call of plugin {plugin_id!r}: this one did not run. "
        "A key is for one call, and for the same call when it is sent again"
    )
    return envelope.failure(message, error="IDEMPOTENCY_KEY_REUSED", code="idempotency_key_reused", ran="no").encode()


def _same(known: bytes, digest: bytes, found: str | bytes) -> str | bytes:
    if known != digest:
        raise KeyReusedError
    return found


NOT_BEGUN = "ended before the call began: it did not run"
UNDER_WAY = "ended while the call was under way: it may have run, and nobody knows what it did"


@dataclass(slots=True)
class _Waiting:
    """One call. ``number`` is that of its message: what the plugin has acknowledged may have begun. ``key`` may be empty."""

    req_id: str
    name: str
    timeout: float
    number: int
    size: int
    key: str
    callers: list[asyncio.Future[bytes]] = field(default_factory=list)
    listeners: list[Callable[[Progress], object]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    grace: asyncio.TimerHandle | None = None


class InFlightCalls:
    """The calls of the plugin ``plugin_id``; ``most`` at a time, ``bytes_most`` bytes of their arguments.

    It outlives the plugin's processes: ``attach`` each one's connection, ``detach`` it when it is over. For one event loop.
    ``repeats`` is what calls are known again by (None: with the bounds of HostPolicy).
    """

    def __init__(
        self, plugin_id: str, *, most: int = 256, bytes_most: int = 64 * 1024 * 1024, repeats: IdempotencyCache | None = None
    ) -> None:
        self.refusing = ""
        """Why no call is begun now ("is frozen"); "" where calls are."""
        self._plugin_id = plugin_id
        self._most = most
        self._bytes_most = bytes_most
        self._connection: Connection | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._bytes = 0
        self._ids = itertools.count(1)
        self._repeats = IdempotencyCache(most=4096, bytes_most=4 * 1024 * 1024, seconds=600.0) if repeats is None else repeats

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_attached(self) -> bool:
        """Whether there is a process to be asked."""
        return self._connection is not None

    def attach(self, connection: Connection) -> None:
        """Send calls to this connection from now on."""
        self._connection = connection

    def detach(self, connection: Connection) -> None:
        """Answer every call of a connection that is over, and send nothing more to it."""
        if self._connection is not connection:
            return
        self._connection = None
        # Of what was sent to a connection that was not heard to its end nobody knows whether it has arrived.
        begun = connection.acknowledged if connection.was_heard_out else None
        for req_id, call in tuple(self._waiting.items()):
            ran = begun is None or call.number <= begun
            body = envelope.not_running(
                self._plugin_id, why=UNDER_WAY if ran else NOT_BEGUN, ran="unknown" if ran else "no"
            ).encode()
            self._settle(req_id, body, ran=ran)

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
    ) -> bytes:
        """Carry out one call and return the body that answers it; never later than ``within`` seconds, and a little before.

        ``args`` is the JSON text of an object. A call whose ``idempotency_key`` is under way joins that one, and one whose key
        was answered lately gets the same answer; the key of another call is refused. ``on_progress`` is told what the tool says
        before its answer, and must not raise. Cancelling this cancels the call in the plugin, unless others wait for it too; one
        with a key goes on for ``grace`` seconds, so that its caller can come again for the result. Raises nothing else.
        """
        if not idempotency_key:
            call = self._begin(name, args, within, call_id, "")
        else:
            digest = digest_of(name, args)
            try:
                known = self._repeats.find(idempotency_key, digest)
            except KeyReusedError:
                return reused(self._plugin_id, idempotency_key)
            if isinstance(known, str):
                call = self._waiting[known]
            elif known is not None:
                return known
            else:
                call = self._begin(name, args, within, call_id, idempotency_key)
                if isinstance(call, _Waiting):
                    self._repeats.begin(idempotency_key, digest, call.req_id)
        return call if isinstance(call, bytes) else await self._wait(call, grace, on_progress)

    def _begin(self, name: str, args: str, within: float, call_id: str, key: str) -> _Waiting | bytes:
        """Send a call to the plugin; return the answer at once where that cannot be, and nothing has run."""
        connection = self._connection
        if self.refusing:
            return envelope.not_running(self._plugin_id, why=self.refusing).encode()
        if connection is None:
            return envelope.not_running(self._plugin_id).encode()
        size = len(args)
        if len(self._waiting) >= self._most or self._bytes + size > self._bytes_most:
            return self._busy().encode()
        req_id = f"c{next(self._ids)}"
        trigger = Trigger(
            req_id=req_id,
            entry_id=ENTRY_PREFIX + name,
            args=args,
            timeout=within,
            run_id=req_id,
            call_id=call_id,
            idempotency_key=key,
        )
        try:
            number = connection.send(trigger)
        except FrameError as error:
            return envelope.failure(
                f"the arguments cannot be sent: {error}", error="INVALID_ARGUMENTS", code="invalid_arguments", ran="no"
            ).encode()
        call = self._waiting[req_id] = _Waiting(req_id, name, within, number, size, key)
        self._bytes += size
        loop = asyncio.get_running_loop()
        call.timer = loop.call_later(host_deadline(within), self._expire, req_id)
        return call

    async def _wait(self, call: _Waiting, grace: float, on_progress: Callable[[Progress], object] | None) -> bytes:
        """Be one of a call's callers until its answer is there."""
        if call.grace is not None:
            call.grace.cancel()
            call.grace = None
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        call.callers.append(answer)
        if on_progress is not None:
            call.listeners.append(on_progress)
        try:
            return await answer
        except asyncio.CancelledError:
            call.callers.remove(answer)
            if on_progress is not None:
                call.listeners.remove(on_progress)
            if not call.callers and call.req_id in self._waiting:
                if not call.key:
                    self._forget(call.req_id)
                if call.key and grace > 0:
                    stop = CancelRun(run_id=call.req_id)
                    call.grace = asyncio.get_running_loop().call_later(grace, self._send, stop)
                else:
                    self._send(CancelRun(run_id=call.req_id))
            raise

    def settle(self, result: Result) -> None:
        """Take a RESULT. One that nobody waits for any more is passed over."""
        self._settle(result.req_id, result.data, ran=result.ran)

    def progress(self, progress: Progress) -> None:
        """Take a PROGRESS. One of a call that is over is passed over."""
        call = self._waiting.get(progress.req_id)
        if call is not None:
            for listener in tuple(call.listeners):
                listener(progress)

    def _settle(self, req_id: str, body: bytes, *, ran: bool = True) -> None:
        """Answer all callers of a call. ``ran``: its handler may have been reached, so its key stays taken."""
        call = self._forget(req_id)
        if call is None:
            return
        if call.key:
            self._repeats.end(call.key, body if ran else None)
        for caller in call.callers:
            if not caller.done():
                caller.set_result(body)

    def _expire(self, req_id: str) -> None:
        call = self._waiting.get(req_id)
        if call is not None:
            self._settle(req_id, envelope.timed_out(call.name, call.timeout).encode())
            self._send(CancelRun(run_id=req_id))

    def _forget(self, req_id: str) -> _Waiting | None:
        call = self._waiting.pop(req_id, None)
        if call is not None:
            self._bytes -= call.size
            for timer in (call.timer, call.grace):
                if timer is not None:
                    timer.cancel()
        return call

    def _send(self, message: Message) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def _busy(self) -> envelope.Body:
        message = f"plugin {self._plugin_id!r} has {len(self._waiting)} calls under way, and takes no more now: call again later"
        return envelope.failure(message, error="PLUGIN_BUSY", code="plugin_busy", ran="no")
