"""Observer events of realtime turns: each turn once from start to end, as in a chat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from patchbay.hooks import AbortTurn, Event, HardAbort, HookManager
from patchbay.loop import TextEvent, ToolCallEvent, ToolResultEvent, UserOutputEvent
from patchbay.realtime import ErrorEvent, InterruptedEvent, ResponseEndEvent
from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Faults, Pause, Quote, Say
from patchbay.tools import tool
from patchbay.tools.output import ToolOutput
from support.realtime_fakes import FakeGemini

from .playing import Played, SlowTool, limits, playing

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


async def forever() -> str:
    await asyncio.Event().wait()
    return "never"


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


@pytest.mark.parametrize("provider", [FakeOpenAI, FakeGemini])  # Gemini reports typed text as an interruption
@pytest.mark.parametrize("first", [Say("Well, where to begin?", gap=0.2), Answer((Say("Well."),), late=0.2)])
async def test_text_typed_during_an_answer_aborts_the_previous_turn(provider, first):
    watching = Watching()
    async with watching.playing(provider([first, "Very well."])) as played:
        await played.session.send_text("Go.")
        if isinstance(first, Say):
            await played.until(lambda: bool(played.of(TextEvent)))
        await played.session.send_text("Briefly.")
        await played.until(lambda: "Very well." in played.text)
        await played.until(lambda: played.session.idle)
    assert [("Go.", "aborted"), ("Briefly.", "completed")] == [(text, status) for text, status, *_ in watching.ends()]


async def test_turn_left_during_its_tools_ends_after_them():
    watching = Watching()
    may_end = asyncio.Event()

    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
        return "never"

    async with watching.playing(FakeOpenAI([Call("stubborn"), Say("Well.")]), stubborn) as played:
        await played.session.send_text("Go.")
        await played.until(lambda: bool(played.of(ToolCallEvent)))
        await asyncio.sleep(0)
        await played.say("Never mind.", answers=2)
        await watching.hooks.events.flush()
        assert [("Never mind.", "completed")] == [each[:2] for each in watching.ends()]
        may_end.set()
        await played.idle()
    assert [("Never mind.", "completed"), ("Go.", "aborted")] == [each[:2] for each in watching.ends()]
    assert ["turn.start", "llm.request", "llm.response", "tool.exec_start", "tool.exec_end", "turn.end"] == watching.kinds(0)
    (execution,) = watching.of("agent.turn.end")[1]["ToolExecutions"]
    assert ("stubborn", False) == (execution["name"], execution["success"])


async def test_interrupt_and_close_end_a_turn():
    watching = Watching()
    async with watching.playing(FakeOpenAI([Call("forever"), Call("forever")]), forever) as played:
        await played.session.send_text("Go.")
        await played.until(lambda: bool(played.of(ToolCallEvent)))
        await played.session.interrupt()
        await played.idle()
        await played.session.send_text("Again.")
        await played.until(lambda: len(played.of(ToolCallEvent)) == 2)
    assert [("Go.", "aborted", "", 1), ("Again.", "aborted", "", 1)] == watching.ends()


async def test_spoken_turn_has_its_transcript_at_its_end():
    watching = Watching()
    with FakeOpenAI([Say("Noon."), Say("Yes.")], hears=["What time is it?", "Really?"], utterance=1000) as fake:
        async with watching.playing(fake) as played:
            for count in (1, 2):
                await played.session.send_audio(bytes(1000))
                await ended(played, count)
    assert ["", ""] == [each["UserMessage"] for each in watching.of("agent.turn.start")]
    assert [("What time is it?", "completed", "Noon.", 1), ("Really?", "completed", "Yes.", 1)] == watching.ends()


async def test_unrequested_response_begins_a_turn_with_its_own_limits():
    """Gemini does not say when the user begins to speak, unless that interrupts: the limits of a turn are not the session's."""
    watching = Watching()
    with FakeGemini([step for _ in range(4) for step in (Call("look"), Say("Sunny."))]) as fake:
        async with watching.playing(fake, look, limits=limits(max_rounds=1, max_calls=1)) as played:
            for number in range(4):
                await asyncio.to_thread(fake.speak, f"And now, {number}?")
                await ended(played, 2 * number + 2)
            results = [each.execution.content for each in played.of(ToolResultEvent)]
    assert ["sunny"] * 4 == results
    assert [(f"And now, {number}?", "completed", "Sunny.", 2) for number in range(4)] == watching.ends()


async def test_turn_lasts_until_its_slow_tools_are_answered():
    watching = Watching()
    held = SlowTool("at last")
    with FakeOpenAI([Call("slow"), Say("Wait."), Say("Done.")]) as fake:
        async with watching.playing(fake, held.slow, limits=limits(slow_after=0.02)) as played:
            await played.say("Go.", answers=2)
            await watching.hooks.events.flush()
            assert [] == watching.ends()
            held.may_end.set()
            await ended(played, 3)
    assert [("Go.", "completed", "Done.", 3)] == watching.ends()


async def test_late_result_of_a_slow_tool_is_a_new_turn():
    watching = Watching()
    held = SlowTool("at last")
    with FakeOpenAI([Call("slow"), Say("Wait."), Say("Something else."), Say("Done.")]) as fake:
        async with watching.playing(fake, held.slow, limits=limits(slow_after=0.02)) as played:
            await played.say("Go.", answers=2)
            await played.say("And else?", answers=3)
            held.may_end.set()
            await ended(played, 4)
            await watching.hooks.events.flush()
            # The tool's end belongs to the turn that called it, and follows that turn's end.
            (late,) = [each for each in watching.events if each.kind == "agent.tool.exec_end"]
            assert ("turn.end", "tool.exec_end") == tuple(watching.kinds(0)[-2:])
            watching.events.remove(late)
    completed = [
        ("Go.", "completed", "Wait.", 2),
        ("And else?", "completed", "Something else.", 1),
        ("", "completed", "Done.", 1),
    ]
    assert completed == watching.ends()


@pytest.mark.parametrize("decision", [AbortTurn("enough"), HardAbort("enough")])
async def test_turn_ended_by_a_hook_has_its_reason(decision):
    class End:
        async def before_tool(self, request: Any) -> Any:
            return decision

    watching = Watching()
    watching.hooks.mount("end", End())
    async with watching.playing(FakeOpenAI([Call("look"), Quote()]), look) as played:
        await played.session.send_text("Go.")
        await played.until(lambda: bool(played.of(ErrorEvent)))
        await played.idle()
    hard = isinstance(decision, HardAbort)
    assert ["aborted" if hard else "error"] == [each[1] for each in watching.ends()]
    assert ([] if hard else ["before_tool"]) == [each["Stage"] for each in watching.of("agent.error")]


async def test_a_tool_that_answers_the_user_completes_the_turn():
    watching = Watching()

    def show() -> ToolOutput:
        return ToolOutput("shown", for_user="Look here.", response_handled=True)

    async with watching.playing(FakeOpenAI([Call("show")]), show) as played:
        await played.session.send_text("Go.")
        await ended(played, 1)
    assert ["completed"] == [each[1] for each in watching.ends()]
    assert ["Look here."] == [each["Text"] for each in watching.of("agent.user_output")]
    assert [("Look here.", True)] == [(each.text, each.handled) for each in played.of(UserOutputEvent)]


@pytest.mark.parametrize(
    ("answer", "bounds", "words"),
    [
        (Answer((Say("Well"),), status="failed"), {}, "answer failed"),
        (Answer((Say("Late."),), late=1.0), {"created": 0.05}, "did not begin"),
        (Answer((Say("Well"), Pause(30))), {"done": 0.1}, "Nothing came"),
    ],
)
async def test_failed_answer_ends_the_turn_with_an_error(answer, bounds, words):
    watching = Watching()
    async with watching.playing(FakeOpenAI([answer]), limits=limits(**bounds)) as played:
        await played.session.send_text("Go.")
        await played.until(lambda: bool(played.of(ErrorEvent)))
        await played.idle()
    assert "error" == watching.ends()[0][1]
    assert words in watching.of("agent.error")[0]["Message"]


async def test_turn_survives_a_lost_connection_and_is_answered_on_the_next():
    watching = Watching()
    held = SlowTool()
    with FakeOpenAI([Call("slow"), Say("It is 42."), Answer((Say("Lost."),), kill="created"), Say("Here.")]) as fake:
        async with watching.playing(fake, held.slow) as played:
            await played.session.send_text("What is the answer?")
            await held.began.wait()
            fake.drop()
            await played.until(lambda: len(played.states) == 3)
            held.may_end.set()
            await ended(played, 2)
            await played.session.send_text("Are you there?")
            await ended(played, 4)
    assert [
        ("What is the answer?", "completed", "It is 42.", 2),
        ("Are you there?", "completed", "Here.", 2),
    ] == watching.ends()


async def test_turn_without_its_answer_or_session_ends_with_an_error():
    watching = Watching()
    with FakeOpenAI([[Say("Half of an answer"), Pause(30)], Call("forever")]) as fake:
        async with watching.playing(fake, forever, limits=limits(reconnects=1)) as played:
            await played.session.send_text("Tell me.")
            await played.until(lambda: bool(played.of(TextEvent)))
            fake.drop()
            await played.until(lambda: len(played.states) == 3)
            await played.session.send_text("Go.")
            await played.until(lambda: bool(played.of(ToolCallEvent)))
            fake.faults = Faults(refuse=1000)
            fake.drop()
            await played.until(lambda: not played.session.is_open)
    assert [("Tell me.", "error", "Half of an answer", 1), ("Go.", "error", "", 1)] == watching.ends()
    assert 2 == len(watching.of("agent.error"))


async def test_turn_that_loses_its_answer_ends_while_disconnected():
    watching = Watching()
    with FakeOpenAI([[Say("Half of an answer"), Pause(30)]]) as fake:
        async with watching.playing(fake, limits=limits(first_pause=60.0, longest_pause=60.0)) as played:
            await played.session.send_text("Tell me.")
            await played.until(lambda: bool(played.of(TextEvent)))
            fake.drop()
            await played.until(lambda: bool(watching.ends()))
    assert ["error"] == [each[1] for each in watching.ends()]


async def test_speech_resumed_before_the_answer_is_one_turn():
    watching = Watching()
    async with watching.playing(FakeOpenAI([Say("Indeed.")], hears=["It rains."]), settings={"detect_turns": False}) as played:
        await played.session.send_audio(bytes(4000))
        for count in (1, 2):
            played.fake.send({"type": "input_audio_buffer.speech_started", "event_id": "e", "audio_start_ms": 0, "item_id": "i"})
            await played.until(lambda: len(played.of(InterruptedEvent)) == count)  # noqa: B023
        await played.session.respond()
        await ended(played, 1)
    assert [("completed", "Indeed.", 1)] == [each[1:] for each in watching.ends()]


async def test_response_interrupted_before_it_began_is_not_a_turn():
    watching = Watching()
    async with watching.playing(FakeOpenAI([Answer((Say("Too late."),), late=0.05)])) as played:
        await played.session.send_text("Go.")
        await played.session.interrupt()
        await ended(played, 1)
    assert [("Go.", "aborted", "", 0)] == watching.ends()


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
