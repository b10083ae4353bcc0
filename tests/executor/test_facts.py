"""Facts that a tool computes about its calls: shown to approvers, rechecked before the run, passed to its body (P15)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel
from virtual_time import later, manual_clock

from patchbay import ToolRetry
from patchbay.executor import Budget, Executor, ToolExecution
from patchbay.hooks import DenyTool, HookManager, Modify, Respond
from patchbay.hooks.events import digest_of
from patchbay.tools import Tool, ToolContext, tool
from patchbay.types import ToolCall

BOUND = 60.0
CALL = ToolCall("1", "use", '{"path": "a"}')


class Person:
    """An approver that calls ``meanwhile`` before it answers."""

    def __init__(self, meanwhile: Any = lambda: None, *, says: bool = True) -> None:
        self.asked: list[tuple[str, dict[str, Any], dict[str, Any], str]] = []
        self.meanwhile = meanwhile
        self.says = says

    async def approve_tool(self, call):
        self.asked.append((call.tool, call.arguments, call.facts, call.digest))
        self.meanwhile()
        return self.says


def hooks_of(**mounted: Any) -> HookManager:
    hooks = HookManager()
    for name, hook in mounted.items():
        hooks.mount(name, hook)
    return hooks


def ran(*tools: Any, calls: tuple[ToolCall, ...] = (CALL,), budget: Budget | None = None, **options: Any) -> list[ToolExecution]:
    async def main():
        batch = Executor(tools, **options).begin_run(budget=budget).start_batch(calls)
        try:
            async for _ in batch:
                pass
        finally:
            await batch.stop()
        return batch.executions

    return asyncio.run(asyncio.wait_for(main(), BOUND))


class Paths:
    """Targets of paths, and a tool whose facts they are."""

    def __init__(self, **leads: str) -> None:
        self.leads = leads
        self.looked = 0
        self.used: list[Any] = []

    def look(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.looked += 1
        return {"path": self.leads[arguments["path"]]}

    def tool(self, **options: Any) -> Tool:
        @tool(**{"facts": self.look, **options})
        async def use(path: str, tool_context: ToolContext) -> str:
            self.used.append(tool_context.facts.get("path"))
            return f"used {path}"

        return use


class Idle:
    async def before_tool(self, call):
        assert {} == call.facts


class Mends:
    async def before_tool(self, call):
        return Modify({"arguments": {"path": "b"}})


class Refuses:
    async def before_tool(self, call):
        return DenyTool("no")


class Answers:
    async def before_tool(self, call):
        return Respond("mine")


DATA = {"path": "/srv/data"}
DENIED = "Tool execution denied"


@pytest.mark.parametrize(
    ("hooks", "content", "looked", "used", "asked"),
    [
        pytest.param([], "used a", 1, ["/srv/data"], [], id="no hooks"),
        pytest.param([Idle], "used a", 1, ["/srv/data"], [], id="no approvers"),
        pytest.param([Person], "used a", 2, ["/srv/data"], [DATA], id="approved"),
        pytest.param([lambda: Person(says=False)], DENIED, 1, [], [DATA], id="denied"),
        pytest.param([Mends, Person], "used b", 2, ["/tmp/b"], [{"path": "/tmp/b"}], id="other arguments by a hook"),
        pytest.param([Refuses, Person], f"{DENIED} by hook: no", 0, [], [], id="denied by a hook"),
        pytest.param([Answers, Person], "mine", 1, [], [DATA], id="answered by a hook"),
    ],
)
def test_who_gets_the_facts_and_how_often_they_are_found(hooks, content, looked, used, asked):
    disk = Paths(a="/srv/data", b="/tmp/b")
    mounted = {f"hook {number}": make() for number, make in enumerate(hooks)}
    [execution] = ran(disk.tool(), hooks=hooks_of(**mounted))
    people = [hook for hook in mounted.values() if isinstance(hook, Person)]
    assert execution.content.startswith(content)
    assert (looked, used, asked) == (disk.looked, disk.used, [each[2] for person in people for each in person.asked])
    for tool_name, arguments, facts, digest in (each for person in people for each in person.asked):
        assert digest_of(tool_name, arguments, facts) == digest


def test_call_is_denied_if_its_facts_changed_after_approval():
    disk = Paths(a="/srv/data")
    person = Person(lambda: disk.leads.update(a="/etc"))
    [execution] = ran(disk.tool(), hooks=hooks_of(person=person))
    words = f"{DENIED}: since it was approved, this has become another: path"
    assert (words, "tool_denied", None, []) == (execution.content, execution.result.code, execution.arguments, disk.used)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({}, {"a": None}),
        ({"a": None}, {}),
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": "1"}),
        ({"a": "\ud800"}, {"a": "\ufffd"}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": {"b": 0}}, {"a": {"b": False}}),
    ],
)
def test_different_values_are_different_facts(before, now):
    found = iter([before, now])

    @tool(facts=lambda _: next(found))
    async def use(path: str) -> str:
        raise AssertionError(path)

    [execution] = ran(use, hooks=hooks_of(person=Person()))
    assert "Tool execution denied: since it was approved, this has become another: a" == execution.content


def test_facts_in_another_order_are_the_same():
    found = iter([{"a": {"x": 1, "y": 2}, "b": 1}, {"b": 1, "a": {"y": 2, "x": 1}}])

    @tool(facts=lambda _: next(found))
    async def use(path: str) -> str:
        return path

    assert ["a"] == [each.content for each in ran(use, hooks=hooks_of(person=Person()))]


def test_tool_without_facts_has_no_facts():
    seen, person = [], Person()

    @tool
    async def use(path: str, tool_context: ToolContext) -> str:
        seen.append((path, dict(tool_context.facts)))
        return path

    ran(use, hooks=hooks_of(person=person))
    arguments = {"path": "a"}
    assert ([("a", {})], [("use", arguments, {}, digest_of("use", arguments))]) == (seen, person.asked)


class Box(BaseModel):
    items: list[str]


def test_facts_function_and_tool_cannot_change_the_approved_arguments():
    """Law 9: each of them has copies of its own."""
    seen, kept = [], []

    def look(arguments):
        kept.append(arguments)
        arguments["box"].items.append("more")
        arguments["path"] = "/etc"
        return {"items": len(arguments["box"].items)}

    @tool(facts=look)
    async def use(path: str, box: Box, tool_context: ToolContext) -> str:
        seen.append((path, box.items, dict(tool_context.facts)))
        tool_context.facts["items"] = 0
        return path

    class Sly(Person):
        async def approve_tool(self, call):
            call.facts["items"] = 99
            kept[0]["path"] = "/etc"
            return await super().approve_tool(call)

    records = []
    first, second = Sly(), Person()
    hooks = hooks_of(first=first, second=second)
    hooks.recorders.append(records.append)
    ran(use, calls=(ToolCall("1", "use", '{"path": "a", "box": {"items": ["x"]}}'),), hooks=hooks)
    assert ([("a", ["x"], {"items": 2})], {"items": 2}) == (seen, second.asked[0][2])
    assert digest_of("use", {"path": "a", "box": {"items": ["x"]}}, {"items": 2}) == records[0].digest == second.asked[0][3]


def test_facts_are_rechecked_after_waiting_for_a_permit():
    """Facts are found in threads, in any order: the second call is approved once the first one has the only slot."""
    disk = Paths(a="/srv/data", b="/srv/data")
    first_runs, second_approved = asyncio.Event(), asyncio.Event()

    class Approver:
        async def approve_tool(self, call):
            if call.arguments["path"] == "a":
                await first_runs.wait()
                second_approved.set()
            return True

    @tool(facts=disk.look, max_parallel=1)
    async def use(path: str) -> str:
        if path == "b":
            first_runs.set()
            await second_approved.wait()
            disk.leads["a"] = "/etc"
        return path

    first, second = ran(use, calls=(ToolCall("0", "use", '{"path": "b"}'), CALL), hooks=hooks_of(approver=Approver()))
    assert ("b", "tool_denied") == (first.content, second.result.code)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("/srv", "TypeError: facts must be a mapping, not str"),
        (None, "TypeError: facts must be a mapping, not NoneType"),
        ([("path", "/srv")], "TypeError: facts must be a mapping, not list"),
        ({("a", "b"): 1}, "TypeError: keys must be str, int, float, bool or None, not tuple"),
        ({"path": "x" * 9000}, "ValueError: 9012 characters of facts are too long: the limit is 8192"),
        (OSError("no such\nfolder"), "OSError: no such\nfolder"),
        (ValueError("x" * 1000), f"ValueError: {'x' * 288}"),
    ],
)
@pytest.mark.parametrize("asks", [True, False])
def test_failing_or_invalid_facts_deny_the_call(found, words, asks):
    def look(arguments: dict[str, Any]) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    @tool(facts=look)
    async def use(path: str) -> str:
        raise AssertionError(path)

    person, records = Person(), []
    hooks = hooks_of(person=person) if asks else hooks_of()
    hooks.recorders.append(records.append)
    [execution] = ran(use, hooks=hooks)
    assert f"Tool execution denied: the facts of the call could not be found: {words}" == execution.content
    assert ("tool_denied", None, []) == (execution.result.code, execution.arguments, person.asked)
    [(by, point, decision)] = records[0].decisions
    assert ("use", "facts", True) == (by, point, decision.startswith("denied: the facts of the call could not be found"))


def test_tool_error_of_a_facts_function_reaches_the_model():
    def look(arguments: dict[str, Any]) -> dict[str, Any]:
        raise ToolRetry("there is no such folder: name another")

    @tool(facts=look)
    async def use(path: str) -> str:
        raise AssertionError(path)

    [execution] = ran(use, hooks=hooks_of(person=Person()))
    words = "Error: there is no such folder: name another. Fix the arguments and call the tool again."
    assert (words, "tool_retry") == (execution.content, execution.result.code)


class NonJsonMapping(Mapping):
    """A mapping with values that are converted to JSON."""

    def __getitem__(self, name):
        return {"path": os.fsdecode(b"/srv/\xff"), "size": float("inf"), "tags": {"b", "a"}, "at": (1, None)}[name]

    def __iter__(self):
        return iter(("path", "size", "tags", "at"))

    def __len__(self):
        return 4


def test_facts_are_plain_json_without_repairs():
    """A file's name need not be UTF-8: of two such names one must not pass for the other."""
    seen, person = [], Person()

    @tool(facts=lambda _: NonJsonMapping())
    async def use(path: str, tool_context: ToolContext) -> str:
        seen.append(dict(tool_context.facts))
        return path

    ran(use, hooks=hooks_of(person=person))
    expected = {"path": "/srv/\udcff", "size": "Infinity", "tags": ["a", "b"], "at": [1, None]}
    assert ([expected], expected) == (seen, person.asked[0][2])


def test_sync_facts_function_runs_in_a_thread():
    threads = []

    def blocks(arguments: dict[str, Any]) -> dict[str, Any]:
        threads.append(threading.current_thread() is threading.main_thread())
        return {}

    async def waits(arguments: dict[str, Any]) -> dict[str, Any]:
        threads.append(threading.current_thread() is threading.main_thread())
        await asyncio.sleep(0)
        return {"path": arguments["path"]}

    assert ["used a", "used a"] == [ran(Paths().tool(facts=facts))[0].content for facts in (blocks, waits)]
    assert [False, True] == threads


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("stays", [True, False])
def test_facts_function_counts_against_the_tool_timeout(asks, stays):
    """Even if the facts function ignores cancellation: no approver is asked, and the tool does not run."""

    async def hangs(arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not stays:
                raise
        return {}

    disk, person = Paths(), Person()
    hooks = hooks_of(person=person) if asks else None
    [execution] = ran(disk.tool(facts=hangs, timeout=0.05), hooks=hooks)
    assert ("tool_timeout", None, [], []) == (execution.result.code, execution.arguments, disk.used, person.asked)
    assert execution.content.endswith("It had not begun.")


@pytest.mark.parametrize(("each", "code"), [(4, None), (6, "tool_timeout")])
@manual_clock
async def test_recheck_of_facts_and_tool_share_one_timeout(each, code):
    """Facts computed before an approval have their own timeout, and the approval itself is not limited."""

    async def look(arguments: dict[str, Any]) -> dict[str, Any]:
        await later(each)
        return {}

    @tool(facts=look, timeout=10)
    async def use(path: str) -> str:
        await later(each)
        return path

    class Slow(Person):
        async def approve_tool(self, call):
            await later(20)
            return True

    batch = Executor([use], hooks=hooks_of(slow=Slow())).begin_run().start_batch([CALL])
    assert [code] == [each.result.code async for each in batch]


def test_run_deadline_stops_a_facts_function():
    async def hangs(arguments: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    disk = Paths()
    [execution] = ran(disk.tool(facts=hangs), hooks=hooks_of(person=Person()), budget=Budget(max_seconds=0.05))
    assert ("run_timeout", []) == (execution.result.code, disk.used)


async def test_run_stopped_during_its_facts_does_not_run_the_tool():
    looking = asyncio.Event()

    async def hangs(arguments: dict[str, Any]) -> dict[str, Any]:
        looking.set()
        await asyncio.Event().wait()
        return {}

    disk, person = Paths(), Person()
    batch = Executor([disk.tool(facts=hangs)], hooks=hooks_of(person=person)).begin_run().start_batch([CALL])
    await looking.wait()
    await batch.stop()
    assert (["cancelled"], [], []) == ([each.result.code for each in batch.executions], disk.used, person.asked)


def test_calls_side_by_side_have_their_own_facts():
    disk = Paths(a="/srv/a", b="/srv/b")
    calls = tuple(ToolCall(name, "use", f'{{"path": "{name}"}}') for name in ("a", "b"))
    person = Person()
    ran(disk.tool(), calls=calls, hooks=hooks_of(person=person))
    assert ["/srv/a", "/srv/b"] == sorted(disk.used) == sorted(facts["path"] for _, _, facts, _ in person.asked)
