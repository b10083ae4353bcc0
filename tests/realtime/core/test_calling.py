"""Calls of a live session: when they run, their one result, and the request to continue."""

from __future__ import annotations

import asyncio
import json

import pytest

from patchbay.loop import TextEvent, ToolCallEvent, ToolProgressEvent, ToolResultEvent
from patchbay.realtime import DroppedEvent, ErrorEvent, ResponseEndEvent
from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Faults, Pause, Quote, Say
from patchbay.tools import ToolContext, ToolDefinition
from support.realtime_fakes import FakeGemini

from .peers import Peer, created, done, served, text_delta
from .playing import SlowTool, bounded, limits, named, playing, recording, wait_until_answered

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


@pytest.mark.parametrize("status", ["cancelled", "incomplete", "failed"])
async def test_calls_of_an_incomplete_response_do_not_run_or_request_an_answer(status):
    pay, ran = recording("pay")

    async with playing(FakeOpenAI([Answer((Call("pay", {"amount": 5}),), status=status), Quote()]), pay) as played:
        await played.session.send_text("Pay.")
        await played.fake.until(lambda: bool(played.fake.calls and played.fake.calls[0].results))
        await played.idle()
    assert [] == ran
    assert "did not run" in played.fake.calls[0].results[0]
    assert [status] == [each.status for each in played.of(ResponseEndEvent)]
    assert 1 == played.fake.remaining


async def test_only_read_only_tools_begin_before_their_response_ends():
    looked = asyncio.Event()
    over_when_looked: list[int] = []
    over_when_paid: list[int] = []

    def look_up(_arguments: object) -> str:
        over_when_looked.append(len(played.of(ResponseEndEvent)))
        looked.set()
        return "found"

    async def look(arguments: object) -> str:
        return look_up(arguments)

    async def pay() -> str:
        over_when_paid.append(len(played.of(ResponseEndEvent)))
        return "paid"

    with FakeOpenAI([[Call("pay"), Call("look_up"), Say("One moment."), Pause(0.2)], Quote()]) as fake:
        async with playing(fake, reading(look), pay) as played:
            await played.say("Go.", answers=2)
        assert [0] == over_when_looked
        assert [1] == over_when_paid
        assert ["paid", "found"] == [call.results[0] for call in fake.calls]  # in call order, not as they began


async def test_early_call_of_a_cancelled_response_is_stopped_and_its_result_dropped():
    held = SlowTool()

    with FakeOpenAI([Answer((Call("look_up"), Pause(0.1)), status="cancelled"), Quote()]) as fake:
        async with playing(fake, reading(lambda _arguments: held.slow())) as played:
            await played.session.send_text("Go.")
            await played.until(lambda: bool(played.of(DroppedEvent)))
            assert (True, True) == (held.began.is_set(), held.stopped.is_set())
            assert ["look_up"] == [each.tool for each in played.of(DroppedEvent)]
            assert 1 == len(played.session.dropped)


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


async def test_interrupt_cancels_the_response_and_drops_its_remaining_text():
    async with playing(FakeOpenAI([Say("A long story. " * 40, piece=5, gap=0.01)])) as played:
        await played.session.send_text("Tell me.")
        await played.until(lambda: bool(played.of(TextEvent)))
        await played.session.interrupt()
        told = len(played.of(TextEvent))
        await played.answers(1)
        assert told == len(played.of(TextEvent))
        assert ["cancelled"] == [each.status for each in played.of(ResponseEndEvent)]


async def test_calls_beyond_the_rate_limit_do_not_run_and_are_errors():
    count, ran = recording("count")

    async with playing(FakeOpenAI([[Call("count")] * 3, Quote()]), count, limits=limits(flood_calls=2)) as played:
        await played.say("Go.", answers=2)
    assert [{}, {}] == ran
    assert {"stop": True} == {key: json.loads(played.fake.calls[2].results[0])[key] for key in ("stop",)}
    errors = [str(each.execution.error) for each in played.of(ToolResultEvent) if each.execution.is_error]
    assert ["tool-call rate limit reached"] == errors


async def test_rounds_and_calls_of_a_turn_are_bounded():
    count, ran = recording("count")

    script = [Call("count", {"number": number}) for number in range(9)]
    async with playing(FakeOpenAI(script), count, limits=limits(max_rounds=2)) as played:
        await played.session.send_text("Go.")
        await played.until(lambda: bool(played.of(ErrorEvent)))
        await played.idle()
        assert [{"number": 0}, {"number": 1}] == ran
        await played.session.send_text("Again.")  # the next turn begins anew
        await played.until(lambda: len(ran) == 4)
        await played.fake.until(lambda: all(call.results for call in played.fake.calls[:4]))


async def test_server_initiated_responses_get_no_extra_rounds():
    count, ran = recording("count")

    with FakeGemini([*(Call("count", {"number": number}) for number in range(9)), Say("Enough.")]) as fake:
        async with playing(fake, count, limits=limits(max_rounds=2)) as played:
            await played.session.send_text("Go.")
            await played.until(lambda: bool(played.of(TextEvent)))
            await played.idle()
            told = [str(each.error) for each in played.of(ErrorEvent)]
        assert [{"number": 0}, {"number": 1}] == ran
        assert [1] * 9 == [len(call.results) for call in fake.calls]
        assert 1 == len(told), told  # of seven responses beyond the limit


async def test_unknown_tool_and_invalid_arguments_get_instructive_results():
    with FakeOpenAI([[Call("get_wether", {"city": "x"}), Call("get_weather", '{"city":')], Quote()]) as fake:
        async with playing(fake, get_weather) as played:
            await played.say("Go.", answers=2)
        unknown, broken = (call.results[0] for call in fake.calls)
        assert "'get_weather'" in unknown
        assert "invalid arguments" in broken


async def test_tool_with_a_disallowed_name_is_called_by_an_alias():
    tool = ToolDefinition("weather.now", handler=lambda arguments: "sunny")
    async with playing(FakeOpenAI([Quote()]), tool) as played:
        (alias,) = played.fake.tools
        played.fake.script.insert(0, Answer((Call(alias),)))
        await played.say("Go.", answers=2)
        assert alias != "weather.now"
        assert ["weather.now"] == [each.tool_call.name for each in played.of(ToolCallEvent)]
    assert ["sunny"] == played.fake.calls[0].results


async def test_late_response_is_an_error_event_and_requested_once():
    async with playing(FakeOpenAI([Answer((Say("Sorry."),), late=0.3)], faults=Faults()), limits=limits(created=0.1)) as played:
        await played.say("Go.", answers=1)
        assert ["did not begin" in str(each.error) for each in played.of(ErrorEvent)] == [True]
        assert "Sorry." == played.text
    assert 1 == sum(frame["type"] == "response.create" for _, frame in played.fake.frames)


async def test_interrupt_answers_early_and_later_calls_together():
    never = asyncio.Event()

    async def look_up(_arguments: object) -> str:
        await never.wait()
        return "never"

    pay, ran = recording("pay")

    async with playing(FakeOpenAI([[Call("look_up"), Call("pay"), Pause(5.0)]]), reading(look_up), pay) as played:
        await played.session.send_text("Go.")
        await played.until(lambda: bool(played.of(ToolCallEvent)))
        await played.session.interrupt()
        await played.fake.until(lambda: [1, 1] == [len(call.results) for call in played.fake.calls])
    assert "abandoned" in played.fake.calls[0].results[0]
    assert "did not run" in played.fake.calls[1].results[0]
    assert [] == ran


async def test_progress_of_a_tool_is_an_event_ahead_of_its_result():
    async def count(context: ToolContext) -> str:
        context.progress("half of it", fraction=0.5)
        return "counted"

    async with playing(FakeOpenAI([Call("count"), Quote()]), count) as played:
        await played.say("Go.", answers=2)
        kinds = [event.type for event in played.events]
        assert ["tool_progress", "tool_result"] == [kind for kind in kinds if kind in ("tool_progress", "tool_result")]
        assert [0.5] == [each.progress.fraction for each in played.of(ToolProgressEvent)]


async def test_call_after_the_end_of_its_response_is_answered_with_the_others():
    late = {"type": "response.function_call_arguments.done", "response_id": "r1", "item_id": "late", "call_id": "late"}

    async def conduct(peer: Peer) -> None:
        await peer.until("response.create")
        await peer.send(created("r1"), done("r1", "completed", "slow"), {**late, "name": "quick", "arguments": "{}"})
        await peer.until("response.create")
        await peer.send(created("r2"), text_delta("r2", "Both."), done("r2"))

    held = SlowTool()
    async with served(conduct, held.slow, named("quick")) as (played, peers):
        await played.session.send_text("Go.")
        await played.until(lambda: bool(played.of(ToolResultEvent)))
        held.may_end.set()
        await played.until(lambda: played.text == "Both.")
        answered = [frame["item"].get("call_id") for frame in peers[0].came if frame["type"] == "conversation.item.create"]
        assert [None, "slow", "late"] == answered
