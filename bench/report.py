"""What a part of the benchmark reports, and how it is shown: bars, tables of aligned Markdown, raw figures, wrong rows."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.places import README, UnavailableError, commit, say

NOT_MEASURED = "–"


@dataclass(frozen=True)
class Verdict:
    """One bar. ``met`` is None where it could not be measured; ``measured`` then says why."""

    what: str
    bar: str
    measured: str
    met: bool | None

    @property
    def word(self) -> str:
        """The word of the table."""
        return {True: "met", False: "**MISSED**", None: "not measured"}[self.met]


@dataclass(frozen=True)
class Failure:
    """A row of a corpus that was not read as the corpus expects. ``why`` is the scorer's word."""

    part: str
    row: str
    why: str
    text: str
    got: Any
    expected: Any


@dataclass
class Section:
    """The outcome of one part."""

    verdicts: list[Verdict] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Section) -> None:
        """Append the outcome of another part."""
        self.verdicts += other.verdicts
        self.tables += other.tables
        self.raw |= other.raw
        self.failures += other.failures

    def write_raw(self, file: Path, **more: Any) -> None:
        """Write every figure as JSON."""
        raw = {**self.raw, **more, "machine": machine(), "bars": [vars(verdict) for verdict in self.verdicts]}
        raw["failures"] = [vars(failure) for failure in self.failures]
        file.write_text(json.dumps(raw, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


def ratio(
    what: str, ours: float | None, theirs: float | None, limit: float, *, fraction: bool = False, detail: str = ""
) -> Verdict:
    """The bar of a ratio, at most ``limit``; with ``fraction`` both are shown as 1/n, which reads better below a fifth."""
    bar = f"≤ 1/{1 / limit:.0f}" if fraction else f"≤ {limit:g}"
    if ours is None or theirs is None:
        return Verdict(what, bar, "no figures of ours" if ours is None else "no figures to compare with", None)
    found = ours / theirs
    return Verdict(what, bar, (f"1/{1 / found:.1f}" if fraction else f"{found:.2f}") + detail, found <= limit)


def at_most(what: str, value: float | None, limit: float, unit: str) -> Verdict:
    """The bar of a figure, at most ``limit``; ``unit`` may be empty."""
    bar = f"≤ {limit:g} {unit}".rstrip()
    if value is None:
        return Verdict(what, bar, "no figures", None)
    shown = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return Verdict(what, bar, f"{shown} {unit}".rstrip(), value <= limit)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with its columns padded; all but the first are aligned to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [cells[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))]
        return f"| {' | '.join(padded)} |"

    rule = [f"{'-' * widths[0]}", *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    return "\n".join([line(lines[0]), line(rule), *(line(cells) for cells in lines[1:])])


def between(values: Sequence[float]) -> str:
    """The median of figures with their minimum and maximum."""
    value = statistics.median(values)
    digits = 0 if value >= 100 else 1
    return f"{value:,.{digits}f} [{min(values):,.{digits}f}–{max(values):,.{digits}f}]"


def machine() -> str:
    """The machine, in one line."""
    return f"{os.cpu_count()} cores, Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"


def tree() -> str:
    """The measured commit and the machine: scripts/check_docs.py reads the commit."""
    return f"Commit `{commit()}`. {machine()}."


def bars(verdicts: Sequence[Verdict]) -> str:
    """The bars, one a line."""
    rows = [[verdict.what, verdict.bar, verdict.measured, verdict.word] for verdict in verdicts]
    return markdown(["", "bar", "measured", ""], rows)


def check_writable(*, partial: bool) -> None:
    """Raise UnavailableError where tables must not be written: figures of a part, of a quick look, or of a tree that is no commit."""
    if partial:
        raise UnavailableError("the tables are written by one whole run: leave the options out that measure less")
    if (found := commit()).endswith("-dirty") or found == "unknown":
        raise UnavailableError(f"the tables name the commit that was measured, and this tree is {found}: commit first")


def write_tables(suite: str, page: Path, text: str, verdicts: Sequence[Verdict], headlines: Sequence[str]) -> None:
    """Write ``text`` into the page of a suite, and the bars named in ``headlines`` into README.md."""
    write_between(page, suite, text)
    few = bars([verdict for verdict in verdicts if verdict.what in headlines])
    write_between(README, f"{suite} headlines", f"{tree()}\n\n{few}")


def write_between(file: Path, name: str, text: str) -> None:
    """Replace the text between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``; a file without these marks is unchanged."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found_begin, rest = file.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        say(f"{file}: not written, it has no '{begin}' ... '{end}'")
        return
    file.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
