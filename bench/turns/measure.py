"""All rows, each in processes of its own that take turns, A B C A B C, so that a noisy minute falls on all of them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.places import ROOT, UnavailableError, say
from bench.turns.cases import ONE, SIXTEEN, Case
from bench.turns.rows import Row

_LIMIT = 180.0
"""Seconds that one process may take; the slowest take ten."""


@dataclass(frozen=True)
class Effort:
    """How much is measured. ``warm`` turns of each case come first and are not counted."""

    processes: int = 5
    warm: int = 40
    turns: int = 200


QUICK = Effort(processes=2, turns=60)
CLIENT = Effort(processes=3, warm=10, turns=30)
QUICK_CLIENT = Effort(processes=1, warm=5, turns=10)


@dataclass
class Figures:
    """What one row's processes found: for each, by case, its median of CPU microseconds a turn.

    ``first_answer``: CPU milliseconds from the start of a process to its first answer. ``megabytes``: the most memory it had.
    """

    version: str
    microseconds: dict[str, list[float]] = field(default_factory=dict)
    first_answer: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)

    def cpu(self, case: Case) -> float:
        """The median of the processes, in microseconds a turn."""
        return statistics.median(self.microseconds[case.name])

    @property
    def further_call(self) -> float:
        """What each call beyond the first adds, in microseconds."""
        return (self.cpu(SIXTEEN) - self.cpu(ONE)) / (SIXTEEN.calls - ONE.calls)


@dataclass
class Outcome:
    """Figures by row, in the order of the rows; ``skipped`` says why a row has none."""

    figures: dict[str, Figures] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def measure(rows: Sequence[Row], effort: Effort, *, allowed: bool) -> Outcome:
    """Measure every row that can be had; ``allowed``: whether peers may be installed."""
    outcome = Outcome()
    pythons: dict[str, Path] = {}
    for row in rows:
        try:
            pythons[row.name] = row.python(allowed)
            outcome.figures[row.name] = Figures(row.version)
        except UnavailableError as error:
            _skip(outcome, row, error)
    for number in range(1, effort.processes + 1):
        for row in rows:
            if row.name not in outcome.figures:
                continue
            say(f"turns: {row.name} ({number} of {effort.processes}) ...")
            try:
                _add(outcome.figures[row.name], run_process(pythons[row.name], row.module, effort))
            except UnavailableError as error:
                _skip(outcome, row, error)
    return outcome


def _skip(outcome: Outcome, row: Row, error: UnavailableError) -> None:
    outcome.figures.pop(row.name, None)
    outcome.skipped[row.name] = str(error)
    say(f"turns: {row.name}: skipped, {error}")


def _add(figures: Figures, found: dict[str, Any]) -> None:
    for name, microseconds in found["microseconds"].items():
        figures.microseconds.setdefault(name, []).append(microseconds)
    figures.first_answer.append(found["first_answer"])
    figures.megabytes.append(found["megabytes"])


def run_process(python: Path, module: str, effort: Effort) -> dict[str, Any]:
    argv = [str(python), "-W", "ignore", "-m", "bench.turns.process", module, str(effort.warm), str(effort.turns)]
    # Nothing is called with it, but two of the peers want to see a key.
    env = {**os.environ, "OPENAI_API_KEY": "unused", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    try:
        done = subprocess.run(
            argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"did not end within {_LIMIT:.0f} s") from None
    if done.returncode != 0:
        raise UnavailableError((done.stderr.strip().splitlines() or ["failed and said nothing"])[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def raw(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON."""
    return {"rows": {name: asdict(figures) for name, figures in outcome.figures.items()}, "skipped": outcome.skipped}
