"""Paths of the benchmark, its progress messages, and the error for what can not be measured here."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "bench"
PROJECT = ROOT / "docs" / "project"
README = ROOT / "README.md"
BUILD = ROOT / ".build" / "bench"
"""Everything that is compiled, installed or written while measuring; ignored by git, safe to delete."""

SHARED = ROOT.parent / "shared" / "bench" / "proxy"
"""The scripted upstream and the load client (C sources) and their canned bodies; read only, and not part of this repository."""


class UnavailableError(Exception):
    """A part or a peer can not be measured here. The message is the reason that the table shows."""


@functools.cache  # the tables that are written would make the tree dirty
def commit() -> str:
    """The commit of the measured tree, ending in ``-dirty`` where tracked files differ from it; "unknown" outside of git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def say(text: str) -> None:
    """Print progress to standard error; standard output has only the tables."""
    print(text, file=sys.stderr, flush=True)
