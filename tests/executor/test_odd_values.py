"""Hostile result values: rendered as far as possible, with a note on omissions, and without blocking the run."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from tool_calls import run_calls

from patchbay.executor import Executor, ToolExecution
from patchbay.tools import Tool, results
from patchbay.types import ToolCall


def give(value: Any) -> list[ToolExecution]:
    """Return the executions of three tools that return ``value()``: async, in a thread, and a class of its own."""

    async def asynchronous() -> Any:
        return value()

    def thread() -> Any:
        return value()

    class Kind(Tool):
        async def run(self, arguments: dict[str, Any], context: Any) -> Any:
            return value()

    done = run_calls(
        [asynchronous, thread, Kind("class")], *(ToolCall(name, name) for name in ("asynchronous", "thread", "class"))
    )
    for each in done:
        json.dumps(each.result.to_message(), ensure_ascii=False).encode()
    return done


class CountFromZero:
    def __iter__(self) -> Any:
        return itertools.count()

    def __str__(self) -> str:
        return "count(0)"


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


HUGE = 10**5000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda: map(float, ["nan", "1"]), "[null, 1.0]"),
        (lambda: {"rows": (n for n in (1, 2)), "score": float("nan")}, '{"rows": [1, 2], "score": null}'),
        (lambda: {"n": CountFromZero()}, '{"n": "count(0)"}'),
        (lambda: range(10**12), "range(0, 1000000000000)"),
        (lambda: {"a": HUGE, "b": 1}, f'{{"a": "{hex(HUGE)}", "b": 1}}'),
        (lambda: HUGE, hex(HUGE)),
        (Cancels, "<Cancels>"),
        (lambda: Broken("x"), "<Broken>"),
        (ExitsError, "ExitsError: <ExitsError>"),
    ],
)
def test_an_odd_value_has_a_text(value, expected):
    assert [(None, expected)] * 3 == [(done.error, done.content) for done in give(value)]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda: map(int, ["1", "x", "3"]), "ValueError: invalid literal for int() with base 10: 'x'"),
        (lambda: (int(word) for word in ["1", "x", "3"]), "ValueError: invalid literal for int() with base 10: 'x'"),
        (itertools.count, "more than 1000000 items"),
    ],
)
def test_a_lazy_value_that_fails_or_never_ends_is_a_tool_error(value, words):
    for done in give(value):
        assert "tool_error" == done.result.code
        assert words in done.content


def test_a_generator_that_never_ends_fails_too():
    async def numbers() -> Any:
        for number in itertools.count():
            yield number

    def letters() -> Any:
        yield from itertools.repeat("x")

    done = run_calls([numbers, letters], ToolCall("1", "numbers"), ToolCall("2", "letters"))
    assert [True, True] == ["more than 1000000 items" in each.content for each in done]


@dataclass(repr=False)  # its own repr would walk them all
class Person:
    name: str
    friends: list[Person] = field(default_factory=list)


def test_cyclic_object_graph_is_rendered_in_bounded_steps(monkeypatch):
    """Fourteen of them can be walked in 14! orders."""
    monkeypatch.setattr(results, "MOST_CONTAINERS", 100)
    people = [Person(f"p{n}") for n in range(14)]
    for person in people:
        person.friends = [each for each in people if each is not person]
    shown = json.loads(give(lambda: people[0])[0].content)
    assert ("p0", "p1") == (shown["name"], shown["friends"][0]["name"])


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
        batch = executor.start_batch(calls(range(64)))  # idle threads of other tests take some of them
        assert "can't start new thread" in (await anext(batch)).content
    release.set()
    async for _ in batch:
        pass
    done = [*batch.executions, *await executor.run(calls(range(64, 68)))]
    assert ran == {int(each.call.id) for each in done if not each.is_error}
