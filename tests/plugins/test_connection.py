"""The socket's two ends: order, bounds, and what is known of a side that is slow or gone."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from patchbay.plugins.errors import FrameError
from patchbay.plugins.protocol import DROP_ABOVE, MOST_HELD, Ack, Channel, Connection, Ping, Progress, Result, encode
from plugins.host_rig import run

BIG = Result(req_id="r", success=True, data=bytes(8 * 1024 * 1024))


class End:
    """One end under test, and the bare socket at the other."""

    def __init__(self, **options):
        self.taken = []
        self.closed = asyncio.get_running_loop().create_future()
        self.news = asyncio.Event()
        self.arrived = asyncio.Event()
        self.connection = Connection(self._take, self.closed.set_result, **options)
        self.peer = Channel()
        received = self.connection.data_received

        def watched(data):
            received(data)
            self.arrived.set()

        self.connection.data_received = watched

    def _take(self, message):
        self.taken.append(message)
        self.news.set()

    async def say(self, data):
        self.arrived.clear()
        await asyncio.get_running_loop().sock_sendall(self.socket, data)
        await self.arrived.wait()

    async def say_until_closed(self, data):
        try:
            await asyncio.get_running_loop().sock_sendall(self.socket, data)
        except ConnectionError:  # it has been closed at the other end
            await self.closed

    async def hear(self, count):
        """Read frames until so many messages have come (acknowledgements do not count)."""
        heard = []
        while len(heard) < count:
            self.peer.feed(await asyncio.get_running_loop().sock_recv(self.socket, 1 << 20))
            while (message := self.peer.receive()) is not None:
                heard.append(message)
        return heard


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


def test_messages_that_arrive_together_are_acknowledged_by_one_frame_and_taken_in_order():
    async def main():
        async with one_end() as end:
            await end.say(b"".join(end.peer.send(Progress(req_id=str(n))) for n in range(5)))
            assert [str(n) for n in range(5)] == [message.req_id for message in end.taken]
            assert encode(0, Ack(id=5)) == await asyncio.get_running_loop().sock_recv(end.socket, 1000)

    run(main())


def test_nothing_is_taken_before_its_acknowledgement_is_with_the_kernel():
    async def main():
        async with one_end() as end:
            end.connection.send(BIG)
            await end.say(end.peer.send(Ping()))
            assert [] == end.taken
            assert [BIG] == await end.hear(1)
            await end.news.wait()
            assert [Ping()] == end.taken

    run(main())


def test_the_side_that_asks_acknowledges_with_its_next_message():
    async def main():
        async with one_end(asks=True) as end:
            await end.say(end.peer.send(Ping()))
            with pytest.raises(BlockingIOError):
                end.socket.recv(1)
            end.connection.send(Ping())
            await end.hear(1)
            assert end.peer.sent == end.peer.acknowledged

    run(main())


def test_the_side_that_asks_acknowledges_also_when_it_has_nothing_to_say():
    async def main():
        async with one_end(asks=True) as end:
            await end.say(end.peer.send(Ping()))
            while end.peer.acknowledged < 1:
                end.peer.feed(await asyncio.get_running_loop().sock_recv(end.socket, 1 << 20))
                assert end.peer.receive() is None

    run(main())


def test_what_may_be_dropped_is_dropped_when_too_much_waits_and_nothing_else_is():
    async def main():
        async with one_end() as end:
            assert end.connection.offer(Ping())
            end.connection.send(BIG)
            assert not end.connection.offer(Ping())
            end.connection.send(Progress(req_id="kept"))
            assert len(BIG.data) > DROP_ABOVE
            assert [Ping(), BIG, Progress(req_id="kept")] == await end.hear(3)
            assert not end.connection.offer(Progress(req_id="\ud800"))

    run(main())


def test_a_side_that_says_much_and_reads_nothing_is_left():
    async def main():
        async with one_end() as end:
            end.connection.send(BIG)
            said = 0
            while not end.closed.done():
                await end.say_until_closed(end.peer.send(BIG))
                said += len(BIG.data)
            return str(await end.closed), said >= MOST_HELD, end.taken

    assert ("The other side says much and reads nothing.", True, []) == run(main())


def test_delivered_waits_for_the_acknowledgement_of_what_was_sent_before():
    async def main():
        async with one_end() as end:
            assert await end.connection.delivered()
            end.connection.send(Ping())
            waiting = asyncio.create_task(end.connection.delivered())
            await end.hear(1)
            assert not waiting.done()
            await end.say(end.peer.acknowledge())
            assert await waiting

    run(main())


def test_delivered_is_false_when_the_connection_is_gone():
    async def main():
        async with one_end() as end:
            end.connection.send(Ping())
            waiting = asyncio.create_task(end.connection.delivered())
            await end.hear(1)
            end.socket.close()
            assert not await waiting
            assert not await end.connection.delivered()
            end.connection.send(Ping())  # goes nowhere
            assert end.connection.is_closed

    run(main())


@pytest.mark.parametrize("asks", [True, False])
def test_what_the_other_side_said_before_its_end_is_heard_though_a_write_fails_first(asks):
    async def main():
        async with one_end(asks=asks) as end:
            end.connection.send(Ping())
            await end.hear(1)
            assert not end.connection.was_heard_out
            # All in one step of the loop: it has read nothing of this when its write fails.
            end.socket.send(end.peer.acknowledge() + end.peer.send(Ping()))
            end.socket.close()
            end.connection.send(Ping())
            await asyncio.shield(end.closed)
            assert (1, True) == (end.connection.acknowledged, end.connection.was_heard_out)
            assert [Ping()] * asks == end.taken

    run(main())


def test_of_a_side_that_is_cut_off_while_it_lives_it_is_not_known_what_it_would_have_said():
    async def main():
        async with one_end() as end:
            end.connection.send(Ping())
            await end.hear(1)
            end.connection.abort()
            await asyncio.shield(end.closed)
            assert not end.connection.was_heard_out

    run(main())


@pytest.mark.parametrize(
    ("data", "words"), [(b"\xff" * 8, "longer than"), (b"\0\0\0\1x", "Not a message"), (encode(5, Ping()), "came after")]
)
def test_what_came_before_garbage_is_taken_and_the_garbage_closes_the_connection(data, words):
    async def main():
        async with one_end() as end:
            await end.say(end.peer.send(Ping()) + data + end.peer.send(Ping()))
            error = await asyncio.shield(end.closed)
            assert isinstance(error, FrameError)
            assert words in str(error)
            assert [Ping()] == end.taken

    run(main())


def test_an_end_within_a_message_is_told_as_such_and_one_between_two_is_not():
    async def main(data):
        async with one_end() as end:
            await end.say(data)
            end.socket.close()
            return await asyncio.shield(end.closed)

    assert "cut off" in str(run(main(encode(1, Ping())[:-1])))
    assert None is run(main(encode(1, Ping())))


def test_a_message_that_cannot_be_taken_is_logged_and_the_next_one_is_taken(caplog):
    async def main():
        async with one_end() as end:

            def fail(message):
                end.connection._on_message = end._take
                raise ValueError("not this one")

            end.connection._on_message = fail
            await end.say(end.peer.send(Ping()) + end.peer.send(Ping()))
            assert [Ping()] == end.taken

    run(main())
    assert "A Ping could not be taken" in caplog.text
