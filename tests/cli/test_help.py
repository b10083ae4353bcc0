"""The help of commands has examples, full lines, and no types of switches."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

COMMANDS = ["parse", *(f"formats {each}" for each in ("show", "model", "derive"))]
COMMANDS += [f"plugins {each}" for each in ("run", "list", "new", "reload", "freeze", "unfreeze", "stop", "logs")]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command, patchbay):
    status, shown, _ = patchbay(*command.split(), "--help")
    assert 0 == status
    assert re.search(rf"Examples?\b.*patchbay {command}", shown, re.DOTALL)


@pytest.mark.parametrize("command", ["audit", "chat", "mcp serve", "parse", "plugins run", "proxy", "serve"])
def test_help_breaks_lines_where_the_terminal_ends(command, patchbay, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, shown, _ = patchbay(*command.split(), "--help")
    lines = [line.strip() for line in shown.partition("╭")[0].splitlines()]
    assert [] == [
        (line, after) for line, after in pairwise(lines) if line and after and len(f" {line} {after.split()[0]} ") <= 80
    ]


@pytest.mark.parametrize("command", ["", "audit", "plugins run", "serve"])
def test_help_shows_no_type_of_a_switch(command, patchbay):
    assert "<bool>" not in patchbay(*command.split(), "--help")[1]
