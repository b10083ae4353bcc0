"""A session of one user with one agent, for tests: each ``say`` is one run, and what it leaves behind can be looked at."""

from __future__ import annotations

import asyncio
from typing import Any

from patchbay.agents import BaseAgent, Content, Event, InMemorySessionService, LlmAgent, RunConfig, RunEvents, Runner, Session
from patchbay.testing import ScriptedModel
from patchbay.types import Message

BOUND = 30
"""Seconds that a run may take before a test fails."""


class Chat:
    """Talks to ``agent``; ``runs`` are the runs so far."""

    def __init__(self, agent: BaseAgent, service: Any = None, *, session_id: str = "s", **options: Any) -> None:
        self.service = service if service is not None else InMemorySessionService()
        self.session_id = session_id
        self.runner = Runner(agent, "app", self.service, **options)
        self.runs: list[RunEvents] = []

    def begin(self, message: str | Content = "hi", **settings: Any) -> RunEvents:
        """Begin a run; ``settings`` are those of RunConfig."""
        self.runs.append(self.runner.run("u", self.session_id, message, RunConfig(**settings)))
        return self.runs[-1]

    async def say(self, message: str | Content = "hi", **settings: Any) -> list[Event]:
        """Make a whole run, and return its events."""
        events = self.begin(message, **settings)

        async def all_of_them() -> list[Event]:
            return [event async for event in events]

        return await asyncio.wait_for(all_of_them(), BOUND)

    async def session(self) -> Session:
        """Return the session as it is kept."""
        session = await self.service.get_session("app", "u", self.session_id)
        assert session is not None
        return session


def agent(steps: Any, *tools: Any, **fields: Any) -> LlmAgent:
    """Return an agent named ``a`` whose model plays ``steps`` (or is them)."""
    model = ScriptedModel(steps) if isinstance(steps, list) else steps
    return LlmAgent(**{"name": "a", "model": model, "tools": list(tools), **fields})


def play(steps: Any, *tools: Any, message: str | Content = "hi", settings: Any = None, **fields: Any) -> list[Event]:
    """Make one run of such an agent, and return its events."""
    return asyncio.run(Chat(agent(steps, *tools, **fields)).say(message, **(settings or {})))


def kinds(events: Any) -> list[str]:
    """Each event in one word: a text, ``?name`` for calls, ``!name`` for responses, ``~`` before partial ones, an error's code."""
    words = []
    for event in events:
        word = "~" if event.partial else ""
        word += "".join(f"?{call.name}" for call in event.get_function_calls())
        word += "".join(f"!{response.name}" for response in event.get_function_responses())
        word += event.content.text if event.content is not None and not event.get_function_responses() else ""
        word += f"[{event.error_code}]" if event.error_code is not None else ""
        words.append(word)
    return words


def response_of(events: Any, name: str) -> dict[str, Any]:
    """Return the one response of the tool ``name``."""
    (found,) = [response for event in events for response in event.get_function_responses() if response.name == name]
    return found.response


def assert_settled(messages: Any) -> None:
    """Law 1: behind each message with calls stand exactly their results, in order."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert waiting, "a result without its call"
            assert waiting.pop(0) == message["tool_call_id"]
            continue
        assert [] == waiting
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    assert [] == waiting


def said_to(model: ScriptedModel, number: int = -1) -> list[Message]:
    """Return the messages of a request, the last one's if not said otherwise."""
    return list(model.requests[number].messages)
