"""Limits of hooks by policy, and the ways in which a hook could try to exceed them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from patchbay.executor import Executor
from patchbay.hooks import HookManager, HookPolicy, Modify, Respond
from patchbay.tools import Tool, ToolContext, tool

from .turns import HI, Table, called, hook, managed, play_turn, run_turn

RM = called("rm", '{"path": "x"}')
RM_IS_PROTECTED = HookPolicy(protected=frozenset({"rm"}))


def tool_spec(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def hook_with_tools(*names: str, **methods: Any) -> Any:
    """A hook with tools of these names, which answers their calls with its name for them."""

    def before_llm(request: Any) -> Any:
        return Modify({"tools": [*request.tools, *map(tool_spec, names)]})

    methods.setdefault("before_tool", lambda call: Respond(f"mine: {call.tool}") if call.tool in names else None)
    return hook(before_llm=before_llm, **methods)


def renames(old: str, new: str, arguments: Any = None) -> Any:
    return hook(before_tool=lambda call: Modify({"tool": new, "arguments": arguments or {}}) if call.tool == old else None)


# Protected tools


def test_protected_call_cannot_be_redirected(caplog):
    manager = managed(hook_with_tools("mine"), renames("rm", "mine"), policy=RM_IS_PROTECTED)
    assert [("rm", "x")] == play_turn(manager, RM, "done").ran
    assert "made a call of 'rm' one of 'mine', and one of them is protected" in caplog.text


def test_a_call_of_a_protected_tool_that_the_model_wrote_may_be_left_changed_or_removed():
    def after_llm(response: Any) -> Any:
        calls = response.tool_calls[:1]
        for call in calls:
            call["function"]["arguments"] = '{"path": "y"}'
        return Modify({"tool_calls": calls})

    two = [RM, called("rm", '{"path": "z"}', "c2")]
    assert [("rm", "y")] == play_turn(managed(hook(after_llm=after_llm), policy=RM_IS_PROTECTED), two, "done").ran


# Approval


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("foreign", [("rm", {"path": "x"})]), ("always", [("rm", {"path": "x"}), ("mine", {})]), ("never", [])],
)
def test_redirect_to_the_hooks_own_tool_needs_its_approval(policy, expected):
    """Else a hook would answer for any tool unseen: by making its calls those of a tool of its own."""
    asked: list[Any] = []
    approver = hook(approve_tool=lambda call: asked.append((call.tool, call.arguments)) or True)
    manager = managed(hook_with_tools("mine"), renames("rm", "mine"), approver, policy=HookPolicy(respond_approval=policy))
    turned = play_turn(manager, RM, "done")
    assert (expected, ["mine: mine"], []) == (asked, turned.results, turned.ran)


def test_facts_do_not_apply_to_a_call_changed_by_a_hook():
    asked: list[Any] = []

    async def use(path: str) -> str:
        return path

    looks = tool(handler=use, facts=lambda arguments: {"really": arguments["path"]})
    sees = hook(before_tool=lambda call: asked.append((call.tool, call.facts)))
    approver = hook(approve_tool=lambda call: asked.append((call.tool, call.facts)) or True)
    policy = HookPolicy(respond_approval="always")
    manager = managed(hook_with_tools("mine"), renames("use", "mine"), sees, approver, policy=policy)
    turned = play_turn(manager, called("use", '{"path": "/a"}'), "done", tools=[looks])
    assert (["mine: mine"], [("use", {"really": "/a"}), ("mine", {}), ("mine", {})]) == (turned.results, asked)


# The request


class Hidden(Tool):
    """A tool that is not offered but can be called."""

    offered = False  # type: ignore[assignment]

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        return "the host's"


@pytest.mark.parametrize("injection", ["additive", "full"])
def test_hook_tool_with_the_name_of_a_hidden_tool_is_refused(injection, caplog):
    policy = HookPolicy(tool_injection=injection)
    turned = play_turn(
        managed(hook_with_tools("hidden", before_tool=None), policy=policy),
        called("hidden", "{}"),
        "done",
        tools=[Hidden("hidden")],
    )
    assert (["the host's"], ["add", "rm"]) == (turned.results, turned.offered())
    assert "offers a tool of the name 'hidden', which another one has" in caplog.text


def test_tool_removed_by_one_hook_is_not_claimed_by_the_next():
    takes = hook(before_llm=lambda request: Modify({"tools": request.tools[:1]}))
    manager = managed(takes, hook_with_tools("rm", before_tool=None), policy=HookPolicy(tool_injection="full"))
    turned = play_turn(manager, RM, "done")
    assert ([("rm", "x")], ["gone"]) == (turned.ran, turned.results)


async def test_callback_named_like_a_hook_does_not_own_its_tools():
    """A hook with the name of the program's callbacks does not bypass them."""
    asked: list[Any] = []
    manager = HookManager()
    manager.mount("callback 000", hook_with_tools("mine"))
    assert (["mine: mine"], ["mine"]) == (
        (await run_turn(manager, [called("mine", "{}"), "done"], before=lambda call, *_: asked.append(call.name))).results,
        asked,
    )


# What hooks share


async def test_hooks_and_recorders_get_copies_of_the_context():
    seen: list[Any] = []
    from patchbay.hooks import HookScope
    from patchbay.loop import turn
    from patchbay.testing import ScriptedModel

    def spoils(event: Any) -> None:
        event.context["inbound"]["sender_id"] = "admin"
        event.attrs["responded_by"] = "nobody"

    def notes(event: Any) -> None:
        seen.append((event.context["inbound"]["sender_id"], event.attrs.get("responded_by")))

    def asks(call: Any) -> bool:
        seen.append((call.context["inbound"]["sender_id"], None))
        return True

    manager = managed(a=hook(on_runtime_event=spoils), b=hook(on_runtime_event=notes), c=hook(approve_tool=asks))
    records: list[Any] = []
    manager.recorders.append(records.append)
    scope = HookScope(context={"inbound": {"sender_id": "eve"}})

    async def slow() -> str:
        await manager.events.flush()
        return "ok"

    executor = Executor([slow], hooks=manager)
    async for _ in turn(
        ScriptedModel([called("slow", "{}"), called("slow", "{}", "c2"), "done"]), executor.begin_run(scope=scope), HI
    ):
        await manager.events.flush()
    assert {"eve"} == {record.context["inbound"]["sender_id"] for record in records}
    assert {("eve", None)} == set(seen)


# The log


def test_a_hook_that_fails_at_every_call_is_logged_less_and_less_often(caplog):
    manager = managed(hook(before_tool=ValueError("no"), after_tool=OSError("no")), policy=HookPolicy())
    calls = [called("add", f'{{"a": {number}}}', f"c{number}") for number in range(200)]
    with caplog.at_level(logging.WARNING):
        assert 200 == len(play_turn(manager, calls, "done", max_parallel=500).ran)
    text = [record.getMessage() for record in caplog.records]
    assert [
        "The hook 'hook0' failed at before_tool: ValueError: no",
        "The hook 'hook0' failed at before_tool: ValueError: no (10 times by now)",
        "The hook 'hook0' failed at before_tool: ValueError: no (100 times by now)",
    ] == [words for words in text if "before_tool" in words]
    assert 6 == len(text)
    (mounted,) = manager.mounted
    assert {200} == set(mounted.warnings.counts.values())


def test_warnings_about_a_hook_are_bounded(caplog):
    names = iter(range(10_000))

    def before_tool(_call: Any) -> Any:
        return Modify({f"member{next(names)}": 1})

    manager = managed(hook(before_tool=before_tool))
    calls = [called("add", f'{{"a": {number}}}', f"c{number}") for number in range(1_000)]
    play_turn(manager, calls, "done")
    assert len(manager.mounted[0].warnings.counts) <= 51
    assert len(caplog.records) <= 60


def test_a_recorder_that_fails_is_logged_less_and_less_often_and_others_still_record(caplog):
    def breaks(_record: Any) -> None:
        raise OSError("disk full")

    manager, records = managed(), list[Any]()
    manager.recorders += [breaks, records.append]
    play_turn(manager, [called("add", f'{{"a": {number}}}', f"c{number}") for number in range(100)], "done")
    assert (3, 100) == (len(caplog.records), len(records))
    assert "disk full" in caplog.text


async def test_call_redirected_to_a_sequential_tool_runs_alone():
    """``sequential`` applies to hook-modified calls too."""
    running: list[str] = []
    seen: list[list[str]] = []

    def acts(name: str) -> Any:
        async def act(tool_context: Any) -> str:
            mine = f"{name} {tool_context.call_id}"
            running.append(mine)
            for _ in range(5):
                await asyncio.sleep(0)
                seen.append([*running])
            running.remove(mine)
            return mine

        return act

    alone = tool(handler=acts("alone"), name="alone", sequential=True)
    beside = tool(handler=acts("beside"), name="beside")
    manager = managed(renames("add", "alone"))
    calls = [
        called("add", '{"a": 1}', "1"),
        called("beside", "{}", "2"),
        called("add", '{"a": 2}', "3"),
        called("beside", "{}", "4"),
    ]
    assert ["alone 1", "beside 2", "alone 3", "beside 4"] == (
        await run_turn(manager, [calls, "done"], tools=[alone, beside])
    ).results
    assert [["alone 1"], ["alone 3"]] == [each for each in seen if any("alone" in name for name in each)][::5]
    assert ["beside 2", "beside 4"] in seen, "all others run side by side"


async def test_a_call_that_waits_to_run_alone_is_stopped_with_the_turn():
    async def waits() -> None:
        await asyncio.Event().wait()

    alone = tool(handler=waits, name="alone", sequential=True)
    manager = managed(renames("add", "alone"))
    calls = [called("waits", "{}", "1"), called("add", '{"a": 1}', "2"), called("add", '{"a": 2}', "3")]
    executor = Executor([waits, alone, *Table().tools()], hooks=manager)
    batch = executor.start_batch(calls)
    for _ in range(20):
        await asyncio.sleep(0)
    await batch.stop()
    first, *others = [execution.content for execution in batch.executions]
    assert "was cancelled before it finished." in first
    assert all(words.endswith("It had not begun.") for words in others)
