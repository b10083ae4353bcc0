"""What a hook that is another process costs at each point: CPU time on both sides of the pipe, beside the same turn without it.

The hook is written with the SDK and looks at what it is asked about; that is, its functions are called, in threads. A turn is a
user's message, a model in memory that calls a function of two arguments, its result, and the model's "done": two requests with
their answers, and a call. ``python -m bench.hooks.process`` prints this table alone.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.places import say

BAR_MICROSECONDS = 250.0
"""CPU time of a point at most, the hook's own included."""

_HOOK = """
from patchbay.hooks.sdk import Hook

hook = Hook("bench")

@hook.before_llm
def look_at_request(request):
    assert request.model is not None

@hook.after_llm
def look_at_response(response):
    assert response.content is not None

@hook.before_tool
def look_at_call(call):
    assert call.tool

@hook.after_tool
def look_at_result(result):
    assert result.result is not None
"""
_TOOL = """
@hook.tool
def measure(text: str, count: int = 1) -> str:
    return text
"""
CALL = "a call: before and after"
REQUEST = "a request of 2 messages: before and after"
LONG = "a request of 40 messages and 10 tools: before and after"
OWN = "a call of a tool of the hook's own"


@dataclass(frozen=True)
class Cost:
    """Medians over rounds of CPU microseconds per point: in the host, beyond what it takes without hooks; and in the hook."""

    host: float
    hook: float

    @property
    def both(self) -> float:
        """What a point costs the machine."""
        return self.host + self.hook


@dataclass
class Outcome:
    """Costs by what was asked about."""

    costs: dict[str, Cost] = field(default_factory=dict)


def measure(*, quick: bool) -> Outcome:
    """Measure each case, with the hook and without it in turns."""
    return asyncio.run(_measure(rounds=5 if quick else 15, times=100 if quick else 300))


async def _measure(*, rounds: int, times: int) -> Outcome:
    outcome = Outcome()
    for what, modes, points in (
        (CALL, ("tool",), 2),
        (REQUEST, ("llm",), 4),
        (LONG, ("llm",), 4),
        (OWN, ("tool",), 1),
    ):
        say(f"hooks, a process: {what} ...")
        hosts, hooks = [], []
        async with _hooked(modes, _HOOK + _TOOL if what == OWN else _HOOK) as (manager, pid):
            bare, asked = _work(what, None), _work(what, manager)
            for number in range(rounds + 1):
                without = await _cpu(bare, times)
                before = _cpu_of(pid)
                with_it = await _cpu(asked, times)
                if number:  # the first round warms up
                    hosts.append((with_it - without) / points)
                    hooks.append((_cpu_of(pid) - before) / times / points)
        outcome.costs[what] = Cost(statistics.median(hosts), statistics.median(hooks))
    return outcome


@asynccontextmanager
async def _hooked(modes: Sequence[str], source: str) -> AsyncIterator[tuple[Any, int]]:
    from patchbay.hooks import PROCESS, HookManager
    from patchbay.hooks.process import ProcessHook, ProcessSpec

    with tempfile.TemporaryDirectory() as folder:
        command = _written(Path(folder, "hook.py"), source)
        hook = ProcessHook(ProcessSpec(name="bench", command=command, modes=frozenset(modes)))
        manager = HookManager()
        await hook.start()
        manager.mount("bench", hook, group=PROCESS, methods=hook.methods)
        try:
            yield manager, hook.pid
        finally:
            await manager.aclose()


def _written(path: Path, source: str) -> tuple[str, ...]:
    path.write_text(f"{source}\nhook.run()\n", encoding="utf-8")
    return sys.executable, str(path)


def _work(what: str, manager: Any) -> Any:
    """Return the coroutine function that is timed."""
    from patchbay import ToolCall
    from patchbay.executor import Executor
    from patchbay.loop import turn
    from patchbay.testing import ScriptedModel

    async def noop(text: str, count: int = 1) -> str:
        return text * count

    arguments = '{"text": "some text", "count": 2}'
    if what == OWN:
        return _own_call(manager)
    if what == CALL:
        executor = Executor([noop], hooks=manager, max_repeats=None)
        calls = [ToolCall("1", "noop", arguments)]

        async def one_call() -> None:
            (execution,) = await executor.run(calls)
            assert not execution.is_error

        return one_call
    others = [_named(f"tool_{number}") for number in range(10 if what == LONG else 0)]
    executor = Executor([noop, *others], hooks=manager, max_repeats=None)
    messages = [{"role": "user", "content": "A question of some words. " * 8}] * (40 if what == LONG else 1)

    async def one_turn() -> None:
        model = ScriptedModel([ToolCall("1", "noop", arguments), "done"])
        last = None
        async for event in turn(model, executor, messages):
            last = event
        assert last is not None
        assert last.finish_reason == "stop"

    return one_turn


def _own_call(manager: Any) -> Any:
    """Call the hook itself, as the executor of its tool does; without a hook only build its view."""
    from patchbay.hooks.process.protocol import decode_params

    params = {"tool": "measure", "arguments": {"text": "some text", "count": 2}, "source": "hook:bench"}

    async def own_call() -> None:
        view = decode_params("before_tool", params)
        if manager is not None:
            assert await manager.mounted[0].hook.before_tool(view) is not None

    return own_call


def _named(name: str) -> Any:
    async def function(text: str, count: int = 1) -> str:
        return text * count

    function.__name__ = name
    return function


async def _cpu(work: Any, times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        await work()
    return (time.process_time() - began) * 1e6 / times


def _cpu_of(pid: int) -> float:
    """Return the CPU microseconds of all threads of a process."""
    tasks = Path("/proc", str(pid), "task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3


def rows(outcome: Outcome) -> list[list[str]]:
    """Return the table's rows: what, host, hook, both."""
    return [[what, f"{cost.host:.0f}", f"{cost.hook:.0f}", f"{cost.both:.0f}"] for what, cost in outcome.costs.items()]


HEADER = ("CPU µs per point", "in the host", "in the hook", "both")


def main() -> None:
    """Print the table."""
    from bench.table import machine, markdown

    outcome = measure(quick="--quick" in sys.argv)
    print(f"A hook that is a process: CPU time beyond the same turn without it. {machine()}.\n")
    print(markdown(HEADER, rows(outcome)))
    worst = max(cost.both for cost in outcome.costs.values())
    print(f"\nthe bar is {BAR_MICROSECONDS:.0f} µs: {'met' if worst <= BAR_MICROSECONDS else 'MISSED'}")


if __name__ == "__main__":
    main()
