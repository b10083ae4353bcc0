"""Where the benchmark finds and keeps things, how it says what it is doing, and how it says that something can not be had."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "bench"
BUILD = ROOT / ".build" / "bench"
"""Everything that is compiled, installed or written while measuring; ignored by git, safe to delete."""

SHARED = ROOT.parent / "shared" / "bench" / "proxy"
"""The scripted upstream and the load client (C sources) and their canned bodies; read only, and not part of this repository."""


class UnavailableError(Exception):
    """A part or a peer can not be measured here. The message is the reason that the table shows."""


def say(text: str) -> None:
    """Progress for whoever waits: standard error, so that standard output stays the table."""
    print(text, file=sys.stderr, flush=True)


def write_between(file: Path, begin: str, end: str, text: str) -> None:
    """Put ``text`` between two marks of ``file``; a file without them is left alone, and that is said."""
    before, found_begin, rest = file.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        say(f"{file}: left alone, it has no '{begin}' ... '{end}'")
        return
    file.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
