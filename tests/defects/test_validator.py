"""Defect 25: a schema is applied in the dialect that it names, and one that cannot be applied is never silently no schema."""

from __future__ import annotations

from typing import Any

import pytest

from patchbay import PatchbayError, ToolValidator

DIALECTS = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-04/schema#",
    None,
]


def validator(parameters: dict[str, Any]) -> ToolValidator:
    """A validator that knows one tool ``f``."""
    return ToolValidator([{"type": "function", "function": {"name": "f", "parameters": parameters}}])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_d25_required_is_checked_in_every_dialect(dialect: str | None) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    if dialect:
        schema["$schema"] = dialect
    checks = validator(schema)
    assert not checks.validate("f", "{}").valid
    assert any("city" in error for error in checks.validate("f", "{}").errors)
    assert checks.validate("f", '{"city": "Rome"}').valid
    assert not checks.validate("f", '{"city": 7}').valid


@pytest.mark.parametrize(
    ("schema", "bad", "good"),
    [
        ({"properties": {"p": {"type": "array", "prefixItems": [{"type": "integer"}]}}}, '{"p": ["x"]}', '{"p": [1]}'),
        ({"properties": {"p": {"type": "string", "format": "date"}}}, '{"p": "soon"}', '{"p": "2026-11-01"}'),
        ({"properties": {"p": {"$ref": "#/$defs/P"}}, "$defs": {"P": {"type": "integer"}}}, '{"p": "x"}', '{"p": 1}'),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, '{"b": 1}', '{"a": 1}'),
        ({"properties": {"a": {}}, "dependentRequired": {"a": ["b"]}}, '{"a": 1}', '{"a": 1, "b": 2}'),
        ({"definitions": {"P": {"type": "integer"}}, "properties": {"p": {"$ref": "#/definitions/P"}}}, '{"p": "x"}', '{"p": 1}'),
        ({"properties": {"p": {"enum": ["a", "b"]}}}, '{"p": "c"}', '{"p": "a"}'),
    ],
)
def test_d25_the_words_of_2020_12_are_applied(schema: dict[str, Any], bad: str, good: str) -> None:
    checks = validator({"type": "object", **schema})
    assert not checks.validate("f", bad).valid
    assert checks.validate("f", good).valid


@pytest.mark.parametrize(
    "broken",
    [
        {"type": "object", "properties": {"p": {"$ref": "#/$defs/missing"}}},
        {"type": "object", "properties": {"p": {"type": "no-such-type"}}},
        {"type": "object", "properties": {"p": {"$ref": "http://127.0.0.1:9/other.json"}}},
        {"type": "object", "properties": {"p": {"pattern": "("}}},
    ],
)
def test_d25_a_schema_that_cannot_be_applied_is_not_silently_no_schema(broken: dict[str, Any]) -> None:
    try:
        outcome = validator(broken).validate("f", '{"p": "x"}')
    except PatchbayError:
        return  # refused when it is set: as good
    assert not outcome.valid
    assert outcome.errors


@pytest.mark.parametrize("text", ["", "{}"])
def test_d25_no_arguments_are_an_empty_object(text: str) -> None:
    assert validator({"type": "object", "properties": {}}).validate("f", text).valid


@pytest.mark.parametrize("text", ["{", "nope", "[]", "7", '"x"', "true", "[" * 20_000, '{"a":' * 20_000, "\x00", "\ud800"])
def test_d25_arguments_that_are_no_object_are_invalid_and_never_raise(text: str) -> None:
    outcome = validator({"type": "object", "properties": {}}).validate("f", text)
    assert not outcome.valid
    assert outcome.errors
