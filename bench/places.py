"""Where the benchmark finds and keeps things, how it says what it is doing, and how it says that something can not be had."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "bench"
PROJECT = ROOT / "docs" / "project"
PAGES = {"bench": PROJECT / "benchmarks.md", "fidelity": PROJECT / "fidelity.md"}
"""The page with the tables of each suite; README.md has a few lines of them."""

README = ROOT / "README.md"
BUILD = ROOT / ".build" / "bench"
"""Everything that is compiled, installed or written while measuring; ignored by git, safe to delete."""

SHARED = ROOT.parent / "shared" / "bench" / "proxy"
"""The scripted upstream and the load client (C sources) and their canned bodies; read only, and not part of this repository."""


@functools.cache  # the tables that are written would make the tree dirty
def commit() -> str:
    """The commit of the tree that is measured, ending in ``-dirty`` where tracked files differ from it; "unknown" outside of git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


class UnavailableError(Exception):
    """A part or a peer can not be measured here. The message is the reason that the table shows."""


def say(text: str) -> None:
    """Print progress to standard error; standard output has only the table."""
    print(text, file=sys.stderr, flush=True)


def check_writable(*, partial: bool) -> None:
    """Raise UnavailableError where tables must not be written: figures of a part, of a quick look, or of a tree that is no commit."""
    if partial:
        raise UnavailableError("the tables are written by one whole run: leave the options out that measure less")
    if (tree := commit()).endswith("-dirty") or tree == "unknown":
        raise UnavailableError(f"the tables name the commit that was measured, and this tree is {tree}: commit first")


def write_tables(suite: str, text: str, headlines: str) -> None:
    """Write ``text`` into the suite's page and ``headlines`` into README.md, record the tables as JSON, and draw the charts."""
    from bench import charts

    write_between(PAGES[suite], suite, text)
    write_between(README, f"{suite} headlines", headlines)
    charts.record(suite, text)


def write_between(file: Path, name: str, text: str) -> None:
    """Replace the text between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``; a file without these marks is unchanged."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found_begin, rest = file.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        say(f"{file}: not written, it has no '{begin}' ... '{end}'")
        return
    file.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
