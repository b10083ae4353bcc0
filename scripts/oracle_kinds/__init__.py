"""The kinds of behaviour that ``scripts/oracle.py`` freezes, one module each. Each has ``record() -> Recorded``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
"""Recorded corpora beside the repository. They are other people's texts: only digests of what is read in them are kept."""


@dataclass
class Recorded:
    """What one kind is now: ``files`` by name, and why some are ``absent`` (these are neither written nor compared).

    ``compare`` lists what differs, given a file's name, what it held and what it holds now; without it lines are compared.
    """

    files: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    compare: Callable[[str, str, str], list[str]] | None = None


class Names:
    """Replaces what is drawn by chance or by the clock with a name for each value, in the order in which the values appear."""

    UNNUMBERED = frozenset({"duration", "time", "port"})
    """Of these two equal values mean nothing."""

    def __init__(self, **patterns: str) -> None:
        """``patterns`` are regular expressions by the names of what they find; a group, where there is one, is what is replaced."""
        self._patterns = {name: re.compile(pattern) for name, pattern in patterns.items()}
        self._seen: dict[str, dict[str, str]] = {name: {} for name in patterns}

    def __call__(self, text: str) -> str:
        for name, pattern in self._patterns.items():
            text = pattern.sub(lambda found, name=name: self._name(name, found), text)
        return text

    def _name(self, name: str, found: re.Match[str]) -> str:
        value = found[found.lastindex or 0]
        seen = self._seen[name]
        number = "" if name in self.UNNUMBERED else f"-{len(seen) + 1}"
        start, end = (place - found.start() for place in found.span(found.lastindex or 0))
        return found[0][:start] + seen.setdefault(value, f"<{name}{number}>") + found[0][end:]
