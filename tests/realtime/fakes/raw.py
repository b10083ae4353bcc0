"""WebSocket clients for the tests of the fakes: one that sends any frame, and two that follow all rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

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


VOICED: dict[str, dict[str, Any]] = {
    "openai": {"output_modalities": ["audio"], "audio": {"input": {"transcription": {"model": "whisper-1"}}}},
    "qwen": {"modalities": ["text", "audio"]},
    "glm": {"modalities": ["text", "audio"]},
    "stepfun": {"modalities": ["text", "audio"]},
    "gemini": {
        "generationConfig": {"responseModalities": ["AUDIO"]},
        "inputAudioTranscription": {},
        "outputAudioTranscription": {},
    },
}
"""Session members for audio output with transcripts."""


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


class CorrectClient:
    """Base of the two correct clients: reconnects, user turns, and unsent results."""

    def __init__(self, fake, **session: Any) -> None:
        self.fake = fake
        self.session = session
        self.lines: list[Line] = []
        self.kept: list[str] = []
        self.text = ""
        self.ran: list[tuple[str, Any]] = []

    async def turns(self, texts: list[str]) -> None:
        """Send one text after another, each after the answer to the previous one."""
        line = await self._connect()
        try:
            for text in texts:
                self.kept.append(text)
                while True:
                    try:
                        await self.turn(line)
                        break
                    except ConnectionClosed:
                        await line.close()
                        line = await self._connect()
        finally:
            await line.close()

    async def next_or_none(self, line: Line) -> dict[str, Any] | None:
        """Return what comes next, or None when nothing more will come. Nothing is asked of the clock: it only looks again."""
        while True:
            came = sum(number == self.fake.connections for number, _ in list(self.fake.frames))
            over = came == line.sent and self.fake.idle
            if over:
                await (await line.socket.ping())  # all that was sent before has come
            if await line.comes(within=0.0 if over else 0.005):
                return await line.next()
            if over:
                return None

    async def _connect(self) -> Line:
        while True:
            try:
                socket = await opened(self.fake)
            except (OSError, InvalidHandshake, InvalidMessage, EOFError):
                continue
            line = Line(socket)
            self.lines.append(line)
            try:
                await self.configure(line)
            except ConnectionClosed:
                await line.close()
                continue
            return line

    def run_tool(self, name: str, arguments: Any) -> str:
        self.ran.append((name, arguments))
        return f"sunny in {arguments}"


class CorrectFamilyClient(CorrectClient):
    """Reads calls from ``response.done``, where these fakes list all of them."""

    async def configure(self, line: Line) -> None:
        await line.until("session.created")
        session = {**SESSIONS[self.fake.provider], **self.session}
        answer = {}
        while answer.get("type") != "session.updated":
            if answer.get("type") in (None, "error"):  # at first, and where it was refused
                await line.send({"type": "session.update", "session": session})
            answer = await line.next()

    async def turn(self, line: Line) -> None:
        for text in self.kept:
            await line.send(text_item(text))
        await line.send({"type": "response.create"})
        under_way, owed = "", True
        while (event := await self.next_or_none(line)) is not None:
            kind = event.get("type")
            if kind == "error":
                assert "conversation_already_has_active_response" == event["error"]["code"], event
                owed = True
            elif kind == "response.created":
                under_way, owed = event["response"]["id"], False
            elif kind == "response.output_text.delta" or kind == "response.text.delta":
                self.text += event["delta"]
            elif kind == "response.done" and event["response"]["id"] == under_way:
                under_way = ""
                response = event["response"]
                if response["status"] == "completed":
                    owed = await self._answer(line, response["output"]) or owed
                if owed:
                    await line.send({"type": "response.create"})
        self.kept.clear()

    async def _answer(self, line: Line, output: list[dict[str, Any]]) -> bool:
        calls = [item for item in output if item["type"] == "function_call"]
        outputs = [self.run_tool(call["name"], call["arguments"]) for call in calls]
        self.kept += outputs  # in case they do not arrive
        for call, text in zip(calls, outputs, strict=True):
            await line.send(result(text, call.get("call_id")))
        return bool(calls)


class CorrectGeminiClient(CorrectClient):
    """Starts each connection without history and sends unanswered input again."""

    async def configure(self, line: Line) -> None:
        await line.configure("gemini", **self.session)

    async def turn(self, line: Line) -> None:
        turns = [{"role": "user", "parts": [{"text": text}]} for text in self.kept]
        await line.send({"clientContent": {"turns": turns, "turnComplete": True}})
        seen: set[str] = set()
        cancelled: set[str] = set()
        while (frame := await self.next_or_none(line)) is not None:
            content = frame.get("serverContent", {})
            self.text += "".join(part.get("text", "") for part in content.get("modelTurn", {}).get("parts", ()))
            cancelled.update(frame.get("toolCallCancellation", {}).get("ids", ()))
            if "toolCall" in frame:
                listed = frame["toolCall"]["functionCalls"]
                calls = [call for call in listed if call.get("id") is None or call["id"] not in seen | cancelled]
                seen.update(call["id"] for call in calls if "id" in call)
                responses = [
                    {**ids(call), "name": call["name"], "response": {"result": self.run_tool(call["name"], call["args"])}}
                    for call in calls
                ]
                self.kept += [response["response"]["result"] for response in responses]
                if responses:
                    await line.send({"toolResponse": {"functionResponses": responses}})
        self.kept.clear()


def ids(call: dict[str, Any]) -> dict[str, Any]:
    return {"id": call["id"]} if "id" in call else {}
