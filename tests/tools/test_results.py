"""Every value that a tool returns becomes text for the model, also objects of libraries."""

from __future__ import annotations

import array
import datetime as dt
import decimal
import email.message
import enum
import json
import pathlib
import sqlite3
import types
import uuid
import xml.etree.ElementTree as ET
from collections import OrderedDict, deque
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import attrs
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


class NoFields(msgspec.Struct):
    pass


@attrs.define
class Attributes:
    a: int


@attrs.define
class NoAttributes:
    pass


class Word(str):
    __slots__ = ()


class Color(enum.Enum):
    RED = "red"
    TWO = 2


class Place:
    def __repr__(self) -> str:
        return "Place(Rome)"


class Shelf:
    def __iter__(self) -> Any:
        return iter(["a title"])

    def __str__(self) -> str:
        return "a shelf of 12 books"


class Table:
    """A pandas DataFrame, as far as results look at one: like a mapping, whose names may occur several times; iterating gives the names."""

    def keys(self) -> Any:
        return ["a", "b"]

    def items(self) -> Any:
        return [("a", 1), ("b", 2), ("b", 3)]

    def __contains__(self, key: str) -> bool:
        return key in ("a", "b")

    def __getitem__(self, key: str) -> int:
        return {"a": 1, "b": 2}[key]

    def tolist(self) -> list[int]:
        return [1, 2]


class Broken:
    def __str__(self) -> str:
        raise RuntimeError

    def isoformat(self) -> str:
        raise RuntimeError


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
        (NoFields(), "{}"),
        (Attributes(1), '{"a": 1}'),
        (NoAttributes(), "{}"),
        ({"b", "a"}, '["a", "b"]'),
        (frozenset({1, 2}), "[1, 2]"),
        ({"s": {1, "a"}}, '{"s": ["a", 1]}'),
        (b"bytes", '"bytes"'),
        (b"\xff", '"/w=="'),
        (Color.RED, "red"),
        ({Color.TWO: Color.RED}, '{"2": "red"}'),
        (ValueError("no"), "ValueError: no"),
        ({"error": KeyError("k")}, '{"error": "KeyError: \'k\'"}'),
        (float("nan"), "null"),
        ([float("inf"), 1.5], "[null, 1.5]"),
        (decimal.Decimal("1.10"), '"1.10"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (pathlib.PurePosixPath("/a"), '"/a"'),
        (deque([1]), "[1]"),
        (OrderedDict(a=1), '{"a": 1}'),
        (types.MappingProxyType({"a": 1}), '{"a": 1}'),
        (range(3), "[0, 1, 2]"),
        ({"a": 1}.keys(), '["a"]'),
        ({"a": 1}.values(), "[1]"),
        ({"a": 1}.items(), '[["a", 1]]'),
        (map(str, (1, 2)), '["1", "2"]'),
        (array.array("d", [1.5]), "[1.5]"),
        (Table(), '{"a": 1, "b": [2, 3]}'),
        ({"table": Table()}, '{"table": {"a": 1, "b": [2, 3]}}'),
        (Place(), "Place(Rome)"),
        (Shelf(), "a shelf of 12 books"),
        ([Shelf()], '["a shelf of 12 books"]'),
        (dict, "<class 'dict'>"),
        (Broken(), "<Broken>"),
        ({"a": Broken()}, '{"a": "<Broken>"}'),
        ("\ud800x", "\ufffdx"),
        ("\ud83d\ude00", "😀"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_value_has_its_text(value, expected):
    assert expected == render_result(value)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (DAY, "2026-01-02"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (decimal.Decimal("1.50"), "1.50"),
        (b"ab", "ab"),
        (("a", 1), '["a", 1]'),
        (1.5, "1.5"),
        (None, "null"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_key_is_its_text_without_quotes(key, expected):
    assert {expected: 1, "a": {expected: 2}} == json.loads(render_result({key: 1, "a": {key: 2}}))


def test_a_row_of_a_database_is_an_object():
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = sqlite3.Row
        row = connection.execute("select 'Rome' as city, 3 as sold").fetchone()
        assert {"city": "Rome", "sold": 3} == json.loads(render_result(row))
        assert [{"sold": 3}] == json.loads(render_result(connection.execute("select 3 as sold")))


def test_an_email_message_is_an_object_with_all_its_headers_and_its_text():
    message = email.message.EmailMessage()
    message["Subject"] = "Hi"
    message["Received"], message["Received"] = "from a", "from b"
    assert {"Subject": "Hi", "Received": ["from a", "from b"], "payload": None} == json.loads(render_result(message))
    message.set_content("Grüße\n")
    outcome = json.loads(render_result({"mail": message}))["mail"]
    assert ("Hi", "Grüße\n") == (outcome["Subject"], outcome["payload"])
    message.add_attachment(b"\xff", maintype="image", subtype="png")
    outcome = json.loads(render_result(message))
    assert ["Grüße\n", "/w=="] == [part["payload"] for part in outcome["payload"]]


def test_an_element_of_xml_is_its_text_and_not_its_attributes():
    assert render_result(ET.fromstring('<a x="1">text</a>')).startswith("<Element 'a' at ")


def test_object_without_a_text_form_is_named_with_a_note():
    class Session:
        def __iter__(self) -> Any:
            return iter([1])

    session = Session()
    note = f"{session!r} (note: Session has no text form, so its contents are not shown)"
    assert note == render_result(session)
    assert {"it": note} == json.loads(render_result({"it": session}))


def test_cycles_and_deep_values_end():
    cycle: list[Any] = [1]
    cycle += [cycle, cycle]
    assert '[1, "<list>", "<list>"]' == render_result(cycle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert "<list>" in render_result(deep)


def test_errors_without_a_message_name_their_type():
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
