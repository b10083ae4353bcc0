"""The six callbacks: when each is called, what it may change, and the effect of its errors."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from typing import Any

import pytest

from patchbay.agents import (
    Content,
    EventBus,
    FunctionCall,
    GenerateContentConfig,
    LlmAgent,
    LlmRequest,
    LlmResponse,
    Part,
    Runner,
    SequentialAgent,
)
from patchbay.errors import ConfigurationError
from patchbay.models.chat_model import ModelReply
from patchbay.testing import ScriptedModel
from patchbay.tools import ToolContext
from patchbay.types import Reply, ToolCall, Usage

from .turns import Chat, agent, assert_settled, kinds, response_of, run_agent, said_to

ADD = ToolCall("1", "add", '{ "a": 1 }')
HAND_OVER = ToolCall("1", "transfer_to_agent", '{"agent_name": "b"}')


async def add(a: int) -> int:
    """Add one."""
    return a + 1


def calls(name: str, **arguments: Any) -> Content:
    return Content("model", [Part(function_call=FunctionCall(name, arguments))])


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL, "patchbay")


SIX = ["before_agent", "after_agent", "before_model", "after_model", "before_tool", "after_tool"]


@pytest.mark.parametrize("form", ["sync", "async", "list", "lambda", "object", "set later"])
def test_each_callback_runs_at_its_point_in_any_form(form):
    asked: list[tuple[str, Any]] = []

    def made(name: str) -> Any:
        def sync(ctx: Any, *about: Any) -> None:
            asked.append((name, about))

        async def asynchronous(ctx: Any, *about: Any) -> None:
            await asyncio.sleep(0)
            sync(ctx, *about)

        class Callable:
            def __call__(self, ctx: Any, *about: Any) -> None:
                sync(ctx, *about)

        forms = {"sync": sync, "async": asynchronous, "list": [sync, asynchronous], "lambda": lambda *about: sync(*about)}
        return {**forms, "object": Callable(), "set later": sync}[form]

    callbacks = {f"{name}_callback": made(name) for name in SIX}
    one = agent([ADD, "done"], add, **({} if form == "set later" else callbacks))
    if form == "set later":
        for name, callback in callbacks.items():
            setattr(one, name, callback)
    assert ["?add", "!add", "done"] == kinds(asyncio.run(Chat(one).say()))
    expected = ["before_agent", "before_model", "after_model", "before_tool", "after_tool"]
    expected += ["before_model", "after_model", "after_agent"]
    times = 2 if form == "list" else 1
    assert [name for name in expected for _ in range(times)] == [name for name, _ in asked]
    assert [("add", {"a": 1})] * times == [about for name, about in asked if name == "before_tool"]
    assert [("add", 2)] * times == [about for name, about in asked if name == "after_tool"]
    assert all(isinstance(about[0], LlmRequest) for name, about in asked if name == "before_model")
    assert all(isinstance(about[0], LlmResponse) for name, about in asked if name == "after_model")


@pytest.mark.parametrize("name", ["before_agent", "after_agent", "before_model", "after_model", "before_tool"])
def test_first_callback_with_a_result_wins(name):
    asked = []

    def made(answer: Any) -> Any:
        def callback(*about: Any) -> Any:
            asked.append(answer)
            return answer

        return callback

    run_agent([ADD, "done"], add, **{f"{name}_callback": [made(None), made("said"), made("never")]})
    assert [None, "said"] == asked


def test_after_tool_callbacks_are_chained():
    events = run_agent(
        [ADD, "done"], add, after_tool_callback=[lambda ctx, name, result: result + 1, lambda ctx, name, result: {"n": result}]
    )
    assert {"n": 3} == response_of(events, "add")


def boom(*_about: Any) -> None:
    raise KeyError("lost")


async def boom_later(*_about: Any) -> None:
    await asyncio.sleep(0)
    raise KeyError("lost")


def cancelled(*_about: Any) -> None:
    raise asyncio.CancelledError


FOUR = SIX[:4]


def returns(value: Any) -> Any:
    return lambda *_about: value


@pytest.mark.parametrize(
    ("callback", "code", "message"),
    [
        (boom, "CALLBACK_ERROR", "KeyError: 'lost'"),
        (boom_later, "CALLBACK_ERROR", "KeyError: 'lost'"),
        (returns(5), "CALLBACK_ERROR", "not int"),
        (cancelled, "AGENT_ERROR", "CancelledError"),
    ],
    ids=["raises", "raises later", "invalid result", "cancelled"],
)
@pytest.mark.parametrize("name", FOUR)
@pytest.mark.parametrize("bus", [False, True])
async def test_a_callback_that_fails_ends_the_run_with_an_event(name, callback, code, message, bus):
    one = agent(["done", "fine"], **{f"{name}_callback": callback})
    chat = Chat(one, bus=EventBus() if bus else None)
    events = await chat.say()
    assert (code, "a") == (events[-1].error_code, events[-1].author)
    assert message in events[-1].error_message
    assert (["done"] if name == "after_agent" else []) == kinds(events[:-1])
    setattr(one, f"{name}_callback", None)
    assert ["fine" if name in ("after_agent", "after_model") else "done"] == kinds(await chat.say("again"))
    kept = [event.error_code for event in (await chat.session()).events if event.error_code is not None]
    assert [code] == kept


INVALID = [
    LlmResponse(error_code=5),
    LlmResponse(content=Content("model", [Part(5)])),
    LlmResponse(error_code="X", error_message=["y"]),
]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (LlmResponse(error_code="BLOCKED", error_message="not this"), "BLOCKED"),
        *((empty, "NO_RESPONSE") for empty in (LlmResponse(), Content(), "")),
        *((invalid, None) for invalid in INVALID),
    ],
)
@pytest.mark.parametrize("name", ["before_model", "after_model"])
async def test_error_and_empty_and_invalid_answers_of_a_callback_end_the_run(name, answer, code):
    one = agent(["done", "next"], **{f"{name}_callback": returns(answer)})
    chat = Chat(one)
    (event,) = await chat.say()
    assert isinstance(event.error_code, str)
    if code is not None:
        assert code == event.error_code
    one.before_model_callback = one.after_model_callback = None
    assert kinds(await chat.say()) in (["done"], ["next"])


@pytest.mark.parametrize("callback", [boom, boom_later, cancelled])
@pytest.mark.parametrize("name", ["before_tool", "after_tool"])
def test_a_tool_callback_that_raises_is_the_failure_of_the_call(name, callback):
    events = run_agent([ADD, "done"], add, **{f"{name}_callback": callback})
    assert ["?add", "!add", "done"] == kinds(events)
    error = response_of(events, "add")["error"]
    assert "cancelled" in error if callback is cancelled else "KeyError: 'lost'" == error


# before_agent, after_agent


@pytest.mark.parametrize("message", ["instead", Content("model", [Part("instead")])])
async def test_before_agent_callback_replaces_the_agents_answer(message):
    asked = []
    one = agent([], before_agent_callback=lambda ctx: message, after_agent_callback=asked.append, output_key="out")
    chat = Chat(one)
    (event,) = await chat.say()
    assert ("instead", "a", True) == (event.content.text, event.author, event.is_final_response())
    assert ["hi", "instead"] == kinds((await chat.session()).events)
    assert "instead" == chat.runs[0].text
    assert [] == asked, "the agent has not worked"


def test_after_agent_callback_adds_its_event_after_an_answer_but_not_after_a_failure():
    assert ["done", "and more"] == kinds(run_agent(["done"], after_agent_callback=returns("and more")))
    assert ["[MODEL_ERROR]"] == kinds(run_agent([ValueError("down")], after_agent_callback=returns("and more")))


async def test_state_changes_of_callbacks_are_stored_with_the_next_event():
    def remember(name: str) -> Any:
        def callback(ctx: Any, *about: Any) -> None:
            ctx.state[name] = ctx.state.get(name, 0) + 1
            ctx.state.setdefault("order", []).append(name)

        return callback

    one = agent([ADD, "done"], add, **{f"{name}_callback": remember(name) for name in SIX})
    chat = Chat(one)
    events = await chat.say()
    deltas = [set(event.actions.state_delta) - {"order"} for event in events]
    assert [
        {"before_agent"},
        {"before_model", "after_model"},
        {"before_tool", "after_tool"},
        {"before_model", "after_model"},
        {"after_agent"},
    ] == deltas
    state = (await chat.session()).state
    expected = ["before_agent", "before_model", "after_model", "before_tool", "after_tool"]
    assert [*expected, "before_model", "after_model", "after_agent"] == state.pop("order")
    assert dict.fromkeys(SIX, 1) | {"before_model": 2, "after_model": 2} == state


def test_state_of_a_before_agent_callback_reaches_instructions_and_sub_agents():
    def begin(ctx: Any) -> None:
        ctx.state["mood"] = "kind"

    inner, alone = (agent(["done"], instruction="Be {mood}.", **fields) for fields in ({}, {"before_agent_callback": begin}))
    for root in (SequentialAgent(name="root", sub_agents=[inner], before_agent_callback=begin), alone):
        asyncio.run(Chat(root).say())
    assert ["Be kind."] * 2 == [said_to(each.model)[0]["content"] for each in (inner, alone)]


@pytest.mark.parametrize("name", ["after_agent", "before_model", "after_model", "before_tool"])
async def test_state_changes_without_an_answer_are_stored(name):
    def change(ctx: Any, *about: Any) -> None:
        ctx.state["seen"] = True
        if name != "after_agent":
            ctx.end_invocation = True

    steps = [ADD, ValueError("down")] if name == "before_tool" else ["done"] if name != "before_model" else [ValueError("down")]
    chat = Chat(agent(steps, add, **{f"{name}_callback": change}))
    await chat.say()
    assert {"seen": True} == (await chat.session()).state


ENDED: list[tuple[str, list[str]]] = [
    ("before_agent", []),
    ("before_model", ["?add", "!add"]),
    ("after_model", ["?add", "!add"]),
    ("before_tool", ["?add", "!add"]),
    ("after_tool", ["?add", "!add"]),
]


def end_run(ctx: Any, *_about: Any) -> None:
    ctx.end_invocation = True


@pytest.mark.parametrize(("name", "expected"), ENDED)
def test_end_of_the_run_takes_effect_after_the_current_step(name, expected):
    one = agent([ADD, "never"], add, **{f"{name}_callback": end_run})
    later = agent(["never"], name="later")
    assert expected == kinds(asyncio.run(Chat(SequentialAgent(name="root", sub_agents=[one, later])).say()))
    assert [] == later.model.requests


def test_an_ended_run_neither_transfers_nor_sends_a_reminder():
    sub = agent(["never"], name="b")
    events = run_agent([HAND_OVER], sub_agents=[sub], after_tool_callback=end_run)
    assert ["?transfer_to_agent", "!transfer_to_agent"] == kinds(events)
    assert [] == sub.model.requests
    model = ScriptedModel(["words", "never"])
    assert ["words[OUTPUT_INVALID]"] == kinds(run_agent(model, output_schema=int, before_model_callback=end_run))
    assert 1 == len(model.requests)


# before_model


def test_a_request_can_be_changed_for_one_round():
    seen = []

    def change(ctx: Any, request: LlmRequest) -> None:
        seen.append(
            (request.system_instruction, list(request.tools_dict), len(request.contents), request.metadata, request.model)
        )
        if len(seen) == 1:
            request.append_instructions(["Also this.", "And that."])
            request.contents.append(Content("user", [Part("one more thing")]))
            request.config.temperature = 0.5
            request.config.max_output_tokens = None
            request.config.stop_sequences.append("END")
            request.config.extra["seed"] = 1
            request.model = "another"

    config = GenerateContentConfig(max_output_tokens=5, stop_sequences=["X"])
    one = agent([ADD, "done"], add, instruction="Be so.", before_model_callback=change, generate_content_config=config)
    asyncio.run(Chat(one).say())
    first, second = one.model.requests
    assert ["Be so.\n\nAlso this.\n\nAnd that.", "hi", "one more thing"] == [each["content"] for each in first.messages]
    assert {"temperature": 0.5, "stop": ["X", "END"], "seed": 1, "model": "another"} == first.parameters
    assert ["Be so.", "hi", None, "2"] == [message["content"] for message in second.messages]
    assert {"max_tokens": 5, "stop": ["X"]} == second.parameters
    assert [("Be so.", ["add"], 1, {"user_id": "u"}, None), ("Be so.", ["add"], 3, {"user_id": "u"}, None)] == seen
    assert GenerateContentConfig(max_output_tokens=5, stop_sequences=["X"]) == config


def test_model_name_is_sent_only_if_a_callback_changes_it():
    class Named(ScriptedModel):
        name = "mine"

    for other, expected in ((None, {}), ("mine", {}), ("another", {"model": "another"})):
        model = Named(["done"])

        def change(ctx: Any, request: LlmRequest, other: str | None = other) -> None:
            assert "mine" == request.model
            request.model = other

        run_agent(model, before_model_callback=change)
        assert expected == model.requests[0].parameters


def test_unchanged_request_is_sent_byte_for_byte():
    messages = []
    for callback in (None, lambda ctx, request: None):
        one = agent([ADD, "done"], add, instruction="Be so.", before_model_callback=callback)
        asyncio.run(Chat(one).say())
        messages.append([request.messages for request in one.model.requests])
    assert messages[0] == messages[1]


@pytest.mark.parametrize(("before", "after"), [(None, "Be so."), ("Be so.", None)])
def test_callback_can_add_and_remove_an_instruction(before, after):
    def change(ctx: Any, request: LlmRequest) -> None:
        assert before == request.system_instruction
        request.system_instruction = after

    one = agent(["done"], before_model_callback=change, instruction=before or "")
    asyncio.run(Chat(one).say())
    assert [*([after] if after else []), "hi"] == [message["content"] for message in said_to(one.model)]


async def test_calls_and_results_in_a_request_can_be_edited_and_history_is_not():
    def hide(ctx: Any, request: LlmRequest) -> None:
        for content in request.contents:
            for part in content.parts:
                if part.function_call is not None:
                    part.function_call.args["a"] = "hidden"
                if part.function_response is not None:
                    assert {"result": "2"} == part.function_response.response
                    part.function_response.shown = "hidden too"

    one = agent([ADD, "done", "again"], add, before_model_callback=hide)
    chat = Chat(one)
    await chat.say()
    _, call, result = said_to(one.model)
    assert ('{"a":"hidden"}', "hidden too") == (call["tool_calls"][0]["function"]["arguments"], result["content"])
    kept = (await chat.session()).events
    assert {"a": 1} == kept[1].get_function_calls()[0].args
    assert {"result": 2} == kept[2].get_function_responses()[0].response
    one.before_model_callback = None
    await chat.say()
    _, call, result, *_ = said_to(one.model)
    assert ('{ "a": 1 }', "2") == (call["tool_calls"][0]["function"]["arguments"], result["content"])


def test_callback_can_add_and_remove_tools_for_one_round():
    ran = []

    async def extra(n: int = 0) -> str:
        """Do something more."""
        ran.append(n)
        return "extra"

    def change(ctx: Any, request: LlmRequest) -> None:
        assert "extra" not in request.tools_dict, "that was for the round before"
        with pytest.raises(ConfigurationError, match="Two tools are named 'add'"):
            request.append_tools([add])
        request.append_tools([extra])
        if ctx.llm_call_count == 2:
            del request.tools_dict["add"]
            assert ["extra"] == [schema["function"]["name"] for schema in request.get_tools_schema()]

    steps = [[ADD, ToolCall("2", "extra", '{"n": "7"}')], [ToolCall("3", "add", '{"a": 1}'), ToolCall("4", "extra")], "done"]
    with ScriptedModel(steps) as model:
        events = run_agent(model, add, before_model_callback=change)
    assert [["add", "extra"], ["extra"], ["add", "extra"]] == [[spec.name for spec in each.tools] for each in model.requests]
    assert [7, 0] == ran
    first, second = events[1], events[3]
    assert [{"result": 2}, {"result": "extra"}] == [each.response for each in first.get_function_responses()]
    assert "there is no tool 'add'" in second.get_function_responses()[0].response["error"]
    assert ["?add?extra", "!add!extra", "?add?extra", "!add!extra", "done"] == kinds(events)


def test_result_reader_is_kept_if_a_callback_changes_the_tools():
    async def long() -> str:
        return "x" * 60_000

    async def extra() -> None: ...

    steps = [ToolCall("1", "long"), ToolCall("2", "read_result", '{"result_id": "result_1"}'), "done"]
    one = agent(steps, long, before_model_callback=lambda ctx, request: request.append_tools([extra]))
    events = asyncio.run(Chat(one).say())
    assert ["long", "read_result", "extra"] == [spec.name for spec in one.model.requests[1].tools]
    assert "xxx" in response_of(events, "read_result")["result"]


@pytest.mark.parametrize(
    "answer",
    [
        "instead",
        Content("model", [Part("instead")]),
        LlmResponse(content=Content("model", [Part("instead")]), finish_reason="stop"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_before_model_result_replaces_the_answer(answer, streaming):
    one = agent([], before_model_callback=lambda ctx, request: answer, output_key="out")
    events = asyncio.run(Chat(one).say(streaming=streaming))
    assert (["~instead"] if streaming else []) + ["instead"] == kinds(events)
    assert {"out": "instead"} == events[-1].actions.state_delta
    assert [] == one.model.requests


def test_calls_in_place_of_the_model_run():
    def plan(ctx: Any, request: LlmRequest) -> Any:
        return calls("add", a=1) if ctx.llm_call_count == 1 else None

    with ScriptedModel(["done"]) as model:
        assert ["?add", "!add", "done"] == kinds(run_agent(model, add, before_model_callback=plan))
    assert_settled(said_to(model))
    assert ["hi", None, "2"] == [message["content"] for message in said_to(model)]


async def look(day: dt.date) -> str:
    return day.isoformat()


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [(add, {"a": 1}, 2), (look, {"day": dt.date(2026, 1, 2)}, "2026-01-02")],
    ids=["JSON", "converted to JSON"],
)
def test_calls_of_a_tool_added_by_the_same_callback_run(tool, arguments, expected):
    def plan(ctx: Any, request: LlmRequest) -> Any:
        if ctx.llm_call_count > 1:
            return None
        request.append_tools([tool])
        return LlmResponse(content=calls(tool.__name__, **arguments))

    assert {"result": expected} == response_of(run_agent(["done"], before_model_callback=plan), tool.__name__)


# after_model


def test_after_model_callback_replaces_the_answer():
    events = run_agent(
        [ModelReply(Reply("done"), "stop", Usage(1, 2, 3))], after_model_callback=lambda ctx, response: "better", output_key="out"
    )
    assert ["better"] == kinds(events)
    assert {"out": "better"} == events[0].actions.state_delta
    assert {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3} == events[0].usage, "the tokens were used all the same"


def test_an_answer_can_be_changed_in_place():
    def shout(ctx: Any, response: LlmResponse) -> None:
        assert ("stop", {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}) == (
            response.finish_reason,
            response.usage,
        )
        for part in response.content.parts:
            part.text = part.text.upper()

    reply = Reply("done", reasoning="hm", extra={"reasoning_content": "hm"})
    (event,) = run_agent([ModelReply(reply, "stop", Usage(1, 2, 3))], after_model_callback=shout)
    assert [("HM", True), ("DONE", False)] == [(part.text, part.thought) for part in event.content.parts]
    assert {"reasoning_content": "hm"} == event.content.extra_content
    assert "stop" == event.finish_reason


def test_calls_can_be_added_and_changed_after_the_model():
    def also(ctx: Any, response: LlmResponse) -> None:
        if ctx.llm_call_count == 1:
            response.content.parts[0].function_call.args["a"] = 10
            response.content.parts.append(Part(function_call=FunctionCall("add", {"a": 20})))

    with ScriptedModel([ADD, "done"]) as model:
        events = run_agent(model, add, after_model_callback=also)
    assert [{"result": 11}, {"result": 21}] == [each.response for each in events[1].get_function_responses()]
    assert ['{"a":10}', '{"a":20}'] == [call["function"]["arguments"] for call in said_to(model)[1]["tool_calls"]]
    assert [{"a": 10}, {"a": 20}] == [call.args for call in events[0].get_function_calls()]
    assert_settled(said_to(model))


def test_callback_can_add_and_remove_calls_of_an_answer():
    def act(ctx: Any, response: LlmResponse) -> Any:
        return calls("add", a=1) if ctx.llm_call_count == 1 else None

    assert ["?add", "!add", "second"] == kinds(run_agent(["first", "second"], add, after_model_callback=act))

    def refuse(ctx: Any, response: LlmResponse) -> Any:
        response.content.parts = [part for part in response.content.parts if part.function_call is None]
        response.content.parts.append(Part("I would rather not."))

    assert ["I would rather not."] == kinds(run_agent([ADD], add, after_model_callback=refuse))


@pytest.mark.parametrize("model", ["", "gpt-4o-mini", "nobody/knows"], ids=["no model", "no key", "no provider"])
@pytest.mark.parametrize("has_bus", [False, True], ids=["alone", "with a bus"])
def test_a_before_model_callback_answers_for_a_model_that_cannot_be_used(model, has_bus, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    seen = []

    def answer(ctx: Any, request: LlmRequest) -> str | None:
        seen.append(request.model)
        return "from the cache" if ctx.user_content.text == "known" else None

    runner = Runner(LlmAgent(name="a", model=model, before_model_callback=answer), bus=EventBus() if has_bus else None)
    known, unknown = (list(runner.run("u", "s", text)) for text in ("known", "unknown"))
    assert [("from the cache", None)] == [(event.content.text, event.error_code) for event in known]
    assert ["CONFIGURATION"] == [event.error_code for event in unknown]
    assert [model or None] * 2 == seen


# before_tool, after_tool


@pytest.mark.parametrize("answer", [{}, {"blocked": True}, 0, "", [], False])
def test_before_tool_result_replaces_the_tool_call(answer):
    ran, after = [], []

    async def touch(a: int, tool_context: ToolContext) -> int:
        ran.append(a)
        return a

    call = ToolCall("1", "touch", '{"a": 1}')
    events = run_agent(
        [call, "done"],
        touch,
        before_tool_callback=lambda ctx, name, args: answer if name == "touch" else None,
        after_tool_callback=lambda *about: after.append(about),
    )
    assert (answer if isinstance(answer, dict) else {"result": answer}) == response_of(events, "touch")
    assert ([], []) == (ran, after)


def test_callback_changes_reach_the_tool_and_the_event_keeps_the_models_arguments():
    def change(ctx: Any, name: str, args: dict[str, Any]) -> None:
        args["a"] = 41

    events = run_agent([ADD, "done"], add, before_tool_callback=change)
    assert {"result": 42} == response_of(events, "add")
    assert {"a": 1} == events[0].get_function_calls()[0].args


def test_tool_callbacks_may_ask_for_the_tools_context():
    seen = []

    def before(ctx: Any, name: str, args: dict[str, Any], tool_context: ToolContext) -> None:
        seen.append((ctx.agent.name, tool_context.call_id))
        tool_context.state["before"] = 1

    async def after(ctx: Any, name: str, result: Any, *, tool_context: ToolContext) -> None:
        tool_context.state["after"] = tool_context.state["before"] + 1

    events = run_agent([ADD, "done"], add, before_tool_callback=before, after_tool_callback=after)
    assert [("a", "1")] == seen
    assert {"before": 1, "after": 2} == events[1].actions.state_delta


def test_before_tool_callback_can_repair_or_answer_a_call_with_invalid_arguments():
    def callback(ctx: Any, name: str, args: dict[str, Any]) -> Any:
        if args.get("a") == "mock":
            return {"mocked": True}
        args.setdefault("a", 3)
        return None

    calls_ = [
        ToolCall("1", "nope"),
        ToolCall("2", "add"),
        ToolCall("3", "add", '{"a": "mock"}'),
        ToolCall("4", "add", '{"a": "x"}'),
    ]
    events = run_agent([calls_, "done"], add, before_tool_callback=callback)
    unknown, mended, mocked, wrong = [each.response for each in events[1].get_function_responses()]
    assert ({"result": 4}, {"mocked": True}) == (mended, mocked)
    assert "no tool" in unknown["error"] or "nope" in unknown["error"]
    assert "/a must be a valid integer" in wrong["error"]


def test_tool_callbacks_see_a_transfer_and_can_prevent_it():
    sub = agent(["from b"], name="b")

    def refuse(ctx: Any, name: str, args: dict[str, Any]) -> Any:
        return {"error": "stay"} if name == "transfer_to_agent" else None

    events = run_agent([HAND_OVER, "done"], sub_agents=[sub], before_tool_callback=refuse)
    assert ["?transfer_to_agent", "!transfer_to_agent", "done"] == kinds(events)
    assert [] == sub.model.requests
