"""Law 5 without timing: ten times the text is ten times the work, in every format and in hostile texts.

Counted are the lines of the package that run and the characters that are copied when a piece of text arrives. What the interpreter's
own C code does in one call (a search over a whole buffer) is not seen here; ``make fidelity`` measures that too, as CPU time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from bench.fidelity import carriers, hostile
from bench.fidelity.readings import pieces

from patchbay import StreamParser, parse
from patchbay.formats.source import Source
from support.repeated import sampled

SMALL = 400
LARGER = {"Harmony channels": 800, "arguments markers": 800}
"""Sizes of texts of which a format holds back so much that fewer characters do not show what each more of them costs."""
RATIO = 12
TEXTS: dict[str, Callable[[int], str]] = {
    **{name: partial(carriers.text, name) for name in carriers.CARRIERS},
    **{name: partial(hostile.text, name) for name in hostile.UNITS},
}


class Work:
    """Counts while it is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copied = 0
        push = Source.push

        def counted(source: Source, text: str) -> None:
            push(source, text)
            self.copied += len(source.buf)

        monkeypatch.setattr(Source, "push", counted)

    def of(self, text: str, cut: int, *, tools: Any = carriers.TOOLS, **options: Any) -> int:
        """The work of reading ``text`` in pieces of ``cut`` characters; 0 is the whole text."""
        self.copied = lines = 0

        def line(_frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any]:
            nonlocal lines
            lines += 1
            return line

        before = sys.gettrace()
        sys.settrace(lambda frame, *_: line if "patchbay" in frame.f_code.co_filename else None)
        try:
            parser = StreamParser(tools, **options)
            for piece in pieces(text, cut):
                parser.feed(piece)
            parser.close()
        finally:
            sys.settrace(before)
        return lines + self.copied

    def growth(self, small: str, large: str, cut: int, **options: Any) -> float:
        """By how much more work ``large`` is than ``small``, were it ten times as long."""
        parse(small, **({"tools": carriers.TOOLS} | options))  # what is made once and kept does not count
        return self.of(large, cut, **options) / self.of(small, cut, **options) * 10 * len(small) / len(large)


@pytest.mark.parametrize("name", TEXTS)
def test_ten_times_the_text_is_ten_times_the_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    unit = hostile.UNITS.get(name, ("", ""))[1]
    size = max(LARGER.get(name, SMALL), 8 * len(unit))
    small, large = TEXTS[name](size), TEXTS[name](10 * size)
    for cut in sampled((0, 4), 1):
        assert work.growth(small, large, cut) <= RATIO, cut


_FUNCTION = "<tool_call><function=write_file>"
_PYTHON = "<|python_start|>[write_file(content="
_M3 = "]<]minimax[>["
_INVOKE = f'{_M3}<tool_call>{_M3}<invoke name="write_file">{_M3}'
IN_ARGUMENTS = {
    "closers and white space": (_FUNCTION + "<parameter=content>", "</parameter>" + " " * 300),
    "closers of calls": (_FUNCTION + "<parameter=content>", "</function> "),
    "angle brackets": (_FUNCTION + "<parameter=content>", "< "),
    "openers of parameters": (_FUNCTION, "<parameter=content>"),
    "bare invokes": ("", '<invoke name="write_file"><parameter name="content">'),
    "keys without values": ("<tool_call>write_file", "<arg_key>content</arg_key>"),
    "values without keys": ("<tool_call>write_file", "<arg_value>x</arg_value> "),
    "openers of keys in a value": ("<tool_call>write_file<arg_key>content</arg_key><arg_value>", "<arg_key>x y "),
    "elements of one name": (f"{_INVOKE}<content>", f"{_M3}<a>x{_M3}</a>"),
    "elements in a list": (f"{_INVOKE}<options>", f"{_M3}<a>{_M3}</b>"),
    "brackets": (f"{_INVOKE}<content>", "]<]mini"),
    "quoted calls": (
        _FUNCTION + "<parameter=content>",
        "<tool_call><function=f><parameter=a>x</parameter></function></tool_call>",
    ),
    "openers of quoted calls": (_FUNCTION + "<parameter=content>", "<tool_call><function=f><parameter=a>"),
    "openers and other closers": (_FUNCTION + "<parameter=content>", '<invoke name="f"></parameter></function>'),
    "a parameter that may be the next": (_FUNCTION + "<parameter=content>", "<parameter=path>x</parameter> "),
    "closers that may be doubled": (_FUNCTION + "<parameter=content>", "</parameter></param></parameter>x "),
    "quoted calls with keys": (
        "<tool_call>write_file<arg_key>content</arg_key><arg_value>",
        "<tool_call>f<arg_key>a</arg_key><arg_value>",
    ),
    "keys that may be the next": (
        "<tool_call>write_file<arg_key>content</arg_key><arg_value>",
        "<arg_key>path</arg_key><arg_value>x</arg_value> ",
    ),
    "quoted calls of Gemma": ('<|tool_call>call:write_file{content:<|"|>', '<|tool_call>call:f{a:<|"|>'),
    "tokens for quotes": ('<tool_call>{"name": "write_file", "arguments": {"content": ', '<|"|>x, '),
    "quotes in Python": (_PYTHON, "'"),
    "quotes and words in Python": (_PYTHON + "'", "x'y "),
    "quotes and commas in Python": (_PYTHON + "'", "', "),
    "backslashes in Python": (_PYTHON, "\\"),
    "escapes in Python": (_PYTHON + "'", "\\x4"),
    "line breaks in Python": (_PYTHON + "'", "\n"),
    "operators in Python": (_PYTHON, "-"),
    "arguments in Python": (_PYTHON + "1", ", b=2"),
    "separators in Python": (_PYTHON, "a=b "),
    "items in Python": (_PYTHON + "[", "x, "),
    "comments in Python": (_PYTHON + "1,", "#\n"),
    "joined strings in Python": (_PYTHON, "'a' "),
    "nested expressions in Python": (_PYTHON + "[", "(" * 40 + "x" * 300 + "+1)" * 40 + ","),
    "sections of character data": ('<function name="write_file"><param name="content"><![CDATA[', "]]><![CDATA["),
}


@pytest.mark.parametrize("name", IN_ARGUMENTS)
def test_hostile_arguments_in_tags_cost_linear_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, unit = IN_ARGUMENTS[name]
    work = Work(monkeypatch)
    small, large = (begin + unit * (size // len(unit) + 1) for size in (750, 7_500))
    for cut in sampled((0, 4), 1):
        assert work.growth(small, large, cut) <= RATIO, cut


NESTED = {"type": ["object", "array"], "properties": {"next": {"$ref": "#/properties/options"}}, "items": {"type": "integer"}}
TYPED = [
    {
        "type": "function",
        "function": {"name": "set_options", "parameters": {"type": "object", "properties": {"options": NESTED}}},
    }
]
UNITS = [
    "[",
    '{"a":',
    "(",
    "[]",
    "9",
    "-",
    "0,",
    '"',
    "'",
    "'',",
    "\\",
    "\\x41",
    "\\u00",
    "\x01",
    " ",
    ",",
    '"next": "1",',
    "None,",
    "'[1]',",
]


@pytest.mark.parametrize("head", ["", "[", "{", "'", '"', "['", '{"next": ["'])
def test_hostile_values_are_typed_in_linear_work(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    for unit in sampled([*UNITS, '"\\"1\\"",', "'\\x5c"], 7):
        small, large = (
            f"<tool_call><function=set_options><parameter=options>{head}{unit * (size // len(unit))}</parameter></function></tool_call>"
            for size in (750, 7_500)
        )
        (call,) = parse(large, TYPED).tool_calls
        json.loads(call.raw_arguments)
        assert work.growth(small, large, 0, tools=TYPED) <= RATIO, unit


def test_repeated_scanning_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = StreamParser.feed

    def again(parser: Any, text: str) -> Any:
        parser.seen = getattr(parser, "seen", "") + text
        Source().push(parser.seen)
        return feed(parser, text)

    monkeypatch.setattr(StreamParser, "feed", again)
    work = Work(monkeypatch)
    assert work.of("x" * 8_000, 4) > 3 * RATIO * work.of("x" * 800, 4)
