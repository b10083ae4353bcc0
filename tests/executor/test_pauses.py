"""While a person is asked about a call, time stands still: the run's, and that of the tool that the run is part of.

No test waits for a limit to pass while it should not: the clock of the event loop is moved on by hand.
"""

from __future__ import annotations

import asyncio

from virtual_time import ManualClockLoop, later

from patchbay import ToolCall
from patchbay.executor import Budget, Executor
from patchbay.hooks import HookManager
from patchbay.loop import FinalEvent, turn
from patchbay.testing import ScriptedModel
from patchbay.tools import tool

BOUND = 60.0


def run(work):
    async def bounded():
        # Not by asyncio.timeout, whose clock is moved.
        return await work

    with asyncio.Runner(loop_factory=ManualClockLoop) as runner:
        return runner.run(bounded())


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


def hooks_of(person: Person) -> HookManager:
    from patchbay.hooks import HookTimeouts

    hooks = HookManager()
    hooks.mount("person", person, timeouts=HookTimeouts(approval=1e6))
    return hooks


@tool
async def quick() -> str:
    return "quick"


def codes(executions) -> list[str | None]:
    return [each.result.code for each in executions]


async def ended(batch):
    try:
        async for _ in batch:
            pass
    finally:
        await batch.stop()
    return batch.executions


def test_approval_time_does_not_count_against_the_run():
    async def main():
        person, budget = Person("quick"), Budget(max_seconds=10)
        batch = Executor([quick], hooks=hooks_of(person)).begin(budget=budget).start([ToolCall("1", "quick")])
        await person.asked.wait()
        assert budget.ends is None
        await later(1000)
        person.answer.set()
        executions = await ended(batch)
        return codes(executions), budget.exceeded, budget.ends - asyncio.get_running_loop().time()

    outcome, exceeded, left = run(main())
    assert ([None], None) == (outcome, exceeded)
    assert 9 < left <= 10


def test_tool_timeout_starts_when_the_tool_runs():
    async def main():
        person = Person("quick")
        batch = Executor([quick], hooks=hooks_of(person), tool_timeout=10).begin().start([ToolCall("1", "quick")])
        await person.asked.wait()
        await later(1000)
        person.answer.set()
        return codes(await ended(batch))

    assert [None] == run(main())


def test_calls_beside_a_pending_approval_keep_their_timeouts_and_the_run_deadline_resumes():
    async def main():
        @tool(timeout=100)
        async def limited() -> None:
            await asyncio.Event().wait()

        @tool
        async def endless() -> None:
            await asyncio.Event().wait()

        person, budget = Person("quick"), Budget(max_seconds=10)
        run_ = Executor([quick, limited, endless], hooks=hooks_of(person)).begin(budget=budget)
        batch = run_.start([ToolCall(name, name) for name in ("quick", "limited", "endless")])
        await person.asked.wait()
        await later(101)
        first = await anext(batch)
        assert "limited" == first.call.name
        person.answer.set()
        assert "quick" == (await anext(batch)).call.name
        last = asyncio.create_task(anext(batch))
        await later(9)
        assert not last.done()
        await later(1.1)
        await last
        return codes(await ended(batch)), budget.exceeded

    assert ([None, "tool_timeout", "run_timeout"], "max_seconds") == run(main())


def test_deadline_is_paused_until_the_last_approval():
    async def main():
        first, second = Person("quick"), Person("other")

        @tool
        async def other() -> str:
            return "other"

        hooks = hooks_of(first)
        hooks.mount("second", second, timeouts=hooks.mounted[0].timeouts)
        budget = Budget(max_seconds=10)
        batch = Executor([quick, other], hooks=hooks).begin(budget=budget).start([ToolCall("1", "quick"), ToolCall("2", "other")])
        await first.asked.wait()
        await second.asked.wait()
        first.answer.set()
        await anext(batch)
        await later(1000)
        second.answer.set()
        return codes(await ended(batch)), budget.exceeded

    assert ([None, None], None) == run(main())


def test_stopping_a_run_during_approval_resumes_its_clock():
    async def main():
        person, budget = Person("quick"), Budget(max_seconds=10)
        batch = Executor([quick], hooks=hooks_of(person)).begin(budget=budget).start([ToolCall("1", "quick")])
        await person.asked.wait()
        await batch.stop()
        with budget.paused():
            await later(1000)
        await later(11)  # the batch has ended, and its timer with it
        return codes(batch.executions), budget.ends is not None, budget.exceeded

    assert (["cancelled"], True, None) == run(main())


def test_timeout_of_a_tool_is_paused_while_its_nested_run_awaits_approval():
    """As an agent that is a tool: its own call has a limit, and one of its calls waits for a person."""

    async def main():
        person = Person("quick")
        hooks = hooks_of(person)
        inner = Executor([quick], hooks=hooks)

        @tool(timeout=10)
        async def outer() -> str:
            [execution] = await inner.run([ToolCall("2", "quick")])
            await later(5)
            return execution.content

        budget = Budget(max_seconds=20)
        batch = Executor([outer]).begin(budget=budget).start([ToolCall("1", "outer")])
        await person.asked.wait()
        await later(1000)
        person.answer.set()
        executions = await ended(batch)
        return [(each.content, each.result.code) for each in executions], budget.exceeded

    assert ([("quick", None)], None) == run(main())


def test_timeout_of_a_tool_with_a_nested_run_resumes_where_it_paused():
    async def main():
        person = Person("quick")
        inner = Executor([quick], hooks=hooks_of(person))

        @tool(timeout=10)
        async def outer() -> None:
            await later(6)
            await inner.run([ToolCall("2", "quick")])
            await asyncio.Event().wait()

        batch = Executor([outer]).begin().start([ToolCall("1", "outer")])
        await person.asked.wait()
        await later(1000)
        person.answer.set()
        last = asyncio.create_task(anext(batch))
        await later(3)
        assert not last.done()
        await later(1.1)
        await last
        return codes(await ended(batch))

    assert ["tool_timeout"] == run(main())


def test_model_call_during_an_approval_pause_has_its_time():
    """Agents that work side by side share one budget."""

    async def main():
        person, budget = Person("quick"), Budget(max_seconds=10)
        answer = asyncio.Event()

        class Slow:
            async def respond(self, request):
                await answer.wait()
                async for event in ScriptedModel(["done"]).respond(request):
                    yield event

        async def other():
            events = turn(Slow(), Executor([]).begin(budget=budget), [{"role": "user", "content": "hi"}])
            return [event async for event in events if isinstance(event, FinalEvent)].pop()

        task = asyncio.create_task(other())
        await later(1)
        batch = Executor([quick], hooks=hooks_of(person)).begin(budget=budget).start([ToolCall("1", "quick")])
        await person.asked.wait()
        await later(1000)
        person.answer.set()
        await ended(batch)
        await later(8)
        answer.set()
        return (await task).finish_reason

    assert "stop" == run(main())


def test_model_call_during_an_approval_pause_is_stopped_at_its_deadline():
    async def main():
        budget = Budget(max_seconds=10)

        class Endless:
            async def respond(self, request):
                await asyncio.Event().wait()
                yield

        async def other():
            events = turn(Endless(), Executor([]).begin(budget=budget), [{"role": "user", "content": "hi"}])
            return [event async for event in events if isinstance(event, FinalEvent)].pop()

        task = asyncio.create_task(other())
        await later(5)
        with budget.paused():
            await later(1000)
        await later(4)
        assert not task.done()
        await later(1.1)
        return (await task).finish_reason

    assert "max_seconds" == run(main())


def test_a_budget_that_is_started_in_a_pause_begins_when_it_ends():
    async def main():
        budget = Budget(max_seconds=10)
        with budget.paused():
            budget.start()
            budget.start()
            await later(1000)
            assert budget.take_iteration()
        left = budget.ends - asyncio.get_running_loop().time()
        return left, budget.take_iteration()

    left, taken = run(main())
    assert 9 < left <= 10
    assert taken


def test_expired_budget_stays_expired_after_a_pause():
    async def main():
        budget = Budget(max_seconds=10)
        budget.start()
        await later(11)
        with budget.paused():
            await later(1)
        return budget.take_iteration(), budget.exceeded

    assert (False, "max_seconds") == run(main())


def test_a_budget_without_a_limit_can_be_paused():
    async def main():
        budget = Budget()
        budget.start()
        with budget.paused(), budget.paused():
            assert budget.take_iteration()
        return budget.ends, budget.loop

    assert (None, None) == run(main())


def test_nested_run_in_a_tool_thread_pauses_the_clocks_of_the_outer_loop():
    """A tool that is not async runs a turn of its own, in another event loop."""

    async def main():
        person = Person("quick")
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()

        class Far:
            async def approve_tool(self, call):
                loop.call_soon_threadsafe(asked.set)
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(person.answer.wait(), loop))
                return True

        hooks = HookManager()
        hooks.mount("far", Far())

        @tool(timeout=10)
        def outer() -> str:
            [execution] = asyncio.run(Executor([quick], hooks=hooks).run([ToolCall("2", "quick")]))
            return execution.content

        budget = Budget(max_seconds=20)
        batch = Executor([outer]).begin(budget=budget).start([ToolCall("1", "outer")])
        await asked.wait()
        await later(1000)
        person.answer.set()
        return [each.content for each in await ended(batch)], budget.exceeded

    assert (["quick"], None) == run(main())
