"""The help of commands has full lines and no types of switches. Its texts are checked with the documentation."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest


@pytest.mark.parametrize("command", ["audit", "chat", "mcp serve", "parse", "plugins run", "proxy", "serve"])
def test_help_breaks_lines_where_the_terminal_ends_and_shows_no_type_of_a_switch(command, patchbay, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, shown, _ = patchbay(*command.split(), "-h")
    assert (0, False) == (status, "<bool>" in shown)
    lines = [line.strip() for line in shown.partition("╭")[0].splitlines()]
    assert [] == [
        (line, after) for line, after in pairwise(lines) if line and after and len(f" {line} {after.split()[0]} ") <= 80
    ]


def test_a_full_disk_is_one_line():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "patchbay", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (1, "patchbay: standard output: No space left on device\n") == (done.returncode, done.stderr)
