"""While a person is asked about a call, time stands still: the run's, and that of the tool that the run is part of.

No test waits for a limit to pass while it should not: the clock of the event loop is moved on by hand.
"""

from __future__ import annotations

import asyncio
from typing import Any

from virtual_time import later, manual_clock

from patchbay import ToolCall
from patchbay.executor import Budget, Executor
from patchbay.hooks import HookManager, HookTimeouts
from patchbay.loop import FinalEvent, turn
from patchbay.testing import ScriptedModel
from patchbay.tools import tool


class Person:
    """Approves a call of a tool in ``asked`` once ``answer`` is set; all others at once."""

    def __init__(self, *asked: str) -> None:
        self.tools = asked
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()

    async def approve_tool(self, call):
        if call.tool in self.tools:
            self.asked.set()
            await self.answer.wait()
        return True

    async def answers_late(self) -> None:
        """Answer a thousand seconds after the question."""
        await self.asked.wait()
        await later(1000)
        self.answer.set()


def hooks_of(*people: Person) -> HookManager:
    hooks = HookManager()
    for number, person in enumerate(people):
        hooks.mount(f"person {number}", person, timeouts=HookTimeouts(approval=1e6))
    return hooks


@tool
async def quick() -> str:
    return "quick"


@tool
async def endless() -> None:
    await asyncio.Event().wait()


def start(*tools: Any, budget: Budget | None = None, **options: Any) -> Any:
    """Start a run with one call of each tool."""
    return Executor(tools, **options).begin_run(budget=budget).start_batch([ToolCall(each.name, each.name) for each in tools])


async def ended(batch: Any) -> list[str | None]:
    """Wait for the end, and return the codes of the executions."""
    try:
        async for _ in batch:
            pass
    finally:
        await batch.stop()
    return [each.result.code for each in batch.executions]


async def ends_after(seconds: float, work: Any) -> None:
    """Wait until ``work`` ends, which is so many seconds from now."""
    task = asyncio.ensure_future(work)
    await later(seconds - 1)
    assert not task.done()
    await later(1.1)
    await task


@manual_clock
async def test_approval_time_does_not_count_against_the_run():
    person, budget = Person("quick"), Budget(max_seconds=10)
    batch = start(quick, hooks=hooks_of(person), budget=budget)
    await person.asked.wait()
    assert budget.ends is None
    await person.answers_late()
    assert ([None], None) == (await ended(batch), budget.exceeded)
    assert 9 < budget.ends - asyncio.get_running_loop().time() <= 10


@manual_clock
async def test_tool_timeout_starts_when_the_tool_runs():
    person = Person("quick")
    batch = start(quick, hooks=hooks_of(person), tool_timeout=10)
    await person.answers_late()
    assert [None] == await ended(batch)


@manual_clock
async def test_calls_beside_a_pending_approval_keep_their_timeouts_and_the_run_deadline_resumes():
    @tool(timeout=100)
    async def limited() -> None:
        await asyncio.Event().wait()

    person, budget = Person("quick"), Budget(max_seconds=10)
    batch = start(quick, limited, endless, hooks=hooks_of(person), budget=budget)
    await person.asked.wait()
    await later(101)
    assert "limited" == (await anext(batch)).call.name
    person.answer.set()
    assert "quick" == (await anext(batch)).call.name
    await ends_after(10, anext(batch))
    assert ([None, "tool_timeout", "run_timeout"], "max_seconds") == (await ended(batch), budget.exceeded)


@manual_clock
async def test_deadline_is_paused_until_the_last_approval():
    @tool
    async def other() -> str:
        return "other"

    first, second, budget = Person("quick"), Person("other"), Budget(max_seconds=10)
    batch = start(quick, other, hooks=hooks_of(first, second), budget=budget)
    await first.asked.wait()
    await second.asked.wait()
    first.answer.set()
    await anext(batch)
    await second.answers_late()
    assert ([None, None], None) == (await ended(batch), budget.exceeded)


@manual_clock
async def test_stopping_a_run_during_approval_resumes_its_clock():
    person, budget = Person("quick"), Budget(max_seconds=10)
    batch = start(quick, hooks=hooks_of(person), budget=budget)
    await person.asked.wait()
    await batch.stop()
    with budget.paused():
        await later(1000)
    await later(11)  # the batch has ended, and its timer with it
    assert (["cancelled"], None) == (await ended(batch), budget.exceeded)
    assert budget.ends is not None


@manual_clock
async def test_timeout_of_a_tool_is_paused_while_its_nested_run_awaits_approval():
    """As an agent that is a tool: its own call has a limit, and one of its calls waits for a person."""
    person, budget = Person("quick"), Budget(max_seconds=20)
    inner = Executor([quick], hooks=hooks_of(person))

    @tool(timeout=10)
    async def outer() -> str:
        [execution] = await inner.run([ToolCall("2", "quick")])
        await later(5)
        return execution.content

    batch = start(outer, budget=budget)
    await person.answers_late()
    assert ([None], None, "quick") == (await ended(batch), budget.exceeded, batch.executions[0].content)


@manual_clock
async def test_timeout_of_a_tool_with_a_nested_run_resumes_where_it_paused():
    person = Person("quick")
    inner = Executor([quick], hooks=hooks_of(person))

    @tool(timeout=10)
    async def outer() -> None:
        await later(6)
        await inner.run([ToolCall("2", "quick")])
        await asyncio.Event().wait()

    batch = start(outer)
    await person.answers_late()
    await ends_after(4, anext(batch))
    assert ["tool_timeout"] == await ended(batch)


async def finish_reason(model: Any, budget: Budget) -> str:
    """Run a turn beside others that share its budget; return how it ended."""
    events = turn(model, Executor([]).begin_run(budget=budget), [{"role": "user", "content": "hi"}])
    return [event async for event in events if isinstance(event, FinalEvent)].pop().finish_reason


@manual_clock
async def test_model_call_during_an_approval_pause_has_its_time():
    person, budget = Person("quick"), Budget(max_seconds=10)
    answer = asyncio.Event()

    class Slow:
        async def respond(self, request):
            await answer.wait()
            async for event in ScriptedModel(["done"]).respond(request):
                yield event

    task = asyncio.create_task(finish_reason(Slow(), budget))
    await later(1)
    batch = start(quick, hooks=hooks_of(person), budget=budget)
    await person.answers_late()
    await ended(batch)
    await later(8)
    answer.set()
    assert "stop" == await task


@manual_clock
async def test_model_call_during_an_approval_pause_is_stopped_at_its_deadline():
    class Endless:
        async def respond(self, request):
            await asyncio.Event().wait()
            yield

    budget = Budget(max_seconds=10)
    task = asyncio.create_task(finish_reason(Endless(), budget))
    await later(5)
    with budget.paused():
        await later(1000)
    await ends_after(5, task)
    assert "max_seconds" == task.result()


@manual_clock
async def test_a_budget_that_is_started_in_a_pause_begins_when_it_ends_and_stays_expired():
    budget = Budget(max_seconds=10)
    with budget.paused():
        budget.start_clock()
        budget.start_clock()
        await later(1000)
        assert budget.take_iteration()
    assert 9 < budget.ends - asyncio.get_running_loop().time() <= 10
    assert budget.take_iteration()
    await later(11)
    with budget.paused():
        await later(1)
    assert (False, "max_seconds") == (budget.take_iteration(), budget.exceeded)


@manual_clock
async def test_a_budget_without_a_limit_can_be_paused():
    budget = Budget()
    budget.start_clock()
    with budget.paused(), budget.paused():
        assert budget.take_iteration()
    assert budget.ends is None


@manual_clock
async def test_nested_run_in_a_tool_thread_pauses_the_clocks_of_the_outer_loop():
    """A tool that is not async runs a turn of its own, in another event loop."""
    person, budget = Person("quick"), Budget(max_seconds=20)
    loop = asyncio.get_running_loop()

    class Far:
        async def approve_tool(self, call):
            loop.call_soon_threadsafe(person.asked.set)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(person.answer.wait(), loop))
            return True

    hooks = HookManager()
    hooks.mount("far", Far())

    @tool(timeout=10)
    def outer() -> str:
        [execution] = asyncio.run(Executor([quick], hooks=hooks).run([ToolCall("2", "quick")]))
        return execution.content

    batch = start(outer, budget=budget)
    await person.answers_late()
    assert ([None], None, "quick") == (await ended(batch), budget.exceeded, batch.executions[0].content)
