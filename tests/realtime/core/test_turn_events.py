"""Observer events of realtime turns: each turn once from start to end, as in a chat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from patchbay.hooks import Event, HookManager
from patchbay.loop import ToolCallEvent
from patchbay.realtime import ResponseEndEvent
from patchbay.testing.realtime import Call, FakeOpenAI, Say
from patchbay.tools import tool

from .playing import Played, playing

CONTEXT = {"inbound": {"channel": "session", "chat_id": "s1", "sender_id": "ann"}, "scope": {"role": "helper"}}


class Watching:
    """An observer that records events."""

    def __init__(self) -> None:
        self.hooks = HookManager()
        self.hooks.mount("watching", self)
        self.events: list[Event] = []

    async def on_runtime_event(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: str) -> list[Any]:
        return [each.payload for each in self.events if each.kind == kind]

    def kinds(self, turn: int = 0) -> list[str]:
        """List the event kinds of one turn, in order."""
        turns = list(dict.fromkeys(each.meta.turn_id for each in self.events))
        return [each.kind.removeprefix("agent.") for each in self.events if each.meta.turn_id == turns[turn]]

    def ends(self) -> list[tuple[str, str, str, int]]:
        return [(end["UserMessage"], end["Status"], end["FinalContent"], end["Iterations"]) for end in self.of("agent.turn.end")]

    @asynccontextmanager
    async def playing(self, fake: Any, *tools: Any, **kwargs: Any) -> AsyncIterator[Played]:
        async with playing(
            fake, *tools, hooks=self.hooks, session_key="s1", agent_id="helper", context=CONTEXT, **kwargs
        ) as played:
            yield played
        await self.hooks.events.flush()
        self.judge()

    def judge(self) -> None:
        """Check that each turn begins and ends once, with its first and last event."""
        by_turn: dict[str, list[str]] = {}
        for each in self.events:
            by_turn.setdefault(each.meta.turn_id, []).append(each.kind)
        for kinds in by_turn.values():
            assert ("agent.turn.start", "agent.turn.end") == (kinds[0], kinds[-1]), kinds
            assert (1, 1) == (kinds.count("agent.turn.start"), kinds.count("agent.turn.end")), kinds


async def ended(played: Played, count: int) -> None:
    await played.until(lambda: len(played.of(ResponseEndEvent)) == count and played.session.idle)


def look() -> str:
    return "sunny"


async def test_realtime_turn_emits_the_events_of_a_chat_turn():
    watching = Watching()
    async with watching.playing(FakeOpenAI([[Call("look"), Call("nobody")], Say("It is sunny.")]), look) as played:
        await played.session.send_text("How is the weather?")
        await ended(played, 2)
    assert [
        "turn.start", "llm.request", "llm.response", "tool.exec_skipped", "tool.exec_start", "tool.exec_end",
        "llm.request", "llm.response", "turn.end",
    ] == watching.kinds()  # fmt: skip
    assert [{"UserMessage": "How is the weather?", "MediaCount": 0}] == watching.of("agent.turn.start")
    assert [("How is the weather?", "completed", "It is sunny.", 2)] == watching.ends()
    (end,) = watching.of("agent.turn.end")
    assert [("nobody", False), ("look", True)] == [(each["name"], each["success"]) for each in end["ToolExecutions"]]
    asked = {"Model": "a-model", "ToolsCount": 1, "MaxTokens": 0, "Temperature": 0}
    assert [{**asked, "MessagesCount": 1}, {**asked, "MessagesCount": 2}] == watching.of("agent.llm.request")
    answered = [(each["ContentLen"], each["ToolCalls"]) for each in watching.of("agent.llm.response")]
    assert [(0, 2), (12, 0)] == answered
    assert {("s1", "helper")} == {(each.meta.session_key, each.meta.agent_id) for each in watching.events}
    assert [1, 1, 1, 1, 1, 2, 2] == [each.meta.iteration for each in watching.events[1:-1]]
    assert [CONTEXT] * 9 == [each.context for each in watching.events]


async def test_hooks_mounted_during_a_turn_apply_from_the_next():
    class NoOne:
        async def after_tool(self, result: Any) -> None:
            return None

    watching, hooks = Watching(), HookManager()
    hooks.mount("nobody", NoOne())

    @tool
    async def mounts() -> str:
        hooks.mount("watching", watching)
        return "mounted"

    async with playing(FakeOpenAI([Call("mounts"), Say("Done."), Say("Hello.")]), mounts, hooks=hooks) as played:
        await played.session.send_text("Go.")
        await ended(played, 2)
        await played.session.send_text("Hello.")
        await ended(played, 3)
    await hooks.events.flush()
    watching.judge()
    assert [("Hello.", "completed", "Hello.", 1)] == watching.ends()


async def test_turn_end_lists_a_bounded_number_of_calls():
    watching = Watching()
    async with watching.playing(FakeOpenAI([*[[Call("look")] * 100] * 3, Say("Sunny.")]), look) as played:
        await played.session.send_text("Go.")
        await ended(played, 4)
        assert 300 == len(played.of(ToolCallEvent))
    [end] = watching.of("agent.turn.end")
    assert (256, "completed") == (len(end["ToolExecutions"]), end["Status"])
