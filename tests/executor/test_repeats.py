"""Repeated calls with equal results become errors for the model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.errors import RepeatedCallError
from patchbay.executor import Executor, ToolExecution
from patchbay.types import ToolCall


def rounds(tools: list[Any], *replies: list[ToolCall], **options: Any) -> list[list[ToolExecution]]:
    """Run the calls of several replies of one run."""

    async def main() -> list[list[ToolExecution]]:
        run = Executor(tools, **options).begin_run()
        done = []
        for reply in replies:
            batch = run.start_batch(reply)
            async for _ in batch:
                pass
            done.append(batch.executions)
        return done

    return asyncio.run(asyncio.wait_for(main(), 30))


def codes(done: list[list[ToolExecution]]) -> list[list[str | None]]:
    return [[execution.result.code for execution in reply] for reply in done]


async def look(at: str = "", b: int = 0) -> str:
    return f"nothing at {at}"


LOOK = ToolCall("c", "look", '{"at": "x", "b": 1}')


def test_call_repeated_after_three_equal_results_is_an_error():
    done = rounds([look], *[[LOOK]] * 5)
    assert [[None]] * 3 + [["repeated_call"]] * 2 == codes(done)
    assert isinstance(done[3][0].error, RepeatedCallError)
    assert done[3][0].arguments is None
    assert (
        "Error: The same call of 'look' gave the same result 3 times, so it was not run again. Use the result that you have, "
        "call the tool with other arguments, or do something else."
    ) == done[3][0].content


async def edit(n: int) -> str:
    return "edited"


async def fail() -> None:
    raise ValueError("no")


async def ping() -> str:
    return "pong"


def calling(name: str, arguments: str = "{}") -> list[ToolCall]:
    return [ToolCall("c", name, arguments)]


SPACED, TURNED = ToolCall("c", "look", '{ "at":"x","b":1 }'), ToolCall("c", "look", '{"b": 1, "at": "x"}')
OTHER = ToolCall("c", "look", '{"at": "y"}')
REFUSED = "repeated_call"


@pytest.mark.parametrize(
    ("expected", "replies", "options"),
    [
        ([None, REFUSED], [[LOOK]] * 2, {"max_repeats": 1}),
        ([None] * 6, [[LOOK]] * 6, {"max_repeats": None}),
        ([None, None, None, REFUSED], [[LOOK], [SPACED], [TURNED], [LOOK]], {}),
        ([None] * 5, [calling("look", f'{{"at": "{n}"}}') for n in range(5)], {}),
        (["tool_error"] * 3 + [REFUSED], [calling("fail")] * 4, {}),
        *(([None] * 3 + [REFUSED], [calling("ping", raw)] * 4, {}) for raw in ("", "{}", " {} ")),
        # Edit, test, edit, test: the tests fail alike each time, and must be run each time.
        ([None] * 12, [reply for n in range(6) for reply in (calling("edit", f'{{"n": {n}}}'), [LOOK])], {}),
        ([None] * 7 + [REFUSED] * 5, [[LOOK], [OTHER]] * 6, {}),
        ([None] * 8 + [REFUSED], [[LOOK] * 5, [LOOK], [LOOK] * 2, [LOOK]], {}),
    ],
    ids=[
        *("once allowed", "switched off", "written in other ways", "other arguments", "errors"),
        *("no arguments", "empty arguments", "spaced arguments", "new results in between", "alternating", "within one reply"),
    ],
)
def test_which_calls_are_repetitions(expected, replies, options):
    done = rounds([look, edit, fail, ping], *replies, **options)
    assert expected == [code for reply in codes(done) for code in reply]


def test_other_results_are_not_repetitions():
    numbers = iter(range(100))

    async def count() -> int:
        return next(numbers)

    assert [[None]] * 5 == codes(rounds([count], *[[ToolCall("c", "count")]] * 5))


async def test_repetitions_are_counted_per_run():
    executor = Executor([look])
    assert [None] * 5 == [(await executor.run([LOOK]))[0].result.code for _ in range(5)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=30), st.integers(1, 4))
def test_a_refused_call_gave_the_same_result_as_often_as_allowed(history, most):
    results = iter([result for _, result in history])

    async def find(at: str) -> str:
        return next(results)

    seen: dict[str, list[str]] = {}
    for (done,) in rounds([find], *[[ToolCall("c", "find", f'{{"at": "{at}"}}')] for at, _ in history], max_repeats=most):
        before = seen.setdefault(done.call.raw_arguments, [])
        if done.is_error:
            assert [before[-1]] * most == before[-most:]
        else:
            before.append(done.content)


@pytest.mark.parametrize(("first", "other"), [("-1", "-2"), ("1", "true"), ("0", str(2**61 - 1))])
def test_arguments_with_equal_hashes_are_distinct(first, other):
    async def find(number: Any) -> str:
        return "nothing"

    def calls(number: str) -> list[ToolCall]:
        return [ToolCall("c", "find", f'{{"number": {number}}}')]

    done = rounds([find], calls(first), calls(first), calls(first), calls(other), calls(first))
    assert [None, None, None, None] == [code for (code,) in codes(done)][:4]
