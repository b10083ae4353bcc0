"""Simple agents, helpers that run turns, and short forms of events and logs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from patchbay.agents import (
    BaseAgent,
    Content,
    Event,
    EventActions,
    InMemorySessionService,
    InvocationContext,
    LlmAgent,
    Part,
    RunConfig,
    RunEvents,
    Runner,
    Session,
)
from patchbay.testing import ScriptedModel
from patchbay.types import Message, ToolCall

BOUND = 30
"""Seconds that a turn may take before a test fails."""


class TextAgent(BaseAgent):
    """Says ``texts``, one event each; the one at ``escalates`` asks to end the loop."""

    def __init__(self, name: str, *texts: str, escalates: int | None = None, **fields: Any) -> None:
        super().__init__(name=name, **fields)
        self.texts = texts or (name,)
        self.escalates = escalates
        self.times = 0

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        self.times += 1
        for number, text in enumerate(self.texts):
            escalate = True if number == self.escalates else None
            yield ctx.event([Part(text)], actions=EventActions(escalate=escalate))


class FailingAgent(BaseAgent):
    """Says its name, if ``after`` is set, and raises ``error``."""

    def __init__(self, name: str, error: BaseException, *, after: bool = False) -> None:
        super().__init__(name=name)
        self.error = error
        self.after = after

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        if self.after:
            yield ctx.event([Part(self.name)])
        raise self.error


class FunctionAgent(BaseAgent):
    """Runs ``work(ctx)``, an async generator of texts; ``left`` has the names of those that have ended, however they did."""

    left: list[str]

    def __init__(self, name: str, work: Callable[[InvocationContext], AsyncGenerator[str, None]], left: list[str]) -> None:
        super().__init__(name=name)
        self.work_of_mine = work
        self.left = left

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        try:
            async for text in self.work_of_mine(ctx):
                yield ctx.event([Part(text)])
        finally:
            self.left.append(self.name)


def call(name: str, call_id: str = "1", **arguments: Any) -> ToolCall:
    return ToolCall(call_id, name, json.dumps(arguments))


def agent(steps: Any, *tools: Any, **fields: Any) -> LlmAgent:
    """Return an agent named ``a`` whose model plays ``steps`` (or is them)."""
    model = ScriptedModel(steps) if isinstance(steps, list) else steps
    return LlmAgent(**{"name": "a", "model": model, "tools": list(tools), **fields})


async def run_turn(runner: Runner, message: str | Content = "hi", *, session: str = "s", **fields: Any) -> list[Event]:
    """Make one run in the session, and return its events."""
    return await asyncio.wait_for(_all(runner.run("u", session, message, **fields)), BOUND)


async def _all(events: RunEvents) -> list[Event]:
    return [event async for event in events]


class Chat:
    """A session of one user with ``agent``: each ``say`` is a run, ``runs`` are those so far."""

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
        return await asyncio.wait_for(_all(self.begin(message, **settings)), BOUND)

    async def session(self) -> Session:
        """Return the session as it is kept."""
        session = await self.service.get_session("app", "u", self.session_id)
        assert session is not None
        return session


def run_agent(steps: Any, *tools: Any, message: str | Content = "hi", settings: Any = None, **fields: Any) -> list[Event]:
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
    """Law 1: each message with calls is followed by exactly their results, in order."""
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


def line(event: Event) -> str:
    """One event in a line: ``name: text``, ``name > tool`` for calls, ``name < tool`` for responses, ``name! CODE``."""
    if event.error_code is not None:
        return f"{event.author}! {event.error_code}"
    if calls := event.get_function_calls():
        return f"{event.author} > {' '.join(each.name for each in calls)}"
    if responses := event.get_function_responses():
        return f"{event.author} < {' '.join(each.name for each in responses)}"
    return f"{event.author}: {event.content.text if event.content is not None else ''}"


def lines(events: Any) -> list[str]:
    return [line(event) for event in events]


async def log(runner: Runner, session: str = "s") -> list[str]:
    """The session's log in lines."""
    kept = await runner.session_service.get_session(runner.app_name, "u", session)
    assert kept is not None
    return lines(kept.events)


async def state(runner: Runner, session: str = "s") -> dict[str, Any]:
    kept = await runner.session_service.get_session(runner.app_name, "u", session)
    assert kept is not None
    return kept.state


def roles(request: Any) -> list[str]:
    """The messages of a request in short: a role, the ids of calls, the id that a result is for."""
    shown = []
    for message in request.messages:
        calls = [each["id"] for each in message.get("tool_calls") or ()]
        text = message["content"] if isinstance(message.get("content"), str) else ""
        mark = f" > {' '.join(calls)}" if calls else f" {message['tool_call_id']}" if message["role"] == "tool" else f": {text}"
        shown.append(f"{message['role']}{mark}")
    return shown
