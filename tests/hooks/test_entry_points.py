"""Hooks in Python programs: ToolRunner, Runner with its agents and sub-agents, and how their turns end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from agents.turns import Chat, agent, call
from patchbay import ToolRunner
from patchbay.agents import (
    AgentTool,
    DatabaseSessionService,
    InMemoryChatHistoryService,
    LlmAgent,
    ParallelAgent,
    RunConfig,
    Runner,
    SequentialAgent,
)
from patchbay.hooks import AbortTurn, Approval, HardAbort, HookManager, Modify, Respond, ToolOutput
from patchbay.testing import ScriptedModel
from patchbay.types import Reply, Usage
from support.running import run

from .test_injected_tools import OSLO, WEATHER, hook_with_tools
from .turns import HI, assert_settled, called, hook, managed


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL, "patchbay")


async def add(a: int, b: int = 2) -> int:
    return a + b


# ToolRunner


def test_runner_calls_hooks_and_reports_how_a_turn_ended():
    runner = ToolRunner(ScriptedModel([called(), "done"]), [add], hooks=managed(hook(after_tool=AbortTurn("enough"))))
    result = run(runner.run("hi"))
    assert ("abort_turn", None, "enough") == (result.finish_reason, result.content, result.aborted.reason)
    assert_settled(result.messages)


def test_runner_restores_messages_after_a_hard_abort():
    runner = ToolRunner(ScriptedModel([called(), "done"]), [add], hooks=managed(hook(after_tool=HardAbort())))
    result = run(runner.run("hi"))
    assert ("hard_abort", HI) == (result.finish_reason, result.messages)


@pytest.mark.parametrize("given", [object(), [], hook(before_tool=None)], ids=["an object", "a list", "a hook"])
def test_hooks_are_a_manager_of_them(given):
    with pytest.raises(TypeError, match="HookManager"):
        ToolRunner(ScriptedModel([]), hooks=given)
    with pytest.raises(TypeError, match="HookManager"):
        Runner(agent([]), hooks=given)


async def test_tool_output_for_the_user_is_an_event():
    async def show() -> ToolOutput:
        return ToolOutput("shown", for_user="look!", media=())

    async def silent() -> ToolOutput:
        return ToolOutput("x", for_user="not this", silent=True)

    runner = ToolRunner(ScriptedModel([[called("show", "{}", "1"), called("silent", "{}", "2")], "done"]), [show, silent])
    events = [event async for event in runner.run_stream("hi")]
    (shown,) = [event for event in events if event.type == "user_output"]
    assert ("1", "look!", (), False) == (shown.tool_call.id, shown.text, shown.media, shown.handled)
    assert ("done", False) == (events[-1].content, events[-1].handled)


# agents


def chat(one: Any, manager: HookManager, **options: Any) -> Chat:
    return Chat(one, hooks=manager, **options)


async def test_hooks_of_an_agent_get_its_turn_metadata():
    seen = []

    def before_llm(request):
        seen.append((request.meta, request.context, request.model))

    one = chat(agent([called(), "done"], add), managed(hook(before_llm=before_llm, after_tool=Modify("nine"))))
    events, _session = await one.say(), await one.session()
    assert {"result": "nine"} == events[1].get_function_responses()[0].response
    assert "done" == events[-1].content.text
    metas = [meta for meta, *_ in seen]
    assert [("a", "", 1), ("a", "", 2)] == [(meta.agent_id, meta.parent_turn_id, meta.iteration) for meta in metas]
    assert "app:u:s" == metas[0].session_key
    assert metas[0].turn_id == metas[1].turn_id != ""
    assert {"inbound": {"channel": "app", "chat_id": "s", "sender_id": "u"}} == seen[0][1]


async def test_an_abort_is_the_last_event_with_the_reason_and_calls_that_ran_are_in_the_log():
    manager = managed(hook(before_tool=lambda view: AbortTurn("no rm") if view.tool == "rm" else None))

    async def rm() -> None:
        raise AssertionError

    one = chat(agent([[called(), called("rm", "{}", "c2")], "again"], add, rm), manager)
    events = await one.say()
    events, session, then, one = events, await one.session(), await one.say("more"), one
    assert ("HOOK_ABORT", "hook requested turn abort: no rm") == (events[-1].error_code, events[-1].error_message)
    responses = [response.response for event in session.events for response in event.get_function_responses()]
    assert {"result": 3} == responses[0]
    assert "hook requested turn abort" in responses[1]["error"]
    assert "again" == then[-1].content.text
    shown = one.runner.agent.model.requests[1].messages
    assert ["hi", "more"] == [message["content"] for message in shown if message["role"] == "user"]
    assert_settled(shown)


@pytest.mark.parametrize("database", [False, True], ids=["memory", "database"])
@pytest.mark.parametrize("point", ["before_llm", "after_llm", "before_tool", "after_tool"])
async def test_hard_abort_hides_the_turn_from_the_model_and_keeps_the_log(point, database, tmp_path):
    aborts = [False]
    manager = managed(hook(**{point: lambda _view: HardAbort("gone") if aborts[0] else None}))
    service = DatabaseSessionService(f"sqlite:///{tmp_path / 's.db'}") if database else None
    model = ScriptedModel([[called()], "three", *([] if point == "before_llm" else [called(call_id="c2")]), "done"])
    one = chat(agent(model, add), manager, service=service)
    await one.say("first")
    aborts[0] = True
    events = await one.say("second")
    aborts[0] = False
    await one.say("third")
    session = await one.session()
    if service is not None:
        await service.close()
    events, session, shown = events, session, model.requests[-1].messages
    assert ("HOOK_ABORT", "hook requested turn abort: gone") == (events[-1].error_code, events[-1].error_message)
    assert events[-1].invocation_id == events[-1].actions.rewind_before_invocation_id
    assert ["first", "third"] == [message["content"] for message in shown if message["role"] == "user"]
    assert_settled(shown)
    assert "second" in [event.content.text for event in session.events if event.author == "user" and event.content]
    assert 0 < len([event for event in session.events if event.invocation_id == events[-1].invocation_id])


def test_aborted_turn_does_not_count_for_the_history_window():
    async def main() -> Any:
        aborts = [False]
        manager = managed(hook(before_llm=lambda _: HardAbort() if aborts[0] else None))
        model = ScriptedModel(["one", "two"])
        one = chat(agent(model), manager)
        await one.say("first")
        aborts[0] = True
        for _ in range(5):
            await one.say("taken back")
        aborts[0] = False
        await one.say("last", max_history_events=4)
        return model.requests[-1].messages

    assert ["first", "one", "last"] == [message["content"] for message in run(main())]


async def test_branch_that_continues_after_a_hard_abort_is_hidden_too():
    other_may = asyncio.Event()

    async def waits(_request):
        await other_may.wait()
        return "from the other branch"

    def before_llm(request):
        return HardAbort("x") if request.meta.agent_id == "aborts" and request.messages[-1]["content"] == "second" else None

    aborts = LlmAgent(name="aborts", model=ScriptedModel(["a1", "a3"]))
    other = LlmAgent(name="other", model=ScriptedModel(["b1", waits, "b3"]))
    last = LlmAgent(name="last", model=ScriptedModel(["c1", "c3"]))
    one = chat(
        SequentialAgent(name="all", sub_agents=[ParallelAgent(name="both", sub_agents=[aborts, other]), last]),
        managed(hook(before_llm=before_llm)),
    )
    await one.say("first")
    events = []
    async for event in one.begin("second"):
        events.append(event)
        if event.error_code is not None:
            other_may.set()
    await one.say("third")
    events, shown, session = events, last.model.requests[-1].messages, await one.session()
    assert "from the other branch" in [event.content.text for event in events if event.content is not None]
    texts = str([message["content"] for message in shown])
    assert "first" in texts
    assert "third" in texts
    assert "second" not in texts
    assert "from the other branch" not in texts
    markers = [event for event in session.events if event.actions.rewind_before_invocation_id]
    assert 2 == len(markers)


@pytest.mark.parametrize(
    "methods",
    [
        {"before_tool": Respond("x")},
        {"before_tool": lambda call: Modify({"tool": "add", "arguments": {"a": 1}})},
        {"after_tool": Modify("x")},
        {"approve_tool": False},
    ],
    ids=["answered", "renamed", "changed", "refused"],
)
async def test_structured_answer_does_not_reach_call_hooks(methods):
    """The tool that takes it does nothing, and what comes of it has that type. It is the model's answer: ``after_llm`` sees it."""
    one = LlmAgent(name="a", model=ScriptedModel([called("give_answer", '{"answer": 7}')]), tools=[add], output_schema=int)
    records: list[Any] = []
    manager = managed(hook(**methods))
    manager.recorders.append(records.append)
    events = await chat(one, manager).say()
    assert ("7", ["give_answer"]) == (events[-1].content.text, [record.tool for record in records])


async def test_hooks_are_called_for_a_transfer_target():
    seen = []
    other = LlmAgent(name="other", model=ScriptedModel([called(), "done"]), tools=[add])
    approver = hook(approve_tool=lambda view: seen.append((view.meta.agent_id, view.tool)) or view.tool != "add")
    one = agent([call("transfer_to_agent", "1", agent_name="other")], sub_agents=[other])
    events = await chat(one, managed(approver)).say()
    assert ("done", "Tool execution denied by approval hook") == (
        events[-1].content.text,
        other.model.requests[1].messages[-1]["content"],
    )
    assert [("a", "transfer_to_agent"), ("other", "add")] == seen


async def test_hooks_see_agents_called_as_tools_as_part_of_the_calling_turn():
    seen = []

    def before_llm(request):
        seen.append((request.meta.agent_id, request.meta.turn_id, request.meta.parent_turn_id, request.meta.session_key))

    helper = LlmAgent(name="helper", model=ScriptedModel([called(), "three"]), tools=[add])
    manager = managed(hook(before_llm=before_llm, approve_tool=lambda view: Approval(view.tool != "add", "no sums")))
    events = await chat(agent([call("helper", "1", request="1 + 2"), "done"], AgentTool(helper)), manager).say()
    events, result = events, helper.model.requests[1].messages[-1]["content"]
    assert "Tool execution denied by approval hook: no sums" == result
    assert ["a", "helper", "helper", "a"] == [agent_id for agent_id, *_ in seen]
    (outer, inner) = seen[0], seen[1]
    assert ("", outer[1]) == (outer[2], inner[2])
    assert outer[1] != inner[1]
    assert {"app:u:s"} == {key for *_, key in seen}
    assert "done" == events[-1].content.text


async def test_abort_in_an_agent_tool_is_a_failed_call_of_the_outer_turn():
    helper = LlmAgent(name="helper", model=ScriptedModel([called()]), tools=[add])
    manager = managed(hook(before_tool=lambda view: AbortTurn("no sums") if view.tool == "add" else None))
    events = await chat(agent([call("helper", "1", request="1 + 2"), "done"], AgentTool(helper)), manager).say()
    (response,) = [each for event in events for each in event.get_function_responses()]
    assert "no sums" in response.response["error"]
    assert "done" == events[-1].content.text


async def test_each_turn_of_a_run_has_a_unique_id():
    seen = []
    agents = [LlmAgent(name=name, model=ScriptedModel(["x"])) for name in ("one", "two")]
    manager = managed(hook(before_llm=lambda request: seen.append((request.meta.agent_id, request.meta.turn_id))))
    await chat(SequentialAgent(name="both", sub_agents=agents), manager).say()
    assert ["one", "two"] == [agent_id for agent_id, _ in seen]
    assert 2 == len({turn_id for _, turn_id in seen})


def test_agent_callbacks_run_among_hooks_and_before_tool_callback_first():
    asked = []

    def noted(name: str, answer: Any = None) -> Any:
        return lambda *_: asked.append(name) or answer

    async def main() -> Any:
        manager = HookManager()
        for name, priority in (("before", -1), ("behind", 1)):
            methods = {each: noted(f"{name} {each}") for each in ("before_llm", "after_llm", "before_tool", "after_tool")}
            manager.mount(name, hook(**methods), priority=priority)
        callbacks = {
            "before_model_callback": noted("own before_llm"),
            "after_model_callback": noted("own after_llm"),
            "before_tool_callback": noted("own before_tool"),
            "after_tool_callback": noted("own after_tool"),
        }
        return await chat(agent([called(), "done"], add, **callbacks), manager).say()

    run(main())
    llm = [f"{who} {point}" for point in ("before_llm", "after_llm") for who in ("before", "own", "behind")]
    before = [f"{who} before_tool" for who in ("own", "before", "behind")]
    after = [f"{who} after_tool" for who in ("before", "own", "behind")]
    assert [*llm, *before, *after, *llm] == asked


async def test_model_callback_and_hooks_see_each_others_request_changes_in_order():
    seen = []
    manager = HookManager()
    manager.mount("first", hook_with_tools(WEATHER), priority=-1)
    manager.mount(
        "last",
        hook(
            before_llm=lambda request: seen.append(
                ([t["function"]["name"] for t in request.tools], request.messages[0]["content"])
            )
        ),
        priority=1,
    )

    def before_model(_ctx, request):
        seen.append(sorted(request.tools_dict))
        request.contents[0].parts[0].text += "!"
        del request.tools_dict["add"]

    one = agent([OSLO, called(call_id="2"), "done"], add, before_model_callback=before_model)
    events, requests = await chat(one, manager).say(), one.model.requests
    assert [["add", "get_weather"], (["get_weather"], "hi!")] == seen[:2]
    assert [["get_weather"]] * 3 == [[spec.name for spec in request.tools] for request in requests]
    responses = [response.response for event in events for response in event.get_function_responses()]
    assert {"result": "sunny in Oslo"} == responses[0]
    assert "there is no tool 'add'" in responses[1]["error"]


async def test_answer_of_a_model_callback_does_not_reach_model_hooks():
    """After a callback's answer neither later hooks nor those of ``after_llm`` are called."""
    asked = []
    manager = managed(hook(after_llm=lambda _: asked.append("after"), before_llm=lambda _: asked.append("before")))
    manager.mount("first", hook(before_llm=lambda _: asked.append("first")), priority=-1)
    assert "mine" == (await chat(agent([], before_model_callback=lambda *_: "mine"), manager).say())[-1].content.text
    assert ["first"] == asked


@pytest.mark.parametrize("point", ["after_llm", "before_tool", "after_tool"])
async def test_tokens_of_a_run_that_a_hook_ends_are_those_it_took(point):
    from patchbay.models import ModelReply

    reply = ModelReply(Reply(None, tool_calls=(called(),)), "tool_calls", Usage(1, 2, 3))
    one = chat(agent([reply], add), managed(hook(**{point: AbortTurn()})))
    await one.say()
    assert Usage(1, 2, 3) == one.runs[0].usage


# what tools of agents have for the user


async def show() -> ToolOutput:
    return ToolOutput("shown", for_user="look!")


async def answers() -> ToolOutput:
    return ToolOutput("told him", for_user="42", response_handled=True)


def outputs(events: Any) -> list[tuple[str, str, bool]]:
    return [(event.output.name, event.output.text, event.output.handled) for event in events if event.output is not None]


async def test_tool_output_for_the_user_is_an_event_hidden_from_the_model():
    one = chat(agent([called("show", "{}"), "done", "more"], show), HookManager())
    events = await one.say()
    await one.say("again")
    events, log, shown = events, (await one.session()).events, one.runner.agent.model.requests[-1].messages
    assert [("show", "look!", False)] == outputs(events) == outputs(log)
    assert "look!" not in str(shown)
    assert "done" == events[-1].content.text


async def test_run_whose_tools_answered_the_user_ends_and_the_next_turn_sees_it():
    history = InMemoryChatHistoryService()
    one = chat(agent([called("answers", "{}"), "more"], answers), HookManager(), history_service=history)
    events = await one.say()
    text = one.runs[0].text
    await one.say("again")
    events, text, shown = events, text, one.runner.agent.model.requests[-1].messages
    assert ([("answers", "42", True)], "") == (outputs(events), text)
    assert events[-1].is_final_response()
    expected = ["user", "assistant", "tool", "assistant", "user"]
    assert expected == [message["role"] for message in shown]
    assert "Requested output delivered via tool attachment." == shown[3]["content"]


async def test_output_for_the_user_of_tools_of_an_agent_tool_reaches_the_user():
    helper = LlmAgent(name="helper", model=ScriptedModel([called("show", "{}"), "helped"]), tools=[show])
    events = await chat(agent([call("helper", "1", request="?"), "done"], AgentTool(helper)), HookManager()).say()
    assert [("helper", "look!", False)] == outputs(events)
    responses = [response.shown or response.response for event in events for response in event.get_function_responses()]
    assert "helped" in str(responses)


async def test_run_config_and_hooks_know_the_same_limits():
    async def slow(_view):
        await asyncio.Event().wait()

    runner = Runner(agent(["done"]), hooks=managed(hook(before_llm=slow)))
    assert "RUN_TIMEOUT" == [event async for event in runner.run("u", "s", "hi", RunConfig(run_timeout=0.05))][-1].error_code


async def test_abort_beside_a_transfer_ends_the_run():
    other = LlmAgent(name="other", model=ScriptedModel(["not asked"]))
    reply = [call("transfer_to_agent", "1", agent_name="other"), called(call_id="2")]
    manager = managed(hook(before_tool=lambda view: AbortTurn("stop") if view.tool == "add" else None))
    events = await chat(agent([reply], add, sub_agents=[other]), manager).say()
    assert "HOOK_ABORT" == events[-1].error_code
    assert "other" not in [event.author for event in events]


async def test_agent_tool_whose_tools_answered_the_user_counts_as_answered():
    helper = LlmAgent(name="helper", model=ScriptedModel([called("answers", "{}")]), tools=[answers])
    events = await chat(agent([call("helper", "1", request="?")], AgentTool(helper)), HookManager()).say()
    assert [("helper", "42", True)] == outputs(events)
    assert ("", None) == (events[-1].content.text, events[-1].error_code)
