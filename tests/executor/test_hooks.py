"""Callbacks before and after a tool, and frozen arguments (law 9)."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel
from tool_calls import execute, run_calls

from patchbay.executor import Executor
from patchbay.types import ToolCall


class Box(BaseModel):
    items: list[int]


ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


async def add(a: int, b: int = 2) -> int:
    ran.append((a, b))
    return a + b


def as_async(hook: Any) -> Any:
    async def asynchronous(*about: Any) -> Any:
        await asyncio.sleep(0)
        return hook(*about)

    return asynchronous


@pytest.mark.parametrize("kind", [lambda hook: hook, as_async, lambda hook: [hook], lambda hook: (as_async(hook),)])
def test_a_before_hook_answers_in_the_tools_place(kind):
    done = execute(add, '{"a": 1}', before=kind(lambda *_: {"blocked": True}), after=lambda *_: "not asked")
    assert ([], '{"blocked": true}', None, False) == (ran, done.content, done.arguments, done.is_error)


@pytest.mark.parametrize("kind", [lambda hook: hook, as_async, lambda hook: [hook]])
def test_after_hook_can_replace_the_result(kind):
    seen = []

    def after(call, tool, arguments, context, value):
        seen.append((call.id, tool.name, arguments, context.call_id, value))
        return {"sum": value}

    done = execute(add, '{"a": 1}', after=kind(after))
    assert [("c1", "add", {"a": 1, "b": 2}, "c1", 3)] == seen
    assert ({"sum": 3}, '{"sum": 3}') == (done.value, done.content)


def test_first_before_answer_wins_and_after_callbacks_are_chained():
    asked = []

    def asks(name: str, answer: Any) -> Any:
        return lambda *about: asked.append((name, about[-1])) or answer

    assert "b" == execute(add, '{"a": 1}', before=[asks("a", None), asks("b", "b"), asks("c", "c")]).value
    assert ["a", "b"] == [name for name, _ in asked]
    asked.clear()
    assert 5 == execute(add, '{"a": 1}', after=[asks("a", 4), asks("b", None), asks("c", 5)]).value
    assert [("a", 3), ("b", 4), ("c", 4)] == asked


def test_arguments_that_a_before_hook_changes_in_place_are_those_that_run():
    def before(call, tool, arguments, context):
        arguments["b"] = 10

    done = execute(add, '{"a": 1}', before=before)
    assert (11, {"a": 1, "b": 10}, '{"a": 1}') == (done.value, done.arguments, done.call.raw_arguments)
    assert {"a": 1} == done.call.arguments


async def test_approved_arguments_are_frozen():
    """Law 9: the hook keeps the arguments, and changes them while the tool runs."""
    kept: list[dict[str, Any]] = []
    let_through, resume = asyncio.Event(), asyncio.Event()

    async def use(box: Box, tags: list[str]) -> Any:
        let_through.set()
        await resume.wait()
        return [*box.items, *tags]

    batch = Executor([use], before=lambda call, tool, arguments, context: kept.append(arguments)).start_batch(
        [ToolCall("1", "use", '{"box": {"items": [1]}, "tags": ["a"]}')]
    )
    await let_through.wait()
    kept[0]["box"].items.append(2)
    kept[0]["tags"].append("b")
    resume.set()
    done = await anext(batch)
    assert [1, "a"] == done.value
    assert (["a"], [1]) == (done.arguments["tags"], done.arguments["box"].items)


def test_a_tool_that_changes_its_arguments_changes_no_record():
    def grab(tags: list[str]) -> int:
        tags.append("b")
        return len(tags)

    done = execute(grab, '{"tags": ["a"]}')
    assert (2, {"tags": ["a"]}) == (done.value, done.arguments)


def test_sentinel_default_reaches_the_tool_unchanged():
    missing = object()

    def look(a: Any = missing) -> bool:
        return a is missing

    assert execute(look).value
    assert execute(look, before=lambda *_: None).value


def test_failing_before_hook_denies_the_call():
    def broken(*_: Any) -> None:
        raise RuntimeError("no such user")

    done = execute(add, '{"a": 1}', before=broken)
    assert ([], "Error: tool 'add' failed: RuntimeError: no such user") == (ran, done.content)


def test_failing_after_hook_hides_the_result_and_reports_that_the_tool_ran():
    def broken(*_: Any) -> None:
        raise RuntimeError("redaction failed")

    done = execute(add, '{"a": 1}', after=broken)
    assert [(1, 2)] == ran
    assert (None, None, True) == (done.value, done.actions, done.is_error)
    assert (
        "Error: tool 'add' failed: RuntimeError: redaction failed (The tool itself had run: its effects stand.)" == done.content
    )


def test_before_callback_may_fix_invalid_arguments_that_are_validated_again():
    seen = []

    def before(call, tool, arguments, context):
        seen.append(dict(arguments))
        arguments.update(fill.get(call.raw_arguments, {}))

    fill = {'{"b": "3"}': {"a": "4"}, '{"a": 1}': {"b": "many"}, '{"a": 2}': {"b": "5"}}
    mended, broken, changed, left = (execute(add, raw, before=before) for raw in (*fill, '{"b": 1}'))
    assert [{"b": "3"}, {"a": 1, "b": 2}, {"a": 2, "b": 2}, {"b": 1}] == seen
    assert [(4, 3), (2, 5)] == ran
    assert ({"a": 4, "b": 3}, {"a": 2, "b": 5}) == (mended.arguments, changed.arguments)
    assert "/b must be a valid integer" in broken.content
    assert "must have required property 'a'" in left.content
    assert "not valid JSON" in execute(add, '{"a"', before=before).content
    assert 4 == len(seen)  # of the last there is nothing to be shown


def test_before_callback_cannot_add_non_json_arguments():
    done = execute(add, '{"a": 1}', before=lambda call, tool, arguments, context: arguments.update(b=add))
    assert "TypeError: a function is not JSON" in done.content
    assert [] == ran


def test_one_shot_iterator_arguments_are_left_to_the_tool():
    def total(numbers: Iterator[int], more: int = 0) -> int:
        return sum(numbers) + more

    assert 3 == execute(total, '{"numbers": [1, 2]}', before=lambda *_: None).value
    more = execute(total, '{"numbers": [1, 2]}', before=lambda call, tool, arguments, context: arguments.update(more=4))
    assert 7 == more.value


def test_failed_calls_do_not_reach_after_callbacks():
    asked = []

    async def fail() -> None:
        raise ValueError

    calls = [ToolCall("1", "nope"), ToolCall("2", "add", "{}"), ToolCall("3", "fail")]
    done = run_calls([add, fail], *calls, before=lambda call, *_: asked.append(call.name), after=lambda *_: asked.append("after"))
    assert [True] * 3 == [execution.is_error for execution in done]
    assert ["add", "fail"] == asked  # also where the arguments do not fit, before that is found


class Pair(NamedTuple):
    items: list[int]
    much: int


@pytest.mark.parametrize(
    ("kind", "raw", "change"),
    [
        (tuple[list[int], int], "[[1], 2]", lambda kept: kept[0].append(666)),
        (Pair, '{"items": [1], "much": 2}', lambda kept: kept.items.append(666)),
        (deque[int], "[1]", lambda kept: kept.append(666)),
        (defaultdict[str, list[int]], '{"a": [1]}', lambda kept: kept["a"].append(666)),
        (list[tuple[set[int], int]], "[[[1], 2]]", lambda kept: kept[0][0].add(666)),
    ],
)  # fmt: skip
def test_containers_in_approved_arguments_are_copied(kind, raw, change):
    """Law 9, for whatever may hold something that can change."""

    async def use(what: Any) -> str:
        let_through[0](what)
        return repr(what)

    kept: list[Any] = []
    let_through: list[Any] = [lambda _: change(kept[0])]
    use.__annotations__["what"] = kind
    done = execute(use, f'{{"what": {raw}}}', before=lambda call, tool, arguments, context: kept.append(arguments["what"]))
    assert not done.is_error
    assert "666" in repr(kept[0])
    assert "666" not in done.value
    assert "666" not in repr(done.arguments)
