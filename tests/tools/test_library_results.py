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


class Index(list[Any]):
    """A pandas Index, as far as results look at one."""

    name: str | None = None

    @property
    def is_unique(self) -> bool:
        return len(set(self)) == len(self)


class Series:
    """A pandas Series, as far as results look at one: iterating gives the values."""

    iloc = None

    def __init__(self, values: list[Any], index: list[Any]) -> None:
        self.values, self.index = values, Index(index)

    def __iter__(self) -> Any:
        return iter(self.values)

    def __str__(self) -> str:
        return "a shortened table"

    def tolist(self) -> list[Any]:
        return self.values

    def items(self) -> Any:
        return zip(self.index, self.values, strict=True)

    def to_dict(self) -> dict[Any, Any]:
        return dict(self.items())


class DataFrame:
    """A pandas DataFrame, as far as results look at one: iterating gives the columns' names."""

    iloc = None

    def __init__(
        self, columns: list[str], rows: list[list[Any]], index: list[Any] | None = None, name: str | None = None
    ) -> None:
        self.columns, self.rows = Index(columns), rows
        self.index = Index(index if index is not None else range(len(rows)))
        self.index.name = name

    def __iter__(self) -> Any:
        return iter(self.columns)

    def __str__(self) -> str:
        return "a shortened table"

    def keys(self) -> Any:
        return self.columns

    def __getitem__(self, name: str) -> Any:
        return Series([row[self.columns.index(name)] for row in self.rows], self.index)

    def reset_index(self) -> DataFrame:
        name = self.index.name or "index"
        if name in self.columns:
            raise ValueError(f"cannot insert {name}, already exists")
        return DataFrame([name, *self.columns], [[label, *row] for label, row in zip(self.index, self.rows, strict=True)])

    def to_dict(self, orient: str) -> Any:
        if orient == "records":
            return [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        assert orient == "tight"
        return {"index": self.index, "columns": self.columns, "data": self.rows, "index_names": [self.index.name]}


def test_a_table_is_a_list_of_records():
    frame = DataFrame(["city", "sold"], [["Rome", 3], ["Oslo", 4]])
    assert [{"city": "Rome", "sold": 3}, {"city": "Oslo", "sold": 4}] == json.loads(render_result(frame))
    assert {"sales": [{"city": "Rome"}]} == json.loads(render_result({"sales": DataFrame(["city"], [["Rome"]])}))


def test_table_keeps_a_meaningful_index():
    assert [{"city": "Rome", "sold": 3}] == json.loads(render_result(DataFrame(["sold"], [[3]], ["Rome"], "city")))
    assert [{"index": 7, "sold": 3}] == json.loads(render_result(DataFrame(["sold"], [[3]], [7])))


@pytest.mark.parametrize(
    "frame",
    [DataFrame(["a", "a"], [[1, 2]]), DataFrame(["city"], [["Rome"]], ["Oslo"], "city")],
    ids=["two columns of one name", "an index with the name of a column"],
)
def test_table_that_records_would_reduce_keeps_all_parts(frame):
    outcome = json.loads(render_result(frame))
    assert (frame.columns, frame.rows, frame.index) == (outcome["columns"], outcome["data"], outcome["index"])


def test_series_keeps_its_labels_even_if_repeated():
    assert {"Rome": 3, "Oslo": 4} == json.loads(render_result(Series([3, 4], ["Rome", "Oslo"])))
    assert [["Rome", 3], ["Rome", 4]] == json.loads(render_result(Series([3, 4], ["Rome", "Rome"])))


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


def test_an_element_of_xml_is_its_markup():
    markup = '<a x="1">text<b /></a>'
    assert markup == render_result(ET.fromstring(markup))
    assert {"found": [markup]} == json.loads(render_result({"found": [ET.fromstring(markup)]}))


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
