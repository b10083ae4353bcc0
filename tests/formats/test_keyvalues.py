"""Calls as a name and key and value tags: every family, and each tag missing, doubled or misplaced."""

from __future__ import annotations

import json
from typing import Any

import pytest

from patchbay import StreamParser
from patchbay.formats import CallArguments
from patchbay.formats.render import render_calls
from patchbay.types import ToolCall

from .cuts import calls_of, pieces_of, read
from .test_xml import TOOLS
from .tools import tool

LINES = (
    "<tool_call>book_boat\n<arg_key>port</arg_key>\n<arg_value>Riga</arg_value>\n<arg_key>seats</arg_key>\n<arg_value>3</arg_value>\n"
    "</tool_call>"
)
COMPACT = LINES.replace("\n", "")


def suffixed(text: str, suffix: str) -> str:
    for word in ("tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value", "think"):
        text = text.replace(f"{word}>", f"{word}:{suffix}>")
    return text


_HUNYUAN = f"<tool_calls>\n{LINES.replace('boat', 'boat<tool_sep>')}\n<tool_call>moor<tool_sep></tool_call>\n</tool_calls>"
NAMES = ["glm45", "glm47", "ling3", "spark25", "iquest_q1", "poolside_v1", "hunyuan_v3", "hunyuan_v4", "k2_horizon"]


@pytest.mark.parametrize("name", NAMES)
def test_calls_of_unoffered_tools_are_prose_verbatim(name: str) -> None:
    calls = [ToolCall("", "sink_boat", '{"port": "Riga", "seats": 3}'), ToolCall("", "drift", "{}")]
    text = f"Before.\n{render_calls(name, calls)} And after."
    reply = read(text, TOOLS, format=name)
    assert (text, (), ()) == (reply.content, reply.tool_calls, reply.incomplete)


def test_every_tag_of_a_checkpoint_may_have_a_suffix() -> None:
    reply = read(suffixed(f"A boat.</think>I book it.{_HUNYUAN}", "a.b-1"), TOOLS)
    assert [("book_boat", {"port": "Riga", "seats": 3}), ("moor", {})] == calls_of(reply)
    assert ("I book it.", "A boat.") == (reply.content, reply.reasoning)


@pytest.mark.parametrize("text", ["<tool_call: this", "a </think: b", "<think: no", "<tool_calls:\n", "<tool_call:x y>moor"])
def test_a_colon_without_a_suffix_is_prose(text: str) -> None:
    assert text == read(text, TOOLS).content


DAMAGED = {
    "no opener of the first key": LINES.replace("<arg_key>port", "port"),
    "no opener of another key": LINES.replace("<arg_key>seats", "seats"),
    "no closer of another key": COMPACT.replace("seats</arg_key>", "seats"),
    "no opener of another value": COMPACT.replace("<arg_value>3", "3"),
    "no closer of a value, all in one line": COMPACT.replace("Riga</arg_value>", "Riga"),
    "no closer of the last value": LINES.replace("3</arg_value>", "3"),
    "a key closed twice": LINES.replace("</arg_key>", "</arg_key></arg_key>"),
    "a value closed twice": LINES.replace("</arg_value>", "</arg_value></arg_value>"),
    "a value closed like a key": LINES.replace("Riga</arg_value>", "Riga</arg_key>"),
    "a call's opener in another key's place": LINES.replace("<arg_key>seats", "<tool_call>seats"),
    "JSON behind the name": '<tool_call>book_boat\n{"port": "Riga", "seats": 3}\n</tool_call>',
    "a separator that is another family's": LINES.replace("boat", "boat<tool_sep>"),
    "a namespace": LINES.replace("book_boat", "functions.book_boat"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_call_is_read_as_intended(damage: str) -> None:
    reply = read(f"I book.\n{DAMAGED[damage]}", TOOLS)
    assert [("book_boat", {"port": "Riga", "seats": 3})] == calls_of(reply)
    assert "I book." == reply.content
    assert () == reply.incomplete


def test_a_next_call_begins_where_the_closer_of_one_is_missing() -> None:
    one = COMPACT.removesuffix("</tool_call>")
    assert [("book_boat", {"port": "Riga", "seats": 3})] * 2 == calls_of(read(one + COMPACT, TOOLS))


def test_a_key_without_a_value_is_dropped() -> None:
    text = "<tool_call>book_boat\n<arg_key>crew</arg_key><arg_key>port</arg_key><arg_value>Riga</arg_value>\n<arg_key>seats</arg_key>\n</tool_call>"
    assert [("book_boat", {"port": "Riga"})] == calls_of(read(text, TOOLS))
    assert [("book_boat", {})] == calls_of(read("<tool_call>book_boat\n<arg_key>port</arg_key></tool_call>", TOOLS))


def test_repeated_key_has_its_last_value() -> None:
    again = COMPACT.replace("</tool_call>", "<arg_key>seats</arg_key><arg_value>4</arg_value></tool_call>")
    assert [("book_boat", {"port": "Riga", "seats": 4})] == calls_of(read(again, TOOLS))


def test_a_fused_name_is_split_by_the_tools_that_have_the_key() -> None:
    tools = [tool("grep"), tool("grep_tool", pattern={"type": "string"}), tool("grep_toolpat", depth={"type": "integer"})]
    text = "<tool_call>grep_toolpattern</arg_key><arg_value>x</arg_value></tool_call>"
    assert [("grep_tool", {"pattern": "x"})] == calls_of(read(text, tools))
    unknown = text.replace("pattern", "phrase")
    assert unknown == read(unknown, tools).content


@pytest.mark.parametrize("end", range(len("<tool_call>b"), len(COMPACT)))
def test_truncated_call_is_incomplete_even_between_arguments(end: int) -> None:
    text = COMPACT[:end]
    reply = read(text, TOOLS)
    assert () == reply.tool_calls
    assert [text] == [call.raw for call in reply.incomplete]
    assert None is reply.content


# Values


@pytest.mark.parametrize(
    "value",
    [
        "  two\n\n lines \n",
        "a < b && c > d &lt;",
        "a </arg_value> b",
        "<arg_key> is a tag, </arg_key> another",
        "x </tool_call> y <tool_call> z",
        "<|assistant|> a token",
        'quotes " and \\n \\" as written',
        "ends with </arg_val",
        "",
    ],
)
def test_a_text_value_is_the_text_that_was_written(value: str) -> None:
    for text in (LINES, COMPACT):
        assert [("book_boat", {"port": value, "seats": 3})] == calls_of(read(text.replace("Riga", value), TOOLS))


def test_json_value_with_escaped_quotes_is_unescaped() -> None:
    text = r"<tool_call>book_boat\n<arg_key>stops</arg_key>\n<arg_value>[\"a\", \"b\\nc\"]</arg_value>\n</tool_call>"
    assert [("book_boat", {"stops": ["a", "b\nc"]})] == calls_of(read(text, TOOLS))
    assert [("book_boat", {"port": r"[\"a\"]"})] == calls_of(
        read(text.replace("stops", "port").replace(r", \"b\\nc\"", ""), TOOLS)
    )


@pytest.mark.parametrize(
    ("key", "declared", "written", "meant"),
    [
        ("seats", "integer", "2", 2),
        ("port", "integer", "2", "2"),
        ("unheard_of", "integer", "2", 2),
        ("unheard_of", "array", "[1]", [1]),
        ("unheard_of", "string", "2", "2"),
        ("unheard_of", "unheard of", "2", "2"),
    ],
)
def test_declared_type_applies_without_a_schema_type(key: str, declared: str, written: str, meant: Any) -> None:
    text = (
        f"<ifm|tool_calls><ifm|tool_call>book_boat<ifm|arg_key>{key}</ifm|arg_key><ifm|arg_type>{declared}</ifm|arg_type>"
        f"<ifm|arg_value>{written}</ifm|arg_value></ifm|tool_call></ifm|tool_calls>"
    )
    assert [("book_boat", {key: meant})] == calls_of(read(text, TOOLS))


# Streams


def arguments_after(text: str) -> str:
    parser = StreamParser(TOOLS)
    events = [event for piece in pieces_of(text, 4) for event in parser.feed(piece)]
    return "".join(event.text for event in events if isinstance(event, CallArguments))


def test_text_argument_streams_and_a_possible_end_tag_is_buffered() -> None:
    begin = COMPACT[: COMPACT.index("Riga")]
    for end in range(1, 30):
        value = ("Riga and " * 5)[:end]
        assert '{"port": "' + value == arguments_after(begin + value)
    for tail in ("<", "</arg", "</arg_value", "</arg_value>", "</arg_value>\n", "\n"):
        assert '{"port": "Ri' == arguments_after(f"{begin}Ri{tail}")
        assert '{"port": "Ri' + json.dumps(tail)[1:-1] + ". " == arguments_after(f"{begin}Ri{tail}. ")


def test_incomplete_tool_name_emits_no_call() -> None:
    assert "" == arguments_after("<tool_call>moor")
    assert "{}" == arguments_after("<tool_call>moor</tool_call>\n")
