"""Every value that a tool returns becomes text for the model."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import pathlib
import types
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from patchbay.tools import render_error, render_result, well_formed


class Model(BaseModel):
    day: dt.date
    tags: set[str] = set()


@dataclass
class Point:
    x: int
    when: dt.date


class Struct(msgspec.Struct):
    a: int


class Word(str):
    __slots__ = ()


class Color(enum.Enum):
    RED = "red"
    TWO = 2


class Opaque:
    def __str__(self) -> str:
        return "opaque"


DAY = dt.date(2026, 1, 2)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"),
        ("", ""),
        (Word("w"), "w"),
        (None, "null"),
        (True, "true"),
        (1, "1"),
        (10**30, str(10**30)),
        ([1, "é", None], '[1, "é", null]'),
        ({"a": DAY}, '{"a": "2026-01-02"}'),
        (Model(day=DAY, tags={"t"}), '{"day": "2026-01-02", "tags": ["t"]}'),
        ([Point(1, DAY)], '[{"x": 1, "when": "2026-01-02"}]'),
        (Struct(1), '{"a": 1}'),
        ({"b", "a"}, '["a", "b"]'),
        (frozenset({1, 2}), "[1, 2]"),
        ({"s": {1, "a"}}, '{"s": ["a", 1]}'),
        (b"bytes", '"bytes"'),
        (b"\xff", '"/w=="'),
        (Color.RED, "red"),
        ({Color.TWO: Color.RED}, '{"2": "red"}'),
        (ValueError("no"), "ValueError: no"),
        ({"error": KeyError("k")}, '{"error": "KeyError: \'k\'"}'),
        ({(1, 2): 3}, '{"[1, 2]": 3}'),
        ({DAY: 1}, '{"2026-01-02": 1}'),
        (float("nan"), "null"),
        ([float("inf"), 1.5], "[null, 1.5]"),
        (decimal.Decimal("1.10"), '"1.10"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (pathlib.PurePosixPath("/a"), '"/a"'),
        (deque([1]), "[1]"),
        (OrderedDict(a=1), '{"a": 1}'),
        (types.MappingProxyType({"a": 1}), '{"a": 1}'),
        (range(3), "[0, 1, 2]"),
        (Opaque(), "opaque"),
        ([Opaque()], '["opaque"]'),
        ("\ud800x", "\ufffdx"),
        ("\ud83d\ude00", "😀"),
    ],
)
def test_each_kind_of_value_has_its_text(value, expected):
    assert expected == render_result(value)


def test_cycles_and_deep_values_end():
    cycle: list[Any] = [1]
    cycle += [cycle, cycle]
    assert '[1, "<list>", "<list>"]' == render_result(cycle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert "<list>" in render_result(deep)


def test_value_with_failing_methods_is_named_by_its_type():
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

        def isoformat(self) -> str:
            raise RuntimeError

    assert "<Broken>" == render_result(Broken())
    assert '{"a": "<Broken>"}' == render_result({"a": Broken()})


def test_errors_without_a_message_name_their_type():
    assert "Error: tool 't' failed: ValueError: no" == render_error("t", ValueError("no"))
    assert "Error: tool 't' failed: KeyError: 'k'" == render_error("t", KeyError("k"))
    assert "Error: tool 't' failed: AssertionError" == render_error("t", AssertionError())


TEXT = st.text(alphabet=st.characters() | st.sampled_from("\ud800\udfff"))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(alphabet=st.characters(exclude_categories=[]))
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT | st.integers() | st.tuples(st.integers()), inner),
    max_leaves=20,
)


@given(JSON)
def test_every_result_is_text_that_can_be_sent_and_read(value):
    text = render_result(value)
    text.encode()
    if not isinstance(value, str):
        json.loads(text)


@given(TEXT)
def test_sendable_text_is_unchanged_and_other_text_made_sendable(text):
    well_formed(text).encode()
    try:
        text.encode()
    except UnicodeEncodeError:
        assert text != well_formed(text)
    else:
        assert text is well_formed(text)
