"""Hostile result values: rendered as far as possible, with a note on omissions, and without blocking the run."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from patchbay.executor import Executor, ToolExecution
from patchbay.tools import Tool, results
from patchbay.types import ToolCall


def give(value: Any, *, by: str = "async") -> ToolExecution:
    async def asynchronous() -> Any:
        return value

    def thread() -> Any:
        return value

    class Kind(Tool):
        async def run(self, arguments: dict[str, Any], context: Any) -> Any:
            return value

    tools = {"async": asynchronous, "thread": thread, "kind": Kind("kind")}
    name = {"async": "asynchronous"}.get(by, by)

    async def main() -> list[ToolExecution]:
        return await asyncio.wait_for(Executor([tools[by]]).run([ToolCall("1", name)]), 30)

    (done,) = asyncio.run(main())
    json.dumps(done.result.to_message(), ensure_ascii=False).encode()
    return done


@dataclass(repr=False)  # its own repr would walk them all
class Person:
    name: str
    friends: list[Person] = field(default_factory=list)


class CountFromZero:
    def __iter__(self) -> Any:
        return itertools.count()

    def __str__(self) -> str:
        return "count(0)"


BY = pytest.mark.parametrize("by", ["async", "thread", "kind"])


@BY
@pytest.mark.parametrize("lazy", ["map", "generator"])
def test_error_while_reading_a_lazy_result_is_a_tool_error(by, lazy):
    words = ["1", "x", "3"]
    done = give(map(int, words) if lazy == "map" else (int(word) for word in words), by=by)
    assert "tool_error" == done.result.code
    assert "ValueError: invalid literal for int() with base 10: 'x'" in done.content


@BY
def test_lazy_value_is_read_once_even_if_json_is_tried_twice(by):
    assert "[null, 1.0]" == give(map(float, ["nan", "1"]), by=by).content
    assert '{"rows": [1, 2], "score": null}' == give({"rows": (n for n in (1, 2)), "score": float("nan")}, by=by).content


@BY
def test_endless_iterator_fails_after_a_bound(by):
    done = give(itertools.count(), by=by)
    assert "more than 1000000 items" in done.content
    assert "tool_error" == done.result.code
    assert {"n": "count(0)"} == json.loads(give({"n": CountFromZero()}, by=by).content)


async def test_a_generator_that_never_ends_fails_too():

    async def numbers() -> Any:
        for number in itertools.count():
            yield number

    def letters() -> Any:
        yield from itertools.repeat("x")

    assert [True, True] == [
        "more than 1000000 items" in done.content
        for done in (
            await asyncio.wait_for(Executor([numbers, letters]).run([ToolCall("1", "numbers"), ToolCall("2", "letters")]), 30)
        )
    ]


def test_huge_range_is_shown_by_its_repr():
    assert "range(0, 1000000000000)" == give(range(10**12)).content


def test_cyclic_object_graph_is_rendered_in_bounded_steps(monkeypatch):
    """Fourteen of them can be walked in 14! orders."""
    monkeypatch.setattr(results, "MOST_CONTAINERS", 100)
    people = [Person(f"p{n}") for n in range(14)]
    for person in people:
        person.friends = [each for each in people if each is not person]
    shown = json.loads(give(people[0]).content)
    assert ("p0", "p1") == (shown["name"], shown["friends"][0]["name"])


def test_huge_integer_becomes_hexadecimal():
    assert {"a": hex(10**5000), "b": 1} == json.loads(give({"a": 10**5000, "b": 1}).content)
    assert hex(10**5000) == give(10**5000).content


class ExitsError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Cancels:
    def __str__(self) -> str:
        raise asyncio.CancelledError


class Broken(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("value", "shown"), [(Cancels(), "<Cancels>"), (Broken("x"), "<Broken>"), (ExitsError(), "ExitsError: <ExitsError>")]
)
def test_a_value_that_can_not_be_printed_is_named(value, shown):
    done = give(value)
    assert (None, shown) == (done.error, done.content)


async def test_fatal_exception_in_an_error_text_is_contained():
    async def fail() -> None:
        raise ExitsError

    async def sibling() -> str:
        return "fine"

    done = await asyncio.wait_for(Executor([fail, sibling]).run([ToolCall("1", "fail"), ToolCall("2", "sibling")]), 30)
    assert ["Error: tool 'fail' failed: ExitsError: <ExitsError>", "fine"] == [each.content for each in done]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StopIteration("at 3")])
async def test_stop_iteration_of_a_thread_is_a_plain_failure(error):
    """A Ctrl-C reaches the main thread only: raised in another one it is the tool's doing, and its failure."""
    assert threading.current_thread() is threading.main_thread()

    def press() -> None:
        raise error

    (done,) = await asyncio.wait_for(Executor([press]).run([ToolCall("1", "press")]), 30)
    assert type(error).__name__ in done.content
    assert "coroutine" not in done.content


async def test_tool_that_failed_to_get_a_thread_does_not_run_later():
    ran, release = set(), threading.Event()

    def work(number: int) -> None:
        ran.add(number)
        assert release.wait(30)

    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    def calls(numbers: range) -> list[ToolCall]:
        return [ToolCall(str(number), "work", f'{{"number": {number}}}') for number in numbers]

    executor = Executor([work], max_parallel=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        batch = executor.start(calls(range(64)))  # idle threads of other tests take some of them
        assert "can't start new thread" in (await anext(batch)).content
    release.set()
    async for _ in batch:
        pass
    done = [*batch.executions, *await executor.run(calls(range(64, 68)))]
    assert ran == {int(each.call.id) for each in done if not each.is_error}
