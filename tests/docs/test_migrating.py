"""Each import line that the migration page gives works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "get-started" / "migrating.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| `(from patchbay[^`]*)`", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("before", "here"), ROWS, ids=[before for before, _ in ROWS])
def test_new_import_lines_provide_the_old_names(before, here):
    names: dict[str, object] = {}
    exec(here, names)
    if " import " in before:
        assert {*before.strip("`").partition(" import ")[2].split(", ")} <= names.keys()


@pytest.mark.parametrize("module", ["plugin.sdk.plugin", "main_logic.tool_calling", "soulbot.tools.base_tool"])
def test_every_module_the_seeds_import_exists(module):
    assert any(before.startswith(f"`from {module} import ") for before, _ in ROWS)
