"""What a prompt's token count proves, with the counts that ten tokenizers gave (``token_counts.json`` says where they are from)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from patchbay.models.options import TextOptions
from patchbay.models.request import ChatCompletionBody

_RECORDED: Final = json.loads(Path(__file__).with_name("token_counts.json").read_text(encoding="utf-8"))
_MESSAGES: Final = _RECORDED["messages"]
_TOOLS: Final = _RECORDED["tools"]
_FRAME: Final = 4
"""Tokens around a message, at least."""
_DEFAULT_PROMPT: Final = 40
"""Tokens of a default system message, at most."""


def had_tools(message: str, tools: str, tokens: int) -> bool | None:
    body = {"model": "m", "messages": [{"role": "user", "content": _MESSAGES[message]}], "tools": _TOOLS[tools]}
    return ChatCompletionBody(json.dumps(body).encode(), TextOptions()).had_tools(tokens)


@pytest.mark.parametrize("tokenizer", _RECORDED["counts"])
@pytest.mark.parametrize("message", _MESSAGES)
def test_no_count_proves_the_opposite(tokenizer: str, message: str) -> None:
    """Neither the tools in their shortest form look as if they had been dropped, nor dropped ones as if they were there."""
    counts: dict[str, int] = _RECORDED["counts"][tokenizer]
    without = counts[f"m/{message}"] + _FRAME
    for tools in _TOOLS:
        assert had_tools(message, tools, without) is not True
        assert had_tools(message, tools, without + _DEFAULT_PROMPT) is not True
        for form in ("shortest", "json"):
            assert had_tools(message, tools, without + counts[f"{tools}/{form}"]) is not False


@pytest.mark.parametrize("tokenizer", _RECORDED["counts"])
def test_counts_of_a_short_question_prove_what_became_of_the_tools(tokenizer: str) -> None:
    counts: dict[str, int] = _RECORDED["counts"][tokenizer]
    without = counts["m/short"] + _FRAME
    for tools in ("three small", "coding"):
        assert had_tools("short", tools, without) is False
        assert had_tools("short", tools, without + counts[f"{tools}/json"]) is True
    assert had_tools("short", "coding", without + _DEFAULT_PROMPT) is False
    assert had_tools("english", "coding", counts["m/english"] + _FRAME) is False


def test_counts_that_prove_nothing() -> None:
    assert had_tools("english", "bare", 100) is None  # the words of one small tool are within the margin
    assert had_tools("english", "coding", 12) is None  # a server that counts what was not in its cache
    assert had_tools("short", "coding", 0) is None


def test_recorded_prompt_of_llamacpp_with_a_template_without_tools() -> None:
    """37 tokens for a question, with and without three tools."""
    assert had_tools("short", "three small", 37) is False


def test_pictures_and_calls_in_the_history_are_no_tools() -> None:
    content: list[Any] = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": json.dumps({"a": "1 " * 400})}}
    for message in ({"role": "user", "content": content}, {"role": "assistant", "content": None, "tool_calls": [call]}):
        body = {"model": "m", "messages": [message], "tools": _TOOLS["coding"]}
        assert ChatCompletionBody(json.dumps(body).encode(), TextOptions()).had_tools(900) is None
