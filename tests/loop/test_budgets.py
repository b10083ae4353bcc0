"""Limits that end a turn: the final event names the limit, and every call is settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from patchbay import ToolRunner
from patchbay.executor import Budget, Executor
from patchbay.loop import FinalEvent, LoopEvent, turn
from patchbay.models.chat_model import ChatRequest, ModelReply, TextDelta
from patchbay.testing.models import ScriptedModel
from patchbay.types import Reply, ToolCall

SHORT = 0.02
USER = {"role": "user", "content": "hi"}


async def echo(text: str = "") -> str:
    return text


def call(n: int) -> ToolCall:
    return ToolCall(str(n), "echo", f'{{"text": "{n}"}}')


def run_turn(model: Any, tools: Any = (echo,), *, budget: Budget | None = None, **options: Any) -> list[LoopEvent]:
    async def main() -> list[LoopEvent]:
        run = Executor(tools, **options).begin_run(budget=budget)
        return [event async for event in turn(model, run, [USER], max_iterations=50)]

    return asyncio.run(asyncio.wait_for(main(), 30))


def final(events: list[LoopEvent]) -> FinalEvent:
    assert isinstance(events[-1], FinalEvent)
    return events[-1]


def test_calls_beyond_the_budget_end_the_turn_with_all_of_them_settled():
    model = ScriptedModel([[call(1), call(2)], [call(3), call(4)], "never asked for"])
    end = final(run_turn(model, budget=Budget(max_calls=3)))
    assert ("max_calls", 2) == (end.finish_reason, end.iterations)
    assert [None, None, None, "call_budget"] == [execution.result.code for execution in end.tool_executions]
    assert ["tool"] * 2 == [message["role"] for message in end.messages[-2:]]


def test_exactly_sufficient_budget_allows_the_answer():
    end = final(run_turn(ScriptedModel([[call(1), call(2)], "done"]), budget=Budget(max_calls=2)))
    assert ("stop", "done") == (end.finish_reason, end.content)


async def test_rounds_may_be_counted_over_several_turns_of_one_run():
    budget = Budget(max_iterations=3)
    reasons = []
    for steps in (["one"], [call(1), "two"], ["never asked for"]):
        events = [event async for event in turn(ScriptedModel(steps), Executor([echo]).begin_run(budget=budget), [USER])]
        reasons.append(f"{final(events).finish_reason} {final(events).iterations}")
    assert ["stop 1", "stop 2", "max_iterations 0"] == reasons


@pytest.mark.parametrize("message", ["", "half an ans"])
@pytest.mark.usefixtures("time_jumps")
def test_deadline_stops_the_model_and_keeps_its_partial_text(message):
    stopped = []

    class Slow:
        async def respond(self, request: ChatRequest) -> AsyncIterator[Any]:
            try:
                if message:
                    yield TextDelta(message)
                await asyncio.Event().wait()
            finally:
                stopped.append(True)

    events = run_turn(Slow(), budget=Budget(max_seconds=SHORT))
    end = final(events)
    assert ("max_seconds", message or None, 1) == (end.finish_reason, end.content, end.iterations)
    assert [*([] if not message else ["text"]), "iteration_end", "final"] == [event.type for event in events]
    assert ([USER, {"role": "assistant", "content": message}] if message else [USER]) == end.messages
    assert [True] == stopped


def test_timeout_error_of_the_model_is_raised_unchanged():
    class Failing:
        async def respond(self, request: ChatRequest) -> AsyncIterator[Any]:
            raise TimeoutError("the model's own")
            yield

    for budget in (None, Budget(max_seconds=60)):
        with pytest.raises(TimeoutError, match="own"):
            run_turn(Failing(), budget=budget)


@pytest.mark.usefixtures("time_jumps")
async def test_deadline_does_not_interrupt_the_consumer():
    """Law 10: a deadline that passes while the consumer is busy ends the next step, without a cancellation."""

    class Chatty:
        async def respond(self, request: ChatRequest) -> AsyncIterator[Any]:
            for _ in range(3):
                yield TextDelta("x")
                await asyncio.sleep(0)
            yield ModelReply(Reply("xxx"))

    seen = []
    run = Executor([]).begin_run(budget=Budget(max_seconds=SHORT))
    loop = asyncio.get_running_loop()
    async for event in turn(Chatty(), run, [USER]):
        if not seen:
            later = asyncio.Event()
            loop.call_later(SHORT * 3, later.set)
            await later.wait()
        seen.append(event.type if event.type != "final" else event.finish_reason)
    assert ["text", "iteration_end", "max_seconds"] == seen


def test_progress_is_an_event_and_not_in_messages():
    async def work(tool_context: Any) -> str:
        tool_context.progress("a third", fraction=1 / 3)
        return "done"

    events = run_turn(ScriptedModel([ToolCall("1", "work"), "x"]), [work])
    assert ["reply", "tool_call", "tool_progress", "tool_result", "iteration_end", "text", "reply", "iteration_end", "final"] == [
        event.type for event in events
    ]
    assert ("work", "a third", 1) == (events[2].tool_call.name, events[2].progress.message, events[2].iteration)
    assert "third" not in str(final(events).messages)


def test_result_reader_is_offered_from_the_next_round_on():
    async def read_log() -> str:
        return "x" * 5000

    model = ScriptedModel([ToolCall("1", "read_log"), ToolCall("2", "read_result", '{"result_id": "result_1"}'), "done"])
    end = final(run_turn(model, [read_log], max_result_chars=1000))
    assert [["read_log"], ["read_log", "read_result"], ["read_log", "read_result"]] == [
        [spec.name for spec in request.tools] for request in model.requests
    ]
    assert [None, None] == [execution.result.code for execution in end.tool_executions]


def test_a_runner_has_the_same_budgets_hooks_and_limits():
    async def log() -> str:
        return "x" * 5000

    progress = []

    async def work(tool_context: Any) -> str:
        tool_context.progress("half")
        return "worked"

    steps = [[ToolCall("1", "log"), ToolCall("2", "work")], [call(3)], [call(4)], "never asked for"]
    runner = ToolRunner(
        ScriptedModel(steps),
        [log, work, echo],
        max_calls=3,
        max_result_chars=1000,
        before=lambda call, tool, arguments, context: "answered" if call.id == "3" else None,
        after=lambda call, tool, arguments, context, value: value.upper(),
        on_progress=lambda call, what: progress.append(what.message),
    )
    result = asyncio.run(runner.run("hi"))
    assert ("max_calls", ["half"]) == (result.finish_reason, progress)
    assert ["WORKED", "answered"] == [execution.content for execution in result.tool_executions[1:3]]
    assert "read_result(" in result.tool_executions[0].content
