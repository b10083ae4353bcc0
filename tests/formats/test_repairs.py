"""Repairs are reported for the final reading only, not for one that was discarded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from patchbay import StreamParser
from patchbay.types import ToolSpec

from .cuts import calls_of, read

HARBOUR = {"type": "object", "properties": {"harbour": {"type": "string"}}}
TOOLS = [ToolSpec("tide_table", parameters=HARBOUR)]
OTHERS = [ToolSpec("clock_now", parameters=HARBOUR)]
MARKED = """Let me look.
<tool_call>
{"name": "tide_table", "arguments": {"harbour": "Brest",}}
</tool_call>"""
LINE = '[tide_table(harbour="Brest" days=3)]'


@pytest.mark.parametrize("tools", [[], OTHERS])
@pytest.mark.parametrize("text", [MARKED, LINE, MARKED + "\n" + LINE])
def test_prose_has_no_repairs(text: str, tools: list[ToolSpec]) -> None:
    reply = read(text, tools)
    assert ([], text, ()) == (calls_of(reply), reply.content, reply.repairs)


def test_each_repair_is_reported_once() -> None:
    reply = read(MARKED, TOOLS)
    assert [("trailing_comma", MARKED.index("}}"))] == [(repair.kind, repair.position) for repair in reply.repairs]
    prose = MARKED.replace("tide_table", "clock_then")
    reply = read(prose + "\n" + MARKED, TOOLS)
    assert [len(prose) + 1 + MARKED.index("}}")] == [repair.position for repair in reply.repairs]


def test_the_documentation_names_every_kind() -> None:
    root = Path(__file__).parents[2]
    files = (root / "src/patchbay/formats").rglob("*.py")
    noted = [text for file in files for text in re.findall(r"note\((.*)\)", file.read_text(encoding="utf-8"))]
    kinds = {kind for text in noted for kind in re.findall(r'"([a-z_]+)"', text)}
    assert {"trailing_comma", "unknown_tool", "wrong_opener"} <= kinds
    table = (root / "docs/guides/parse.md").read_text(encoding="utf-8").partition("## What is mended")[2]
    outcome = {kind for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for kind in re.findall(r"`(\w+)`", row)}
    assert kinds == outcome


def test_reported_repairs_are_bounded() -> None:
    parser = StreamParser(TOOLS)
    for _ in range(1_100):
        parser.feed('<tool_call>\n{"name": "tide_table", "arguments": {"harbour": "Brest",}}\n</tool_call>\n')
    parser.close()
    assert 1_100 == len(parser.reply.tool_calls)
    assert 1_000 == len(parser.reply.repairs)
