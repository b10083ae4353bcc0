"""A server that a test controls frame by frame, for moments that no fake of a provider plays, and a session with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from patchbay.errors import ToolSyncError
from patchbay.realtime import RealtimeSession, RealtimeSettings
from patchbay.tools import ToolDefinition

from .playing import Played, bounded, limits, snapshot_of

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

    def tools(self) -> list[list[str]]:
        """The names of the tools in each update that has come."""
        return [[tool["name"] for tool in each["session"]["tools"]] for each in self.came if each["type"] == "session.update"]

    def lines(self) -> list[str]:
        """The texts sent on this connection, in OpenAI's form."""
        items = [frame["item"] for frame in self.came if frame.get("type") == "conversation.item.create"]
        return [part["text"] for item in items for part in item.get("content", ())]


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


def created(response: str) -> dict[str, Any]:
    return {"type": "response.created", "response": {"id": response, "status": "in_progress"}}


def done(response: str, status: str = "completed", *calls: str) -> dict[str, Any]:
    """The end of a response with calls of these tools, whose names are also the call ids."""
    output = [
        {"id": f"item_{name}", "type": "function_call", "status": "completed", "name": name, "call_id": name, "arguments": "{}"}
        for name in calls
    ]
    return {"type": "response.done", "response": {"id": response, "status": status, "output": output}}


def text_delta(response: str, text: str) -> dict[str, Any]:
    return {
        "type": "response.output_text.delta",
        "response_id": response,
        "item_id": "m",
        "output_index": 0,
        "content_index": 0,
        "delta": text,
    }


def content(**members: Any) -> dict[str, Any]:
    """A message of Gemini's server."""
    return {"serverContent": members}


def updated(*names: str) -> dict[str, Any]:
    """A confirmation that names these tools."""
    return {"type": "session.updated", "session": {"tools": [{"type": "function", "name": name} for name in names]}}


def refusal(message: str, param: str = "session") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A reply that refuses a tool update."""
    return lambda update: rejected_execution(update, message, param)


def replies(*lists: Sequence[Any]) -> Handle:
    """A server that replies to each tool update with the frames of the next list."""

    async def conduct(peer: Peer) -> None:
        for frames in lists:
            update = await peer.until("session.update")
            await peer.send(*(frame(update) if callable(frame) else frame for frame in frames))

    return conduct


async def change(played: Played, *tools: str | ToolDefinition, error: str = "") -> None:
    """Set the tools of a session, and expect this error, if any."""
    with pytest.raises(ToolSyncError, match=error) if error else nullcontext():
        await bounded(played.session.use_tools(snapshot_of(*tools)))


def rejected_execution(update: dict[str, Any], message: str, param: str = "session") -> dict[str, Any]:
    """An error event of OpenAI about an update."""
    error = {"type": "invalid_request_error", "code": "invalid_value", "message": message, "param": param}
    return {"type": "error", "error": {**error, "event_id": update.get("event_id")}}
