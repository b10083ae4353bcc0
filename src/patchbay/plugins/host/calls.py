"""The calls of one plugin that are under way: each gets one answer, whatever becomes of the plugin.

What lives here: calls waiting for their RESULT, their deadlines and their bounds. What does not: the process behind the
connection (``process``), and HTTP (``callback``).

An answer is the body of ``plugins.envelope``, as bytes. There are five ways to one, and the first of them takes it: the plugin's
RESULT, the deadline, the end of the connection, no connection at all, too much under way. A caller that is cancelled gets none,
and the plugin is told to stop.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchbay.plugins import deadlines, envelope
from patchbay.plugins.errors import FrameError
from patchbay.plugins.messages import ENTRY_PREFIX, CancelRun, Message, Result, Trigger

if TYPE_CHECKING:
    from patchbay.plugins.connection import Connection

NOT_BEGUN = "ended before the call began: it did not run"
UNDER_WAY = "ended while the call was under way: nobody knows what it did"


@dataclass(slots=True)
class _Waiting:
    """One call. ``number`` is that of its message: what the plugin has acknowledged may have begun."""

    name: str
    timeout: float
    number: int
    size: int
    answer: asyncio.Future[bytes]
    timer: asyncio.TimerHandle | None = None


class Calls:
    """The calls of the plugin ``plugin_id``; ``most`` at a time, ``bytes_most`` bytes of their arguments.

    It outlives the plugin's processes: ``attach`` each one's connection, ``detach`` it when it is over. For one event loop.
    """

    def __init__(self, plugin_id: str, *, most: int = 256, bytes_most: int = 64 * 1024 * 1024) -> None:
        self._plugin_id = plugin_id
        self._most = most
        self._bytes_most = bytes_most
        self._connection: Connection | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._bytes = 0
        self._ids = itertools.count(1)

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
        acknowledged = connection.acknowledged
        for req_id, call in tuple(self._waiting.items()):
            why = NOT_BEGUN if call.number > acknowledged else UNDER_WAY
            self._settle(req_id, envelope.not_running(self._plugin_id, why=why).encode())

    async def call(self, name: str, args: str, *, within: float, call_id: str = "", idempotency_key: str = "") -> bytes:
        """Carry out one call and return the body that answers it; never later than ``within`` seconds, and a little before.

        ``args`` is the JSON text of an object. Cancelling this cancels the call in the plugin. Raises nothing else.
        """
        connection = self._connection
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
            idempotency_key=idempotency_key,
        )
        try:
            number = connection.send(trigger)
        except FrameError as error:
            return envelope.failure(
                f"the arguments cannot be sent: {error}", error="INVALID_ARGUMENTS", code="invalid_arguments"
            ).encode()
        loop = asyncio.get_running_loop()
        call = self._waiting[req_id] = _Waiting(name, within, number, size, loop.create_future())
        self._bytes += size
        call.timer = loop.call_later(deadlines.for_host(within), self._expire, req_id)
        try:
            return await call.answer
        except asyncio.CancelledError:
            if self._forget(req_id) is not None:
                self._send(CancelRun(run_id=req_id))
            raise

    def settle(self, result: Result) -> None:
        """Take a RESULT. One that nobody waits for any more is passed over."""
        self._settle(result.req_id, result.data)

    def _settle(self, req_id: str, body: bytes) -> None:
        call = self._forget(req_id)
        if call is not None and not call.answer.done():
            call.answer.set_result(body)

    def _expire(self, req_id: str) -> None:
        call = self._waiting.get(req_id)
        if call is not None:
            self._settle(req_id, envelope.timed_out(call.name, call.timeout).encode())
            self._send(CancelRun(run_id=req_id))

    def _forget(self, req_id: str) -> _Waiting | None:
        call = self._waiting.pop(req_id, None)
        if call is not None:
            self._bytes -= call.size
            if call.timer is not None:
                call.timer.cancel()
        return call

    def _send(self, message: Message) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def _busy(self) -> envelope.Body:
        message = f"plugin {self._plugin_id!r} has {len(self._waiting)} calls under way, and takes no more now: call again later"
        return envelope.failure(message, error="PLUGIN_BUSY", code="plugin_busy")
