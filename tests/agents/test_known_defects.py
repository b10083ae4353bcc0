"""Faults that others' agents have (their numbers are those of the agents' contract), each shown not to be ours.

Those of runs, sessions and workflows are in ``test_known_defects_of_runs``. Some have more tests where their subject is tested:
"defect N" is in their names' comments.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from patchbay.agents import Content, FunctionCall, LlmAgent, LlmRequest, Part
from patchbay.errors import ConfigurationError
from patchbay.models.chat_model import ChatRequest, ModelEvent, ModelReply, TextDelta
from patchbay.testing import ScriptedModel
from patchbay.tools import FunctionTool, ToolContext
from patchbay.types import Reply, ToolCall
from support.running import run

from .turns import Chat, agent, kinds, response_of, run_agent, said_to


async def add(a: int) -> int:
    """Add one."""
    return a + 1


async def test_sync_tools_block_neither_the_loop_nor_each_other():
    """Four sync tools meet each other, and the event loop: none could if they came one after the other."""
    everybody = threading.Barrier(5)

    def meet() -> str:
        everybody.wait(60)
        return "met"

    async def loop_is_free() -> None:
        await asyncio.to_thread(everybody.wait, 60)

    chat = Chat(agent([[ToolCall(str(n), "meet") for n in range(4)], "done"], meet))
    events, _ = await asyncio.gather(chat.say(), loop_is_free())
    assert [{"result": "met"}] * 4 == [each.response for each in events[1].get_function_responses()]


def test_timeout_applies_to_a_sync_tool():
    release = threading.Event()

    def slow(tool_context: ToolContext) -> str:
        tool_context.cancelled.wait(60)
        release.wait(60)
        return "too late"

    try:
        tool = FunctionTool(slow)
        tool.timeout = 0.05
        events = run_agent([ToolCall("1", "slow"), "done"], tool)
    finally:
        release.set()
    assert "Tool 'slow' timed out after 0.05s" == response_of(events, "slow")["error"]
    assert "may still be running" in events[1].get_function_responses()[0].shown
    assert "done" == kinds(events)[-1]


def test_tool_that_raises_a_cancellation_fails_alone():
    async def gone() -> None:
        raise asyncio.CancelledError

    events = run_agent([[ToolCall("1", "gone"), ToolCall("2", "add", '{"a": 1}')], "done"], gone, add)
    assert "cancelled" in response_of(events, "gone")["error"]
    assert {"result": 2} == response_of(events, "add")
    assert "done" == kinds(events)[-1]


def test_timeout_raised_by_a_tool_is_a_failure_of_the_tool():
    async def net() -> None:
        raise TimeoutError("the socket")

    for settings in ({}, {"tool_timeout": 60.0}):
        events = run_agent([ToolCall("1", "net"), "done"], net, settings=settings)
        assert {"error": "TimeoutError: the socket"} == response_of(events, "net")


@pytest.mark.parametrize(
    ("error", "told"),
    [(KeyError("foo"), "KeyError: 'foo'"), (AssertionError(), "AssertionError"), (ValueError("no"), "ValueError: no")],
)
def test_tool_error_includes_the_exception_type(error, told):
    async def fail() -> None:
        raise error

    model = ScriptedModel([ToolCall("1", "fail"), "done"])
    events = run(Chat(agent(model, fail)).say())
    assert {"error": told} == response_of(events, "fail")
    assert told in said_to(model)[-1]["content"]


class Unit(enum.Enum):
    C = "celsius"


class Address(BaseModel):
    number: int


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ('{"a": null}', "/a"),
        ('{"a": [1]}', "/a"),
        ('{"a": "five"}', "/a"),
        ('{"a": 1, "mode": "z"}', "/mode"),
        ('{"a": 1, "unit": "kelvin"}', "/unit"),
        ('{"a": 1, "address": {"number": "x"}}', "/address/number"),
        ("{}", "a"),
    ],
)
def test_invalid_arguments_do_not_reach_the_tool(arguments, place):
    ran = []

    async def f(a: int, mode: Literal["x", "y"] = "x", unit: Unit = Unit.C, address: Address | None = None) -> None:
        ran.append(1)

    events = run_agent([ToolCall("1", "f", arguments), "done"], f)
    assert place in response_of(events, "f")["error"]
    assert [] == ran


def test_valid_arguments_are_converted_to_their_models():
    got = []

    async def f(a: int, unit: Unit, address: Address) -> None:
        got.append((a, unit, address))

    run_agent([ToolCall("1", "f", '{"a": "5", "unit": "celsius", "address": {"number": 1}}'), "done"], f)
    assert [(5, Unit.C, Address(number=1))] == got


def test_async_callbacks_work_alone_and_in_lists():
    async def before_tool(ctx: Any, name: str, args: dict[str, Any]) -> Any:
        return {"from": "before"} if name == "first" else None

    async def after_tool(ctx: Any, name: str, result: Any) -> Any:
        return {"from": "after"}

    async def before_model(ctx: Any, request: LlmRequest) -> Any:
        request.append_instructions(["async"])

    async def after_model(ctx: Any, response: Any) -> Any:
        return Content("model", [Part("better")]) if ctx.llm_call_count == 2 else None

    async def first() -> None: ...
    async def second() -> None: ...

    for several in (False, True):
        callbacks = {"before_tool_callback": before_tool, "after_tool_callback": after_tool}
        callbacks |= {"before_model_callback": before_model, "after_model_callback": after_model}
        model = ScriptedModel([[ToolCall("1", "first"), ToolCall("2", "second")], "done"])
        one = agent(model, first, second, **{name: [each] if several else each for name, each in callbacks.items()})
        events = run(Chat(one).say())
        assert [{"from": "before"}, {"from": "after"}] == [each.response for each in events[1].get_function_responses()]
        assert "better" == kinds(events)[-1]
        assert "async" == said_to(model)[0]["content"]


async def test_state_changes_of_a_tool_are_private_until_it_succeeds():
    """Of two calls at the same time the one that fails leaves nothing, neither now nor in a later turn."""
    written = asyncio.Event()

    async def fails(tool_context: ToolContext) -> None:
        tool_context.state["from_fails"] = 1
        tool_context.state.setdefault("list", []).append("fails")
        written.set()
        raise ValueError("no")

    async def works(tool_context: ToolContext) -> bool:
        await written.wait()
        tool_context.state["from_works"] = 1
        return "from_fails" in tool_context.state

    chat = Chat(agent([[ToolCall("1", "fails"), ToolCall("2", "works")], "done", "again"], fails, works))
    events = await chat.say()
    assert {"result": False} == response_of(events, "works")
    assert {"from_works": 1} == events[1].actions.state_delta
    later = await chat.say()
    assert [{}] == [event.actions.state_delta for event in later]
    assert {"from_works": 1} == (await chat.session()).state


async def test_concurrent_changes_of_one_key_are_all_kept():
    begun = 0
    all_begun = asyncio.Event()

    async def count(tool_context: ToolContext) -> None:
        nonlocal begun
        n = tool_context.state.get("n", 0)
        begun += 1
        if begun == 5:
            all_begun.set()
        await all_begun.wait()
        tool_context.state["n"] = n + 1
        tool_context.state.setdefault("log", []).append(tool_context.call_id)

    chat = Chat(agent([[ToolCall(str(n), "count") for n in range(5)], "done"], count))
    await chat.say()
    assert {"n": 5, "log": ["0", "1", "2", "3", "4"]} == (await chat.session()).state


async def test_output_key_is_in_the_state_before_the_final_event():
    chat = Chat(agent(["done"], output_key="out"))
    events = chat.begin()
    async for event in events:
        if event.is_final_response():
            break
    assert {"out": "done"} == (await chat.session()).state
    await events.aclose()


def test_calls_of_a_callback_in_place_of_the_model_run_once():
    def plan(ctx: Any, request: LlmRequest) -> Any:
        return Content("model", [Part(function_call=FunctionCall("add", {"a": 1}))]) if ctx.llm_call_count == 1 else None

    events = run_agent(["done"], add, before_model_callback=plan)
    assert ["?add", "!add", "done"] == kinds(events)


def test_limits_and_failures_of_models_are_events():
    for steps, settings, code in (
        ([ToolCall("1", "add", '{"a": 1}')], {"max_llm_calls": 1}, "MAX_LLM_CALLS"),
        ([RuntimeError("down")], {}, "MODEL_ERROR"),
        ("nobody/knows", {}, "CONFIGURATION"),
        ("", {}, "CONFIGURATION"),
    ):
        events = run_agent(steps, add, settings=settings)
        assert code == events[-1].error_code
        assert not events[-1].is_final_response()


def test_edits_of_requests_and_events_do_not_change_the_history():
    def edit(ctx: Any, request: LlmRequest) -> None:
        for content in request.contents:
            content.parts[0].text = "edited"
        del request.contents[1:]

    class Edits(ScriptedModel):
        async def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:
            async for event in super().respond(request):
                yield event
            for message in request.messages:
                message["content"] = "edited by the model"

    async def main() -> None:
        chat = Chat(agent(Edits([ToolCall("1", "add", '{"a": 1}'), "done", "again"]), add, before_model_callback=edit))
        async for event in chat.begin("hi"):
            for call in event.get_function_calls():
                call.args["a"] = 666
            for response in event.get_function_responses():
                assert {"result": 2} == response.response, "the tool got what the model wrote"
                response.response.clear()
        events = (await chat.session()).events
        assert ["hi", "?add", "!add", "done"] == kinds(events)
        assert ({"a": 1}, {"result": 2}) == (
            events[1].get_function_calls()[0].args,
            events[2].get_function_responses()[0].response,
        )

    run(main())


async def test_answer_whose_stream_ends_with_a_delta_is_stored_and_yielded_once():
    class Pieces:
        async def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:
            yield TextDelta("all ")
            yield TextDelta("of it")
            yield ModelReply(Reply("all of it"), None)

    chat = Chat(LlmAgent(name="a", model=Pieces()))
    assert ["~all ", "~of it", "all of it"] == kinds(await chat.say(streaming=True))
    assert ["hi", "all of it"] == kinds((await chat.session()).events)


def test_any_function_signature_and_result_type_works():
    def only(a: int, /, *rest: int, scale: int = 1, **more: int) -> Any:
        return [a, list(rest), scale, more]

    def count(n: int) -> Iterator[int]:
        yield from range(n)

    async def count_later(n: int) -> AsyncIterator[int]:
        for each in range(n):
            yield each

    calls = [
        ToolCall("1", "only", '{"a": "1", "rest": [2, "3"], "scale": 4, "z": "5"}'),
        ToolCall("2", "count", '{"n": 2}'),
        ToolCall("3", "count_later", '{"n": 3}'),
    ]
    events = run_agent([calls, "done"], only, count, count_later)
    assert [[0, 1], [0, 1, 2]] == [each.response["result"] for each in events[1].get_function_responses()[1:]]
    assert [1, [2, 3], 4] == response_of(events, "only")["result"][:3]


def test_tools_added_later_are_used_and_names_are_checked_early():
    one = agent([ToolCall("1", "add", '{"a": 1}'), "done"])
    one.tools.append(add)
    assert {"result": 2} == response_of(run(Chat(one).say()), "add")
    for tools in ([add, add], [max], [dict]):
        with pytest.raises((ConfigurationError, TypeError)):
            LlmAgent(name="a", model="m", tools=tools)
    for name in ("no name", "", "user"):
        with pytest.raises(ConfigurationError):
            LlmAgent(name=name, model="m")
