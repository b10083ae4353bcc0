"""Damaged texts never raise, read the same in any split, and give a sound reply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from patchbay import StreamParser
from patchbay.formats import events
from patchbay.types import Reply, ToolCall
from support.repeated import sampled

from .cuts import read
from .fuzz.mutate import COUNT, SEPARATOR
from .golden import cases
from .sound import is_within, lost_words

FOLDER = Path(__file__).parent / "fuzz"
TOOLS = cases()[0].tools
OPTIONS: list[dict[str, Any]] = [
    {},
    {"reasoning_prefilled": True},
    {"reasoning": False, "unknown_tools": "keep"},
]


def corpus(file: Path) -> list[str]:
    """The texts of a file. ``newline=""``: their line ends are their own."""
    with file.open(encoding="utf-8", newline="") as opened:
        return opened.read().split(SEPARATOR)


TEXTS = [(f"{file.stem}-{number}", text) for file in sorted(FOLDER.glob("*.txt")) for number, text in enumerate(corpus(file))]
PARTS = 4
"""The corpus is read in so many parts, which workers share."""


@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_text_is_read_equally_in_any_split(part: int) -> None:
    for _, text in TEXTS[part::PARTS]:
        for options in sampled(OPTIONS, 1):
            read(text, TOOLS, **options)


@pytest.mark.parametrize("part", range(PARTS))
def test_reading_of_damaged_text_is_sound(part: int) -> None:
    for name, text in TEXTS[part::PARTS]:
        for options in OPTIONS:
            is_sound(name, text, options)


def is_sound(name: str, text: str, options: dict[str, Any]) -> None:
    parser = StreamParser(TOOLS, **options)
    seen = parser.close(text)
    reply = parser.reply
    for call in reply.tool_calls:
        json.loads(call.raw_arguments)
    assert [] == [call.raw for call in reply.incomplete if call.raw not in text], name
    assert is_within(reply.content, text), name
    assert is_within(reply.reasoning, text), name
    ended = [event.call for event in seen if isinstance(event, events.CallEnd)]
    assert list(reply.tool_calls) == ended, name


def test_mutations_exist_and_are_small() -> None:
    assert COUNT == len(corpus(FOLDER / "mutated.txt"))
    assert sum(file.stat().st_size for file in FOLDER.glob("*.txt")) < 200_000


def test_soundness_checks_detect_invented_and_lost_text() -> None:
    assert is_within("a c", "abc")
    assert not is_within("ca", "abc")
    assert is_within(None, "")
    assert ["words"] == lost_words("some words of prose", Reply("some of prose"))
    call = ToolCall("id", "tide_table", '{"harbour": "caf\\u00e9 Brest", "more": "{\\"days\\": 2}"}')
    assert [] == lost_words('<tool_call>tide_table(harbour="café Brest", days=2)</tool_call>.', Reply(None, tool_calls=(call,)))
