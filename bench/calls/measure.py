"""All rows, each in processes of its own that take turns, A B C A B C, so that a noisy minute falls on all of them."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.calls import many
from bench.calls.many import Many
from bench.calls.plugin_folder import KINDS
from bench.calls.process import FOUND
from bench.calls.rows import Row
from bench.places import BUILD, ROOT, UnavailableError, say
from bench.processes import last_words, started

ONE_BY_ONE, TOGETHER = "one_by_one", "together"
WAYS = (ONE_BY_ONE, TOGETHER)
LIMIT = 180.0
"""Seconds that one process may take; the slowest take ten."""


@dataclass(frozen=True)
class Effort:
    """How much is measured: processes of each row, and calls in each; ``warm`` ones come first and are not counted.

    ``registrations`` are made in servers without any tools, ``many`` is how often 50 plugins are started.
    """

    processes: int = 5
    warm: int = 600
    one_by_one: int = 1000
    together: int = 1600
    registrations: int = 1000
    many: int = 3


QUICK = Effort(processes=2, one_by_one=400, together=640, many=1)


@dataclass
class Figures:
    """What one row's processes found: for each, by way, microseconds a call, and the CPU of each process that took part."""

    version: str
    found: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, found: dict[str, dict[str, Any]]) -> None:
        """Take what a process found."""
        for way, block in found.items():
            self.found.setdefault(way, []).append(block)

    def totals(self, way: str) -> list[float]:
        """CPU of all processes together, in microseconds a call: one figure from each process of the row."""
        return [sum(block["cpu"].values()) for block in self.found[way]]

    def cpu(self, way: str) -> float:
        """The median of them."""
        return statistics.median(self.totals(way))

    def parts(self, way: str) -> dict[str, float]:
        """The CPU of each process that takes part, each the median of its own."""
        blocks = self.found[way]
        return {part: statistics.median(block["cpu"][part] for block in blocks) for part in blocks[0]["cpu"]}

    def latency(self, way: str, which: str) -> float:
        """The median of the processes' ``"p50"`` or ``"p99"``, in microseconds."""
        return statistics.median(block[which] for block in self.found[way])

    def seconds(self, way: str) -> float:
        """How long all calls of a process took, the median of the processes."""
        return statistics.median(block["seconds"] for block in self.found[way])


@dataclass
class Outcome:
    """Figures by row, in the order of the rows, and of many plugins by their kind; ``skipped`` says why there are none."""

    figures: dict[str, Figures] = field(default_factory=dict)
    registering: Figures | None = None
    many: dict[str, list[Many]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


MANY = f"{many.PLUGINS} plugins of {many.TOOLS} tools"


def measure(rows: Sequence[Row], registering: Row | None, effort: Effort, *, allowed: bool) -> Outcome:
    """Measure every row that can be had, and what registering costs; ``allowed``: whether peers may be installed."""
    outcome = Outcome()
    pythons: dict[str, Path] = {}
    for row in rows:
        try:
            pythons[row.name] = row.python(allowed)
            outcome.figures[row.name] = Figures(row.version)
        except UnavailableError as error:
            _skip(outcome, row.name, error)
    for number in range(1, effort.processes + 1):
        for row in rows:
            if row.name not in outcome.figures:
                continue
            say(f"calls: {row.name} ({number} of {effort.processes}) ...")
            try:
                counts = (effort.warm, effort.one_by_one, effort.together)
                outcome.figures[row.name].add(run_process(pythons[row.name], row.module, counts))
            except UnavailableError as error:
                _skip(outcome, row.name, error)
    if registering is not None:
        _registering(outcome, registering, effort)
    for number in range(1, effort.many + 1):
        for kind in KINDS:
            if (name := f"{MANY}, {kind}") in outcome.skipped:
                continue
            say(f"calls: {name} ({number} of {effort.many}) ...")
            try:
                outcome.many.setdefault(kind, []).append(many.measure(_folder("many"), kind))
            except UnavailableError as error:
                outcome.many.pop(kind)
                _skip(outcome, name, error)
    return outcome


def _registering(outcome: Outcome, row: Row, effort: Effort) -> None:
    figures = Figures(row.version)
    try:
        for number in range(1, effort.processes + 1):
            say(f"calls: {row.name} ({number} of {effort.processes}) ...")
            # What a registration costs may depend on how many there are: each way begins with none.
            for counts in ((0, effort.registrations, 0), (0, 0, effort.registrations)):
                figures.add(run_process(row.python(True), row.module, counts))  # noqa: FBT003 (nothing is installed for it)
    except UnavailableError as error:
        _skip(outcome, row.name, error)
    else:
        outcome.registering = figures


def _skip(outcome: Outcome, name: str, error: UnavailableError) -> None:
    outcome.figures.pop(name, None)
    outcome.skipped[name] = str(error)
    say(f"calls: {name}: skipped, {error}")


def run_process(python: Path, module: str, counts: tuple[int, int, int]) -> dict[str, dict[str, Any]]:
    """Run one process of a row; raises UnavailableError with its last words where it finds nothing."""
    folder = _folder(module.rpartition(".")[2])
    argv = [str(python), "-W", "ignore", "-m", "bench.calls.process", module, *map(str, counts), str(folder)]
    log = folder / "caller.log"
    with started(argv, log=log, env={"PYTHONPATH": str(ROOT)}) as process:
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"did not end within {LIMIT:.0f} s") from None
    if code != 0:
        raise UnavailableError(last_words(log))
    found: dict[str, dict[str, Any]] = json.loads((folder / FOUND).read_text(encoding="utf-8"))
    return found


def _folder(name: str) -> Path:
    """An empty folder for logs and databases."""
    folder = BUILD / "run" / "calls" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def raw(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON."""
    return asdict(outcome)
