"""The help of commands has examples."""

from __future__ import annotations

import re

import pytest

COMMANDS = ["parse", *(f"formats {each}" for each in ("show", "model", "derive"))]
COMMANDS += [f"plugins {each}" for each in ("run", "list", "new", "reload", "freeze", "unfreeze", "stop", "logs")]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command, patchbay):
    status, shown, _ = patchbay(*command.split(), "--help")
    assert 0 == status
    assert re.search(rf"Examples?\b.*patchbay {command}", shown, re.DOTALL)
