"""The ends of reasoning: nothing in it, special tokens behind it, a closer whose opener the text does not show."""

from __future__ import annotations

from typing import Any

import pytest

from patchbay.types import ToolSpec

from .cuts import calls_of, read

TOOLS = [ToolSpec("get_weather")]
CALL = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
EITHER_WAY: list[dict[str, Any]] = [{}, {"reasoning": False}]


@pytest.mark.parametrize(
    "options", [*EITHER_WAY, {"reasoning_prefilled": False}, {"reasoning": False, "reasoning_prefilled": True}]
)
@pytest.mark.parametrize("before", ["</think>", "\n</think>", "</think>\n\n"])
def test_a_reply_that_begins_with_a_closer_has_no_reasoning(before: str, options: dict[str, Any]) -> None:
    reply = read(f"{before}Yes.", TOOLS, **options)
    assert ("Yes.", None) == (reply.content, reply.reasoning)


@pytest.mark.parametrize("options", EITHER_WAY)
@pytest.mark.parametrize("empty", ["<think></think>", "<think>\n\n</think>\n\n", "[THINK] [/THINK]"])
def test_markers_with_nothing_between_them_are_no_reasoning(empty: str, options: dict[str, Any]) -> None:
    reply = read(f"{empty}Yes.", TOOLS, **options)
    assert ("Yes.", None) == (reply.content, reply.reasoning)


@pytest.mark.parametrize("text", ["<think>", "<think>\n\n", "<think> a", "<think>\na</think>\n\nYes.", "Yes. </think>"])
def test_reasoning_that_is_not_asked_for_stays_as_it_is(text: str) -> None:
    assert text.rstrip() == (read(text, TOOLS, reasoning=False).content or "").rstrip()


def test_call_after_an_unclosed_opener_is_read_and_the_opener_is_content() -> None:
    reply = read(f"<think>\n{CALL}", TOOLS, reasoning=False)
    assert [("get_weather", {})] == calls_of(reply)
    assert "<think>" == (reply.content or "").strip()


@pytest.mark.parametrize("tokens", ["<|im_end|>", "<|im_end|>\n", "<|im_end|>\n<|endoftext|>"])
def test_special_tokens_behind_reasoning_that_never_ends_are_no_part_of_it(tokens: str) -> None:
    for options in ({"reasoning_prefilled": True}, {"format": "hermes", "reasoning_prefilled": True}):
        assert "Hm, yes." == read(f"Hm, yes.{tokens}", TOOLS, **options).reasoning
    assert "Hm, yes." == read(f"<think>Hm, yes.{tokens}", TOOLS).reasoning


def test_a_special_token_in_the_middle_of_reasoning_is_a_word_of_it() -> None:
    text = "The turn ends with <|im_end|> <|im_end|> or so."
    reply = read(f"{text}</think>Yes.", TOOLS, format="hermes", reasoning_prefilled=True)
    assert (text, "Yes.") == (reply.reasoning, reply.content)


def test_closing_token_implies_reasoning_for_any_prompt_setting() -> None:
    """A tag may be a word of the answer there; a special token is none."""
    reply = read("Hm.<|close|>think<|sep|>Yes.", TOOLS, format="kimi_k3", reasoning_prefilled=False)
    assert ("Hm.", "Yes.") == (reply.reasoning, reply.content)
    text = "A reply may hold </think> too."
    reply = read(text, TOOLS, reasoning_prefilled=False)
    assert (None, text) == (reply.reasoning, reply.content)
