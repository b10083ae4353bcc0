"""Defect 11: reasoning is split from the text around the calls, never inside them, and prose about the tag is prose."""

from __future__ import annotations

import pytest

from .reading import ROME, ROME_CALL, TOOLS, Read, block, calls, words

TAGGED = '{"name": "search", "arguments": {"q":"what is <think>x</think> tag"}}'


@pytest.mark.parametrize(
    "query", ["what is <think>x</think> tag", "<think>", "</think>", "a </think> b <think> c", "<think>\\nx\\n</think>"]
)
def test_d11_reasoning_tags_inside_arguments_belong_to_the_arguments(read: Read, query: str) -> None:
    body = '{"name": "search", "arguments": {"q":"' + query + '"}}'
    reply = read(f"Looking.\n{block(body)}\nBye", tools=TOOLS)
    assert [("search", {"q": query.replace("\\n", "\n")})] == calls(reply)
    assert reply.reasoning is None
    assert ["Looking.", "Bye"] == words(reply.content)


@pytest.mark.parametrize(
    "way", ["The <think> tag opens reasoning.", "Write <think>x</think> to think.", "A `<think>` tag, and\nmore text."]
)
def test_d11_a_tag_mentioned_in_prose_is_prose_and_the_call_counts(read: Read, way: str) -> None:
    assert way == read(way, tools=TOOLS).content
    reply = read(f"{way}\n{block(ROME)}\nBye", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert reply.reasoning is None
    assert [*words(way), "Bye"] == words(reply.content)


def test_d11_reasoning_opened_by_the_template_ends_at_its_lone_closer(read: Read) -> None:
    reply = read(f"I should look it up.\n</think>\n\nSure.\n{block(ROME)}", tools=TOOLS)
    assert "I should look it up." == (reply.reasoning or "").strip()
    assert ["Sure."] == words(reply.content)
    assert [ROME_CALL] == calls(reply)


def test_d11_a_lone_closer_without_a_call_splits_too(read: Read) -> None:
    reply = read("Two and two.\n</think>\n\nFour.", tools=TOOLS)
    assert ("Two and two.", "Four.") == ((reply.reasoning or "").strip(), (reply.content or "").strip())


def test_d11_a_lone_closer_is_text_when_the_template_opens_nothing(read: Read) -> None:
    text = "Two and two.\n</think>\n\nFour."
    reply = read(text, tools=TOOLS, reasoning_prefilled=False)
    assert (text, None) == (reply.content, reply.reasoning)


def test_d11_unclosed_reasoning_followed_by_a_call_is_a_call(read: Read) -> None:
    reply = read(f"<think>I need the weather.\n{block(ROME)}", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert "I need the weather." == (reply.reasoning or "").strip()
    assert not words(reply.content)


def test_d11_a_call_inside_closed_reasoning_is_reasoning(read: Read) -> None:
    draft = block(ROME)
    reply = read(f"<think>I could do:\n{draft}\nbut no.</think>\nHello.", tools=TOOLS)
    assert [] == calls(reply)
    assert f"I could do:\n{draft}\nbut no." == (reply.reasoning or "").strip()
    assert "Hello." == (reply.content or "").strip()


def test_d11_a_draft_in_the_reasoning_and_a_call_after_it_is_one_call(read: Read) -> None:
    reply = read(f"<think>Draft:\n{block(ROME.replace('Rome', 'Oslo'))}\n</think>\n{block(ROME)}", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert "Oslo" in (reply.reasoning or "")
    assert not words(reply.content)


def test_d11_reasoning_at_the_start_is_split(read: Read) -> None:
    reply = read("<think>\nHm.\n</think>\n\nHello, you.", tools=TOOLS)
    assert ("Hm.", "Hello, you.") == ((reply.reasoning or "").strip(), (reply.content or "").strip())


def test_d11_unclosed_reasoning_keeps_every_word(read: Read) -> None:
    reply = read("<think>Still at it, and cut o", tools=TOOLS)
    assert "Still at it, and cut o" == (reply.reasoning or "") + (reply.content or "")


def test_d11_reasoning_switched_off_is_text(read: Read) -> None:
    text = "<think>Hm.</think>\nHello."
    reply = read(text, tools=TOOLS, reasoning=False)
    assert (text, None) == (reply.content, reply.reasoning)


def test_d11_another_reasoning_tag(read: Read) -> None:
    reply = read("<thought>Hm.</thought>\nHello <think>.", tools=TOOLS, reasoning_tag="thought")
    assert ("Hm.", "Hello <think>.") == ((reply.reasoning or "").strip(), (reply.content or "").strip())
