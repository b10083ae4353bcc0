"""The parsers, ours and the original's, on the same texts: CPU time whole, in chunks of 4 and of 40 characters, best of several."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import texts
from bench.places import BUILD, HERE, ROOT, UnavailableError, say

WHOLE, TINY, SMALL = 0, 4, 40
"""Characters in a chunk; 0 is the text in one piece. A model's token is about 4."""

_TOOLS = ["get_weather", "write_file"]
_LIMIT = 300.0


@dataclass(frozen=True)
class Case:
    """One reading to take: a text and how it is cut; the best of ``readings`` counts."""

    kind: str
    size: int
    chunk: int
    readings: int


@dataclass
class Outcome:
    """CPU milliseconds by (kind, size, chunk); ``skipped`` says why a parser has none, ``wrong`` which of its counts of calls are off."""

    ours: dict[tuple[str, int, int], float] = field(default_factory=dict)
    original: dict[tuple[str, int, int], float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def cases(*, quick: bool) -> list[Case]:
    """What is measured. The quick plan leaves out the smallest texts."""
    readings = 3 if quick else 5
    sizes = texts.SIZES[1:] if quick else texts.SIZES
    cuts = (WHOLE, TINY, SMALL)
    return [Case(kind, size, cut, readings) for kind in texts.KINDS for size in sizes for cut in cuts]


def measure(plan: Sequence[Case], node_modules: Path | str) -> Outcome:
    """Run both parsers over the plan; ``node_modules`` is where the original is, or the reason why it is nowhere."""
    folder = BUILD / "texts"
    texts.write_all(folder)
    plan_file = folder / "plan.json"
    plan_file.write_text(json.dumps({"texts": str(folder), "tools": _TOOLS, "cases": [asdict(case) for case in plan]}))
    outcome = Outcome()
    say("parser: ours ...")
    try:
        outcome.ours = _times([sys.executable, "-m", "bench.parser_ours", str(plan_file)], "patchbay", outcome.wrong)
    except UnavailableError as error:
        outcome.skipped["patchbay"] = str(error)
    if isinstance(node_modules, str):
        outcome.skipped["original"] = node_modules
        return outcome
    say("parser: the original ...")
    module = node_modules / "llm-tool-capability" / "dist" / "index.js"
    try:
        outcome.original = _times(
            ["node", str(HERE / "parser_original.mjs"), str(plan_file), str(module)], "the original", outcome.wrong
        )
    except UnavailableError as error:
        outcome.skipped["original"] = str(error)
    return outcome


def _times(argv: list[str], name: str, wrong: list[str]) -> dict[tuple[str, int, int], float]:
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"did not end within {_LIMIT:.0f} s") from None
    if done.returncode != 0:
        raise UnavailableError(done.stderr.strip()[-400:])
    found = {}
    for result in json.loads(done.stdout):
        expected = texts.calls_in(result["kind"], result["size"])
        if result["calls"] != expected:
            cut = f"chunks of {result['chunk']}" if result["chunk"] else "whole"
            wrong.append(f"{name}, {result['kind']} {result['size']} {cut}: {result['calls']} calls instead of {expected}")
        found[result["kind"], result["size"], result["chunk"]] = result["milliseconds"]
    return found


def raw(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON."""

    def rows(times: dict[tuple[str, int, int], float]) -> list[dict[str, Any]]:
        return [
            {"kind": kind, "characters": size, "chunk": chunk, "cpu_milliseconds": value}
            for (kind, size, chunk), value in times.items()
        ]

    return {
        "patchbay": rows(outcome.ours),
        "original": rows(outcome.original),
        "skipped": outcome.skipped,
        "wrong": outcome.wrong,
    }
