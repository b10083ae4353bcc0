"""Reasoning is separated from content and calls: its ends, draft calls in it, and tags that are text."""

from __future__ import annotations

from typing import Any

import pytest

from patchbay.types import ToolSpec
from support.fenced_texts import ROME, ROME_CALL, block, calls, words
from support.fenced_texts import TOOLS as FENCED_TOOLS

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
def test_empty_reasoning_is_left_out(empty: str, options: dict[str, Any]) -> None:
    reply = read(f"{empty}Yes.", TOOLS, **options)
    assert ("Yes.", None) == (reply.content, reply.reasoning)


@pytest.mark.parametrize("text", ["<think>", "<think>\n\n", "<think> a", "<think>\na</think>\n\nYes.", "Yes. </think>"])
def test_reasoning_is_text_if_switched_off(text: str) -> None:
    assert text.rstrip() == (read(text, TOOLS, reasoning=False).content or "").rstrip()


def test_call_after_an_unclosed_opener_is_read_and_the_opener_is_content() -> None:
    reply = read(f"<think>\n{CALL}", TOOLS, reasoning=False)
    assert [("get_weather", {})] == calls_of(reply)
    assert "<think>" == (reply.content or "").strip()


@pytest.mark.parametrize("tokens", ["<|im_end|>", "<|im_end|>\n", "<|im_end|>\n<|endoftext|>"])
def test_special_tokens_after_unclosed_reasoning_are_removed(tokens: str) -> None:
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


@pytest.mark.parametrize(
    "query", ["what is <think>x</think> tag", "<think>", "</think>", "a </think> b <think> c", "<think>\\nx\\n</think>"]
)
def test_tags_inside_arguments_belong_to_the_arguments(query: str) -> None:
    body = '{"name": "search", "arguments": {"q":"' + query + '"}}'
    reply = read(f"Looking.\n{block(body)}\nBye", FENCED_TOOLS)
    assert [("search", {"q": query.replace("\\n", "\n")})] == calls(reply)
    assert (None, ["Looking.", "Bye"]) == (reply.reasoning, words(reply.content))


@pytest.mark.parametrize(
    "prose", ["The <think> tag opens reasoning.", "Write <think>x</think> to think.", "A `<think>` tag, and\nmore text."]
)
def test_tags_in_prose_are_text(prose: str) -> None:
    assert prose == read(prose, FENCED_TOOLS).content
    reply = read(f"{prose}\n{block(ROME)}\nBye", FENCED_TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert (None, [*words(prose), "Bye"]) == (reply.reasoning, words(reply.content))


DRAFT = block(ROME.replace("Rome", "Oslo"))


@pytest.mark.parametrize(
    ("text", "options", "reasoning", "content", "called"),
    [
        (f"I look it up.\n</think>\n\nSure.\n{block(ROME)}", {}, "I look it up.", "Sure.", True),
        ("Two.\n</think>\n\nFour.", {"reasoning_prefilled": False}, "", "Two.\n</think>\n\nFour.", False),
        (f"<think>Draft:\n{DRAFT}\n</think>\n{block(ROME)}", {}, f"Draft:\n{DRAFT}", "", True),
        ("<thought>Hm.</thought>\nHello <think>.", {"reasoning_tag": "thought"}, "Hm.", "Hello <think>.", False),
    ],
    ids=["closer and call", "closer, no prefill", "draft and call", "other tag"],
)
def test_reasoning_is_split_from_content_and_calls(
    text: str, options: dict[str, Any], reasoning: str, content: str, called: bool
) -> None:
    reply = read(text, FENCED_TOOLS, **options)
    assert (reasoning, content) == ((reply.reasoning or "").strip(), (reply.content or "").strip())
    assert [ROME_CALL] * called == calls(reply)
