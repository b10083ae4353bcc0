"""Runs in a process of its own: times our parser. ``python -m bench.parser_ours PLAN.json`` prints JSON; parser_original.mjs is its twin."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from patchbay import StreamParser, parse

_LONG_ENOUGH = 0.02
"""Seconds of CPU time below which a reading is repeated within itself: the clock's own cost must not show."""


def _tools(names: list[str]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]


def _whole(text: str, tools: list[dict[str, Any]]) -> int:
    return len(parse(text, tools=tools).tool_calls)


def _in_chunks(chunks: list[str], tools: list[dict[str, Any]]) -> int:
    parser = StreamParser(tools=tools)
    feed = parser.feed
    for chunk in chunks:
        feed(chunk)
    parser.close()
    return len(parser.reply.tool_calls)


def _best(run: Callable[[], int], readings: int) -> tuple[float, int]:
    """The least CPU milliseconds of one run, and the calls it found. The collector stays on: users have it on."""
    calls = run()
    repeats, best = 1, float("inf")
    while readings:
        gc.collect()
        start = time.process_time()
        for _ in range(repeats):
            run()
        spent = time.process_time() - start
        if spent < _LONG_ENOUGH and repeats < 10_000:
            repeats *= 4
            continue
        best = min(best, spent / repeats)
        readings -= 1
    return best * 1e3, calls


def main() -> None:
    """Measure the plan's cases in order."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    tools = _tools(plan["tools"])
    results = []
    for case in plan["cases"]:
        text = Path(plan["texts"], f"{case['kind']}-{case['size']}.txt").read_text(encoding="ascii")
        chunk = case["chunk"]
        if chunk:
            chunks = [text[at : at + chunk] for at in range(0, len(text), chunk)]
            milliseconds, calls = _best(partial(_in_chunks, chunks, tools), case["readings"])
        else:
            milliseconds, calls = _best(partial(_whole, text, tools), case["readings"])
        results.append({**case, "characters": len(text), "milliseconds": milliseconds, "calls": calls})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
