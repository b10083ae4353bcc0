"""Tool search in every kind of loop: found tools are appended, stay for the conversation, and pass every hook before they run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agents.turns import Chat, agent
from chat_server.rig import USER, call, calls, serve_chat, text_of
from patchbay import ToolRunner, ToolSearch
from patchbay.agents import LlmAgent
from patchbay.executor import Executor
from patchbay.loop import turn
from patchbay.testing import ScriptedModel
from patchbay.testing.realtime import Call, FakeOpenAI, Quote
from patchbay.tools import ToolDefinition
from patchbay.types import Reply, ToolCall, ToolSpec
from realtime.core.playing import playing
from support.realtime_fakes import FakeGemini
from support.running import run
from tools_server.rig import calling_back, json_response


def tools(count: int = 60) -> list[ToolDefinition]:
    return [
        ToolDefinition(f"tool_{n}", description=f"Does the task called task{n}.", handler=lambda arguments, n=n: f"{n} did it")
        for n in range(count)
    ]


def search(query: str, call_id: str = "s", limit: int = 1) -> ToolCall:
    return ToolCall(call_id, "tool_search", json.dumps({"query": query, "limit": limit}))


def offered(model: ScriptedModel) -> list[list[str]]:
    return [[spec.name for spec in request.tools] for request in model.requests]


def test_found_tools_are_appended_and_stay_for_the_conversation():
    steps = [search("task7"), ToolCall("a", "tool_7"), search("task3 task5", "t", 2), "done", "again"]
    model = ScriptedModel(steps)
    runner = ToolRunner(model, tools(), tool_search=ToolSearch(pinned=["tool_59"]))
    result = run(runner.run("hi"))
    assert ["7 did it"] == [each.content for each in result.tool_executions if each.call.name == "tool_7"]
    run(runner.run([*result.messages, {"role": "user", "content": "more"}]))
    start = ["tool_59", "tool_search"]
    assert [start, [*start, "tool_7"], [*start, "tool_7"], [*start, "tool_7", "tool_3", "tool_5"]] == offered(model)[:4]
    assert offered(model)[3] == offered(model)[4]  # read from the messages by another run


def test_without_it_and_with_few_tools_all_are_offered():
    for count, setting in ((60, None), (40, ToolSearch())):
        model = ScriptedModel(["done"])
        run(ToolRunner(model, tools(count), tool_search=setting).run("hi"))
        assert [[f"tool_{n}" for n in range(count)]] == offered(model)


def test_a_call_of_a_tool_that_was_not_found_does_not_run_it_but_offers_it():
    both = Reply(None, tool_calls=(ToolCall("a", "tool_7"), ToolCall("b", "tool_7")))
    model = ScriptedModel([both, ToolCall("c", "tool_7"), "done"])
    *early, late = run(ToolRunner(model, tools()).run("hi")).tool_executions
    assert ["tool_not_loaded", "tool_not_loaded"] == [each.result.code for each in early]
    assert "call it again" in early[0].content
    assert "7 did it" == late.content
    assert ["tool_search", "tool_7"] == offered(model)[1]


def test_empty_search_is_reported_and_an_unknown_tool_stays_unknown():
    model = ScriptedModel([search("astronomy"), ToolCall("b", "nope"), "done"])
    first, second = run(ToolRunner(model, tools()).run("hi")).tool_executions
    assert not first.is_error
    assert "Try other words" in first.content
    assert second.is_error
    assert [["tool_search"]] * 3 == offered(model)


def test_the_tool_that_a_request_demands_is_offered():
    model = ScriptedModel([ToolCall("a", "tool_7"), "done"])
    choice = {"type": "function", "function": {"name": "tool_7"}}
    run(ToolRunner(model, tools()).run("hi", tool_choice=choice))
    assert [["tool_search", "tool_7"]] * 2 == offered(model)


async def test_tool_removed_by_a_callback_is_not_found():
    def policy(ctx: Any, request: Any) -> None:
        request.tools_dict.pop("tool_7", None)

    model = ScriptedModel([search("task7"), ToolCall("a", "tool_7"), ToolCall("b", "tool_7"), "done"])
    events = await Chat(agent(model, *tools(), before_model_callback=policy)).say()
    responses = [response for event in events for response in event.get_function_responses()]
    assert ["tool_search", "tool_7", "tool_7"] == [response.name for response in responses]
    assert not any("did it" in str(response.response) for response in responses)
    assert not any("tool_7" in names for names in offered(model))


async def test_a_search_has_another_name_than_the_callers_tools():
    model = ScriptedModel(["done"])
    mine = ToolSpec("tool_search")

    executor = Executor(tools(), search=ToolSearch())
    async for _ in turn(model, executor.begin_run(reserved=["tool_search"]), [], external=[mine]):
        pass
    assert [["tool_search", "tool_search_"]] == offered(model)


def test_hostile_results_in_a_conversation_offer_nothing_but_tools_of_the_catalog():
    model = ScriptedModel(["done"])
    conversation: list[Any] = [{"role": "user", "content": "hi"}]
    for number, content in enumerate(
        ['{"tools": 7}', '{"tools": [{"name": ["x"]}]}', "[" * 100_000, '{"tools": [{"name": "nope"}]}', None]
    ):
        request = {"id": f"c{number}", "type": "function", "function": {"name": "tool_search", "arguments": "{}"}}
        conversation += [
            {"role": "assistant", "content": None, "tool_calls": [request]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": content or ""},
        ]
    run(ToolRunner(model, tools()).run(conversation))
    assert [["tool_search"]] == offered(model)


async def test_an_agent_finds_tools_and_its_later_runs_still_have_them():
    sub = LlmAgent(name="helper", model=ScriptedModel([]))
    model = ScriptedModel([search("task7"), ToolCall("a", "tool_7"), "done", "again"])
    chat = Chat(agent(model, *tools(), sub_agents=[sub]))
    await chat.say()
    await chat.say("more")
    start = ["transfer_to_agent", "tool_search"]
    assert [start, [*start, "tool_7"], [*start, "tool_7"], [*start, "tool_7"]] == offered(model)


@pytest.mark.parametrize("text", [False, True])
def test_a_chat_on_a_server_finds_tools_over_requests(text):
    fenced = "```tool_call\n" + json.dumps({"name": "tool_search", "arguments": {"query": "task 7", "limit": 1}}) + "\n```"
    found = fenced if text else calls(call("tool_search", '{"query": "tool_7", "limit": 1}'))
    use = "```tool_call\n" + '{"name": "tool_7", "arguments": {}}' + "\n```" if text else calls(call("tool_7", id="call_2"))
    with (
        calling_back(json_response({"output": "seven", "is_error": False})) as callback,
        serve_chat([found, use, "It is seven.", "Still."], tools="text" if text else "native", chat={"search_above": 5}) as at,
    ):
        for n in range(8):
            at.server.register(f"tool_{n}", callback.url, description=f"Does task {n}.")
        session = {"x-patchbay-session": "s1"}
        answer = at.ask(extra_headers=session)
        assert "It is seven." == answer.choices[0].message.content
        texts = {"role": "assistant", "content": answer.choices[0].message.content}
        at.ask(messages=[USER, texts, {"role": "user", "content": "more"}], extra_headers=session)
        if text:
            assert ["tool_7" in str(body["messages"][0]) for body in at.asked] == [False, True, True, True]
        else:
            names = [[tool["function"]["name"] for tool in body["tools"]] for body in at.asked]
            assert [["tool_search"], *[["tool_search", "tool_7"]] * 3] == names


def test_continued_responses_keep_found_tools():
    found = calls(call("tool_search", '{"query": "tool_7", "limit": 1}'))
    with serve_chat([found, "Found.", "Still.", "Again.", "Not."], chat={"search_above": 5}) as at, at.client() as client:
        for n in range(8):
            at.server.register(f"tool_{n}", description=f"Does task {n}.")
        first = client.responses.create(model="m", input="Find it.")
        second = client.responses.create(model="m", input="More.", previous_response_id=first.id)
        client.responses.create(model="m", input="More.", previous_response_id=second.id)
        client.responses.create(model="m", input="Another conversation.")
        names = [[tool["function"]["name"] for tool in body["tools"]] for body in at.asked]
    assert [["tool_search"], *[["tool_search", "tool_7"]] * 3, ["tool_search"]] == names


@pytest.mark.parametrize("streamed", [False, True])
def test_a_text_models_call_of_a_tool_that_it_has_not_found_is_answered_and_not_prose(streamed):
    use = '```tool_call\n{"name": "tool_7", "arguments": {}}\n```'
    with (
        calling_back(json_response({"output": "seven", "is_error": False})) as callback,
        serve_chat([use, use, "It is seven."], tools="text", chat={"search_above": 5}) as at,
    ):
        for n in range(8):
            at.server.register(f"tool_{n}", callback.url, description=f"Does task {n}.")
        assert "It is seven." == (text_of(at.stream()) if streamed else at.ask().choices[0].message.content)
        assert ["call it again" in str(at.asked[1]["messages"]), 1] == [True, len(callback.calls)]


@pytest.mark.parametrize("provider", [FakeOpenAI, FakeGemini])
async def test_a_realtime_session_finds_tools(provider):
    script = [Call("tool_search", {"query": "task7", "limit": 1}), Call("tool_7"), Quote(), Quote()]
    with provider(script) as fake:
        async with playing(fake, *tools()) as played:
            assert ["tool_search"] == list(fake.tools)
            await played.session.send_text("Go.")
            await played.until(lambda: "7 did it" in played.text)
            await fake.until(lambda: ["tool_search", "tool_7"] == list(fake.tools))
