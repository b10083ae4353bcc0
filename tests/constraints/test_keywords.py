"""No keyword of JSON Schema goes unenforced without a word: the grammar refuses what violates it, or it is listed as checked."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import pytest
from jsonschema_specifications import REGISTRY

from patchbay.constraints.schemas import compile_schema
from patchbay.formats.render import render_calls
from patchbay.schema import SchemaValidator
from patchbay.types import ToolCall, ToolSpec

from .matchers import Matcher, grammar_of

DRAFT_7: Final = "http://json-schema.org/draft-07/schema#"
DRAFT_4: Final = "http://json-schema.org/draft-04/schema#"
_S: Final = {"type": "string"}
_N: Final = {"type": "integer"}


class Row(NamedTuple):
    """A schema with a keyword, a value that fits, and one that violates the keyword."""

    keyword: str
    schema: Any
    good: Any
    bad: Any
    enforced: bool
    draft: str | None = None


# fmt: off
ROWS: Final = [
    Row("type", {"type": "string"}, "x", 1, True),
    Row("type", {"type": "integer"}, 12, 1.5, True),
    Row("type", {"type": "integer"}, -3, "3", True),
    Row("type", {"type": "number"}, -1.25, "x", True),
    Row("type", {"type": "boolean"}, True, "yes", True),
    Row("type", {"type": "null"}, None, 0, True),
    Row("type", {"type": "array"}, [1, "x"], {}, True),
    Row("type", {"type": "object"}, {"x": [1]}, [], True),
    Row("type", {"type": ["string", "null"]}, None, 1, True),
    Row("type", {"allOf": [{"type": ["string", "null"]}, {"type": ["string", "integer"]}]}, "x", 1, True),
    Row("enum", {"enum": ["a", 2, None, {"k": [1]}]}, {"k": [1]}, "b", True),
    Row("enum", {"type": "string", "enum": ["a", 2]}, "a", 2, True),
    Row("enum", {"allOf": [{"enum": ["a", 1]}, {"enum": [True, "a"]}]}, "a", True, True),
    Row("const", {"const": "a b"}, "a b", "a", True),
    Row("const", {"const": 1, "enum": [1, 2]}, 1, 2, True),
    Row("minLength", {"type": "string", "minLength": 3}, "abc", "ab", True),
    Row("minLength", {"type": "string", "minLength": 2000}, "x" * 2000, "ab", False),
    Row("maxLength", {"type": "string", "maxLength": 3}, 'é"\\', "abcd", True),
    Row("maxLength", {"type": "string", "maxLength": 2000}, "x", "x" * 2001, False),
    Row("maxLength", {"type": "string", "pattern": "^a+$", "maxLength": 2}, "aa", "aaa", False),
    Row("minLength", {"type": "string", "enum": ["a", "ab"], "minLength": 2}, "ab", "a", False),
    Row("pattern", {"type": "string", "pattern": "^[a-z]{2}-\\d+$"}, "ab-12", "AB-12", True),
    Row("pattern", {"type": "string", "pattern": "b"}, "abc", "ac", True),
    Row("pattern", {"type": "string", "pattern": "^a|b$"}, "cb", "ca", True),
    Row("pattern", {"type": "string", "pattern": "^[^\\s]$"}, "x", "\u00a0", True),
    Row("pattern", {"type": "string", "pattern": "^\\S$"}, "x", "\u2003", True),
    Row("pattern", {"type": "string", "pattern": "^x\\b"}, "x y", "xy", False),
    Row("pattern", {"allOf": [{"type": "string", "pattern": "a"}, {"pattern": "b"}]}, "ab", "a", False),
    Row("format", {"type": "string", "format": "date"}, "2026-02-03", "2026-02-30", True),
    Row("format", {"type": "string", "format": "time"}, "12:30:00Z", "12:30", True),
    Row("format", {"type": "string", "format": "date-time"}, "2026-02-03T04:05:06Z", "2026-02-03", True),
    Row("format", {"type": "string", "format": "duration"}, "P1D", "P1", True),
    Row("format", {"type": "string", "format": "email"}, "a.b@example.org", "a b", True),
    Row("format", {"type": "string", "format": "hostname"}, "a-b.example.org", "-a", True),
    Row("format", {"type": "string", "format": "ipv4"}, "127.0.0.1", "256.0.0.1", True),
    Row("format", {"type": "string", "format": "uuid"}, "01234567-89ab-cdef-0123-456789abcdef", "0123", True),
    Row("format", {"type": "string", "format": "uri"}, "https://example.org", "x y", False),
    Row("minimum", {"type": "integer", "minimum": -5}, -5, -6, True),
    Row("minimum", {"type": "integer", "minimum": 17}, 23, 16, True),
    Row("minimum", {"type": "number", "minimum": 0}, 0.5, -0.5, True),
    Row("minimum", {"type": "number", "minimum": 2.5}, 3, 2, False),
    Row("minimum", {"minimum": 3}, 3, 2, False),
    Row("maximum", {"type": "integer", "maximum": 100}, 100, 101, True),
    Row("maximum", {"type": "integer", "minimum": 1, "maximum": 14.5}, 14, 15, True),
    Row("maximum", {"type": "number", "maximum": 1}, 0.5, 1.5, False),
    Row("exclusiveMinimum", {"type": "integer", "exclusiveMinimum": 3}, 4, 3, True),
    Row("exclusiveMinimum", {"type": "number", "exclusiveMinimum": 0}, 1, 0, False),
    Row("exclusiveMinimum", {"type": "integer", "minimum": 3, "exclusiveMinimum": True}, 4, 3, False, DRAFT_4),
    Row("exclusiveMaximum", {"type": "integer", "exclusiveMaximum": 3}, 2, 3, True),
    Row("exclusiveMaximum", {"type": "number", "exclusiveMaximum": 3}, 2, 3, False),
    Row("multipleOf", {"type": "integer", "multipleOf": 5}, 10, 11, False),
    Row("properties", {"type": "object", "properties": {"x": _N}}, {"x": 1}, {"x": "1"}, True),
    Row("properties", {"properties": {"x": _N}}, {"x": 1}, {"x": "1"}, True),
    Row("properties", {"allOf": [{"properties": {"x": _N}}, {"properties": {"x": {"minimum": 5}}}], "type": "object"}, {"x": 5}, {"x": 4}, True),
    Row("required", {"type": "object", "properties": {"x": _N, "y": _N}, "required": ["y"]}, {"y": 1}, {"x": 1}, True),
    Row("required", {"type": "object", "properties": {"x": _N}, "required": ["z"]}, {"z": "any"}, {"x": 1}, True),
    Row("required", {"allOf": [{"properties": {"x": _N}}, {"required": ["x"]}], "type": "object"}, {"x": 1}, {}, True),
    Row("additionalProperties", {"type": "object", "properties": {"x": _N}, "additionalProperties": False}, {"x": 1}, {"y": 1}, True),
    Row("additionalProperties", {"type": "object", "additionalProperties": _N}, {"any": 1}, {"any": "1"}, True),
    Row("additionalProperties", {"type": "object", "properties": {}, "additionalProperties": False}, {}, {"y": 1}, True),
    Row("additionalProperties", {"type": "object", "required": ["y"], "additionalProperties": _N}, {"y": 1}, {"y": "1"}, True),
    Row("additionalProperties",
        {"type": "object", "allOf": [{"properties": {"x": _N}, "additionalProperties": _S}, {"properties": {"y": {}}}]},
        {"x": 1, "y": "1"}, {"y": 1}, True),
    Row("patternProperties", {"type": "object", "patternProperties": {"^x": _N}}, {"x": 1}, {"x": "1"}, False),
    Row("propertyNames", {"type": "object", "propertyNames": {"maxLength": 1}}, {"x": 1}, {"xy": 1}, False),
    Row("minProperties", {"type": "object", "minProperties": 1}, {"x": 1}, {}, False),
    Row("maxProperties", {"type": "object", "maxProperties": 1}, {"x": 1}, {"x": 1, "y": 1}, False),
    Row("dependentRequired", {"type": "object", "properties": {"x": _N, "y": _N}, "dependentRequired": {"x": ["y"]}}, {"y": 1}, {"x": 1}, False),
    Row("dependentSchemas", {"type": "object", "properties": {"x": _N, "y": _N}, "dependentSchemas": {"x": {"required": ["y"]}}}, {"y": 1}, {"x": 1}, False),
    Row("dependencies", {"type": "object", "properties": {"x": _N, "y": _N}, "dependencies": {"x": ["y"]}}, {"y": 1}, {"x": 1}, False, DRAFT_7),
    Row("unevaluatedProperties", {"type": "object", "unevaluatedProperties": False}, {}, {"x": 1}, False),
    Row("items", {"type": "array", "items": _N}, [1, 2], [1, "2"], True),
    Row("items", {"allOf": [{"items": _N}, {"items": {"minimum": 3}}], "type": "array"}, [3], [2], True),
    Row("items", {"allOf": [{"prefixItems": [{}]}, {"items": _N}], "type": "array"}, [1], ["1"], False),
    Row("items", {"type": "array", "items": [_N, _S], "additionalItems": False}, [1, "x"], ["x"], True, DRAFT_7),
    Row("additionalItems", {"type": "array", "items": [_N], "additionalItems": _N}, [1, 2], [1, "x"], True, DRAFT_7),
    Row("prefixItems", {"type": "array", "prefixItems": [_N, _S]}, [1, "x"], ["x"], True),
    Row("minItems", {"type": "array", "items": _N, "minItems": 2}, [1, 2], [1], True),
    Row("minItems", {"type": "array", "prefixItems": [_N, _S], "minItems": 2}, [1, "x"], [1], True),
    Row("maxItems", {"type": "array", "items": _N, "maxItems": 2}, [1, 2], [1, 2, 3], True),
    Row("maxItems", {"type": "array", "items": _N, "maxItems": 0}, [], [1], True),
    Row("uniqueItems", {"type": "array", "items": _N, "uniqueItems": True}, [1, 2], [1, 1], False),
    Row("contains", {"type": "array", "contains": _N}, [1], ["x"], False),
    Row("minContains", {"type": "array", "contains": _N, "minContains": 2}, [1, 2], [1], False),
    Row("maxContains", {"type": "array", "contains": _N, "maxContains": 1}, [1], [1, 2], False),
    Row("unevaluatedItems", {"type": "array", "prefixItems": [_N], "unevaluatedItems": False}, [1], [1, 2], False),
    Row("anyOf", {"anyOf": [_N, {"type": "null"}]}, None, "x", True),
    Row("anyOf", {"type": "string", "anyOf": [True, {"minLength": 3}]}, "x", 1, True),
    Row("anyOf", {"type": "object", "properties": {"x": _N, "y": _N}, "anyOf": [{"required": ["x"]}, {"required": ["y"]}]}, {"y": 1}, {}, True),
    Row("oneOf", {"oneOf": [_N, _S]}, "x", None, True),
    Row("oneOf", {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 5}]}, 9, 3, False),
    Row("oneOf", {"oneOf": [{"type": "object", "properties": {"k": {"const": k}, "v": v}, "required": ["k", "v"]} for k, v in (("n", _N), ("s", _S))]},
        {"k": "n", "v": 1}, {"k": "n", "v": "x"}, True),
    Row("allOf", {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 5}]}, 4, 6, True),
    Row("allOf", {"allOf": [{"minimum": 4}, {"$ref": "#/$defs/n", "maximum": 5}], "$defs": {"n": {"type": "integer", "maximum": 9}}}, 5, 6, True),
    Row("anyOf", {"anyOf": [_N, _S], "allOf": [{"anyOf": [_S, {"type": "null"}]}]}, "x", 1, False),
    Row("not", {"type": "string", "not": {"const": "x"}}, "y", "x", False),
    Row("if", {"type": "integer", "if": {"minimum": 3}, "then": {"maximum": 5}}, 4, 6, False),
    Row("then", {"type": "integer", "if": {"minimum": 3}, "then": {"maximum": 5}}, 4, 6, False),
    Row("else", {"type": "integer", "if": {"minimum": 3}, "else": {"minimum": 2}}, 2, 1, False),
    Row("$ref", {"$ref": "#/$defs/n", "$defs": {"n": _N}}, 1, "x", True),
    Row("$ref", {"$ref": "#/definitions/a~1b%20c", "definitions": {"a/b c": _N}}, 1, "x", True),
    Row("$ref", {"$ref": "#/$defs/n", "maximum": 3, "$defs": {"n": {"type": "integer", "maximum": 9}}}, 3, 4, True),
    Row("$ref", {"$ref": "#n", "$defs": {"n": {"$anchor": "n", "type": "integer"}}}, 1, "x", False),
    Row("$dynamicRef", {"$dynamicRef": "#n", "$defs": {"n": {"$dynamicAnchor": "n", "type": "integer"}}}, 1, "x", False),
    Row("contentEncoding", {"type": "string", "contentEncoding": "base64"}, "eA==", "x", False, DRAFT_7),
    Row("contentMediaType", {"type": "string", "contentMediaType": "application/json"}, "1", "{", False, DRAFT_7),
]
# fmt: on
ANNOTATIONS: Final = frozenset(
    {
        "$anchor",
        "$comment",
        "$defs",
        "$dynamicAnchor",
        "$id",
        "$schema",
        "$vocabulary",
        "contentSchema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)  # fmt: skip
"""Keywords that no value violates."""


def tool_schema(row: Row) -> dict[str, Any]:
    """The schema of a tool with an argument ``a``; definitions stand at its root."""
    inner = {key: value for key, value in row.schema.items() if key not in ("$defs", "definitions")}
    outer = {key: value for key, value in row.schema.items() if key in ("$defs", "definitions")}
    return {
        **({"$schema": row.draft} if row.draft else {}),
        "type": "object",
        "properties": {"a": inner},
        "required": ["a"],
        **outer,
    }


def written(value: Any) -> str:
    return render_calls("hermes", [ToolCall("call_0", "lookup", json.dumps({"a": value}, ensure_ascii=False))])


def checked_keywords(schema: Any) -> set[str]:
    """The keywords of a schema that its form does not enforce; all of them if there is no form."""
    compiled = compile_schema(schema)
    return {row.keyword for row in ROWS} if compiled.refused else {each.rsplit("/", 1)[-1] for each in compiled.checked}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.keyword}-{json.dumps(row.schema)[:60]}")
def test_violated_keyword_is_refused_by_the_grammar_or_listed_as_checked(row: Row) -> None:
    schema = tool_schema(row)
    validator = SchemaValidator("lookup", schema)
    assert (True, False) == tuple(validator.validate(json.dumps({"a": value})).valid for value in (row.good, row.bad))
    assert row.enforced is not (row.keyword in checked_keywords(schema))
    if row.enforced:
        matcher = Matcher(grammar_of("hermes", [ToolSpec("lookup", "Look it up.", schema)]))
        assert not matcher.accepts(written(row.bad))
        assert matcher.accepts(written(row.good)), matcher.accepted_part(written(row.good))


def test_table_has_every_keyword_of_the_drafts_in_use() -> None:
    names = ("core", "applicator", "unevaluated", "validation", "meta-data", "format-annotation", "content")
    addresses = [f"https://json-schema.org/draft/2020-12/meta/{name}" for name in names] + [DRAFT_7.rstrip("#")]
    keywords = {keyword for address in addresses for keyword in REGISTRY.contents(address)["properties"]}
    assert keywords - ANNOTATIONS == {row.keyword for row in ROWS} & keywords
    assert len(keywords) >= 60


@pytest.mark.parametrize("schema", [{"not-a-keyword": 1}, {"type": "object", "$unknown": {}}])
def test_unknown_keyword_is_listed(schema: Any) -> None:
    assert checked_keywords({"type": "object", "properties": {"a": schema}}) == schema.keys() - {"type"}


@pytest.mark.parametrize(
    "schema",
    [1, None, [], "x", {"type": "any"}, {"type": ["string", 1]}, {"$ref": "https://example.org/x"}, {"$ref": 5}, {"$ref": "#/no"},
     {"properties": 5}, {"enum": 3}, {"enum": [float("nan")]}, {"allOf": [1]}, {"anyOf": 5}, {"anyOf": []},
     {"required": 5}, {"type": "string", "pattern": 5}, {"type": "string", "minLength": "x"}, {"type": []}, {"type": "array", "items": 7},
     {"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"type": "object", "properties": {"a": False}, "required": ["a"]},
     {"const": 1, "enum": [2]}, {"type": "integer", "minimum": 5, "maximum": 4}, {"type": "string", "minLength": 2, "maxLength": 1},
     {"type": "object", "properties": {"\ud800": {}}, "required": ["\ud800"]}, {"const": "\ud800"}, {"type": "string", "format": ["x"]},
     {"type": "array", "minItems": 3, "maxItems": 2}, {"anyOf": [{"type": "integer"}], "type": "string"}],
    ids=repr,
)  # fmt: skip
def test_schema_without_a_form_is_refused_and_says_why(schema: Any) -> None:
    compiled = compile_schema(schema)
    assert compiled.refused
    assert (compiled.refused,) == compiled.unenforced


def test_schema_that_contains_itself_is_unrolled() -> None:
    node = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"allOf": [{"$ref": "#/$defs/node"}]}}}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}, "required": ["a"], "$defs": {"node": node}}
    compiled = compile_schema(schema)
    assert () == compiled.unenforced
    matcher = Matcher(grammar_of("hermes", [ToolSpec("lookup", "Look it up.", schema)]))
    assert matcher.accepts(written({"v": 1, "next": {"v": 2, "next": {"v": 3}}}))
    assert not matcher.accepts(written({"v": 1, "next": {"v": 2, "next": {"v": "3"}}}))


def test_schema_with_many_references_to_itself_is_unrolled_less_deep() -> None:
    names = [f"n{index}" for index in range(12)]
    node = {"type": "object", "properties": {name: {"$ref": "#/$defs/node"} for name in names}}
    compiled = compile_schema({"$ref": "#/$defs/node", "$defs": {"node": node}})
    assert () == compiled.unenforced


def test_required_member_that_only_ever_contains_itself_fits_no_value() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
    assert "no value" in compile_schema({"$ref": "#/$defs/node", "$defs": {"node": node}}).refused
