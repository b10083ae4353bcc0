"""A chat interrupted at any point stays valid, and can continue."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest

from patchbay.errors import UpstreamError
from patchbay.hooks import HookManager, Modify, Respond
from patchbay.models import ModelReply
from patchbay.models.chat_model import TextDelta
from patchbay.realtime import ChatSession, ErrorEvent, InterruptedEvent, ResponseEndEvent, ToolResultEvent
from patchbay.testing import ScriptedModel, ScriptedUpstream
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from patchbay.types import Attachment, Reply, ToolCall

from .playing import assert_answered_once, call, named, playing

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
SIGNED = {"extra_content": {"google": {"thought_signature": "abc", "note": "\ud83d"}}}


async def test_chat_session_can_be_interrupted_at_every_step():
    class Model:
        def __init__(self) -> None:
            self.asked = 0

        async def respond(self, request: Any) -> AsyncIterator[Any]:
            assert_answered_once(request.messages)
            self.asked += 1
            await asyncio.sleep(0)
            yield TextDelta("So")
            await asyncio.sleep(0)
            calls = (ToolCall("a", "slow", "{}"), ToolCall("a", "shown", "{}"), ToolCall("", "alone", "{}"))
            yield ModelReply(Reply("So", tool_calls=calls if self.asked < 3 else ()))

    async def slow() -> str:
        try:
            for _ in range(5):
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)  # it takes its time to end
        return "slow"

    async def interrupted_after(steps: int) -> bool:
        alone = ToolDefinition("alone", handler=lambda _arguments: "alone")
        alone.sequential = True
        shown = ToolDefinition("shown", handler=lambda _arguments: "shown")
        async with playing(Model(), slow, shown, alone) as played:
            await played.session.send_text("Go.")
            for _ in range(steps):
                await asyncio.sleep(0)
            was_over = played.session.idle
            await played.session.interrupt()
            assert_answered_once(played.session.messages)
            await played.idle()
            assert_answered_once(played.session.messages)
            assert 1 == len(played.of(InterruptedEvent)) or was_over
            await played.say("Go on.")
            assert "assistant" == played.session.messages[-1]["role"]
            assert_answered_once(played.session.messages)
        return was_over

    steps = 0
    while not await interrupted_after(steps):
        steps += 1
        assert steps < 500
    assert steps > 10


async def test_files_and_signatures_stay_with_calls_that_failed_behind_them():
    def draw() -> Attachment:
        return Attachment(PNG, "image/png")

    signed = ToolCall("call_1", "draw", "{}", extra=SIGNED)
    with ScriptedModel([[signed, call("draw", 2)], UpstreamError("out of order"), "A dot."]) as model:
        async with playing(model, draw, attachments=["image"]) as played:
            await played.say("Draw.")
            await played.session.respond()
            await played.idle()
    first, again = model.requests[1:]
    assert "image_url" in str(again.messages[-1])
    assert first.messages == again.messages
    assert "abc" == again.messages[1]["tool_calls"][0]["extra_content"]["google"]["thought_signature"]


async def test_tool_added_by_a_hook_survives_a_tool_change():
    class Adding:
        tool: ClassVar = {"type": "function", "function": {"name": "own", "description": "d", "parameters": {"type": "object"}}}

        async def before_llm(self, request: Any) -> Any:
            if request.meta.iteration > 1:
                return None
            request.tools.append(self.tool)
            return Modify(request)

        async def before_tool(self, about: Any) -> Any:
            return Respond({"for_llm": "the hook's"}) if about.tool == "own" else None

    manager = LLMSessionManager("ann")

    async def change(_arguments: object) -> str:
        await manager.unregister_tool_and_sync("change")
        await manager.register_tool_and_sync(named("added"))
        return "changed"

    manager.register_tool(ToolDefinition("change", handler=change))
    hooks = HookManager()
    hooks.mount("adding", Adding())
    with ScriptedModel([call("change"), call("own", 2), "Done."]) as model:
        async with playing(model, hooks=hooks) as played:
            await manager.prepare(played.session)
            await manager.swap()
            await played.say("Go.")
            assert ["changed", "the hook's"] == [each.execution.content for each in played.of(ToolResultEvent)]
        assert [["change", "own"], ["added", "own"]] == [[tool.name for tool in each.tools] for each in model.requests[:2]]
    await hooks.aclose()


@pytest.mark.parametrize("later", [False, True])
async def test_long_result_can_be_read_after_a_tool_change_and_in_a_later_turn(later: bool):
    manager = LLMSessionManager("ann")

    async def change(_arguments: object) -> str:
        await manager.register_tool_and_sync(named("added"))
        return "changed"

    manager.register_tool(named("look", "x" * 60_000 + "the end"))
    manager.register_tool(ToolDefinition("change", handler=change))
    read_on = call("read_result", 3, '{"result_id": "result_1", "find": "the end"}')
    text = ["So much."] if later else []
    with ScriptedModel([call("look"), call("change", 2), *text, read_on, "Read."]) as model:
        async with playing(model) as played:
            await manager.prepare(played.session)
            await manager.swap()
            await played.say("Look.")
            if later:
                await played.say("Read on.")
            assert "the end" in played.of(ToolResultEvent)[2].execution.content
            assert {"look", "change", "added", "read_result"} == {tool.name for tool in model.requests[-1].tools}


async def test_tool_that_ignores_interruption_runs_nothing_more():
    class Model:
        asked = 0

        async def respond(self, _request: Any) -> AsyncIterator[Any]:
            self.asked += 1
            yield TextDelta("So.")
            if self.asked == 1:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    yield ModelReply(Reply("So.", tool_calls=(call("look"),)))
                    return
            yield ModelReply(Reply("So."))

    async with playing(Model(), named("look")) as played:
        await played.session.send_text("Go.")
        await played.until(lambda: played.text == "So.")
        await played.say("Never mind.")
        assert ([], ["cancelled", "completed"]) == (
            played.of(ToolResultEvent),
            [each.status for each in played.of(ResponseEndEvent)],
        )
        assert_answered_once(played.session.messages)


async def test_server_without_tool_support_is_sent_tools_once():
    fenced = '```tool_call\n{"name": "look", "arguments": {}}\n```'
    with ScriptedUpstream([fenced, "It is there.", "You are welcome."], tools="refuse") as upstream:
        async with playing(f"{upstream.url}#m", named("look")) as played:
            await played.say("Look.")
            await played.say("Thanks.")
            assert "It is there.You are welcome." == played.text
            assert [] == played.of(ErrorEvent)
            assert [True, False, False, False] == ["tools" in each.json for each in upstream.chats]


@pytest.mark.parametrize("closing", [False, True])
async def test_tool_can_close_or_interrupt_its_own_session(closing: bool):
    async def end() -> str:
        await (session.close() if closing else session.interrupt())
        return "ended"

    session = ChatSession(ScriptedModel([call("end"), "Never said."]), tools=[end])
    async with session:
        await session.send_text("Go.")
        while session.is_open and not session.idle:
            await asyncio.sleep(0)
    events = [event.type async for event in session.events()]
    idle = [] if closing else ["idle"]
    assert ["response_end", "tool_call", "tool_result", *idle, "connection"] == [
        each for each in events[1:] if each != "interrupted"
    ]


async def test_text_with_lone_surrogates_is_sent_and_the_chat_continues():
    with ScriptedModel(["One.", "Two."]) as model:
        async with playing(model, instructions="Be \udfff kind.") as played:
            await played.say("half \ud800 a character")
            await played.say("Go on.")
    assert ["Be \ufffd kind.", "half \ufffd a character"] == [each["content"] for each in model.requests[0].messages]
    assert json.dumps(model.requests[1].messages, ensure_ascii=False).encode()  # else nothing could be said any more
