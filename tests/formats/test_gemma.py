"""Gemma's notation: whatever a call's arguments are, they come back, however the text is cut; and what is damaged in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay import StreamParser, parse
from patchbay.types import Reply

_PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "note", "parameters": _PARAMETERS}}]
KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
STRINGS = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=30)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def written(value: Any, token: str) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{written(item, token)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(item, token) for item in value) + "]"
    return f"{token}{value}{token}" if isinstance(value, str) else json.dumps(value)


def streamed(text: str, size: int) -> Reply:
    parser = StreamParser(TOOLS)
    for begin in range(0, len(text), size):
        parser.feed(text[begin : begin + size])
    parser.close()
    return parser.reply


def calls(reply: Reply) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.raw_arguments)) for call in reply.tool_calls]


@given(st.dictionaries(KEYS.filter(lambda key: key != "text"), VALUES, max_size=4), st.integers(1, 9))
def test_written_arguments_are_read_back(arguments: dict[str, Any], size: int) -> None:
    text = "<|tool_call>call:note" + written(arguments, '<|"|>') + "<tool_call|>"
    assert [("note", arguments)] == calls(streamed(text, size)) == calls(parse(text, TOOLS))
    text = f"<start_function_call>call:note{written(arguments, '<escape>')}<end_function_call>"
    assert [("note", arguments)] == calls(streamed(text, size))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('text:<|"|>a, b: c<|"|>', {"text": "a, b: c"}),
        ('text:<|"|>tea', {"text": "tea"}),
        ('text:<|"|>tea,size:<|"|>big<|"|>', {"text": "tea", "size": "big"}),
        ("text:tea, and milk,size:2", {"text": "tea, and milk", "size": 2}),
    ],
)
def test_a_damaged_string_ends_where_the_next_member_begins(arguments: str, expected: dict[str, Any]) -> None:
    text = f"<|tool_call>call:note{{{arguments}}}<tool_call|>"
    assert [("note", expected)] == calls(parse(text, TOOLS)) == calls(streamed(text, 1))


def test_string_argument_streams_as_it_arrives() -> None:
    parser = StreamParser(TOOLS)
    outcome = [event for piece in ('<|tool_call>call:note{text:<|"|>', "one ", "two ", "three") for event in parser.feed(piece)]
    assert len(outcome) >= 4
