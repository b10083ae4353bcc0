"""Rows of data for parametrized tests, from a file beside the tests: one JSON value a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def rows(test_file: str, name: str) -> list[Any]:
    """Return the rows of the file ``name`` in the folder of ``test_file``."""
    return [json.loads(line) for line in Path(test_file).with_name(name).read_text(encoding="utf-8").splitlines()]
