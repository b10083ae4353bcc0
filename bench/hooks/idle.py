"""What a hook of this program costs that has nothing to say: CPU time beyond the same work without it.

Both sides of a pair are measured in turns in one process, A B B A, and the figure is the median of the differences: a machine that is
busy for a while is so for both. The hook is async and returns None; the function does nothing, the model is in memory.
``python -m bench.hooks.idle`` prints this table alone.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bench.places import say

CALL_MICROSECONDS = 2.0
REQUEST_MICROSECONDS = 5.0
"""What an idle hook may add at most, by CPU time."""

CALL = "a call: before_tool and after_tool"
ALONE = "a run of one call: the same, and the run's own beginning"
RECORD = "a call: no hook, but a record of each"
REQUEST = "a request of 1 message: before_llm and after_llm"
LONG = "a request of 801 messages: the same"

BARS = ((CALL, CALL_MICROSECONDS), (REQUEST, REQUEST_MICROSECONDS), (LONG, REQUEST_MICROSECONDS))

_CALLS = 16


@dataclass(frozen=True)
class Cost:
    """Medians over rounds, in microseconds: without the hook, and what it adds, with the quartiles of that."""

    without: float
    added: float
    lower: float
    upper: float


@dataclass
class Outcome:
    """Costs by what was hooked."""

    costs: dict[str, Cost] = field(default_factory=dict)


class _OfTools:
    async def before_tool(self, call: Any) -> None:
        pass

    async def after_tool(self, result: Any) -> None:
        pass


class _OfModels:
    async def before_llm(self, request: Any) -> None:
        pass

    async def after_llm(self, response: Any) -> None:
        pass


class _Answers:
    """A model that says the same again and again."""

    def __init__(self) -> None:
        from patchbay.models.chat_model import ModelReply
        from patchbay.types import Reply

        self._end = ModelReply(Reply("done"), "stop")

    async def respond(self, _request: Any) -> AsyncIterator[Any]:
        yield self._end


def measure(*, quick: bool) -> Outcome:
    """Measure each pair."""
    return asyncio.run(_measure(rounds=40 if quick else 200))


async def _measure(*, rounds: int) -> Outcome:
    outcome = Outcome()
    for what, hook, work, times, share in (
        (CALL, _OfTools(), _calls(_CALLS), 15, _CALLS),
        (ALONE, _OfTools(), _calls(1), 100, 1),
        (RECORD, None, _calls(_CALLS), 15, _CALLS),
        (REQUEST, _OfModels(), _requests(1), 150, 1),
        (LONG, _OfModels(), _requests(801), 20, 1),
    ):
        say(f"hooks, in this process: {what} ...")
        bare, hooked = _executor(None), _executor(_manager(hook))
        gc.collect()
        gc.disable()
        try:
            pairs = [await _pair(work, bare, hooked, times, number % 2) for number in range(rounds + 4)][4:]
        finally:
            gc.enable()
        added = [(with_it - without) / share for without, with_it in pairs]
        lower, middle, upper = statistics.quantiles(added)
        outcome.costs[what] = Cost(statistics.median(without for without, _ in pairs) / share, middle, lower, upper)
    return outcome


async def _pair(work: Callable[[Any], Awaitable[None]], bare: Any, hooked: Any, times: int, turned: int) -> tuple[float, float]:
    """Return the microseconds of one piece of work without hooks and with them."""
    found = {}
    for executor in (hooked, bare) if turned else (bare, hooked):
        began = time.process_time()
        for _ in range(times):
            await work(executor)
        found[executor] = (time.process_time() - began) * 1e6 / times
    return found[bare], found[hooked]


def _manager(hook: Any) -> Any:
    from patchbay.hooks import HookManager

    manager = HookManager()
    if hook is None:
        manager.recorders.append(lambda _record: None)
    else:
        manager.mount("idle", hook)
    return manager


def _executor(manager: Any) -> Any:
    from patchbay.executor import Executor

    async def noop(index: int, text: str, limit: float = 1.0) -> str:  # noqa: ARG001
        return "ok"

    return Executor([noop], hooks=manager, max_repeats=None)


def _calls(count: int) -> Callable[[Any], Awaitable[None]]:
    from patchbay.types import ToolCall

    async def work(executor: Any) -> None:
        calls = [ToolCall(f"c{number}", "noop", '{"index": 1, "text": "some words"}') for number in range(count)]
        for execution in await executor.run(calls):
            assert execution.content == "ok"

    return work


def _requests(count: int) -> Callable[[Any], Awaitable[None]]:
    from patchbay.loop import turn

    model = _Answers()
    messages = [{"role": "user" if number % 2 == 0 else "assistant", "content": "x" * 200} for number in range(count)]

    async def work(executor: Any) -> None:
        last = None
        async for event in turn(model, executor, messages):
            last = event
        assert last is not None
        assert last.finish_reason == "stop"

    return work


HEADER = ("CPU µs", "without hooks", "added [quartiles]")


def rows(outcome: Outcome) -> list[list[str]]:
    """Return the table's rows."""
    return [
        [what, f"{cost.without:.1f}", f"{cost.added:.1f} [{cost.lower:.1f}–{cost.upper:.1f}]"]
        for what, cost in outcome.costs.items()
    ]


def main() -> None:
    """Print the table."""
    from bench.table import machine, markdown

    outcome = measure(quick="--quick" in sys.argv)
    print(f"An idle hook in the same process: CPU time beyond the same work without it. {machine()}.\n")
    print(markdown(HEADER, rows(outcome)))


if __name__ == "__main__":
    main()
