"""Observer events (section 9 of the contract), and the record of each call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from patchbay.errors import UpstreamError
from patchbay.executor import Budget, Executor
from patchbay.hooks import (
    AbortTurn,
    CallRecord,
    DenyTool,
    HardAbort,
    HookManager,
    HookScope,
    HookTimeouts,
    Meta,
    Modify,
    Respond,
    ToolOutput,
)
from patchbay.hooks.events import BUFFER, digest_of
from patchbay.loop import turn
from patchbay.models import ModelReply
from patchbay.testing import ScriptedModel
from patchbay.types import IncompleteCall, Reply, ToolCall

from .test_injected_tools import OSLO, WEATHER, hook_with_tools
from .turns import HI, called, hook, managed, play_turn, run_turn


def observed(*hooks: Any, **options: Any) -> tuple[HookManager, list[Any]]:
    received: list[Any] = []
    manager = managed(*hooks, **options)
    manager.mount("observer", hook(on_runtime_event=received.append))
    return manager, received


def kinds(told: list[Any]) -> list[str]:
    return [event.kind for event in told]


def single_event(told: list[Any], kind: str) -> Any:
    (event,) = [event for event in told if event.kind == kind]
    return event


def test_turn_emits_all_events_from_start_to_end():
    manager, outcome = observed()
    play_turn(manager, parameters={"model": "m", "max_tokens": 9, "temperature": 0.5})
    rounds = ["agent.llm.request", "agent.llm.response"]
    expected = ["agent.turn.start", *rounds, "agent.tool.exec_start", "agent.tool.exec_end", *rounds, "agent.turn.end"]
    assert expected == kinds(outcome)
    assert [f"evt-{number}" for number in range(1, 9)] == [event.id for event in outcome]
    assert sorted(event.time for event in outcome) == [event.time for event in outcome]
    assert {"UserMessage": "hi", "MediaCount": 0} == outcome[0].payload
    asked = {"Model": "m", "MessagesCount": 1, "ToolsCount": 2, "MaxTokens": 9, "Temperature": 0.5}
    assert asked == outcome[1].payload
    assert {"ContentLen": 0, "ToolCalls": 1, "HasReasoning": False} == outcome[2].payload
    assert {"Tool": "add", "Arguments": {"a": 1, "b": 2}} == outcome[3].payload
    duration = outcome[4].payload["Duration"]
    assert isinstance(duration, int)
    ended = {"Tool": "add", "Duration": duration, "ForLLMLen": 1, "ForUserLen": 0, "IsError": False, "Async": False}
    assert ended == outcome[4].payload
    assert [0, 1, 1, 1, 1, 2, 2, 2] == [event.meta.iteration for event in outcome]
    assert {"info"} == {event.severity for event in outcome}


def test_turn_start_has_the_text_and_media_count_of_a_message_of_parts():
    manager, outcome = observed()
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}]
    play_turn(manager, "done", messages=[{"role": "user", "content": parts}, {"role": "assistant", "content": "?"}])
    assert {"UserMessage": "look", "MediaCount": 1} == outcome[0].payload


@pytest.mark.parametrize(
    ("decision", "status", "severity"), [(AbortTurn("x"), "error", "error"), (HardAbort("x"), "aborted", "warn")]
)
def test_turn_end_has_the_status_of_a_hooks_decision(decision, status, severity):
    manager, outcome = observed(hook(before_tool=decision))
    play_turn(manager)
    end = single_event(outcome, "agent.turn.end")
    assert (status, severity, "") == (end.payload["Status"], end.severity, end.payload["FinalContent"])
    errors = [event.payload for event in outcome if event.kind == "agent.error"]
    assert ([{"Stage": "before_tool", "Message": "hook requested turn abort: x"}] if status == "error" else []) == errors


async def test_model_failure_emits_error_and_turn_end():
    manager, outcome = observed()
    with pytest.raises(UpstreamError):
        await run_turn(manager, [UpstreamError("down")])
    await manager.events.flush()
    assert ["agent.turn.start", "agent.llm.request", "agent.error", "agent.turn.end"] == kinds(outcome)
    assert ({"Stage": "llm", "Message": "down"}, 1) == (outcome[2].payload, outcome[2].meta.iteration)
    assert "error" == outcome[3].payload["Status"]


def skipped(told: list[Any]) -> list[Any]:
    return [event.payload for event in told if event.kind == "agent.tool.exec_skipped"]


@pytest.mark.parametrize(
    ("methods", "reason"),
    [
        ({"before_tool": DenyTool("no")}, "Tool execution denied by hook: no"),
        ({"before_tool": DenyTool()}, "Tool execution denied by hook"),
        ({"approve_tool": False}, "Tool execution denied by approval hook"),
    ],
)
def test_denied_call_emits_skipped_with_the_text_of_its_result(methods, reason):
    manager, outcome = observed(hook(**methods))
    turned = play_turn(manager)
    assert ([{"Tool": "add", "Reason": reason}], [reason]) == (skipped(outcome), turned.results)
    assert "warn" == single_event(outcome, "agent.tool.exec_skipped").severity
    assert not {"agent.tool.exec_start", "agent.tool.exec_end"} & set(kinds(outcome))


def test_calls_that_never_begin_emit_skipped():
    manager, outcome = observed()
    incomplete = Reply(
        None, tool_calls=(called("nobody"), called("rm", '{"path": 5}', "2")), incomplete=(IncompleteCall("3", "add", "{", "{"),)
    )
    play_turn(manager, incomplete, "done")
    assert ["nobody", "rm", "add"] == [each["Tool"] for each in skipped(outcome)]


def test_events_of_a_hook_response_name_the_models_call_and_the_hook():
    manager, outcome = observed(hook(before_tool=Modify({"arguments": {"a": 9}})), hook(before_tool=Respond("x")))
    play_turn(manager)
    start, end = single_event(outcome, "agent.tool.exec_start"), single_event(outcome, "agent.tool.exec_end")
    assert {"Tool": "add", "Arguments": {"a": 1, "b": 2}} == start.payload
    assert ("add", 0) == (end.payload["Tool"], end.payload["Duration"])
    assert {"call_id": "c1", "responded_by": "hook1"} == start.attrs
    decisions = [
        {"by": "hook0", "point": "before_tool", "decision": "changed arguments"},
        {"by": "hook1", "point": "before_tool", "decision": "answered"},
    ]
    assert {**start.attrs, "decisions": decisions} == end.attrs


def test_user_output_event_has_the_full_text():
    async def show() -> ToolOutput:
        return ToolOutput("abc", for_user="defg", response_handled=True)

    manager, outcome = observed()
    play_turn(manager, called("show", "{}", "c7"), tools=[show])
    event = single_event(outcome, "agent.user_output")
    assert {"Tool": "show", "Text": "defg", "Media": [], "Handled": True} == event.payload
    assert ({"call_id": "c7"}, 1, "agent.user_output") == (event.attrs, event.meta.iteration, outcome[-2].kind)


def test_observers_get_copies_of_arguments():
    """An observer changes the arguments that it is shown: neither the tool nor the next observer sees that."""
    seen = []

    def spoils(event):
        if event.kind == "agent.tool.exec_start":
            event.payload["Arguments"]["items"].append(9)

    async def use(items: list[int]) -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return str(items)

    def notes(event):
        if event.kind == "agent.tool.exec_start":
            seen.append(event.payload["Arguments"])

    manager = managed(a=hook(on_runtime_event=spoils), b=hook(on_runtime_event=notes))
    turned = play_turn(manager, called("use", '{"items": [1]}'), "done", tools=[use])
    assert (["[1]"], [{"items": [1]}]) == (turned.results, seen)


def test_failing_and_slow_observers_do_not_affect_others(caplog):
    async def slow(_event):
        await asyncio.Event().wait()

    def breaks(_event):
        raise OSError("no")

    received: list[Any] = []
    manager = HookManager(timeouts=HookTimeouts(observer=60.0))
    for name, method, limit in (("a", slow, 0.01), ("b", breaks, None), ("c", received.append, None)):
        manager.mount(name, hook(on_runtime_event=method), timeouts=limit and HookTimeouts(observer=limit))
    assert "done" == play_turn(manager, "done").final.content
    assert ["agent.turn.start", "agent.llm.request", "agent.llm.response", "agent.turn.end"] == kinds(received)
    assert "The observer 'a' failed on agent.turn.start: HookTimeoutError" in caplog.text
    assert "The observer 'b' failed on agent.turn.end: OSError: no" in caplog.text


async def test_events_a_slow_observer_misses_are_counted(caplog):
    go_on = asyncio.Event()
    received = []

    async def slow(event):
        await go_on.wait()
        received.append(event)

    manager = managed(hook(on_runtime_event=slow))
    scope = HookScope()
    turn_hooks = manager.begin_turn(scope)
    for number in range(200):
        turn_hooks.emit("agent.test", "", number, {})
        if number == 0:
            await asyncio.sleep(0)  # it is taken up, and waits
    go_on.set()
    await manager.events.flush()
    taken, dropped = len(received), manager.events.dropped
    assert (BUFFER + 1, 200 - BUFFER - 1) == (taken, dropped)
    assert 1 == len([record for record in caplog.records if "too slow" in record.getMessage()])


# records


def recorded(*hooks: Any, steps: Any = (), tools: Any = (), policy: Any = None, **options: Any) -> tuple[list[CallRecord], Any]:
    records: list[CallRecord] = []
    manager = managed(*hooks, policy=policy)
    manager.recorders.append(records.append)
    done = play_turn(manager, *(steps or (called(), "done")), tools=tools, **options)
    return records, done


def test_a_call_is_recorded_with_no_hook_mounted():
    (record,), _ = recorded()
    expected = CallRecord(
        record.time, record.meta, {}, "c1", "add", "", digest_of("add", {"a": 1, "b": 2}), (), "",
        is_error=False, code="", result_chars=1, seconds=record.seconds,
    )  # fmt: skip
    assert expected == record
    assert record.seconds > 0
    assert record.time > 1.7e9
    assert ("turn.tool.after", 1) == (record.meta.trace_path, record.meta.iteration)


@pytest.mark.parametrize(
    ("methods", "decision", "code"),
    [
        ({"before_tool": DenyTool("no")}, ("hook0", "before_tool", "denied: no"), "tool_denied"),
        ({"approve_tool": False}, ("hook0", "approve_tool", "denied"), "tool_denied"),
        ({"before_tool": Respond("x")}, ("hook0", "before_tool", "answered"), ""),
    ],
)
def test_hook_that_denies_or_answers_a_call_is_recorded(methods, decision, code):
    (record,), _ = recorded(hook(**methods))
    assert ((decision,), code, bool(code), 0.0) == (record.decisions, record.code, record.is_error, record.seconds)
    assert ("hook0" if "answered" in decision[2] else "") == record.responded_by


def test_the_digest_of_an_approval_is_that_of_the_record():
    seen = []
    (record,), _ = recorded(hook(approve_tool=lambda call: seen.append(call.digest) or True))
    assert [record.digest] == seen


def test_a_hooks_tool_is_recorded_with_its_source():
    (record,), _ = recorded(hook_with_tools(WEATHER), steps=(OSLO, "done"))
    assert ("hook:hook0", "hook0") == (record.source, record.responded_by)


def test_every_call_is_recorded_with_any_outcome():
    async def fails() -> None:
        raise ValueError("no")

    async def slow() -> None:
        await asyncio.Event().wait()

    from patchbay.tools import tool

    calls = [
        called(),
        called("fails", "{}", "2"),
        called("nobody", '{"x": 1}', "3"),
        called("rm", "{}", "4"),
        called("slow", "{}", "5"),
        called("late", "{}", "6"),
    ]
    late = tool(handler=fails, name="late", sequential=True)
    records, done = recorded(steps=(calls, "done"), tools=[fails, tool(handler=slow, name="slow", timeout=0.01), late])
    expected = {
        "c1": "",
        "2": "tool_error",
        "3": "unknown_tool",
        "4": "invalid_arguments",
        "5": "tool_timeout",
        "6": "tool_error",
    }
    assert expected == {record.call_id: record.code for record in records}
    assert digest_of("nobody", {"x": 1}) == next(record.digest for record in records if record.call_id == "3")
    assert len(done.results) == len(records)


async def test_calls_beyond_the_budget_and_those_of_a_stopped_run_are_recorded():
    records: list[CallRecord] = []
    manager = HookManager()
    manager.recorders.append(records.append)

    async def waits() -> None:
        await asyncio.Event().wait()

    executor = Executor([waits], hooks=manager)
    batch = executor.begin_run(budget=Budget(max_calls=1)).start_batch(
        [ToolCall("1", "waits", "{}"), ToolCall("2", "waits", "{}")]
    )
    await asyncio.sleep(0)
    await batch.stop()
    assert ["2: call_budget", "1: cancelled"] == [f"{record.call_id}: {record.code}" for record in records]


async def test_hook_meta_identifies_the_turn():
    seen = []
    manager = managed(hook(before_llm=lambda request: seen.append((request.meta, request.context, request.model))))
    scope = HookScope("agent", "t1", "t0", "s", "gpt", {"inbound": {"channel": "c"}})
    executor = Executor([], hooks=manager)
    async for _ in turn(ScriptedModel([ModelReply(Reply("x"))]), executor.begin_run(scope=scope), HI):
        pass
    ((meta, context, model),) = seen
    assert Meta("agent", "t1", "t0", "s", 1, "turn.llm.request", "runTurn") == meta
    assert ({"inbound": {"channel": "c"}}, "gpt") == (context, model)


def test_failing_tool_emits_an_exec_end_with_an_error():
    async def fails() -> None:
        raise ValueError("no")

    manager, outcome = observed()
    play_turn(manager, called("fails", "{}"), "done", tools=[fails])
    end = single_event(outcome, "agent.tool.exec_end")
    assert (True, "warn") == (end.payload["IsError"], end.severity)
