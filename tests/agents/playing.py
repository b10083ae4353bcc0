"""Agents that do one thing, and a run of them in one line each."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from patchbay.agents import BaseAgent, Content, Event, EventActions, InvocationContext, Part, Runner
from patchbay.types import ToolCall


class Says(BaseAgent):
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


class Fails(BaseAgent):
    """Says its name, if ``after`` is set, and raises ``error``."""

    def __init__(self, name: str, error: BaseException, *, after: bool = False) -> None:
        super().__init__(name=name)
        self.error = error
        self.after = after

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        if self.after:
            yield ctx.event([Part(self.name)])
        raise self.error


class Does(BaseAgent):
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


async def play(runner: Runner, message: str | Content = "hi", *, session: str = "s", **fields: Any) -> list[Event]:
    """Run a turn to its end."""
    return [event async for event in runner.run("u", session, message, **fields)]


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
