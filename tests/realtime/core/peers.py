"""A server that a test controls frame by frame, for moments that no fake of a provider plays, and a session with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from patchbay.realtime import RealtimeSession, RealtimeSettings
from patchbay.realtime.connection import WebSocketConnection

from .playing import Played, bounded, limits

SECRET = "sk-a-key-that-nobody-may-see"


class Peer:
    """A connection: ``came`` are the frames that the session has sent, ``number`` counts connections from 1."""

    def __init__(self, socket: ServerConnection, number: int) -> None:
        self.number = number
        self.came: list[dict[str, Any]] = []
        self._socket = socket

    @property
    def socket(self) -> ServerConnection:
        return self._socket

    async def send(self, *frames: dict[str, Any]) -> None:
        for frame in frames:
            await self._socket.send(json.dumps(frame))

    async def next(self) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(await self._socket.recv())
        self.came.append(frame)
        return frame

    async def until(self, kind: str) -> dict[str, Any]:
        """Wait for a frame of this type, or with this member."""
        while True:
            frame = await self.next()
            if frame.get("type") == kind or kind in frame:
                return frame

    async def listen(self) -> None:
        """Receive frames until the session disconnects."""
        while True:
            await self.next()

    def kill(self) -> None:
        self._socket.transport.abort()

    async def open(self) -> None:
        """Accept the session as Gemini's or OpenAI's server does."""
        if self._socket.request is not None and "x-goog-api-key" in self._socket.request.headers:
            await self.until("setup")
            await self.send({"setupComplete": {}})
            return
        await self.send({"type": "session.created", "session": {}})
        await self.until("session.update")
        await self.send({"type": "session.updated", "session": {}})

    def kinds(self) -> list[str]:
        return [frame.get("type") or next(iter(frame)) for frame in self.came]


Handle = Callable[[Peer], Awaitable[object]]


@asynccontextmanager
async def serving(handle: Handle, **options: Any) -> AsyncIterator[tuple[str, list[Peer]]]:
    """A server that runs ``handle`` for each connection; yields its URL and its connections so far."""
    peers: list[Peer] = []

    async def talk(socket: ServerConnection) -> None:
        peer = Peer(socket, len(peers) + 1)
        peers.append(peer)
        try:
            await handle(peer)
        except ConnectionClosed:
            pass

    async with serve(talk, "127.0.0.1", 0, close_timeout=0.2, **options) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", peers


@asynccontextmanager
async def connected_to(
    handle: Callable[[ServerConnection], Awaitable[None]], **options: Any
) -> AsyncIterator[WebSocketConnection]:
    """A connection, without a session, to a server with this handler."""
    async with serve(handle, "127.0.0.1", 0, **options) as server:
        port = server.sockets[0].getsockname()[1]
        connection = await WebSocketConnection.open(f"ws://127.0.0.1:{port}/", {}, seconds=5, max_frame=1000)
        try:
            yield connection
        finally:
            await bounded(connection.close())


@asynccontextmanager
async def open_session(
    url: str,
    *tools: Any,
    provider: str = "openai",
    snapshot: Any = None,
    hooks: Any = None,
    settings: dict[str, Any] | None = None,
    **bounds: Any,
) -> AsyncIterator[Played]:
    """An open session with a server; checks that no event contains the key."""
    own = {"provider": provider, "url": url, "api_key": SECRET, "output": "text", "limits": limits(**bounds)}
    played = Played(
        RealtimeSession(RealtimeSettings(model="m", **{**own, **(settings or {})}), tools=tools, snapshot=snapshot, hooks=hooks)
    )
    async with played.session:
        reading = asyncio.ensure_future(played.read())
        try:
            yield played
        finally:
            await played.session.close()
            await reading
    assert SECRET not in repr(played.events)


@asynccontextmanager
async def served(conduct: Handle, *tools: Any, opens: Handle = Peer.open, **how: Any) -> AsyncIterator[tuple[Played, list[Peer]]]:
    """A session (``open_session``) and a server that accepts it and then runs ``conduct``, on each connection."""

    async def handle(peer: Peer) -> None:
        await opens(peer)
        await conduct(peer)
        await peer.listen()

    async with serving(handle) as (url, peers), open_session(url, *tools, **how) as played:
        yield played, peers


def content(**members: Any) -> dict[str, Any]:
    """A message of Gemini's server."""
    return {"serverContent": members}
