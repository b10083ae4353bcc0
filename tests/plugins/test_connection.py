"""The two ends of the socket: order, bounds, and what is known of a side that is slow or gone."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from patchbay.plugins.connection import DROP_ABOVE, MAX_UNSENT, FrameReader, MessageConnection, encode
from patchbay.plugins.errors import FrameError
from patchbay.plugins.protocol import Begun, Ping, Progress, Result, Trigger

CALL = Trigger(req_id="r", entry_id="t")
BIG = Result(req_id="r", success=True, data=bytes(8 * 1024 * 1024))


class End:
    """One end under test, and the bare socket at the other."""

    def __init__(self, **options):
        self.received = []
        self.failing = []  # each raises when it is taken, once
        self.closed = asyncio.get_running_loop().create_future()
        self.handled = asyncio.Event()
        self.arrived = asyncio.Event()
        self.connection = MessageConnection(self._on_message, self.closed.set_result, **options)
        self.peer = FrameReader()
        received = self.connection.data_received

        def watched(data):
            received(data)
            self.arrived.set()

        self.connection.data_received = watched

    def _on_message(self, message):
        if message in self.failing:
            self.failing.remove(message)
            raise ValueError("not this one")
        self.received.append(message)
        self.handled.set()

    async def send(self, data):
        self.arrived.clear()
        await asyncio.get_running_loop().sock_sendall(self.socket, data)
        await self.arrived.wait()

    async def receive(self, count):
        """Read frames until so many messages have come."""
        received = []
        while len(received) < count:
            self.peer.feed(await asyncio.get_running_loop().sock_recv(self.socket, 1 << 20))
            while (message := self.peer.read()) is not None:
                received.append(message)
        return received


@asynccontextmanager
async def one_end(**options):
    end = End(**options)
    ours, end.socket = socket.socketpair()
    with end.socket:
        end.socket.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: end.connection, sock=ours)
        try:
            yield end
        finally:
            end.connection.abort()
            await end.closed


async def test_worker_writes_begun_of_a_batch_of_calls_at_once():
    async with one_end(is_worker=True) as end:
        await end.send(b"".join(encode(Trigger(req_id=str(n), entry_id="t")) for n in range(3)) + encode(Ping()))
        assert 4 == len(end.received)
        assert b"".join(encode(Begun(req_id=str(n))) for n in range(3)) == end.socket.recv(1000)


async def test_worker_runs_a_call_only_after_begun_is_sent():
    async with one_end(is_worker=True) as end:
        end.connection.send(BIG)
        await asyncio.get_running_loop().sock_sendall(end.socket, encode(CALL))
        assert [] == end.received
        assert [BIG, Begun(req_id="r")] == await end.receive(2)
        await end.handled.wait()
        assert [CALL] == end.received


async def test_a_worker_does_not_begin_a_call_that_it_cannot_report():
    async with one_end(is_worker=True) as end:
        end.socket.send(encode(CALL))
        end.socket.close()
        await asyncio.shield(end.closed)
        assert [] == end.received


async def test_only_droppable_messages_are_dropped_under_backpressure():
    async with one_end() as end:
        assert end.connection.offer(Ping())
        end.connection.send(BIG)
        assert not end.connection.offer(Ping())
        end.connection.send(Progress(req_id="kept"))
        assert len(BIG.data) > DROP_ABOVE
        assert [Ping(), BIG, Progress(req_id="kept")] == await end.receive(3)
        assert not end.connection.offer(Progress(req_id="\ud800"))


async def test_unreading_peer_is_disconnected_at_the_buffer_limit():
    async with one_end() as end:
        for _ in range(MAX_UNSENT // len(BIG.data) + 2):
            end.connection.send(BIG)
        assert "The other side does not read" in str(await end.closed)


async def test_close_waits_until_everything_is_sent():
    async with one_end() as end:
        end.connection.send(BIG)
        closing = asyncio.create_task(end.connection.close(within=30))
        assert [BIG] == await end.receive(1)
        await closing
        assert end.connection.is_closed
        end.connection.send(Ping())  # is discarded


async def test_messages_sent_before_the_end_are_read_despite_a_failed_write():
    async with one_end() as end:
        end.connection.send(Ping())
        await end.receive(1)
        assert not end.connection.was_read_to_end
        # All in one step of the loop: it has read nothing of this when its write fails.
        end.socket.send(encode(Begun(req_id="r")))
        end.socket.close()
        end.connection.send(Ping())
        await asyncio.shield(end.closed)
        assert end.connection.was_read_to_end
        assert [Begun(req_id="r")] == end.received


async def test_unread_end_of_an_aborted_connection_is_reported():
    async with one_end() as end:
        end.connection.send(Ping())
        await end.receive(1)
        end.connection.abort()
        await asyncio.shield(end.closed)
        assert not end.connection.was_read_to_end


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"\xff" * 8, "longer than"), (b"\0\0\0\1x", "Not a message"), (encode(Ping())[:4] + b"\x01" * 12, "Not a message")],
)
async def test_messages_before_garbage_are_read_and_garbage_closes_the_connection(data, words):
    async with one_end() as end:
        await end.send(encode(Ping()) + data + encode(Ping()))
        error = await asyncio.shield(end.closed)
        assert isinstance(error, FrameError)
        assert words in str(error)
        assert [Ping()] == end.received


@pytest.mark.parametrize(("data", "error"), [(encode(Ping())[:-1], "cut off"), (encode(Ping()), "None")])
async def test_connection_end_within_a_message_is_an_error(data, error):
    async with one_end() as end:
        await end.send(data)
        end.socket.close()
        assert error in str(await asyncio.shield(end.closed))


async def test_undeliverable_message_is_logged_and_the_next_one_handled(caplog):
    async with one_end() as end:
        end.failing = [Ping()]
        await end.send(encode(Ping()) + encode(Ping()))
        assert [Ping()] == end.received
    assert "Handling a Ping failed" in caplog.text
