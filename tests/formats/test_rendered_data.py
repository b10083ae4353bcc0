"""Law 8 in rendering: results, names, schemas and user text cannot leave their place, in any family."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import patchbay
from patchbay.formats import FORMATS
from patchbay.formats.render import WRITERS, render_calls
from patchbay.formats.render.writer import ReservedText
from patchbay.types import ToolCall, ToolResult, ToolSpec

READABLE = sorted(WRITERS.keys() & FORMATS.keys())

CALL = ToolCall("c", "f", '{"a": "b"}')


def hostile(name: str) -> list[str]:
    """Fragments of a family's own syntax for hostile texts: calls, results, and each marker alone."""
    writer = WRITERS[name]
    marks = [*writer.markers, *writer.frames.markers]
    closers = [mark.replace("<", "</", 1) for mark in marks if mark.startswith("<")]
    odd = (
        [mark[0] + "\\" + mark[1:] for mark in marks]
        + [mark.upper() for mark in marks]
        + [f"{mark[0]} {mark[1:]}" for mark in marks]
    )
    results = [
        writer.results([ToolResult("c", "f", "x")]),
        writer.results([ToolResult("c", "f", "x"), ToolResult("d", "f", "y")]),
    ]
    return [
        render_calls(name, [CALL]),
        render_calls(name, [CALL, CALL], "So.", "Hm."),
        *results,
        *marks,
        *closers,
        *odd,
        "\n",
        "\\",
        "<",
        '"',
    ]


def texts(name: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(hostile(name)) | st.text(max_size=4), max_size=8).map("".join)


def plain(writer: Any, content: str) -> tuple[str, str]:
    """The frame before and behind a result."""
    before, _, after = writer.results([ToolResult("c", "f", content)]).partition(content)
    return before, after


@given(st.sampled_from(sorted(WRITERS)), st.data())
def test_a_result_stays_inside_its_frame(name: str, data: st.DataObject) -> None:
    writer = WRITERS[name]
    content = data.draw(texts(name))
    before, after = plain(writer, "@@")
    shown = writer.results([ToolResult("c", "f", content)])
    assert shown.startswith(before)
    assert shown.endswith(after)
    inside = shown[len(before) : len(shown) - len(after)]
    for mark in (*writer.markers, *writer.frames.markers):
        assert mark.lower() not in inside.lower()
        if mark.startswith("<"):
            assert mark.replace("<", "</", 1).lower() not in inside.lower()


def test_a_result_without_marks_is_not_changed() -> None:
    for name in WRITERS:
        content = 'Line one\n\n  {"k": [1, "é"]} <div class="x">a && b</div> C:\\dir `code`\n'
        shown = WRITERS[name].results([ToolResult("c", "f", content)])
        as_json = WRITERS[name].results([ToolResult("c", "f", "\n")]).count("\n") == WRITERS[name].results(
            [ToolResult("c", "f", "x")]
        ).count("\n")
        assert content in shown or (as_json and '<div class=\\"x\\">a && b</div> C:\\\\dir' in shown)


@given(st.sampled_from(sorted(WRITERS)), st.data())
def test_no_two_results_look_alike(name: str, data: st.DataObject) -> None:
    writer = WRITERS[name]
    one, other = data.draw(texts(name)), data.draw(texts(name))
    shown = [writer.results([ToolResult("c", "f", content)]) for content in (one, other)]
    assert (one == other) == (shown[0] == shown[1])


@given(st.sampled_from(sorted(WRITERS)), st.data())
def test_names_and_ids_cannot_leave_their_place_in_a_frame(name: str, data: st.DataObject) -> None:
    writer = WRITERS[name]
    odd = data.draw(texts(name))
    shown = writer.results([ToolResult(odd, odd, "@@")])
    usual = writer.results([ToolResult("c", "f", "@@")])
    assert usual.count("\n") == shown.count("\n")
    for mark in (*writer.markers, *writer.frames.markers):
        assert usual.lower().count(mark.lower()) == shown.lower().count(mark.lower())


@given(st.sampled_from(sorted(WRITERS)), st.data())
def test_a_user_cannot_write_a_frame(name: str, data: st.DataObject) -> None:
    writer = WRITERS[name]
    text = data.draw(texts(name)) + writer.results([ToolResult("c", "f", "forged")])
    seen = writer.escape_user_text(text)
    for mark in writer.frames.markers:
        assert mark.lower() not in seen.lower()


def test_user_message_without_forgery_is_the_same_object() -> None:
    for name in WRITERS:
        text = "Hello, what does <b>this</b> mean?"
        assert text is WRITERS[name].escape_user_text(text)


@given(st.sampled_from(sorted(WRITERS)), st.data())
def test_tool_description_cannot_leave_the_list(name: str, data: st.DataObject) -> None:
    writer = WRITERS[name]
    usual = writer.listing([described("f", "@@")])
    ending = re.search(r"(<[^<>]+>|\[/[A-Z_]+\])\s*$", usual)
    endings = [ending[1]] if ending else []
    odd = data.draw(texts(name)) + "".join(endings) + "x"
    shown = writer.listing([described("f", odd)])
    for mark in (*writer.markers, *writer.frames.markers, *endings):
        assert usual.count(mark) == shown.count(mark), mark


def described(name: str, text: str) -> ToolSpec:
    """A tool with a text wherever it may have one."""
    return ToolSpec(name, text, {"type": "object", "properties": {"a": {"type": "string", "description": text, "default": text}}})


@given(st.sampled_from(READABLE), st.data())
def test_rendered_results_are_not_calls(name: str, data: st.DataObject) -> None:
    """Also where a model repeats them word for word: no marked call can be in them. (Bare calls have no marks to defuse.)"""
    text = WRITERS[name].results([ToolResult("c", "f", data.draw(texts(name))), ToolResult("d", "f", data.draw(texts(name)))])
    reply = patchbay.parse(text, format=name, reasoning=False)
    assert ((), ()) == (reply.tool_calls, reply.incomplete)


def test_marks_do_not_overlap_with_themselves() -> None:
    """Else a mark could come out of defusing another."""
    for name in WRITERS:
        for mark in (*WRITERS[name].markers, *WRITERS[name].inner_markers, *WRITERS[name].frames.markers):
            assert not any(mark.endswith(mark[:size]) for size in range(1, len(mark))), mark


marks = ReservedText(("<tool_call", "[ARGS]", "<｜tool▁call", "Action:"))


@pytest.mark.parametrize(
    ("text", "defused"),
    [
        ("<tool_call>", "<\\tool_call>"),
        ("</tool_call>", "<\\/tool_call>"),
        ("< / TOOL_CALLS", "<\\ / TOOL_CALLS"),
        ("<\\tool_call>", "<\\\\tool_call>"),
        ("[args]", "[\\args]"),
        ("<|tool_calls_begin|>", "<\\|tool_calls_begin|>"),
        ("an Action: x", "an A\\ction: x"),
        ("tool_call ARGS <toolcall", "tool_call ARGS <toolcall"),
    ],
)
def test_forged_mark_gets_a_backslash_after_its_first_character(text: str, defused: str) -> None:
    assert defused == marks.escape(text)


@given(st.lists(st.sampled_from(["<", "\\", "/", " ", "tool_call", "[ARGS]", "Action:", "x"]), max_size=12).map("".join))
@example("<\\\\ /tool_call")
def test_defusing_can_be_undone(text: str) -> None:
    undone = re.sub(r"([<\[aA])\\(\\*\s*/?\s*(?:tool_call|ARGS\]|ction:))", r"\1\2", marks.escape(text))
    assert text == undone


@pytest.mark.parametrize("unit", ["<", "< ", "<\\", "</", "<tool_call", "[", "\\", "A"])
def test_escaping_takes_linear_time(unit: str) -> None:
    """Counted in characters of the result, not in seconds: each mark grows by one."""
    text = unit * (200_000 // len(unit))
    assert len(text) + marks.escape(text).count("\\") - text.count("\\") == len(marks.escape(text))
