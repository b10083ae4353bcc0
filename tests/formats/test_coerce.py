"""Text without a type is coerced to the schema's type or stays text; valid JSON is not changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.formats.values.coerce import Expected, coerce, decoded_to

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
BOOLEAN = {"type": "boolean"}
OBJECT = {"type": "object"}
ARRAY = {"type": "array"}


def read(text: str, schema: Any, root: Any = None) -> str:
    return coerce(text, schema, schema if root is None else root)


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


# Scalars


@pytest.mark.parametrize("text", ["02134", "1e5", "true", "null", "None", '{"a": 1}', "['a']", "", "  x\n", '"quoted"', "(1, 2)"])
def test_a_string_stays_the_string_it_is(text: str) -> None:
    assert text == json.loads(read(text, STRING))


@pytest.mark.parametrize(
    "schema", [{}, None, True, "string", {"type": "any"}, {"type": 5}, {"description": "x"}, {"$ref": "#/nowhere"}]
)
def test_text_without_a_known_type_is_a_string(schema: Any) -> None:
    assert '"5"' == read("5", schema)


@pytest.mark.parametrize(
    ("expected", "text", "schema"),
    [
        ("5", "5", INTEGER),
        ("-5", "\n -5 ", INTEGER),
        ("12345678901234567890", "12345678901234567890", INTEGER),
        ("5", "5.0", INTEGER),
        ("2134", "02134", INTEGER),
        ("5", "+5", INTEGER),
        ('"5.5"', "5.5", INTEGER),
        ('"five"', "five", INTEGER),
        ('""', "", INTEGER),
        ("5", "5", NUMBER),
        ("5.0", "5.0", NUMBER),
        ("1E5", "1E5", NUMBER),
        ("3.141592653589793238462643", "3.141592653589793238462643", NUMBER),
        ("5", "5.", NUMBER),
        ("0.5", ".5", NUMBER),
        ("1000", "1_000", NUMBER),
        ('"NaN"', "NaN", NUMBER),
        ('"-inf"', "-inf", NUMBER),
        ('"Infinity"', "Infinity", NUMBER),
        ('"1e999"', "1e999", NUMBER),
        ('"٣"', "٣", NUMBER),
        ("true", "TRUE", BOOLEAN),
        ("true", "1", BOOLEAN),
        ("false", "False", BOOLEAN),
        ("false", " 0", BOOLEAN),
        ('"yes"', "yes", BOOLEAN),
        ("null", "NULL", {"type": "null"}),
        ("null", "None", {"type": ["integer", "null"]}),
        ('"null"', "null", INTEGER),
        ('"none"', "none", {"type": "null"}),
    ],
)
def test_each_type_is_coerced_from_its_notations(expected: str, text: str, schema: Any) -> None:
    assert expected == read(text, schema)


@pytest.mark.parametrize(
    ("expected", "text", "types"),
    [
        ("null", "null", ["string", "null"]),
        ('"None"', "None", ["string", "null"]),
        ("1", "1", ["boolean", "integer"]),
        ("1", "1", ["string", "number", "integer"]),
        ("1.5", "1.5", ["string", "number", "integer"]),
        ("true", "1", ["string", "boolean"]),
        ('{"a": 1}', '{"a": 1}', ["string", "object"]),
        ('"[1]"', "[1]", ["string", "object"]),
        ("[1]", "[1]", ["array", "string"]),
        ('"02134"', "02134", ["string", "integer"]),
        ('"+49"', "+49", ["string", "integer"]),
        ('"(1, 2)"', "(1, 2)", ["string", "array"]),
        ('"[see below]"', "[see below]", ["string", "array"]),
    ],
)
def test_first_matching_type_wins_and_beside_text_only_json(expected: str, text: str, types: list[str]) -> None:
    assert expected == read(text, {"type": types})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["null", "integer"]},
        {"type": "INTEGER"},
        {"type": "int"},
        {"enum": [1, 5]},
        {"const": 5},
        {"anyOf": [{"type": "null"}, {"oneOf": [{"allOf": [INTEGER, {"minimum": 0}]}]}]},
        {"$ref": "#/$defs/count"},
        {"$ref": "#/$defs/a~1b%20c/0"},
        {"$ref": "#/$defs/circle"},
    ],
)
def test_types_are_found_wherever_a_schema_names_them(schema: Any) -> None:
    circle = {"anyOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/count"}]}
    root = {"$defs": {"count": INTEGER, "a/b c": [INTEGER], "circle": circle}}
    assert "5" == read("5", schema, root)


def test_type_is_inferred_from_schema_keywords() -> None:
    assert '{"a": 1}' == read('{"a": "1"}', {"properties": {"a": INTEGER}})
    assert "[1]" == read('["1"]', {"items": INTEGER})
    assert "null" == read("null", {"type": "string", "nullable": True})
    assert '"null"' == read("null", {"type": "string", "enum": ["null"]})
    assert "null" == read("null", {"type": "string", "enum": ["a", None]})


# Objects and arrays


@pytest.mark.parametrize("text", ['{"a" : [1.50, 1e2,\n"\\u00e9\\/"], "b":{}, "a":null}', "[ ]", '[[], [{"a":[0]}]]'])
def test_json_is_kept_verbatim(text: str) -> None:
    assert text == read(f"\n{text} ", {"type": ["object", "array"]})


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (["a", "b"], "['a', 'b']"),
        ({"a": True, "b": None}, "{'a': True, 'b': None}"),
        ([1, 2], "[1, 2, ]"),
        ({"a": 1}, "{'a': 1,}"),
        ([[1, "x"], [2]], "[(1, 'x'), (2,)]"),
        ([1, 2], "(1, 2)"),
        ([], "()"),
        ({"1": "a", "true": "b", "null": "c"}, "{1: 'a', True: 'b', None: 'c'}"),
        (["it's", 'a "word"'], """["it's", 'a "word"']"""),
        (["it's\t\x07\x0b\x00é😀_\\d"], r"""['it\'s\t\a\v\0\xe9\U0001f600\_\d']"""),
        (["a\nb"], "['a\nb']"),
        (["ab"], "['a\\\nb']"),
        (["\\UFFFFFFFF"], r"['\UFFFFFFFF']"),
        ([5, 0.5, 10], "[5., .5, 0_10]"),
        ([True, False], "[true, False]"),
    ],
)
def test_python_literals_are_read_where_json_is_expected(expected: Any, text: str) -> None:
    assert expected == strict(read(text, {"type": ["array", "object"]}))


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2",
        "[1, 2}",
        "[1] and more",
        "[1 2]",
        "[,]",
        "[1,,2]",
        "{'a'}",
        "{'a': }",
        "{'a' 1}",
        "{'a': 1: 2}",
        "{[1]: 2}",
        "{a: 1}",
        "[a]",
        "[f(1)]",
        "[NaN]",
        "[inf]",
        "[1e999]",
        "[--1]",
        "['a]",
        "['a\\",
        "['a' 'b']",
        "(1)",
        "(a, b)",
        "[b'a']",
        "[truex]",
        "[:]",
        "[true:]",
        "[" + "9" * 5000 + "]",
        "{",
        "a",
        "",
    ],
)
def test_other_text_stays_text(text: str) -> None:
    assert text == json.loads(read(text, {"type": ["array", "object"]}))


def test_an_array_in_an_objects_place_is_passed_on_for_the_validator_to_see() -> None:
    assert '["a"]' == read('["a"]', OBJECT)
    assert '"[1]"' == read("[1]", INTEGER)


def test_a_json_string_is_opened_where_no_string_should_be() -> None:
    assert "[1, 2]" == read('"[1, 2]"', ARRAY)
    assert "5" == read('"5"', INTEGER)
    assert json.dumps('"five"') == read('"five"', INTEGER)
    assert json.dumps('"[1, 2') == read('"[1, 2', ARRAY)
    assert json.dumps('"a" "b"') == read('"a" "b"', ARRAY)


# Nested values

ORDER = {
    "type": "object",
    "properties": {
        "id": INTEGER,
        "zip": STRING,
        "tags": {"type": "array", "items": BOOLEAN},
        "pair": {"type": "array", "prefixItems": [INTEGER, STRING], "items": NUMBER},
        "old": {"type": "array", "items": [INTEGER, STRING], "additionalItems": NUMBER},
        "next": {"$ref": "#"},
        "either": {"anyOf": [OBJECT, {"type": "array", "items": INTEGER}]},
        "loose": {},
    },
    "additionalProperties": NUMBER,
}


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ('{"id": 7, "zip": "02134"}', '{"id": "7", "zip": "02134"}'),
        ('{"id":  "seven"}', '{"id":  "seven"}'),
        ('{"zip": 2134}', '{"zip": 2134}'),
        ('{"id": 7.0}', '{"id": 7.0}'),
        ('{"tags": [true, false, "maybe"]}', '{"tags": ["True", "0", "maybe"]}'),
        ('{"tags": [true]}', '{"tags": "[\\"true\\"]"}'),
        ('{"pair": [1, "1", 1, 1]}', '{"pair": ["1", "1", "1", "1"]}'),
        ('{"old": [1, "1", 1]}', '{"old": ["1", "1", "1"]}'),
        ('{"next": {"next": {"id": 1}}}', '{"next": {"next": {"id": "1"}}}'),
        ('{"either": [1]}', '{"either": ["1"]}'),
        ('{"other": 1.5}', '{"other": "1.5"}'),
        ('{"loose": "1", "loose": ["1"], "loose": {"id": "1"}}', '{"loose": "1", "loose": ["1"], "loose": {"id": "1"}}'),
        ('{"i\\u0064": 1}', '{"i\\u0064": "1"}'),
        ('{"id": 1}', "{'id': '1'}"),
    ],
)
def test_nested_strings_are_coerced_by_the_schema(expected: str, text: str) -> None:
    assert expected == read(text, ORDER)


def test_a_string_in_a_string_is_opened_a_few_times_only() -> None:
    def wrapped(times: int) -> str:
        text = '{"id": 1}'
        for _ in range(times):
            text = f'{{"next": {json.dumps(text)}}}'
        return text

    assert '{"next": {"next": {"id": 1}}}' == read(wrapped(2), ORDER)
    opened = read(wrapped(9), ORDER).split("\\")[0]
    assert opened.startswith('{"next": {"next": {"next": {"next": "{')


# Encoded twice


@pytest.mark.parametrize(
    ("expected", "text", "schema"),
    [
        ('{"a": 1.0}', '"{\\"a\\": 1.0}"', OBJECT),
        ('["1"]', ' "[\\"1\\"]" ', {"type": ["array", "null"], "items": INTEGER}),
        ('["a"]', "\"['a']\"", ARRAY),
        ('"[1]"', '"[1]"', STRING),
        ('"[1]"', '"[1]"', {"type": ["array", "string"]}),
        ('"[1]"', '"[1]"', {}),
        ('"[1]"', '"[1]"', OBJECT),
        ('"[1"', '"[1"', ARRAY),
        ("5", '"5"', INTEGER),
        ("true", '"true"', {"type": "boolean"}),
        ('"five"', '"five"', INTEGER),
        ('"5"', '"5"', {"type": ["integer", "string"]}),
        ('"\\"[1]\\""', '"\\"[1]\\""', ARRAY),
        ('{"a": "[1]"}', '{"a": "[1]"}', OBJECT),
        ("[1]", "[1]", ARRAY),
        ('"[1]', '"[1]', ARRAY),
        ("", "", ARRAY),
    ],
)
def test_json_in_a_json_string_is_decoded_once_and_only_where_no_string_may_stand(expected: str, text: str, schema: Any) -> None:
    assert expected == decoded_to(text, Expected((schema,), schema))


# For every text and every schema

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
CONTAINERS = st.lists(VALUES, max_size=5) | st.dictionaries(st.text(), VALUES, max_size=5)
NAMES = st.sampled_from(["null", "integer", "number", "boolean", "object", "array", "string", "STRING", "any"])
KEYS = st.sampled_from(["a", "b", "id", ""])


def wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": NAMES | st.lists(NAMES, max_size=3),
            "enum": st.lists(SCALARS, max_size=2),
            "const": SCALARS,
            "anyOf": st.lists(inner, max_size=2),
            "oneOf": st.lists(inner, max_size=2),
            "allOf": inner | st.lists(inner, max_size=2),
            "properties": st.dictionaries(KEYS, inner, max_size=2),
            "additionalProperties": inner,
            "items": inner | st.lists(inner, max_size=2),
            "prefixItems": st.lists(inner, max_size=2),
            "$ref": st.sampled_from(["#", "#/properties/a", "#/items", "#/anyOf/0", "#/anyOf/x", "other.json", "#/type/0"]),
        },
    )


SCHEMAS = st.recursive(st.booleans() | st.none() | wider(st.booleans()), wider, max_leaves=6)
PIECES = st.sampled_from(
    [*"[]{}(),:'\"\\ \n-+._0123456789eE", "true", "None", "'a'", '"b"', '"a":', "null", "NaN", "\\u00", "\\x4", "\ud800", "\x00"]
)
TEXTS = st.text() | st.lists(PIECES, max_size=25).map("".join) | CONTAINERS.map(repr) | VALUES.map(json.dumps)


@given(TEXTS, SCHEMAS, SCHEMAS)
def test_any_text_under_any_schema_is_valid_json(text: str, schema: Any, root: Any) -> None:
    strict(coerce(text, schema, root))
    strict(coerce(text, schema, schema))


@given(VALUES.map(json.dumps), SCHEMAS)
def test_decoding_twice_gives_valid_json(text: str, schema: Any) -> None:
    strict(decoded_to(text, Expected((schema,), schema)))
    strict(decoded_to(json.dumps(text), Expected((schema,), schema)))


@given(CONTAINERS, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_values_written_as_json_round_trip(value: Any, indent: Any, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert text == read(text, {"type": ["object", "array", "string"]})


@given(CONTAINERS)
def test_values_written_as_python_round_trip(value: Any) -> None:
    assert value == strict(read(repr(value), {"type": ["object", "array"]}))


# Hostile texts

RECURSIVE = {"type": ["object", "array"], "properties": {"next": {"$ref": "#"}}, "items": {"anyOf": [INTEGER, {"$ref": "#"}]}}


@pytest.mark.parametrize("depth", [1, 128, 129, 100_000])
def test_nesting_is_read_as_deep_as_anyone_can_read_it(depth: int) -> None:
    text = "[" * depth + "]" * depth
    assert (text if depth <= 128 else json.dumps(text)) == read(text, RECURSIVE)


def test_nesting_through_strings_is_counted() -> None:
    inner = "[" * 100 + "]" * 100
    text = "[" * 100 + json.dumps(inner) + "]" * 100
    assert text == read(text, RECURSIVE)


def test_integers_of_any_length_are_read() -> None:
    assert "9" * 4300 == read("9" * 4300, INTEGER)
    assert json.dumps("9" * 4301) == read("9" * 4301, INTEGER)
    assert json.dumps("9" * 200_000) == read("9" * 200_000, NUMBER)
    assert json.dumps("1" + "0" * 400 + ".0") == read("1" + "0" * 400 + ".0", NUMBER)
