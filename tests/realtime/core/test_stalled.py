"""A server that stops reading is replaced, a slow one is kept, and sending audio yields to other tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection

from patchbay.realtime import ConnectionEvent
from patchbay.realtime import connection as connections
from patchbay.realtime.connection import SEND_BUFFER_LIMIT, WebSocketConnection
from patchbay.testing.realtime import FakeOpenAI

from .peers import Peer, connected_to, served
from .playing import bounded, limits, playing

MORE_THAN_SOCKETS_TAKE = {"audio": "x" * (SEND_BUFFER_LIMIT - 4096)}


@asynccontextmanager
async def unread_connection() -> AsyncIterator[tuple[WebSocketConnection, ServerConnection, list[int]]]:
    """A connection to a server that does not read yet, the server's end, and the lengths of what it reads later."""
    ends: list[ServerConnection] = []
    received: list[int] = []

    async def handle(socket: ServerConnection) -> None:
        ends.append(socket)
        socket.transport.pause_reading()
        await socket.send("{}")
        async for message in socket:
            received.append(len(message))  # noqa: PERF401  (looked at before the end)

    async with connected_to(handle, close_timeout=0.1, max_size=None, ping_interval=None) as connection:
        await bounded(connection.receive())
        yield connection, ends[0], received


async def test_server_that_stops_reading_audio_is_replaced_by_a_new_connection(monkeypatch):
    monkeypatch.setattr(connections, "DRAIN_TIMEOUT", 0.2)

    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            peer.socket.transport.pause_reading()
            await peer.socket.wait_closed()

    async with served(conduct) as (played, peers):

        async def speak() -> None:
            while True:
                await played.session.send_audio(bytes(32_000))

        speaking = asyncio.ensure_future(speak())
        await played.until(lambda: ["open", "lost", "open"] == played.states[:3])
        assert "the server stopped reading" == played.of(ConnectionEvent)[1].reason
        await played.until(lambda: "input_audio_buffer.append" in peers[1].kinds())
        speaking.cancel()


async def test_slow_but_progressing_server_is_kept(monkeypatch):
    monkeypatch.setattr(connections, "DRAIN_TIMEOUT", 0.05)
    async with unread_connection() as (connection, server, received):
        connection.send([MORE_THAN_SOCKETS_TAKE])
        await asyncio.sleep(0.2)  # several times as long as a small frame may take
        assert [] == received
        server.transport.resume_reading()
        connection.send([{"last": True}])
        async with asyncio.timeout(90):
            while len(received) < 2:
                await asyncio.sleep(0.001)
        assert "" == connection.reason


async def test_network_failure_during_a_stall_breaks_the_connection():
    async with unread_connection() as (connection, server, _):
        connection.send([MORE_THAN_SOCKETS_TAKE])
        await asyncio.sleep(0.05)
        server.transport.abort()  # with data unread, so that it is reset
        with pytest.raises(EOFError, match="the connection broke"):
            await bounded(connection.receive())
        await connection.close()  # and nothing of it is raised here


@pytest.mark.parametrize("moment", ["lost", "about to be lost"])
async def test_send_audio_yields_to_the_event_loop(moment):
    async with playing(FakeOpenAI(), limits=limits(first_pause=30.0, longest_pause=30.0)) as played:
        played.fake.drop()
        if moment == "lost":
            await played.until(lambda: "lost" in played.states)
        turns: list[str] = []
        asyncio.get_running_loop().call_soon(turns.append, "another's")
        await played.session.send_audio(bytes(4))
        assert ["another's"] == turns
