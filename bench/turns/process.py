"""Runs in a process of its own, in its row's environment: ``python -m bench.turns.process MODULE:CLASS WARM TURNS`` prints JSON.

Standard library only, but for what the row imports.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import statistics
import sys
import time
from typing import Any

from bench.turns.cases import DONE, Turns

_MODEL_CALLS = 2


def measure(row: type[Turns], *, warm: int, turns: int) -> dict[str, Any]:
    """Median CPU microseconds of a turn of each case, and the CPU milliseconds until the first answer in this process.

    Raises RuntimeError for a row that does not do what all of them have to.
    """
    first = asyncio.run(_first_answer(row(row.measured[0], sloppy=row.checks)))
    costs = {case.name: asyncio.run(_case(row(case), warm, turns)) for case in row.measured}
    return {"first_answer": first, "microseconds": costs}


async def _first_answer(row: Turns) -> float:
    await _turn(row)
    answered = time.process_time() * 1e3
    if row.index != 0:
        raise RuntimeError(f"the arguments were not checked: the function was given {row.index!r} for an int")
    return answered


async def _case(row: Turns, warm: int, turns: int) -> float:
    for _ in range(warm):
        await _turn(row)
    gc.collect()  # the collector stays on: users have it on
    return statistics.median([await _turn(row) for _ in range(turns)])


async def _turn(row: Turns) -> float:
    """Measure one turn: microseconds of the whole process, threads included. An incorrect turn ends the run."""
    asked, ran = row.model_calls, row.tool_runs
    began = time.process_time_ns()
    said = await row.turn()
    spent = time.process_time_ns() - began
    await row.forget()
    asked, ran = row.model_calls - asked, row.tool_runs - ran
    if (said, asked, ran) != (DONE, _MODEL_CALLS, row.case.calls):
        raise RuntimeError(f"{row.case.name}: {said!r} after {asked} calls of the model and {ran} runs of the tool")
    return spent / 1e3


def main() -> None:
    """Measure one row."""
    module, warm, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    logging.disable(logging.CRITICAL)
    name, _, kind = module.partition(":")
    json.dump(measure(getattr(importlib.import_module(name), kind), warm=warm, turns=turns), sys.stdout)


if __name__ == "__main__":
    main()
