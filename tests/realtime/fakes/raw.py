"""A WebSocket client for the tests of the fakes, that sends any frame."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import connect

BOUND = 60.0

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FLAT = {"type": "function", "name": "get_weather", "description": "The weather.", "parameters": PARAMETERS}
NESTED = {"type": "function", "function": {key: FLAT[key] for key in ("name", "description", "parameters")}}
DECLARED = {"functionDeclarations": [{key: FLAT[key] for key in ("name", "description", "parameters")}]}

SESSIONS: dict[str, dict[str, Any]] = {
    "openai": {"type": "realtime", "output_modalities": ["text"], "tools": [FLAT], "tool_choice": "auto"},
    "qwen": {"modalities": ["text"], "tools": [NESTED], "enable_search": False},
    "glm": {"tools": [FLAT], "turn_detection": {"type": "server_vad"}, "beta_fields": {"chat_mode": "audio"}},
    "stepfun": {"modalities": ["text"], "tools": [NESTED]},
}
SETUP: dict[str, Any] = {
    "model": "models/any",
    "generationConfig": {"responseModalities": ["TEXT"]},
    "tools": [DECLARED],
    "sessionResumption": {},
}


def headers(fake) -> dict[str, str]:
    return {"x-goog-api-key": "k"} if fake.provider == "gemini" else {"Authorization": "Bearer k"}


def opened(fake, **options):
    """Open a WebSocket, as ``async with``."""
    url = fake.url if fake.provider == "gemini" else f"{fake.url}?model=any"
    return connect(url, additional_headers=headers(fake), max_queue=None, **options)


class Line:
    """A connection on which a test sends each frame itself. ``seen`` are the server's frames."""

    def __init__(self, socket) -> None:
        self.socket = socket
        self.sent = 0
        self.seen: list[dict[str, Any]] = []
        self._coming: asyncio.Future[Any] | None = None

    async def send(self, *frames: dict[str, Any]) -> None:
        for frame in frames:
            self.sent += 1
            await self.socket.send(json.dumps(frame))

    async def comes(self, *, within: float) -> bool:
        """Wait for a message or the end; return False if there is none in time."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(self.socket.recv())
        await asyncio.wait([self._coming], timeout=within)
        return self._coming.done()

    async def next(self) -> dict[str, Any]:
        assert await self.comes(within=BOUND)
        coming, self._coming = self._coming, None
        self.seen.append(json.loads(coming.result()))
        return self.seen[-1]

    async def close(self) -> None:
        await self.socket.close()
        await asyncio.gather(*filter(None, [self._coming]), return_exceptions=True)

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """Read up to an event of this type (Gemini: with this member, of the message or its ``serverContent``)."""
        seen = [await self.next()]
        while not (seen[-1].get("type") == kind or kind in seen[-1] or kind in seen[-1].get("serverContent", {})):
            seen.append(await self.next())
        return seen

    async def configure(self, provider: str, **session: Any) -> dict[str, Any]:
        """Configure the session, and return its confirmation."""
        if provider == "gemini":
            await self.send({"setup": {**SETUP, **session}})
            return (await self.until("setupComplete"))[-1]
        await self.send({"type": "session.update", "session": {**SESSIONS[provider], **session}})
        return (await self.until("session.updated"))[-1]

    async def say(self, text: str, provider: str) -> None:
        """Send a text and request an answer."""
        if provider == "gemini":
            await self.send({"client_content": {"turns": [{"role": "user", "parts": [{"text": text}]}], "turnComplete": True}})
        else:
            await self.send(text_item(text), {"type": "response.create"})


@asynccontextmanager
async def talking(fake, text: str = "", **session: Any) -> AsyncIterator[Line]:
    """A connection with a configured session, on which ``text`` was sent."""
    async with opened(fake) as socket:
        line = Line(socket)
        await line.configure(fake.provider, **session)
        if text:
            await line.say(text, fake.provider)
        yield line


def text_item(text: str) -> dict[str, Any]:
    return {"type": "conversation.item.create", "item": message(text)}


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def result(output: str, call_id: str | None = None) -> dict[str, Any]:
    ids = {} if call_id is None else {"call_id": call_id}
    return {"type": "conversation.item.create", "item": {"type": "function_call_output", **ids, "output": output}}
