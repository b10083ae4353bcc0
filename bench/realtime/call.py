"""What a call over realtime costs this process: CPU time of a turn with calls less one without, beside the executor alone.

The turn is a text that is sent, a response with 1 or 16 calls in deltas over a WebSocket, their results, and a second response of one
word; the turn without calls has two responses of one word. So what a call is charged with is all that comes with it: the frames of
its deltas, eleven of them, the executor, the result's frame. The server is a process of its own and not counted.
"""

from __future__ import annotations

import asyncio
import importlib
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field

from bench.calls import cases
from bench.places import ROOT, say

BAR_MILLISECONDS = 0.3
"""CPU time of a call at most, over that of one in the same process."""

CASES = (1, 16)
_WARM = 1


@dataclass(frozen=True)
class Cost:
    """Medians over rounds, in CPU microseconds a call: over realtime, and through the executor alone."""

    realtime: float
    same_process: float

    @property
    def more(self) -> float:
        """What a call over realtime costs more."""
        return self.realtime - self.same_process


@dataclass
class Outcome:
    """Costs by the number of calls in a turn."""

    costs: dict[int, Cost] = field(default_factory=dict)


def measure(*, quick: bool) -> Outcome:
    """Measure each case, its turns with those without calls and with the executor alone in turns."""
    factory = importlib.import_module("uvloop").new_event_loop  # what sessions of ``patchbay serve`` run on
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_measure(rounds=5 if quick else 15, turns=40 if quick else 100))


async def _measure(*, rounds: int, turns: int) -> Outcome:
    from patchbay import ToolCall
    from patchbay.executor import Executor

    say("realtime: a call of a session ...")
    executor = Executor([cases.echo])
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in CASES}
    async with AsyncExitStack() as stack:
        urls = stack.enter_context(_served((rounds + _WARM) * turns, (0, *CASES)))
        turn = {count: await _session(stack, url, count) for count, url in zip((0, *CASES), urls, strict=True)}
        for number in range(rounds + _WARM):
            without = await _cpu(turn[0], turns)
            for count in CASES:
                calls = [ToolCall(f"c{place}", cases.NAME, cases.arguments_text(place)) for place in range(count)]

                async def alone(calls: Sequence[ToolCall] = calls) -> None:
                    executions = await executor.run(calls)
                    assert not any(execution.is_error for execution in executions)

                with_calls, same = await _cpu(turn[count], turns), await _cpu(alone, turns)
                if number >= _WARM:
                    found[count].append(((with_calls - without) / count, same / count))
    return Outcome(
        {count: Cost(*(statistics.median(each) for each in zip(*costs, strict=True))) for count, costs in found.items()}
    )


@contextmanager
def _served(turns: int, counts: Sequence[int]) -> Iterator[list[str]]:
    """Run the server, and return a URL for each case."""
    argv = [sys.executable, "-W", "ignore", "-m", "bench.realtime.server", str(turns), *map(str, counts)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield [process.stdout.readline().strip() for _ in counts]
        finally:
            process.stdin.close()


async def _session(stack: AsyncExitStack, url: str, count: int) -> Callable[[], Awaitable[None]]:
    """Open a session and return a turn of it, which is held to its number of calls."""
    from patchbay.loop import ToolResultEvent
    from patchbay.realtime import RealtimeLimits, RealtimeSession, RealtimeSettings, ResponseEndEvent

    limits = RealtimeLimits(flood_calls=10**6)
    settings = RealtimeSettings(model="m", url=url, api_key="a-key-of-the-benchmark", output="text", limits=limits)
    session = await stack.enter_async_context(RealtimeSession(settings, tools=[cases.echo]))
    events = session.events()
    await anext(events)  # the connection is open

    async def turn() -> None:
        await session.send_text("Go.")
        ended = results = 0
        async for event in events:
            ended += isinstance(event, ResponseEndEvent)
            results += isinstance(event, ToolResultEvent)
            if ended == 2:
                break
            if not count and isinstance(event, ResponseEndEvent):
                await session.respond()
        if results != count:
            raise RuntimeError(f"{results} results of {count} calls")

    return turn


async def _cpu(work: Callable[[], Awaitable[None]], times: int) -> float:
    """Do some work so many times; return the CPU microseconds of each."""
    began = time.process_time_ns()
    for _ in range(times):
        await work()
    return (time.process_time_ns() - began) / times / 1000


HEADER = ("a turn of", "over realtime", "the same process", "more")


def rows(outcome: Outcome) -> list[list[str]]:
    """The rows of the table, in microseconds a call."""
    return [
        [f"{count} call{'s' * (count > 1)}", *(f"{each:.0f} µs" for each in (cost.realtime, cost.same_process, cost.more))]
        for count, cost in outcome.costs.items()
    ]
