"""Order of hooks, and their failures (section 6 of the contract): interceptors fail open, approvers closed."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from patchbay import ToolRunner
from patchbay.hooks import (
    IN_PROCESS,
    PROCESS,
    Approval,
    DenyTool,
    HookManager,
    HookTimeouts,
    Modify,
    Respond,
    deadlines,
)
from patchbay.hooks.deadlines import MAX_ABANDONED_THREADS
from patchbay.testing import ScriptedModel
from patchbay.tools.threads import run_in_thread
from support.running import run

from .turns import called, hook, managed, play_turn, run_turn

INTERCEPTORS = ["before_llm", "after_llm", "before_tool", "after_tool"]
SOON = HookTimeouts(interceptor=0.05, approval=0.05)


def test_hooks_are_ordered_by_origin_priority_and_name():
    asked = []
    manager = HookManager()
    places = [
        ("b", 0, PROCESS),
        ("z", -5, PROCESS),
        ("late", 7, IN_PROCESS),
        ("b2", 0, IN_PROCESS),
        ("a", 0, IN_PROCESS),
        ("n", -1, IN_PROCESS),
    ]
    for name, priority, group in places:
        manager.mount(name, hook(before_tool=lambda _call, name=name: asked.append(name)), priority=priority, group=group)
    play_turn(manager)
    assert ["n", "a", "b2", "late", "z", "b"] == asked == [each.name for each in manager.mounted]


def test_hook_sees_and_can_override_changes_of_a_callback():
    seen = []
    manager = HookManager()
    manager.mount("first", hook(before_tool=lambda call: Modify({"arguments": {**call.arguments, "a": 5}})), priority=-1)
    manager.mount("last", hook(before_tool=lambda call: seen.append(call.arguments)), priority=1)

    def own(_call, _tool, arguments, _context):
        seen.append(dict(arguments))
        arguments["b"] = 9

    assert [("add", 5, 9)] == play_turn(manager, before=own).ran
    assert [{"a": 1, "b": 2}, {"a": 5, "b": 9}] == seen


RAISED = {
    "an error": ValueError("no"),
    "a timeout of its own": TimeoutError("mine"),
    "a cancellation": asyncio.CancelledError(),
    "an exit": SystemExit(3),
    "a group": BaseExceptionGroup("several", [KeyboardInterrupt()]),
    "the end of a generator": GeneratorExit(),
    "an assertion": AssertionError(),
}


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "after a wait"])
@pytest.mark.parametrize("error", RAISED.values(), ids=RAISED)
@pytest.mark.parametrize("point", INTERCEPTORS)
def test_a_hook_that_raises_is_skipped(point, error, at_once, caplog):
    async def raises(_view):
        if not at_once:
            await asyncio.sleep(0)
        raise error

    turned = play_turn(managed(hook(**{point: raises}), hook(**{point: None})))
    assert (["3"], "done", "stop") == (turned.results, turned.final.content, turned.final.finish_reason)
    assert f"The hook 'hook0' failed at {point}" in caplog.text


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "after a wait"])
@pytest.mark.parametrize("error", RAISED.values(), ids=RAISED)
def test_an_approver_that_raises_has_denied(error, at_once):
    async def raises(_view):
        if not at_once:
            await asyncio.sleep(0)
        raise error

    turned = play_turn(managed(guard=hook(approve_tool=raises)))
    assert ['Tool execution denied by approval hook: tool approval hook "guard" failed'] == turned.results
    assert ([], "done") == (turned.ran, turned.final.content)


async def for_ever(_view):
    await asyncio.Event().wait()


@pytest.mark.parametrize("point", INTERCEPTORS)
def test_hook_timeout_keeps_the_value_of_the_previous_hook(point, caplog):
    changes = {
        "before_llm": {"model": "one"},
        "after_llm": {"content": "one"},
        "before_tool": {"arguments": {"a": 5}},
        "after_tool": "one",
    }
    turned = play_turn(managed(hook(**{point: Modify(changes[point])}), hook(**{point: for_ever}), timeouts=SOON))
    assert f"The hook 'hook1' failed at {point}: HookTimeoutError: no answer within 0.05 s" in caplog.text
    made = {
        "before_llm": turned.requests[0].parameters.get("model"),
        "after_llm": turned.final.content,
        "before_tool": turned.ran,
        "after_tool": turned.results[0],
    }
    assert {"before_llm": "one", "after_llm": "one", "before_tool": [("add", 5, 2)], "after_tool": "one"}[point] == made[point]


def test_approver_timeout_is_a_denial():
    turned = play_turn(managed(guard=hook(approve_tool=for_ever), timeouts=SOON))
    assert ['Tool execution denied by approval hook: tool approval hook "guard" timed out'] == turned.results
    assert [] == turned.ran


def test_each_hook_has_its_own_time():
    """P4."""
    manager = HookManager(timeouts=HookTimeouts(interceptor=60))
    manager.mount("slow", hook(before_tool=for_ever), timeouts=SOON)
    manager.mount("usual", hook(before_tool=None))
    assert (0.05, 60) == tuple(each.timeouts.interceptor for each in manager.mounted)
    assert ["3"] == play_turn(manager).results


def test_a_hook_that_swallows_its_cancellation_is_skipped():
    async def stubborn(_call):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return DenyTool("too late")

    assert ["3"] == play_turn(managed(hook(before_tool=stubborn), timeouts=SOON)).results


@pytest.mark.parametrize("raised", [ValueError("while cleaning up"), KeyError()], ids=repr)
def test_exception_during_a_timeout_counts_as_the_timeout(raised):
    async def breaks(_call):
        try:
            await asyncio.Event().wait()
        finally:
            raise raised

    turned = play_turn(managed(guard=hook(approve_tool=breaks), timeouts=SOON))
    assert turned.results[0].endswith('"guard" timed out')


def test_a_hook_that_does_not_end_at_all_is_closed(monkeypatch, caplog):
    monkeypatch.setattr(deadlines, "GRACE", 0.05)

    async def never_ends(_call):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    assert ["3"] == play_turn(managed(hook(before_tool=never_ends), timeouts=SOON)).results
    assert "ignored its cancellation for 0.05 s and is closed" in caplog.text


async def test_cancelled_turn_stays_cancelled_whatever_a_hook_catches():
    begun = asyncio.Event()

    async def stubborn(_request):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    task = asyncio.create_task(run_turn(managed(hook(before_llm=stubborn)), ["done"]))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_hook_can_use_its_own_timeouts():
    async def careful(_call):
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return Modify({"arguments": {"a": 5}})

    assert [("add", 5, 2)] == play_turn(managed(hook(before_tool=careful))).ran


# no answer that is an approval


def test_all_approvers_must_agree_and_the_first_no_ends_it():
    asked = []

    def says(name, answer):
        return hook(approve_tool=lambda call: asked.append(name) or answer)

    turned = play_turn(managed(a=says("a", True), b=says("b", Approval(False, "too dear", by="Bob")), c=says("c", True)))
    assert ["a", "b"] == asked
    assert ["Tool execution denied by approval hook: too dear"] == turned.results
    assert "Bob" == turned.final.tool_executions[0].error.by


def test_approvers_run_after_all_changes():
    seen = []
    play_turn(
        managed(
            hook(approve_tool=lambda call: seen.append((call.tool, call.arguments)) or True),
            hook(before_tool=Modify({"tool": "rm", "arguments": {"path": "/x"}})),
        )
    )
    assert [("rm", {"path": "/x"})] == seen


# half hooks, and hooks that are not async


def test_sync_hook_method_runs_in_its_own_thread():
    threads = []

    class Sync:
        def before_tool(self, call):
            threads.append(threading.current_thread())
            return Modify({"arguments": {"a": 5}})

        def approve_tool(self, call):
            threads.append(threading.current_thread())
            return True

    assert [("add", 5, 2)] == play_turn(managed(Sync())).ran
    assert 2 == len(threads)
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("kind", ["partial", "object", "returns an awaitable", "static"])
def test_a_method_may_be_any_callable(kind):
    from functools import partial

    async def asked(_label, _call):
        return Respond("answered")

    class Called:
        async def __call__(self, call):
            return await asked("", call)

    class Static:
        @staticmethod
        async def before_tool(call):
            return await asked("", call)

    given = {"partial": partial(asked, ""), "object": Called(), "returns an awaitable": lambda call: asked("", call)}
    thing = Static() if kind == "static" else type("Hook", (), {"before_tool": None})()
    if kind != "static":
        thing.before_tool = given[kind]
    assert ["answered"] == play_turn(managed(thing)).results


async def test_a_sync_hook_past_its_time_is_abandoned_and_counted(caplog):
    leave = threading.Event()

    class Blocks:
        def before_tool(self, call):
            leave.wait(30)

    manager = managed(slow=Blocks(), timeouts=SOON)
    try:
        assert ["3"] == (await run_turn(manager)).results
        assert {"slow": 1} == manager.abandoned
        await run_turn(manager)
        assert {"slow": 2} == manager.abandoned
        assert "The hook 'slow' is left running in its thread" in caplog.text
    finally:
        leave.set()
    while manager.abandoned:
        await run_in_thread(lambda: None)


async def test_hook_with_too_many_abandoned_threads_is_skipped(caplog):
    caplog.set_level(logging.CRITICAL)
    leave, asked = threading.Event(), []

    class Blocks:
        def approve_tool(self, call):
            asked.append(call)
            leave.wait(30)

    manager = managed(slow=Blocks(), timeouts=SOON)
    calls = [called(call_id=f"c{number}") for number in range(MAX_ABANDONED_THREADS)]
    try:
        first = await run_turn(manager, [calls, "done"])
        assert {"slow": MAX_ABANDONED_THREADS} == manager.abandoned
        then = await run_turn(manager)
    finally:
        leave.set()
    assert all("timed out" in result for result in first.results)
    assert ['Tool execution denied by approval hook: tool approval hook "slow" failed'] == then.results
    while len(asked) < MAX_ABANDONED_THREADS:  # a thread of its own may come late to its turn
        await run_in_thread(lambda: None)
    assert MAX_ABANDONED_THREADS == len(asked)


# the run's time


@pytest.mark.parametrize("point", ["before_llm", "after_llm"])
def test_hook_time_is_limited_by_the_run(point):
    runner = ToolRunner(ScriptedModel(["done"]), max_seconds=0.05, hooks=managed(hook(**{point: for_ever})))
    result = run(runner.run("hi"))
    assert ("max_seconds", None) == (result.finish_reason, result.content)


def test_call_under_review_at_the_deadline_has_not_run():
    async def add(a: int, b: int) -> int:
        raise AssertionError

    runner = ToolRunner(ScriptedModel([called()]), [add], max_seconds=0.05, hooks=managed(hook(before_tool=for_ever)))
    result = run(runner.run("hi"))
    assert ("max_seconds", "run_timeout") == (result.finish_reason, result.tool_executions[0].result.code)
    assert result.messages[-1]["content"].endswith("It had not begun.")
