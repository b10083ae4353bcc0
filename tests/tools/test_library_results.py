"""Results that are objects of libraries: tables, rows, messages, XML and iterables."""

from __future__ import annotations

import array
import datetime as dt
import decimal
import email.message
import json
import sqlite3
import uuid
import xml.etree.ElementTree as ET
from collections import deque
from contextlib import closing
from typing import Any

import attrs
import msgspec
import pytest

from patchbay.tools import render_result


class Series:
    """A pandas Series, as far as results look at one: iterating gives the values."""

    iloc = None

    def tolist(self) -> list[Any]:
        return [3, 4]

    def to_dict(self) -> dict[str, int]:
        return {"Rome": 3, "Oslo": 4}


class DataFrame:
    """A pandas DataFrame, as far as results look at one: iterating gives the columns' names."""

    columns = ("sold",)
    iloc = None

    def to_dict(self, orient: str) -> dict[str, Any]:
        assert orient == "split"
        return {"index": ["Rome"], "columns": self.columns, "data": [[3]]}


def test_a_table_has_its_index_its_columns_and_its_rows():
    table = {"index": ["Rome"], "columns": ["sold"], "data": [[3]]}
    assert table == json.loads(render_result(DataFrame()))
    assert {"sales": table} == json.loads(render_result({"sales": DataFrame()}))


def test_series_keeps_its_labels():
    assert {"Rome": 3, "Oslo": 4} == json.loads(render_result(Series()))


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


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (dt.date(2026, 1, 2), "2026-01-02"),
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


def test_an_object_that_can_be_iterated_is_its_text_and_not_its_items():
    class Shelf:
        def __iter__(self) -> Any:
            return iter(["a title"])

        def __str__(self) -> str:
            return "a shelf of 12 books"

    assert "a shelf of 12 books" == render_result(Shelf())
    assert '["a shelf of 12 books"]' == render_result([Shelf()])


def test_object_without_a_text_form_is_named_with_a_note():
    class Session:
        def __iter__(self) -> Any:
            return iter([1])

    session = Session()
    note = f"{session!r} (note: Session has no text form, so its contents are not shown)"
    assert note == render_result(session)
    assert {"it": note} == json.loads(render_result({"it": session}))


def test_custom_repr_is_the_result_text():
    class Place:
        def __repr__(self) -> str:
            return "Place(Rome)"

    assert "Place(Rome)" == render_result(Place())


@attrs.define
class NoAttributes:
    pass


class NoFields(msgspec.Struct):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": 1}.keys(), ["a"]),
        ({"a": 1}.values(), [1]),
        ({"a": 1}.items(), [["a", 1]]),
        ((n for n in (1, 2)), [1, 2]),
        (map(str, (1, 2)), ["1", "2"]),
        (deque([1]), [1]),
        (range(2), [0, 1]),
        (array.array("d", [1.5]), [1.5]),
        (NoAttributes(), {}),
        (NoFields(), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_registered_collections_are_json(value, expected):
    assert expected == json.loads(render_result(value))
    assert "<class 'dict'>" == render_result(dict)
