"""Limits and failing models: a last event with a code, one response for each call, and a session that stays usable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from patchbay.agents import (
    BaseAgent,
    Event,
    EventBus,
    InvocationContext,
    LlmAgent,
    LoopAgent,
    ParallelAgent,
    Part,
    SequentialAgent,
)
from patchbay.errors import UpstreamError, UpstreamTimeoutError
from patchbay.models.chat_model import ChatRequest, ModelEvent, ModelReply, ReasoningDelta, TextDelta
from patchbay.testing import ScriptedModel
from patchbay.types import Reply, ToolCall, Usage

from .turns import Chat, agent, assert_settled, kinds, response_of, run_agent, said_to

ADD = ToolCall("", "add", '{"a": 1}')


async def add(a: int) -> int:
    """Add one."""
    return a + 1


async def forever() -> None:
    """Never come back."""
    await asyncio.Event().wait()


class Then:
    """A ChatModel that does what ``first`` says the first time, and then plays ``steps``."""

    def __init__(self, first: Any, *steps: Any) -> None:
        self.first = first
        self.script = ScriptedModel(list(steps))
        self.closed = 0
        self.times = 0

    @property
    def requests(self) -> list[ChatRequest]:
        return self.script.requests

    async def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:
        self.times += 1
        events = self.first(request) if self.times == 1 else self.script.respond(request)
        try:
            async for event in events:
                yield event
        finally:
            self.closed += 1


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL, "patchbay")


@pytest.fixture(params=["bare", "bus", "callbacks", "timeout"])
def around(request):
    """Options that wrap the model without an effect on the outcome."""
    return {
        "bare": ({}, {}, {}),
        "bus": ({"bus": EventBus()}, {}, {}),
        "callbacks": ({}, {"before_model_callback": lambda *_: None, "after_model_callback": lambda *_: None}, {}),
        "timeout": ({}, {}, {"llm_timeout": 600.0}),
    }[request.param]


def refuse(_: ChatRequest) -> Any:
    raise OSError("no way in")


async def says(*events: Any) -> AsyncIterator[Any]:
    for event in events:
        if isinstance(event, BaseException):
            raise event
        yield event


@pytest.mark.parametrize(
    ("first", "code", "words"),
    [
        (lambda _: says(UpstreamError("down", upstream_status=500)), "UPSTREAM_ERROR", "down"),
        (lambda _: says(UpstreamTimeoutError("late")), "UPSTREAM_TIMEOUT", "late"),
        (lambda _: says(TimeoutError("a socket")), "MODEL_ERROR", "TimeoutError: a socket"),
        (lambda _: says(KeyError("k")), "MODEL_ERROR", "KeyError: 'k'"),
        (lambda _: says(AssertionError()), "MODEL_ERROR", "AssertionError"),
        (lambda _: says(ModelReply(Reply(None))), "NO_RESPONSE", "Model returned no response"),
        (lambda _: says(ModelReply(Reply(""))), "NO_RESPONSE", "Model returned no response"),
        (lambda _: says(), "NO_RESPONSE", "Model returned no response"),
        (refuse, "MODEL_ERROR", "OSError: no way in"),
        (lambda _: says("what is this"), "MODEL_ERROR", "TypeError: A model gave str: TextDelta, ReasoningDelta or"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
async def test_failing_model_ends_the_run_with_an_event_and_the_session_stays_usable(first, code, words, streaming, around):
    options, fields, settings = around
    chat = Chat(LlmAgent(name="a", model=Then(first, "better"), **fields), **options)
    (event,) = await chat.say(streaming=streaming, **settings)
    assert (code, "a", False) == (event.error_code, event.author, event.is_final_response())
    assert event.error_message.startswith(words)
    assert ["better"] == [word for word in kinds(await chat.say("again", **settings)) if word[0] != "~"]
    assert ["hi", f"[{code}]", "again", "better"] == kinds((await chat.session()).events)
    assert (None, "better") == (chat.runs[0].text, chat.runs[1].text)


@pytest.mark.parametrize(
    ("model", "code", "words"),
    [
        ("", "CONFIGURATION", "no model"),
        (None, "CONFIGURATION", "no model"),
        ("nobody/knows", "CONFIGURATION", "no provider 'nobody'"),
        ("gpt-4o-mini", "CONFIGURATION", "OPENAI_API_KEY"),
        ("qwen/qwen-plus", "CONFIGURATION", "KEY"),
        ("http://", "CONFIGURATION", "URL"),
        ("  ", "CONFIGURATION", "empty"),
    ],
)
@pytest.mark.parametrize("bus", [False, True])
async def test_unresolvable_model_ends_the_run_with_an_event(model, code, words, bus, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "DASHSCOPE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    chat = Chat(LlmAgent(name="a", model=model), bus=EventBus() if bus else None)
    (event,) = await chat.say()
    assert code == event.error_code
    assert words in event.error_message
    chat.runner.agent.model = ScriptedModel(["better"])
    assert ["better"] == kinds(await chat.say())


async def test_reasoning_and_usage_of_a_rejected_answer_are_stored():
    model = ScriptedModel([ModelReply(Reply(None, reasoning="hm"), "length", Usage(1, 2, 3)), "better"])
    chat = Chat(agent(model))
    (event,) = await chat.say()
    assert ("NO_RESPONSE", "length") == (event.error_code, event.finish_reason)
    assert {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3} == event.usage
    assert [("hm", True)] == [(part.text, part.thought) for part in event.content.parts]
    await chat.say("again")
    assert [{"role": "user", "content": "hi"}, {"role": "user", "content": "again"}] == said_to(model), "an empty message is none"


@pytest.mark.parametrize("end", [UpstreamError("cut"), OSError("reset"), None])
async def test_the_text_of_an_answer_that_breaks_off_is_not_lost(end, around):
    options, fields, settings = around
    pieces = [ReasoningDelta("hm"), TextDelta("half an "), TextDelta("answ"), *([end] if end is not None else [])]
    model = Then(lambda _: says(*pieces), "better")
    chat = Chat(LlmAgent(name="a", model=model, output_key="out", **fields), **options)
    events = await chat.say(streaming=True, **settings)
    code = {UpstreamError: "UPSTREAM_ERROR", OSError: "MODEL_ERROR"}.get(type(end), "NO_RESPONSE")
    assert ["~hm", "~half an ", "~answ", f"half an answ[{code}]"] == [
        *("~hm" for event in events if event.content.parts[0].thought),
        *kinds(event for event in events if not event.content.parts[0].thought),
    ]
    await chat.say("again", **settings)
    session = await chat.session()
    assert ["hi", f"half an answ[{code}]", "again", "better"] == kinds(session.events)
    assert {"out": "better"} == session.state
    assert ["hi", "half an answ", "again"] == [message["content"] for message in said_to(model.script)]


def test_incomplete_answer_has_no_text_of_earlier_rounds():
    model = ScriptedModel([Reply("let me see", tool_calls=(ADD,)), UpstreamError("cut")])
    events = asyncio.run(Chat(agent(model, add)).say(streaming=True))
    assert "[UPSTREAM_ERROR]" == kinds(events)[-1]


@pytest.mark.parametrize(
    ("steps", "limit", "expected", "message", "errors"),
    [
        (
            [ADD, ADD],
            {"max_llm_calls": 2},
            ["?add", "!add", "?add", "!add", "[MAX_LLM_CALLS]"],
            "Exceeded max LLM calls (2). Possible infinite loop.",
            0,
        ),
        (
            [[ADD, ADD, ADD]],
            {"max_tool_calls": 2},
            ["?add?add?add", "!add!add!add", "[MAX_TOOL_CALLS]"],
            "Exceeded max tool calls (2).",
            1,
        ),
        (
            [[ADD, ToolCall("", "forever")]],
            {"run_timeout": 0.2},
            ["?add?forever", "!add!forever", "[RUN_TIMEOUT]"],
            "The run timed out after 0.2s",
            1,
        ),
    ],
)
@pytest.mark.usefixtures("time_jumps")
async def test_answers_and_calls_and_the_time_of_a_run_are_limited(steps, limit, expected, message, errors):
    model = ScriptedModel([*steps, "better"])
    chat = Chat(agent(model, add, forever))
    events = await chat.say(**limit)
    assert (expected, message) == (kinds(events), events[-1].error_message)
    results = [response.response for event in events for response in event.get_function_responses()]
    assert [{"result": 2}] * (len(results) - errors) == [each for each in results if "error" not in each]
    assert ["better"] == kinds(await chat.say("again", **limit)), "each run has limits of its own"
    assert_settled(said_to(model))


def stuck(*text: Any) -> Any:
    async def events(_: ChatRequest) -> AsyncIterator[Any]:
        for event in text:
            yield event
        await asyncio.Event().wait()

    return events


@pytest.mark.parametrize(
    ("limit", "code", "words"),
    [
        ({"run_timeout": 0.15}, "RUN_TIMEOUT", "The run timed out after 0.15s"),
        ({"llm_timeout": 0.15}, "TIMEOUT", "LLM call timed out after 0.15s"),
        ({"llm_timeout": 0.15, "run_timeout": 60.0}, "TIMEOUT", "LLM call timed out after 0.15s"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.usefixtures("time_jumps")
async def test_model_time_is_limited_and_its_partial_text_is_stored(limit, code, words, streaming):
    model = Then(stuck(TextDelta("so far")), "better")
    chat = Chat(LlmAgent(name="a", model=model))
    events = await chat.say(streaming=streaming, **limit)
    assert [*(["~so far"] if streaming else []), f"so far[{code}]"] == kinds(events)
    assert words == events[-1].error_message
    assert ["better"] == kinds(await chat.say("again", **limit))
    assert 2 == model.closed, "a model that is given up is stopped"


@pytest.mark.usefixtures("time_jumps")
def test_model_timeout_covers_the_whole_answer():
    async def drips(_: ChatRequest) -> AsyncIterator[Any]:
        while True:
            later = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.01, later.set_result, None)
            await later
            yield TextDelta("x")

    (event,) = asyncio.run(Chat(LlmAgent(name="a", model=Then(drips))).say(llm_timeout=0.2))
    assert "TIMEOUT" == event.error_code
    assert event.content.text.startswith("x")


@pytest.mark.parametrize("where", ["before_agent_callback", "after_agent_callback", "before_model_callback", "instruction"])
@pytest.mark.usefixtures("time_jumps")
def test_callers_code_that_hangs_is_stopped_by_the_time_of_the_run(where):  # law 6
    async def hang(*_: Any) -> str:
        await asyncio.Event().wait()
        return "never"

    events = run_agent(["answer"], **{where: hang}, settings={"run_timeout": 0.03})
    assert ["answer"] * (where == "after_agent_callback") + ["[RUN_TIMEOUT]"] == kinds(events)
    assert "The run timed out after 0.03s" == events[-1].error_message


class TickingAgent(BaseAgent):
    """A custom agent that yields a text and then hangs, or yields without waiting."""

    def __init__(self, name: str, *, waits: bool) -> None:
        super().__init__(name=name)
        self.waits = waits
        self.has_ended = False

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        try:
            while True:
                yield ctx.event([Part("tick")])
                if self.waits:
                    await asyncio.Event().wait()
                asyncio.get_running_loop().now += 0.001  # what is done takes time
        finally:
            self.has_ended = True


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("around", [None, SequentialAgent, LoopAgent, ParallelAgent])
@pytest.mark.usefixtures("time_jumps")
def test_custom_agent_is_stopped_at_the_deadline_of_the_run(around, waits):  # law 6
    ticks = TickingAgent("ticks", waits=waits)
    tree = ticks if around is None else around(name="around", sub_agents=[ticks])
    words = kinds(asyncio.run(Chat(tree).say(run_timeout=0.03)))
    assert "[RUN_TIMEOUT]" == words.pop()
    assert {"tick"} == set(words)
    assert ticks.has_ended


@pytest.mark.usefixtures("time_jumps")
async def test_nested_custom_agents_leave_each_call_with_a_response_at_the_deadline():  # law 1
    class Asks(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
            async for event in self.sub_agents[0].run_async(ctx):
                yield event

    chat = Chat(Asks(name="asks", sub_agents=[agent([ToolCall("1", "forever")], forever)]))
    events = await chat.say(run_timeout=0.03)
    assert ["hi", "?forever", "!forever", "[RUN_TIMEOUT]"] == kinds((await chat.session()).events)[:4]
    assert "RUN_TIMEOUT" == events[-1].error_code


def test_timeout_raised_by_the_caller_is_not_the_deadline():
    def late(ctx: Any) -> None:
        raise TimeoutError("mine")

    (event,) = run_agent(["never"], before_agent_callback=late, settings={"run_timeout": 600.0})
    assert ("CALLBACK_ERROR", "TimeoutError: mine") == (event.error_code, event.error_message)


@pytest.mark.usefixtures("time_jumps")
def test_the_time_of_a_tool_is_limited_by_its_own_limit_or_the_runs():
    from patchbay.tools import FunctionTool

    mine = FunctionTool(forever, name="mine")
    mine.timeout = 0.02
    events = run_agent(
        [[ToolCall("1", "forever"), ToolCall("2", "mine")], "done"], forever, mine, settings={"tool_timeout": 0.03}
    )
    assert "Tool 'forever' timed out after 0.03s" == response_of(events, "forever")["error"]
    assert "Tool 'mine' timed out after 0.02s" == response_of(events, "mine")["error"]
    assert "done" == kinds(events)[-1]


@pytest.mark.usefixtures("time_jumps")
async def test_slow_consumer_is_not_cancelled_and_does_not_use_the_models_time():
    """Every pause of the consumer is longer than the model has for its whole answer."""
    loop = asyncio.get_running_loop()
    model = Then(lambda _: says(*(TextDelta(letter) for letter in "answer"), ModelReply(Reply("answer"), "stop")), "never")
    chat = Chat(LlmAgent(name="a", model=model))
    words = []
    async for event in chat.begin(streaming=True, llm_timeout=0.02):
        words += kinds([event])
        later = loop.create_future()
        loop.call_later(0.03, later.set_result, None)
        await later
    assert [*("~" + letter for letter in "answer"), "answer"] == words


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("1", "nope", "{}"),
        ToolCall("1", "", "{}"),
        ToolCall("1", "add", '{"a'),
        ToolCall("1", "add", "null"),
        ToolCall("1", "add", '"{}"'),
        ToolCall("1", "add", '{"a": "x"}'),
        ToolCall("1", "add\ud800", '{"a": "\\ud800"}'),
        ToolCall("", "add", "[" * 5000),
    ],
)
async def test_no_call_of_a_model_ends_the_run(call):  # law 2
    model = ScriptedModel([call, "done", "again"])
    chat = Chat(agent(model, add))
    events = await chat.say()
    assert "done" == kinds(events)[-1]
    (response,) = events[1].get_function_responses()
    assert "error" in response.response
    assert "again" == kinds(await chat.say())[-1]
    for event in (await chat.session()).events:
        event.to_json()
    for request in model.requests:
        assert_settled(request.messages)


async def test_bus_gets_error_events():
    received = []
    bus = EventBus()
    bus.subscribe("*", lambda event: received.append((event.type, event.data.get("error"))) if "error" in event.type else None)
    chat = Chat(agent([UpstreamError("down"), [ToolCall("1", "nope")], RuntimeError("no")]), bus=bus)
    await chat.say()
    await chat.say()
    await bus.drain()
    assert [
        ("llm.error", "UPSTREAM_ERROR"),
        ("agent.error", "UPSTREAM_ERROR"),
        ("llm.error", "MODEL_ERROR"),
        ("agent.error", "MODEL_ERROR"),
    ] == [each for each in received if each[0] != "tool.error"]
    assert 1 == sum(topic == "tool.error" for topic, _ in received)
