"""Replies that are sequences of messages: how they stream, and prose about them. What is read in them: cases/channels.toml."""

from __future__ import annotations

from typing import Any

import pytest

from patchbay import StreamParser
from patchbay.formats import CallArguments, ReasoningDelta, TextDelta
from patchbay.types import Reply

from .cuts import read as read_in_any_split
from .golden import tool_named

TOOLS = [tool_named(name) for name in ("find_ship", "list_ports", "python", "wire.send")]
SHIP = '{"name": "Vasa"}'
START = "<|start|>assistant"


def read(text: str, way: str, **options: Any) -> Reply:
    return read_in_any_split(text, TOOLS, format=way, **options)


@pytest.mark.parametrize(
    ("way", "start", "end", "kind"),
    [
        ("harmony", "<|channel|>final<|message|>", "<|return|>", TextDelta),
        ("harmony", "<|channel|>analysis<|message|>", "<|end|>", ReasoningDelta),
        ("harmony", '<|channel|>commentary to=functions.find_ship<|message|>{"name": "', '"}<|call|>', CallArguments),
        ("harmony", "<|channel|>commentary to=python<|message|>", "<|call|>", CallArguments),
        ("muse", " to=user<|message|>", "<|eot|>", TextDelta),
        ("muse", " to=self<|message|>", "<|eom|>", ReasoningDelta),
        (
            "muse",
            ' to=find_ship<|message|><atem:invoke name="find_ship"><atem:parameter name="name">',
            "</atem:parameter></atem:invoke><|eot|>",
            CallArguments,
        ),
        ("inkling", "<|content_text|>", "<|end_message|>", TextDelta),
        ("inkling", "<|content_thinking|>", "<|end_message|>", ReasoningDelta),
        ("inkling", '<|content_invoke_tool_json|>{"name": "find_ship", "args": {"name": "', '"}}<|end_message|>', CallArguments),
        ("kimi_k3", "<|open|>think<|sep|>", "<|close|>think<|sep|>", ReasoningDelta),
        ("kimi_k3", "<|open|>response<|sep|>", "<|close|>response<|sep|>", TextDelta),
        (
            "kimi_k3",
            '<|open|>call tool="find_ship"<|sep|><|open|>argument key="name" type="string"<|sep|>',
            "<|close|>argument<|sep|><|close|>call<|sep|>",
            CallArguments,
        ),
        ("functionary_v32", "all\n", "", TextDelta),
        ("functionary_v32", '>>>find_ship\n{"name": "', '"}', CallArguments),
        ("cohere_command", "<|START_THINKING|>", "<|END_THINKING|>", ReasoningDelta),
        ("cohere_command", "<|START_RESPONSE|>Well. ", "<|END_RESPONSE|>", TextDelta),
        ("gemma4", '<|tool_call>call:find_ship{name:<|"|>', '<|"|>}<tool_call|>', CallArguments),
    ],
)
def test_channel_body_streams_as_it_arrives(
    way: str, start: str, end: str, kind: type[TextDelta | ReasoningDelta | CallArguments]
) -> None:
    parser = StreamParser(TOOLS, format=way)
    for char in start:
        parser.feed(char)
    for word in ("one", "two", "three"):
        outcome = [event for event in parser.feed(word) if isinstance(event, kind)]
        assert word == "".join(event.text for event in outcome).removeprefix('{"name": "').removeprefix('{"code": "')
    parser.feed(end)
    parser.close()


@pytest.mark.parametrize(
    ("way", "text", "content"),
    [
        (
            "harmony",
            f"<|channel|>analysis<|message|>Hm.<|end|>{START}<|channel|>final<|message|>Yes.<|return|>",
            "<|channel|>analysis<|message|>Hm.<|end|>Yes.",
        ),
        ("muse", f" to=self<|message|>Hm.<|eom|>{START} to=user<|message|>Yes.<|eot|>", " to=self<|message|>Hm.<|eom|>Yes."),
        (
            "inkling",
            "<|content_thinking|>Hm.<|end_message|><|content_text|>Yes.<|end_message|>",
            "<|content_thinking|>Hm.<|end_message|>Yes.",
        ),
        (
            "kimi_k3",
            "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>",
            "<|open|>think<|sep|>Hm.<|close|>think<|sep|>Yes.",
        ),
        (
            "cohere_command",
            "<|START_THINKING|>Hm.<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>",
            "<|START_THINKING|>Hm.<|END_THINKING|>Yes.",
        ),
    ],
)
def test_unrequested_reasoning_stays_in_the_content_verbatim(way: str, text: str, content: str) -> None:
    for format_name in (way, "auto"):
        whole = read(text, format_name, reasoning=False)
        assert (content, None) == (whole.content, whole.reasoning)


@pytest.mark.parametrize(
    "way", ["auto", "harmony", "muse", "inkling", "kimi_k3", "functionary_v32", "functionary_v2", "cohere_command"]
)
@pytest.mark.parametrize(
    "text",
    [
        "A message begins with `<|start|>`, its channel stands behind `<|channel|>`.",
        "The tokens <|start|> and <|channel|> and <|message|> are Harmony's.",
        "Kimi writes <|open|> and <|close|> around names, then <|sep|>.",
        "analysis of the data: the assistantfinal version",
        "final answer: 42",
        "commentary to=nobody is no header",
        "to=find_ship or not to=find_ship",
        ">>> find_ship(1)\n>>>find_ships\nall",
        "allow\nme",
        "find_ship\nis a tool",
        "<co>authors</co> and </co: citations",
        "assistant: hello\nassistant to all",
        "/think\nis a switch",
    ],
)
def test_prose_about_messages_is_kept_verbatim(text: str, way: str) -> None:
    assert (text, None, ()) == ((reply := read(text, way)).content, reply.reasoning, reply.tool_calls)


@pytest.mark.parametrize("way", ["harmony", "muse", "inkling", "kimi_k3", "functionary_v32", "functionary_v2"])
@pytest.mark.parametrize("text", ["The ", "getting", "finally", "analysis of", "allow", "to be"])
def test_prose_is_emitted_once_it_cannot_be_a_header(text: str, way: str) -> None:
    assert [TextDelta(text)] == StreamParser(TOOLS, format=way).feed(text)


def test_all_channel_markers_are_text_until_the_format_is_detected() -> None:
    text = "all\nany\nboth"
    assert text == read(text, "auto").content
    assert "any\nboth" == read(text, "functionary_v32").content


def test_call_of_an_unoffered_tool_is_kept_or_dropped_by_option() -> None:
    text = f"<|channel|>commentary to=functions.sink<|message|>{SHIP}<|call|>{START}<|channel|>final<|message|>Yes."
    assert text.replace(f"{START}<|channel|>final<|message|>", "") == read(text, "auto").content
    assert [("sink", SHIP)] == [(call.name, call.raw_arguments) for call in read(text, "auto", unknown_tools="keep").tool_calls]
    dropped = read(text, "auto", unknown_tools="drop")
    assert ("Yes.", ()) == (dropped.content, dropped.tool_calls)


def test_message_to_an_unoffered_tool_is_content() -> None:
    text = "<|channel|>commentary to=container.exec<|message|>ls -l<|call|>"
    assert text == read(text, "auto").content
