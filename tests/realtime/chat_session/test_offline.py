"""A session over chat completions: interface and events of a realtime session, one turn after another, synced tools."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from patchbay.errors import ConfigurationError, ToolSyncError
from patchbay.hooks import AbortTurn, Event, HookManager, HookPolicy, LLMRequest, Modify, Respond, ToolRequest
from patchbay.realtime import (
    ChatSession,
    DroppedEvent,
    ErrorEvent,
    IdleEvent,
    InterruptedEvent,
    RealtimeLimits,
    RealtimeSession,
    ToolCallEvent,
    ToolResultEvent,
)
from patchbay.testing import Message, ScriptedModel, ScriptedUpstream
from patchbay.tools import ToolContext, ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.output import ToolOutput
from patchbay.tools.registry import Registration, ToolRegistry
from patchbay.types import ToolSpec

from .playing import assert_answered_once, call, named, playing


def test_chat_session_has_the_interface_of_a_realtime_session():
    assert set() == {name for name in dir(RealtimeSession) if not name.startswith("_")} - set(dir(ChatSession))


async def test_chat_session_emits_realtime_events_for_a_tool_turn():
    with ScriptedModel([call("get_weather"), "It is sunny.", "You are welcome."]) as model:
        async with playing(model, named("get_weather", "21 degrees")) as played:
            await played.say("How is Rome?")
            kinds = [event.type for event in played.events if event.type != "text"]
            assert ["connection", "response_end", "tool_call", "tool_result", "response_end"] == kinds
            assert "It is sunny." == played.text
            assert "21 degrees" == played.of(ToolResultEvent)[0].execution.content
            await played.say("Thanks.")
            assert ["user", "assistant", "tool", "assistant", "user"] == [each["role"] for each in model.requests[-1].messages]
            assert_answered_once(played.session.messages)


async def test_each_request_has_instructions_first_and_the_parameters():
    with ScriptedModel(["One.", "Two."]) as model:
        async with playing(model, instructions="Be brief.", parameters={"temperature": 0}) as played:
            await played.say("1")
            await played.say("2")
        for request in model.requests:
            assert {"role": "system", "content": "Be brief."} == request.messages[0]
            assert {"temperature": 0} == request.parameters
        assert ["system", "user", "assistant", "user"] == [each["role"] for each in model.requests[1].messages]


async def test_newest_tools_are_offered_from_the_next_request_on():
    manager = LLMSessionManager("ann")

    async def grow(_arguments: object) -> str:
        await manager.register_tool_and_sync(named("added", "from the new one"))
        return "grown"

    manager.register_tool(ToolDefinition("grow", handler=grow))
    with ScriptedModel([call("grow"), call("added", 2), "Done.", "Bye."]) as model:
        async with playing(model, named("own")) as played:
            await manager.prepare(played.session)
            assert None is await manager.swap()
            await played.say("Go.")
            offered = [[tool.name for tool in request.tools] for request in model.requests]
            assert [["own", "grow"], ["own", "grow", "added"], ["own", "grow", "added"]] == offered
            assert "from the new one" == played.of(ToolResultEvent)[1].execution.content
            await manager.clear_tools_and_sync()
            await played.say("Go on.")
            assert ["own"] == [tool.name for tool in model.requests[-1].tools]


async def test_common_tools_are_available_to_any_role():  # as the seeds say of switching roles
    registry = ToolRegistry(["ann", "ben"])
    registry.register(Registration("shared", source="s", callback_url="http://127.0.0.1:9/call"))
    ann, ben = LLMSessionManager("ann", registry), LLMSessionManager("ben", registry)
    ann.register_tool(named("anns"))
    offered = []
    for manager in (ann, ben, ann):
        with ScriptedModel(["Yes."]) as model:
            async with playing(model) as played:
                await manager.prepare(played.session)
                await manager.swap()
                await played.say("Are you there?")
                manager.leave(played.session)
        offered.append([tool.name for tool in model.requests[0].tools])
    assert [["shared", "anns"], ["shared"], ["shared", "anns"]] == offered


async def test_new_user_turn_stops_running_calls_and_each_has_its_result():
    began = asyncio.Event()

    async def slow() -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    def quick() -> str:
        return "was quick"

    with ScriptedModel([[call("slow"), call("quick", 2)], "All is well."]) as model:
        async with playing(model, slow, quick) as played:
            await played.session.send_text("Go.")
            await began.wait()
            await played.until(lambda: bool(played.of(ToolResultEvent)))
            await played.say("Never mind.")
            assert "All is well." == played.text
            assert 1 == len(played.of(InterruptedEvent))
            assert {"call_1", "call_2"} == {each.execution.call.id for each in played.of(ToolResultEvent)}
        outcome = model.requests[1].messages
        assert_answered_once(outcome)
        assert ["user", "assistant", "tool", "tool", "user"] == [each["role"] for each in outcome]
        assert "was quick" == outcome[3]["content"]
        assert "cancelled" in outcome[2]["content"]


async def test_texts_sent_together_get_one_answer():
    with ScriptedModel(["Yes."]) as model:
        async with playing(model) as played:
            for text in ("One", "Two", "Three"):
                await played.session.send_text(text)
            await played.idle()
            assert ["One", "Two", "Three"] == [each["content"] for each in model.requests[0].messages]
            assert ["user"] * 3 + ["assistant"] == [each["role"] for each in played.session.messages]


async def test_bug_in_a_model_is_an_error_event(caplog: pytest.LogCaptureFixture):
    with ScriptedModel([ZeroDivisionError("oh"), "Fine."]) as model:
        async with playing(model) as played:
            await played.say("Hello.")
            assert "oh" in str(played.of(ErrorEvent)[0].error)
            await played.say("Again.")
            assert "Fine." == played.text


@pytest.mark.parametrize("limit", [{"max_rounds": 2}, {"max_calls": 1}])
async def test_model_answers_without_tools_at_the_limit_of_a_turn(limit: dict[str, int]):
    def step(request: Any) -> Any:
        return call("again", len(request.messages)) if request.tools else "That is all I have."

    model = ScriptedModel([step] * 9)
    async with playing(model, named("again"), limits=RealtimeLimits(**limit)) as played:
        await played.say("Go.")
        assert "That is all I have." == played.text
        assert () == model.requests[-1].tools
        assert [] == played.of(ErrorEvent)
        assert_answered_once(played.session.messages)


@pytest.mark.parametrize(("limit", "calls"), [({"max_rounds": 2}, 2), ({"max_calls": 1}, 2), ({"max_rounds": 2}, 3)])
async def test_limited_turn_is_one_turn_for_observers(limit: dict[str, int], calls: int):
    received: list[Event] = []

    class Watching:
        async def on_runtime_event(self, event: Event) -> None:
            received.append(event)

    hooks = HookManager()
    hooks.mount("watching", Watching())
    model = ScriptedModel([*(call("again", number) for number in range(calls)), "That is all I have."])
    async with playing(model, named("again"), hooks=hooks, limits=RealtimeLimits(**limit)) as played:
        await played.say("Go.")
        assert [1, 2, 3][:calls] == [event.iteration for event in played.of(ToolCallEvent)]
        await hooks.events.flush()
    kinds = [event.kind for event in received]
    assert ("agent.turn.start", "agent.turn.end") == (kinds[0], kinds[-1])
    assert (1, 1) == (kinds.count("agent.turn.start"), kinds.count("agent.turn.end"))
    assert [1, 2, 3] == [event.meta.iteration for event in received if event.kind == "agent.llm.request"]


async def test_tool_registered_during_the_final_answer_is_for_the_next_turn():
    manager = LLMSessionManager("ann")

    def last(request: Any) -> Any:
        assert () == request.tools
        manager.register_tool(named("late"))
        return call("late", 2)

    model = ScriptedModel([call("again"), last, "Fine."])
    async with playing(model, named("again"), limits=RealtimeLimits(max_rounds=1)) as played:
        manager.active = played.session
        await played.say("Go.")
        assert [False, True] == [event.execution.is_error for event in played.of(ToolResultEvent)]
        await played.say("Go on.")
        assert ["again", "late"] == [tool.name for tool in model.requests[-1].tools]


@pytest.mark.parametrize("policy", ["additive", "off", "full"])
async def test_closing_request_is_graceful_terminal_and_has_no_hook_tools(policy: Any):
    class Injecting:
        terminal: ClassVar[list[bool]] = []

        async def before_llm(self, request: LLMRequest) -> Modify:
            self.terminal.append(request.graceful_terminal)
            request.tools.append(ToolSpec("injected", "Injected.", {"type": "object"}).to_openai())
            request.messages.append({"role": "user", "content": "Be brief."})
            return Modify(request)

        async def before_tool(self, call: ToolRequest) -> Respond | None:
            return Respond("looked up") if call.tool == "injected" else None

    Injecting.terminal = []
    hooks = HookManager(policy=HookPolicy(tool_injection=policy))
    hooks.mount("injecting", Injecting())
    model = ScriptedModel([call("again"), "That is all I have."])
    async with playing(model, named("again"), hooks=hooks, limits=RealtimeLimits(max_rounds=1)) as played:
        await played.say("Go.")
        assert [False, True] == Injecting.terminal
        injected = [] if policy == "off" else ["injected"]
        assert [["again", *injected], []] == [[spec.name for spec in each.tools] for each in model.requests]
        assert ["Be brief.", "Be brief."] == [each.messages[-1]["content"] for each in model.requests]
        assert [] == played.of(ErrorEvent)


async def test_model_that_calls_missing_tools_is_stopped():
    model = ScriptedModel([call("again", number) for number in range(9)])
    async with playing(model, named("again"), limits=RealtimeLimits(max_rounds=1)) as played:
        await played.say("Go.")
        assert 2 == len(model.requests)
        assert ["max_iterations"] == [each.error.code for each in played.of(ErrorEvent)]
        assert 2 == len(played.of(ToolResultEvent))
        assert_answered_once(played.session.messages)


async def test_conversation_is_bounded_and_every_kept_call_has_its_result():
    steps = [each for number in range(30) for each in (call("look", number), f"Answer {number}.")]
    with ScriptedModel(steps) as model:
        limits = RealtimeLimits(kept_items=10, kept_chars=2_000)
        async with playing(model, named("look", "x" * 100), limits=limits) as played:
            for number in range(30):
                await played.say(f"Question {number}.")
                assert len(played.session.messages) <= 10
                assert_answered_once(played.session.messages)
                assert "user" == played.session.messages[0]["role"]
                assert f"Answer {number}." == played.session.messages[-1]["content"]


async def test_requests_share_a_long_prefix():  # for its server's prompt cache
    with ScriptedModel(["Yes."] * 60) as model:
        async with playing(model, limits=RealtimeLimits(kept_items=40)) as played:
            for number in range(60):
                await played.say(f"Question {number}.")
    sent = [request.messages for request in model.requests]
    cuts = [before for before, after in pairwise(sent) if before != after[: len(before)]]
    assert 40 == max(map(len, sent)) + 1
    assert 1 <= len(cuts) <= 10


async def test_overlong_exchange_is_cut_to_question_and_answer():
    with ScriptedModel([call("look"), "y" * 9_000]) as model:
        async with playing(model, named("look", "x" * 9_000), limits=RealtimeLimits(kept_chars=4_000)) as played:
            await played.say("z" * 9_000)
            kept = played.session.messages
            assert ["user", "assistant"] == [each["role"] for each in kept]
            assert all(len(each["content"]) <= 2_000 for each in kept)
            assert ("z", "y") == (kept[0]["content"][0], kept[1]["content"][0])


async def test_current_text_is_sent_whole_despite_history_limits():
    with ScriptedModel(["One.", "Two."]) as model:
        async with playing(model, limits=RealtimeLimits(kept_items=0, kept_chars=100)) as played:
            await played.say("x" * 5_000)
            assert () == played.session.messages
            await played.say("Hi.")
        assert [[5_000], [3]] == [[len(each["content"]) for each in request.messages] for request in model.requests]


async def test_audio_and_tools_for_a_closed_session_are_refused():
    async with ChatSession(ScriptedModel([])) as session:
        with pytest.raises(ConfigurationError, match="text alone"):
            await session.send_audio(b"\0\0")
    with pytest.raises(ToolSyncError, match="closed"):
        await session.use_tools(LLMSessionManager("ann").snapshot())


async def test_closing_stops_the_turn_and_its_tools():
    began, ended = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with playing(ScriptedModel([call("slow")]), slow) as played:
        await played.session.send_text("Go.")
        await began.wait()
    assert ended.is_set()
    assert 1 == len(played.of(ToolResultEvent))
    assert [] == played.of(DroppedEvent)


async def test_hooks_see_each_turn_and_an_abort_is_an_error_event():
    seen: list[tuple[str, str, str]] = []

    class Watching:
        async def before_tool(self, about: Any) -> None:
            seen.append((about.meta.agent_id, about.meta.session_key, about.tool))

        async def before_llm(self, about: Any) -> Any:
            return AbortTurn("not here") if "forbidden" in str(about.messages) else None

    hooks = HookManager()
    hooks.mount("watching", Watching())
    with ScriptedModel([call("look"), "Fine."]) as model:
        async with playing(model, named("look"), hooks=hooks, agent_id="ann", session_key="s1") as played:
            await played.say("Go.")
            assert [("ann", "s1", "look")] == seen
            await played.say("Something forbidden.")
            assert ["hook_abort"] == [each.error.code for each in played.of(ErrorEvent)]
    await hooks.aclose()


async def test_progress_and_output_for_the_user_are_events():
    async def draw(context: ToolContext) -> ToolOutput:
        context.progress("half of it", fraction=0.5)
        return ToolOutput("drawn", for_user="Here is a dot.", response_handled=True)

    with ScriptedModel([call("draw")]) as model:
        async with playing(model, draw) as played:
            await played.say("Draw.")
            kinds = [event.type for event in played.events]
            assert ["connection", "response_end", "tool_call", "tool_progress", "tool_result", "user_output"] == kinds
            assert (0.5, "Here is a dot.", True) == (
                played.events[3].progress.fraction,
                played.events[5].text,
                played.events[5].handled,
            )
            assert ["user", "assistant", "tool", "assistant"] == [each["role"] for each in played.session.messages]


@pytest.mark.parametrize("finish_reason", ["tool_calls", "stop"])
async def test_model_by_url_is_requested_over_http_and_its_connections_closed(finish_reason):
    asked = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    answers = [Message({"content": None, "tool_calls": [asked]}, finish_reason=finish_reason), "It is there."]
    with ScriptedUpstream(answers) as upstream:
        async with playing(f"{upstream.url}#some-model", named("look"), tool_mode="native") as played:
            await played.session.send_text("Look.")
            await played.until(lambda: played.text == "It is there.")
            await played.idle()
        assert ["some-model"] * 2 == [each.json["model"] for each in upstream.chats]
        assert [True, True] == [each.json["stream"] for each in upstream.chats]
        assert 1 == len(played.of(ToolCallEvent))


async def test_unread_events_are_bounded():
    session = ChatSession(ScriptedModel(["word " * 10] * 50), limits=RealtimeLimits(waiting=5))
    async with session:
        for _ in range(50):
            await session.send_text("Go.")
            async with asyncio.timeout(90):
                while not session.idle:
                    await asyncio.sleep(0)
    events = [event async for event in session.events()]
    assert "dropped" == events[0].type
    assert 6 == len(events)


async def test_idle_event_comes_once_after_all_others():
    async def look() -> str:
        return "found"

    async with playing(ScriptedModel([call("look"), "Here.", "And here."]), look) as played:
        await played.say("Go.")
        await played.until(lambda: bool(played.of(IdleEvent)))
        kinds = [event.type for event in played.events]
        assert ("idle", 1, "tool_result") == (kinds[-1], kinds.count("idle"), kinds[kinds.index("text") - 1])
        await played.session.send_text("And then?")
        await played.session.interrupt()
        await played.until(lambda: len(played.of(IdleEvent)) == 2)
        for number in (3, 4):  # also where there was nothing to be ended, or to be answered
            await (played.session.interrupt() if number == 3 else played.session.respond())
            await played.until(lambda number=number: len(played.of(IdleEvent)) == number)
        assert 2 == len(played.of(InterruptedEvent))
