"""Arguments that are not an object become valid JSON, with a repair."""

from __future__ import annotations

from typing import Any

import pytest

from .cuts import calls_of, read
from .tools import tool

_TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("[1]", [1]),
        ("3", 3),
        ('"not {json"', "not {json"),
        ('"{\\"what\\": \\"lee"', '{"what": "lee'),
        ("leeks", "leeks"),
    ],
)
@pytest.mark.parametrize("text", ['{{"name": "{}", "arguments": {}}}', '{{"arguments": {1}, "name": "{0}"}}'])
def test_non_object_arguments_become_valid_json_with_a_repair(text: str, written: str, arguments: Any) -> None:
    reply = read(f"<tool_call>{text.format('pick', written)}</tool_call>", [tool("pick", what=_TEXT, bed=_TEXT)])
    assert [("pick", arguments)] == calls_of(reply)
    assert "arguments_not_object" in [repair.kind for repair in reply.repairs]


def test_words_are_the_argument_of_a_tool_with_one_text_parameter() -> None:
    text = '<tool_call>{"name": "pick", "arguments": "ripe {leeks"}</tool_call>'
    assert [("pick", {"what": "ripe {leeks"})] == calls_of(read(text, [tool("pick", what=_TEXT)]))


@pytest.mark.parametrize("arguments", ['{"what": "leeks"}', '{"beds": "[1]"}'])
@pytest.mark.parametrize("unknown", ["keep", "drop"])
def test_a_fenced_call_needs_the_same_repairs_in_pieces(arguments: str, unknown: str) -> None:
    tools = [tool("pick", beds={"type": "array"})]
    for name in ("pick", "nope"):
        read(
            f'<tool_call>\n```json\n{{"name": "{name}", "arguments": {arguments}}}\n```\n</tool_call>',
            tools,
            unknown_tools=unknown,
        )
