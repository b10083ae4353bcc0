"""Backticks before a marker: opening ones make it prose, closing ones do not matter."""

from __future__ import annotations

import pytest

from patchbay.types import ToolSpec

from .cuts import calls_of, read

TOOLS = [ToolSpec("get_weather"), ToolSpec("allow")]
CALL = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
MADE = [("get_weather", {})]


@pytest.mark.parametrize("prose", ["Look at `code`", "``a ` b``", "`one` and `two`", "说`code`", "a" * 3000 + "`code`"])
def test_marker_after_inline_code_opens_a_call(prose: str) -> None:
    reply = read(prose + CALL, TOOLS)
    assert MADE == calls_of(reply)
    assert prose == reply.content


@pytest.mark.parametrize("prose", ["Write `", "Write ``", "说`", "`a` then `", "It`s like `", "(`", "`a`\nand `"])
def test_a_marker_that_inline_code_begins_with_is_a_word(prose: str) -> None:
    text = f"{prose}{CALL}` there."
    reply = read(text, TOOLS)
    assert [] == calls_of(reply)
    assert text == reply.content


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("<|channel|>final<|message|>Run `make`<|return|>", "harmony"),
        ("<|START_RESPONSE|>Run `make`<|END_RESPONSE|>", "cohere_command"),
        ("Run `make`<|im_end|>", "hermes"),
    ],
)
def test_special_token_after_inline_code_is_removed(text: str, format: str) -> None:  # noqa: A002 - the option's name
    assert "Run `make`" == read(text, TOOLS, format=format).content == read(text, TOOLS).content


@pytest.mark.parametrize("first", ["a", "al", "g", "get_weath", "f"])
def test_first_line_that_begins_with_a_name_is_prose_and_the_rest_is_read(first: str) -> None:
    """Functionary's replies begin with whom they are for; a word that may become a name is none."""
    for options in ({}, {"format": "functionary_v32"}):
        assert f"{first}\nand more" == read(f"{first}\nand more", TOOLS, **options).content
    reply = read(f"{first}\n{CALL}", TOOLS)
    assert (MADE, first) == (calls_of(reply), reply.content)


def test_words_on_both_sides_of_a_framed_call_stay_apart() -> None:
    call = '<atem:function_calls>\n<atem:invoke name="get_weather">\n</atem:invoke>\n</atem:function_calls>'
    text = f" to=user<|message|>One.<|eom|><|start|>assistant to=get_weather<|message|>{call}\n\nTwo."
    for options in ({}, {"format": "muse"}):
        reply = read(text, TOOLS, **options)
        assert (MADE, "One.\n\nTwo.") == (calls_of(reply), reply.content)
