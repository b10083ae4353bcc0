"""Calls of a live session: when they run, their one result, and the request to continue."""

from __future__ import annotations

import asyncio
import json

import pytest

from patchbay.loop import ToolCallEvent, ToolResultEvent
from patchbay.realtime import DroppedEvent, ResponseEndEvent
from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Quote
from patchbay.tools import ToolDefinition
from support.realtime_fakes import FakeGemini

from .playing import SlowTool, bounded, playing, wait_until_answered

PROVIDERS = [FakeOpenAI, FakeGemini]


def get_weather(city: str) -> str:
    """Tell the weather."""
    return f"sunny in {city}"


def reading(handler, name="look_up") -> ToolDefinition:
    return ToolDefinition(name, handler=handler, metadata={"annotations": {"read_only": True}})


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_call_runs_and_the_model_continues_with_its_result(provider):
    async with playing(provider([Call("get_weather", {"city": "Rome"}), Quote()]), get_weather) as played:
        await played.say("What is the weather in Rome?", answers=2)
        assert "sunny in Rome" in played.text
        assert ["get_weather"] == [each.tool_call.name for each in played.of(ToolCallEvent)]
        assert ["sunny in Rome"] == [each.execution.content for each in played.of(ToolResultEvent)]
        assert played.session.idle
        await wait_until_answered(played.fake)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_parallel_results_are_sent_in_call_order_with_one_response_request(provider):
    first_may_end = asyncio.Event()

    async def first() -> str:
        await first_may_end.wait()
        return "one"

    async def second() -> str:
        first_may_end.set()  # ends before the first: they run side by side
        return "two"

    async with playing(provider([[Call("first"), Call("second")], Quote()]), first, second) as played:
        await played.say("Both, please.", answers=2)
        assert ["second", "first"] == [each.execution.call.name for each in played.of(ToolResultEvent)]
        await wait_until_answered(played.fake)
    assert ["one", "two"] == [json_text(result) for call in played.fake.calls for result in call.results]


def json_text(result: str) -> str:
    try:
        value = json.loads(result)
    except ValueError:
        return result
    return value["result"] if isinstance(value, dict) else result


@pytest.mark.parametrize("means", ["text", "voice"])
async def test_user_input_abandons_running_calls_and_sends_settled_results(means):
    held = SlowTool()

    def quick() -> str:
        return "there"

    async with playing(FakeOpenAI([[Call("slow"), Call("quick")], Quote()]), held.slow, quick) as played:
        await played.session.send_text("Go.")
        await played.until(lambda: bool(played.of(ToolResultEvent)))
        if means == "text":
            await played.session.send_text("Never mind.")
        else:
            await asyncio.to_thread(played.fake.speak, "Never mind.")
        await played.until(lambda: bool(played.of(DroppedEvent)) and len(played.of(ResponseEndEvent)) == 2)
        assert held.stopped.is_set()
        await played.fake.until(lambda: not played.fake.unanswered)
        slow_call, quick_call = played.fake.calls
        assert True is json.loads(slow_call.results[0])["abandoned"]
        assert ["there"] == quick_call.results
        await wait_until_answered(played.fake)


async def test_calls_cancelled_by_gemini_are_stopped_and_the_others_answered():
    first, second = SlowTool(), SlowTool("two")
    tools = [
        ToolDefinition(name, handler=lambda _, tool=tool: tool.slow()) for name, tool in (("first", first), ("second", second))
    ]
    calls = (Call("second", call_id="c1"), Call("first", call_id="c2"))
    async with playing(FakeGemini([calls, Quote()]), *tools) as played:
        await played.session.send_text("Go.")
        await bounded(first.began.wait())
        played.fake.cancel("c2")
        await bounded(first.stopped.wait())
        second.may_end.set()
        await played.answers(2)
        assert ["first"] == [each.tool for each in played.of(DroppedEvent)]
    assert (1, []) == (len(played.fake.results("c1")), played.fake.results("c2"))


async def test_tool_with_a_disallowed_name_is_called_by_an_alias():
    tool = ToolDefinition("weather.now", handler=lambda arguments: "sunny")
    async with playing(FakeOpenAI([Quote()]), tool) as played:
        (alias,) = played.fake.tools
        played.fake.script.insert(0, Answer((Call(alias),)))
        await played.say("Go.", answers=2)
        assert alias != "weather.now"
        assert ["weather.now"] == [each.tool_call.name for each in played.of(ToolCallEvent)]
    assert ["sunny"] == played.fake.calls[0].results
