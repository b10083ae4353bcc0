"""Frames between a realtime session and the fake of each provider, both ways, as a relay between them sees them; and the session's events.

Frames of the two directions are listed apart: which of two that cross comes first is up to the machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from patchbay.realtime import RealtimeLimits, RealtimeSession
from patchbay.testing.realtime import Call, FakeOpenAI, Quote, Say

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.realtime_fakes import FakeGemini, FakeGLM, FakeQwen, FakeStepFun

from . import Names, Recorded

FAKES = {
    "openai": FakeOpenAI,
    "gemini": FakeGemini,
    "glm": FakeGLM,
    "qwen": FakeQwen,
    "stepfun": FakeStepFun,
}
SCRIPT = [
    [Say("One moment."), Call("get_weather", {"city": "Zürich"}, call_id="call_a"), Call("fail", {}, call_id="call_b")],
    Quote(),
    [Call("get_weather", '{"city": 5}', call_id="call_c"), Call("no_such_tool", {}, call_id="call_d")],
    Say("A long answer, in pieces of a few characters each.", piece=20),
    Call("get_weather", {"city": "Rome"}, call_id="call_e"),
    Quote("It has "),
    "The end.",
]
UTTERANCE = 48_000
"""Bytes of audio behind which the fakes hear that the user has ended."""


def get_weather(city: str) -> str:
    """Look up the weather in a given city."""
    return f"{city}: 22 degrees"


def fail() -> str:
    """Fail."""
    raise ValueError("it has failed")


class Relay:
    """Passes frames on in both directions and writes them down."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self.sent: list[str] = []
        self.received: list[str] = []

    async def serve(self, socket: ServerConnection) -> None:
        request = socket.request
        assert request is not None
        path = urlsplit(request.path)
        url = urlunsplit((self._target.scheme, self._target.netloc, path.path, path.query, ""))
        kept = ("authorization", "x-goog-api-key", "openai-beta")
        headers = {name: request.headers[name] for name in kept if name in request.headers}
        self.sent.append(f"connect {request.path} {headers}")
        try:
            async with connect(url, additional_headers=headers, max_size=None) as fake:
                both = [
                    asyncio.ensure_future(self._pass(socket, fake.send, self.sent)),
                    asyncio.ensure_future(self._pass(fake, socket.send, self.received)),
                ]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for each in both:
                    each.cancel()
                await asyncio.wait(both)
        except (ConnectionClosed, OSError):
            pass
        socket.transport.abort()

    async def _pass(self, source: Any, send: Callable[[Any], Awaitable[None]], frames: list[str]) -> None:
        try:
            async for frame in source:
                frames.append(readable(frame))
                await send(frame)
        except ConnectionClosed:
            pass


def readable(frame: str | bytes) -> str:
    """Show a frame; long texts in it (audio) as a digest."""
    return json.dumps(short(json.loads(frame)), ensure_ascii=False)


def short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [short(each) for each in value]
    if isinstance(value, str) and len(value) > 400:
        return f"{len(value)} characters, {hashlib.sha256(value.encode()).hexdigest()[:8]}"
    return value


def record() -> Recorded:
    """Hold one session with each fake."""
    logging.disable(logging.CRITICAL)
    try:
        return Recorded({f"realtime/{name}.txt": asyncio.run(asyncio.wait_for(held(name), 120)) for name in FAKES})
    finally:
        logging.disable(logging.NOTSET)


async def held(name: str) -> str:
    with FAKES[name](SCRIPT, hears=["How is it in Rome?"], utterance=UTTERANCE, api_key="k") as fake:
        relay = Relay(fake.url)
        async with serve(relay.serve, "127.0.0.1", 0, max_size=None) as server:
            port = server.sockets[0].getsockname()[1]
            target = urlsplit(fake.url)
            url = urlunsplit((target.scheme, f"127.0.0.1:{port}", target.path, target.query, ""))
            session = RealtimeSession(
                f"{name}/a-model",
                url=url,
                api_key="k",
                output="text",
                tools=[get_weather, fail],
                transcribe=True,
                instructions="Be brief.",
                limits=RealtimeLimits(flood_calls=100),
            )
            events: list[str] = []
            async with session:
                told = session.events().__aiter__()
                for text in ("How is the weather?", "And now?", "Tell me more."):
                    await session.send_text(text)
                    await idle(told, events)
                for _ in range(10):
                    await session.send_audio(bytes(UTTERANCE // 10))
                await idle(told, events)
        violations = fake.violations
    names = Names(
        port=r"127\.0\.0\.1:(\d+)", hex=r"\b(?:\w+_)?[0-9a-f]{16,}\b", time=r'"(?:created_at|expires_at|client_timestamp)": (\d+)'
    )
    lists = {"from the session": relay.sent, "from the fake": relay.received, "events": events, "violations": violations}
    return "".join(f"##### {title}\n" + "".join(f"{names(line)}\n" for line in shown) for title, shown in lists.items())


async def idle(told: Any, events: list[str]) -> None:
    """Read events until nothing is under way."""
    text = ""
    async for event in told:
        if event.type == "text":
            text += event.delta
            continue
        if text:
            events.append(f"text {text!r}")
            text = ""
        if event.type == "tool_result":
            events.append(f"tool_result {event.execution.call.name} {event.execution.content!r} {event.execution.is_error}")
        elif event.type == "transcript":
            events.append(f"transcript {event.role} {event.text!r}") if event.whole else None
        else:
            events.append(event.type)
        if event.type == "idle":
            return
