"""Runs in a process of its own, in its row's environment: ``python -m bench.calls.process MODULE WARM ONE_BY_ONE TOGETHER FOLDER``.

It is the caller, and reads the clocks of all that take part. It writes what it found to ``found.json`` in the folder. Standard
library only, but for what the row imports.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from bench.calls.cases import Opened, Row, expected
from bench.processes import cpu_clock

AT_ONCE = 16
FOUND = "found.json"
_SETTLE = 0.05
"""Seconds between the last answer and the second reading: acknowledgements and the like come after the answer."""
_LIMIT = 60.0
"""Seconds for the calls of one kind."""


async def measure(row: Row, folder: Path, *, warm: int, one_by_one: int, together: int) -> dict[str, Any]:
    """CPU microseconds of each process and the latency of a call, one after the other and 16 at once.

    Raises RuntimeError for a call that did not come to what it had to.
    """
    numbers = iter(range(sys.maxsize))
    async with row.opened(folder) as opened:
        for width in (1, AT_ONCE) if warm else ():
            await _make(opened, numbers, warm // 2, width)
        found = {}
        for name, count, width in (("one_by_one", one_by_one, 1), ("together", together, AT_ONCE)):
            if count:
                found[name] = await _block(opened, numbers, count, width)
        return found


async def _block(opened: Opened, numbers: Iterator[int], count: int, width: int) -> dict[str, Any]:
    gc.collect()  # the collector stays on: users have it on
    before, began = _clocks(opened), time.perf_counter()
    seconds = await _make(opened, numbers, count, width)
    took = time.perf_counter() - began
    await asyncio.sleep(_SETTLE)
    cpu = {name: (after - before[name]) / count * 1e6 for name, after in _clocks(opened).items()}
    return {"cpu": cpu, "p50": percentile(seconds, 50) * 1e6, "p99": percentile(seconds, 99) * 1e6, "seconds": took}


def _clocks(opened: Opened) -> dict[str, float]:
    """Seconds of CPU so far, of the caller first; threads are counted, children are not."""
    return {"caller": time.process_time(), **{name: cpu_clock(pid) for name, pid in opened.pids.items()}}


async def _make(opened: Opened, numbers: Iterator[int], count: int, width: int) -> list[float]:
    """Make ``count`` calls, ``width`` at a time; return the seconds that each took."""
    seconds: list[float] = []

    async def caller() -> None:
        while len(seconds) + under_way[0] < count:
            number = next(numbers)
            under_way[0] += 1
            began = time.perf_counter()
            came = await opened.call(number)
            seconds.append(time.perf_counter() - began)
            under_way[0] -= 1
            if came != expected(number):
                raise RuntimeError(f"call {number} came to {came!r}")

    under_way = [0]
    async with asyncio.timeout(_LIMIT):
        if width == 1:
            await caller()
        else:
            await asyncio.gather(*(caller() for _ in range(width)))
    return seconds


def percentile(values: Sequence[float], percent: int) -> float:
    """The least value that ``percent`` per cent of them do not exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def main() -> None:
    """Measure one row."""
    module, warm, one_by_one, together = sys.argv[1], *map(int, sys.argv[2:5])
    folder = Path(sys.argv[5])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that every process of the row is stopped
    logging.disable(logging.CRITICAL)
    row = cast("Row", importlib.import_module(module))
    factory = importlib.import_module("uvloop").new_event_loop if row.UVLOOP else None
    with asyncio.Runner(loop_factory=factory) as runner:
        found = runner.run(measure(row, folder, warm=warm, one_by_one=one_by_one, together=together))
    (folder / FOUND).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
