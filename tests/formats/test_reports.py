"""Texts of public bug reports, with the right calls, content and reasoning.

They are other people's texts, so they are no part of the repository: where they are absent, this test is skipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .cuts import calls_of, read

REPORTS = Path(__file__).parents[3] / "shared" / "data" / "reports" / "texts.jsonl"
ROWS = [json.loads(line) for line in REPORTS.read_text(encoding="utf-8").splitlines()] if REPORTS.exists() else []


@pytest.mark.skipif(not ROWS, reason=f"{REPORTS.name} is not beside the repository")
@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_a_reported_text_is_read_as_meant(row: dict[str, object]) -> None:
    reply = read(str(row["text"]), row["tools"])
    assert row["calls"] == [{"name": name, "arguments": arguments} for name, arguments in calls_of(reply)]
    assert (row["content"], row["reasoning"], ()) == (reply.content, reply.reasoning, reply.incomplete)
