"""A session over chat completions: interface and events of a realtime session, one turn after another, synced tools."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from patchbay.errors import ConfigurationError, ToolSyncError
from patchbay.hooks import AbortTurn, HookManager, HookPolicy, LLMRequest, Modify, Respond, ToolRequest
from patchbay.realtime import (
    ChatSession,
    ErrorEvent,
    RealtimeLimits,
    RealtimeSession,
    ResponseEndEvent,
    ToolCallEvent,
)
from patchbay.testing import Message, ScriptedModel, ScriptedUpstream
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.registry import Registration, ToolRegistry
from patchbay.types import ToolSpec

from .playing import assert_answered_once, call, named, playing


def test_chat_session_has_the_interface_of_a_realtime_session():
    assert set() == {name for name in dir(RealtimeSession) if not name.startswith("_")} - set(dir(ChatSession))


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


async def test_hooks_see_each_turn_and_an_abort_is_an_error_event():
    seen: list[tuple[str, str, str]] = []

    class Watching:
        async def before_tool(self, about: Any) -> None:
            seen.append((about.meta.agent_id, about.meta.session_key, about.tool))

        async def before_llm(self, about: Any) -> Any:
            return AbortTurn("not here") if "forbidden" in str(about.messages[-1]) else None

        async def after_llm(self, _about: Any) -> Any:
            return AbortTurn("not this") if len(model.requests) == 3 else None

    hooks = HookManager()
    hooks.mount("watching", Watching())
    with ScriptedModel([call("look"), "Fine.", "Something."]) as model:
        async with playing(model, named("look"), hooks=hooks, agent_id="ann", session_key="s1") as played:
            await played.say("Go.")
            assert [("ann", "s1", "look")] == seen
            await played.say("It is forbidden.")
            await played.say("Go on.")
            assert ["hook_abort"] * 2 == [each.error.code for each in played.of(ErrorEvent)]
            assert (True, "failed") == (played.text.endswith("Something."), played.of(ResponseEndEvent)[-1].status)
            assert "user" == played.session.messages[-1]["role"]
    await hooks.aclose()


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
