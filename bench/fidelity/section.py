"""What a part of the measuring hands back: its bars, its tables, its raw figures, and the rows that were read wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.bars import Verdict
from bench.fidelity.readings import SLOW


@dataclass(frozen=True)
class Failure:
    """A row that was not read as its corpus expects. ``why`` is the scorer's word."""

    part: str
    row: str
    why: str
    text: str
    got: Any
    expected: Any


@dataclass
class Section:
    """One part's outcome. ``details`` are tables too long for the README."""

    verdicts: list[Verdict] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Section) -> None:
        """Put another part's outcome behind this one's."""
        self.verdicts += other.verdicts
        self.tables += other.tables
        self.details += other.details
        self.raw |= other.raw
        self.failures += other.failures


def at_least(what: str, bar: float, measured: float, *, unit: str = " %", detail: str = "") -> Verdict:
    """A bar that is met from ``bar`` on. Figures are rounded down, so that a missed bar is never shown as met."""
    return Verdict(what, f"≥ {bar:g}{unit}", f"{int(measured * 100) / 100:.2f}{unit}{detail}", measured >= bar)


def at_most(what: str, bar: int, measured: int, *, of: int | None = None) -> Verdict:
    """A count that may not pass ``bar``."""
    share = "" if of is None else f" of {of:,}"
    return Verdict(what, f"≤ {bar}" if bar else "0", f"{measured:,}{share}", measured <= bar)


def no_slow_text(what: str, milliseconds: Sequence[float]) -> Verdict:
    """No text may cost more than SLOW."""
    above = sum(value > SLOW for value in milliseconds)
    measured = f"{above:,} of {len(milliseconds):,} (slowest {max(milliseconds, default=0):.1f} ms)"
    return Verdict(f"{what}, texts above {SLOW:g} ms of CPU", "0", measured, above == 0)


def not_measured(what: str, bar: str, why: str) -> Verdict:
    """A bar that could not be measured."""
    return Verdict(what, bar, why, None)


def percent(part: float, whole: float) -> float:
    """A share in per cent; 0 of nothing."""
    return 100 * part / whole if whole else 0.0
