"""What a hook adds to a tool call: one of this process that changes nothing, and one that is a process of its own.

The same work with and without the hook alternates; the figure is the median of the differences of CPU time. Of a hook process both
sides of the pipe count.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import process_time
from typing import Any

from bench.places import say
from bench.processes import cpu_clock
from bench.report import Section, at_most, machine, markdown
from patchbay import ToolCall
from patchbay.executor import Executor
from patchbay.hooks import PROCESS, HookManager
from patchbay.hooks.process import ProcessHook, ProcessSpec

IDLE_MICROSECONDS = 15.0
PROCESS_MICROSECONDS = 350.0
IDLE = "an idle hook in the same process, a call"
POINT = "a hook that is a process, a point of a call"

TIMES = {True: (5, 100), False: (40, 300)}
"""Rounds, and pieces of work in each; True: a quick look."""
_CALLS = 16
"""Calls of one reply; an idle hook is measured on each, a process on one at a time."""
_HOOK = """
from patchbay.hooks.sdk import Hook

hook = Hook("bench")

@hook.before_tool
def look_at_call(call):
    assert call.tool

@hook.after_tool
def look_at_result(result):
    assert result.result is not None

hook.run()
"""


class _Idle:
    async def before_tool(self, call: Any) -> None:
        pass

    async def after_tool(self, result: Any) -> None:
        pass


def section(*, quick: bool) -> Section:
    """Measure both kinds of hook."""
    say("hooks ...")
    rounds, times = TIMES[quick]
    idle, of_process = asyncio.run(_idle(rounds, times)), asyncio.run(_process(rounds, times))
    host, hook = of_process
    rows = [
        [IDLE, f"{idle:.1f}", ""],
        [POINT, f"{host + hook:.0f}", f"in the host {host:.0f}, in the hook {hook:.0f}"],
    ]
    table = f"Hooks: CPU µs beyond the same work without them, median of {rounds} alternating rounds. {machine()}.\n\n"
    verdicts = [
        at_most(f"CPU of {IDLE}", idle, IDLE_MICROSECONDS, "µs"),
        at_most(f"CPU of {POINT}", host + hook, PROCESS_MICROSECONDS, "µs"),
    ]
    return Section(
        verdicts, [table + markdown(["CPU µs", "added", "of which"], rows)], {"hooks": {IDLE: idle, POINT: of_process}}
    )


async def _idle(rounds: int, times: int) -> float:
    manager = HookManager()
    manager.mount("idle", _Idle())
    bare, hooked = _work(None, _CALLS), _work(manager, _CALLS)
    pairs = [(await _cpu(bare, times), await _cpu(hooked, times)) for _ in range(rounds + 1)][1:]
    return statistics.median(after - before for before, after in pairs) / _CALLS


async def _process(rounds: int, times: int) -> tuple[float, float]:
    """Microseconds of a point in this process and in the hook's."""
    hosts, hooks = [], []
    async with _hook_process() as (manager, pid):
        bare, hooked = _work(None, 1), _work(manager, 1)
        for number in range(rounds + 1):
            without, before = await _cpu(bare, times), cpu_clock(pid)
            with_it = await _cpu(hooked, times)
            if number:  # the first round warms up
                hosts.append((with_it - without) / 2)
                hooks.append((cpu_clock(pid) - before) * 1e6 / times / 2)
    return statistics.median(hosts), statistics.median(hooks)


@asynccontextmanager
async def _hook_process() -> AsyncIterator[tuple[HookManager, int]]:
    with tempfile.TemporaryDirectory() as folder:
        hook = ProcessHook(ProcessSpec(name="bench", command=_command(Path(folder, "hook.py")), modes=frozenset(["tool"])))
        manager = HookManager()
        await hook.start()
        manager.mount("bench", hook, group=PROCESS, methods=hook.methods)
        try:
            yield manager, hook.pid
        finally:
            await manager.aclose()


def _command(path: Path) -> tuple[str, ...]:
    path.write_text(_HOOK, encoding="utf-8")
    return sys.executable, str(path)


def _work(manager: HookManager | None, count: int) -> Callable[[], Awaitable[None]]:
    async def noop(text: str, number: int = 1) -> str:
        return text * number

    executor = Executor([noop], hooks=manager, max_repeats=None)
    calls = [ToolCall(f"c{each}", "noop", '{"text": "some text", "number": 2}') for each in range(count)]

    async def work() -> None:
        assert not any(execution.is_error for execution in await executor.run(calls))

    return work


async def _cpu(work: Callable[[], Awaitable[None]], times: int) -> float:
    """Microseconds of CPU of one piece of work."""
    began = process_time()
    for _ in range(times):
        await work()
    return (process_time() - began) * 1e6 / times
