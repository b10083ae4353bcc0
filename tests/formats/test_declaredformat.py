"""Declared formats are read by the same engine: in any pieces, without loss; other text stays prose."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.formats import Format
from patchbay.formats.checkpoint.declared_format import template_format
from patchbay.formats.checkpoint.response_template import response_template
from patchbay.formats.checkpoint.user_format import user_format

from .cuts import read
from .test_work import RATIO, Work

CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
TAG = r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>"


def declared(**fields: Any) -> Format:
    return template_format(response_template({"start_anchor": "<|assistant|>", "fields": fields}))


BARE_KEYS = declared(
    content={"close": ["<turn|>", "<eos>"]},
    thinking={"open": "<|channel>thought\n", "close": "<channel|>"},
    tool_calls={
        "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
        "close": "<tool_call|>",
        "repeats": True,
        "content": "json",
        "content_args": {"string_delims": [['<|"|>', '<|"|>']], "unquoted_keys": True},
        "transform": CALL,
    },
)
CHANNELS = declared(
    thinking={"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
    content={"open": "<|channel|>final<|message|>", "close": "<|end|>"},
    tool_calls={
        "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
        "close": "<|call|>",
        "repeats": True,
        "content": "json",
        "transform": CALL,
    },
)
BLOCKS = declared(
    **{
        name: {"open_pattern": rf"(?:<\|message\|>)?[^<]*<\|{kind}\|>", "close": "<|end|>", "repeats": True} | more
        for name, kind, more in (
            ("thinking", "think", {"join": ""}),
            ("content", "text", {"join": ""}),
            (
                "tool_calls",
                "tool",
                {"content": "json", "transform": {"function": {"name": "{content.do}", "arguments": "{content.with}"}}},
            ),
        )
    }
)
TAGS = declared(
    thinking={"open": "<think>", "close": "</think>"},
    tool_calls={
        "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
        "close": "</tool_call>",
        "repeats": True,
        "content": "xml-inline",
        "content_args": {"tag_pattern": TAG, "value_parser": {"name": "json", "args": {"allow_non_json": True}}},
        "transform": CALL,
    },
)
PREFILLED = declared(
    thinking={"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
    content={"open": "<response>\n", "close_pattern": r"\n?</response>"},
    tool_calls={
        "open": "<tool_call>",
        "close": "</tool_call>",
        "repeats": True,
        "content": "json",
        "transform": {"type": "function", "function": "{content}"},
    },
)
LIST = declared(
    tool_calls={
        "open": "<|START|>",
        "close": "<|END|>",
        "content": "json",
        "transform_each": True,
        "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
    },
)
OWN = user_format(
    """
name = "own"
drop = "<|own_end|>"
[[calls]]
open = "<own>"
close = "</own>"
name_key = "do"
arguments_key = "with"
[[calls]]
open = "<calls>"
close = "</calls>"
body = "tags"
call = '<do what="{name}">'
call_end = "</do>"
parameter = "<set {key}>"
parameter_end = "</set>"
[[calls]]
open = "<|call|>"
body = "named"
separators = "<|args|>"
[[reasoning]]
open = "<plan>"
close = "</plan>"
"""
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"zip": {"type": "string"}, "n": {"type": "integer"}}},
        },
    }
    for name in ("f", "g")
]


def outcome(row: Any, text: str, *, tools: Any = TOOLS) -> tuple[Any, ...]:
    reply = read(text, tools, format=row)
    calls = [(call.name, call.raw_arguments) for call in reply.tool_calls]
    return reply.content, reply.reasoning, calls, [(cut.name, cut.raw) for cut in reply.incomplete]


CASES = {
    "a dialect of JSON": (
        BARE_KEYS,
        '<|channel>thought\nhm<channel|>Wait.<|tool_call>call:f{n:3,zip:<|"|>0}2<|"|>}<tool_call|><turn|>',
        ("Wait.", "hm", [("f", '{"n": 3, "zip": "0}2"}')], []),
    ),
    "two calls side by side": (
        BARE_KEYS,
        "<|tool_call>call:f{}<tool_call|><|tool_call>call:g{n:1}<tool_call|>",
        (None, None, [("f", "{}"), ("g", '{"n": 1}')], []),
    ),
    "a call of no tool": (BARE_KEYS, "<|tool_call>call:h{}<tool_call|>", ("<|tool_call>call:h{}<tool_call|>", None, [], [])),
    "a call that is cut off": (
        BARE_KEYS,
        "Wait.<|tool_call>call:f{n:3,zip:<|",
        ("Wait.", None, [], [("f", "<|tool_call>call:f{n:3,zip:<|")]),
    ),
    "a call that only lost its end": (BARE_KEYS, "<|tool_call>call:f{n:3}", (None, None, [("f", '{"n": 3}')], [])),
    "a body that cannot be read": (
        BARE_KEYS,
        "<|tool_call>call:f{n:}<tool_call|> so",
        ("<|tool_call>call:f{n:}<tool_call|> so", None, [], []),
    ),
    "an opener without a name": (BARE_KEYS, "a <|tool_call>call: b", ("a <|tool_call>call: b", None, [], [])),
    "a word about the opener": (
        BARE_KEYS,
        "`<|tool_call>call:f{}<tool_call|>`",
        ("`<|tool_call>call:f{}<tool_call|>`", None, [], []),
    ),
    "a header before the arguments": (
        CHANNELS,
        (
            "<|channel|>analysis<|message|>Let me see.<|end|><|channel|>commentary to=functions.f <|constrain|>json<|message|>"
            '{"zip": "a <|call|> b",  "n": 1.50}<|call|><|channel|>final<|message|>Done.<|end|>'
        ),
        ("Done.", "Let me see.", [("f", '{"zip": "a <|call|> b",  "n": 1.50}')], []),
    ),
    "arguments that are cut off": (
        CHANNELS,
        '<|channel|>commentary to=functions.f<|message|>{"zip": "a',
        (None, None, [], [("f", '<|channel|>commentary to=functions.f<|message|>{"zip": "a')]),
    ),
    "arguments that only lost their end": (
        CHANNELS,
        "<|channel|>commentary to=functions.f<|message|>{}\n  indented",
        ("  indented", None, [("f", "{}")], []),
    ),
    "the longest of two openings": (
        declared(
            content={"open_pattern": r"<\|m\|>\w*<\|text\|>", "close": "<|end|>"},
            thinking={"open_pattern": r"<\|m\|>\w*", "close": "<|end|>"},
        ),
        "<|m|>a<|end|><|m|>a<|text|>b<|end|><|m|>a<|text",
        ("b", "<|text", [], []),
    ),
    "no arguments at all": (
        CHANNELS,
        "<|channel|>commentary to=functions.f<|message|> <|call|>",
        (None, None, [("f", "{}")], []),
    ),
    "blocks that share their first marker": (
        BLOCKS,
        (
            "<|think|>One.<|end|><|message|><|think|> Two.<|end|><|message|>me<|text|>Wait.<|end|>"
            '<|message|>f<|tool|>{"do": "f", "with": {"n": 1e2}}<|end|>'
        ),
        ("Wait.", "One.\n\nTwo.", [("f", '{"n": 1e2}')], []),
    ),
    "values typed by the schema": (
        TAGS,
        (
            "<think>hm</think>\nWait.\n<tool_call>\n<function=f>\n<parameter=zip>\n02134\n</parameter>\n<parameter=n>\n3\n</parameter>\n"
            "</function>\n</tool_call>"
        ),
        ("Wait.", "hm", [("f", '{"zip": "02134", "n": 3}')], []),
    ),
    "a text that looks like a number": (
        TAGS,
        "<tool_call><function=f><parameter=zip>2134</parameter><parameter=else>7</parameter></function></tool_call>",
        (None, None, [("f", '{"zip": "2134", "else": "7"}')], []),
    ),
    "an end that is not reasoning's alone": (CHANNELS, "Done.<|end|>", ("Done.", None, [], [])),
    "a value that is cut off": (
        TAGS,
        "<tool_call><function=f><parameter=n>3</par",
        (None, None, [], [("f", "<tool_call><function=f><parameter=n>3</par")]),
    ),
    "a tag that is cut off": (
        TAGS,
        "<tool_call><function=f><parameter=n>3</parameter><param",
        (None, None, [], [("f", "<tool_call><function=f><parameter=n>3</parameter><param")]),
    ),
    "tags that only lost their end": (
        TAGS,
        "<tool_call><function=f><parameter=n>3</parameter>\n</function>",
        (None, None, [("f", '{"n": 3}')], []),
    ),
    "a wrapper like any other": (
        PREFILLED,
        'I think.\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"zip": "</tool_call>"}}\n</tool_call>\n<response>\nDone.\n</response>',
        ("Done.", "I think.", [("f", '{"zip": "</tool_call>"}')], []),
    ),
    "a list of calls": (
        LIST,
        '<|START|>[{"tool_name": "f", "parameters": {}}, {"tool_name": "g", "parameters": {"n": 1}}]<|END|>',
        (None, None, [("f", "{}"), ("g", '{"n": 1}')], []),
    ),
    "keys of one's own": (OWN, '<own>[{"do": "f", "with": {"n": 1}}]</own>', (None, None, [("f", '{"n": 1}')], [])),
    "tags of one's own": (
        OWN,
        '<plan>hm</plan>Wait.<calls><do what="f"><set zip>02134</set></do><do what="g"></do></calls><|own_end|>',
        ("Wait.", "hm", [("f", '{"zip": "02134"}'), ("g", "{}")], []),
    ),
    "a name before the arguments": (OWN, '<|call|>f<|args|>{"n": 1}', (None, None, [("f", '{"n": 1}')], [])),
}


@pytest.mark.parametrize("case", CASES)
def test_a_declared_format_is_read_in_any_pieces(case: str) -> None:
    row, text, expected = CASES[case]
    assert expected == outcome(row, text)


def test_without_tools_every_well_formed_call_is_one() -> None:
    assert (None, None, [("h", '{"a": true}')], []) == outcome(BARE_KEYS, "<|tool_call>call:h{a:true}<tool_call|>", tools=None)


ROWS = [BARE_KEYS, CHANNELS, BLOCKS, TAGS, PREFILLED, LIST, OWN]
SCRAPS = sorted(
    {scrap for row, text, _ in CASES.values() for scrap in (text[:9], text[9:20], text[-12:], text)} | {"<|", "|>", "x", "\n"}
)


@given(st.sampled_from(ROWS), st.lists(st.sampled_from(SCRAPS), max_size=6).map("".join))
def test_pieces_of_any_size_give_the_reply_of_the_whole_text(row: Format, text: str) -> None:
    read(text, TOOLS, format=row)


HOSTILE = {
    "openers": (BARE_KEYS, "<|tool_call>call:f{"),
    "openers without a name": (BARE_KEYS, "<|tool_call>call:"),
    "closers": (BARE_KEYS, "<tool_call|>"),
    "long headers": (CHANNELS, "<|channel|>commentary to=functions.f " + "x" * 900),
    "headers that never end": (CHANNELS, "<|channel|>commentary to=functions.f"),
    "blocks": (BLOCKS, "<|message|>"),
    "names before blocks": (BLOCKS, "<|message|>" + "x" * 500),
    "tags": (TAGS, "<tool_call><function=f><parameter=a>"),
    "spaces": (TAGS, "<tool_call>" + " " * 700),
    "own tags": (OWN, '<do what="f"><set a>'),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_text_costs_linear_work(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, scrap = HOSTILE[case]
    small, large = (scrap * (size // len(scrap) + 1) for size in (1_500, 15_000))
    assert Work(monkeypatch).growth(small, large, 64, format=row) <= RATIO
