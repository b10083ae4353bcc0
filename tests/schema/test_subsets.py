"""Provider subsets: no refused keywords, no value that the tool rejects, and a reason for unsupported schemas."""

from __future__ import annotations

import copy
import json
from typing import Annotated, Any, Literal, Optional

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from patchbay._json_schema import types_of, unresolved
from patchbay.schema import FunctionSchema
from patchbay.schema.subsets import Unsupported, gemini, openai, openai_strict, without_added_nulls
from support.repeated import examples

GEMINI_WORDS = {
    "type", "description", "nullable", "enum", "format", "items", "properties", "required", "anyOf", "minimum", "maximum",
    "minItems", "maxItems", "minLength", "maxLength", "pattern",
}  # fmt: skip


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Point(BaseModel):
    x: float
    label: str | None = None


def schema_of(function: Any) -> dict[str, Any]:
    return FunctionSchema(function).json_schema


def one(annotation: Any) -> dict[str, Any]:
    def f(a): ...

    f.__annotations__["a"] = annotation
    return schema_of(f)


def parameters(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def check_gemini(node: Any) -> None:
    """Assert what Gemini requires; each rule was found by a 400 response."""
    assert set(node) <= GEMINI_WORDS, node
    assert ("type" in node) != ("anyOf" in node), node
    kind = node.get("type")
    if "anyOf" in node:
        assert {"anyOf"} == set(node), "Vertex takes nothing beside it"
        for branch in node["anyOf"]:
            check_gemini(branch)
    assert kind == "object" or not {"properties", "required"} & set(node), node
    assert kind != "object" or set(node.get("required", ())) <= set(node.get("properties", ()))
    assert (kind == "array") == ("items" in node), node
    if "enum" in node:
        assert kind == "string"
        assert node["enum"]
        assert all(isinstance(value, str) and value for value in node["enum"])
    if "format" in node:
        assert (kind, node["format"]) in {
            ("string", "date-time"),
            ("integer", "int32"),
            ("integer", "int64"),
            ("number", "double"),
        }
    for child in [*node.get("properties", {}).values(), *([node["items"]] if "items" in node else [])]:
        check_gemini(child)


STRICT_WORDS = {
    "type", "description", "enum", "const", "pattern", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minItems", "maxItems", "format", "anyOf", "items", "properties", "required", "additionalProperties", "$ref", "$defs",
}  # fmt: skip


def check_strict(node: Any, root: Any = None) -> None:
    """Assert what strict mode requires, by its guide and its error responses."""
    assert set(node) <= STRICT_WORDS, node
    if root is None:
        assert ("object", False) == (node["type"], "anyOf" in node)
        assert unresolved(node) is None
    if "$ref" in node:
        assert {"$ref"} == set(node), "nothing may stand beside a reference"
        return
    assert node.keys() & {"type", "anyOf"}, "a schema must have a type"
    kinds = types_of(node)
    if "object" in kinds:
        assert node["additionalProperties"] is False
        assert list(node["properties"]) == node["required"]
    if "array" in kinds:
        assert "items" in node
    below = [*node.get("properties", {}).values(), *node.get("$defs", {}).values(), *node.get("anyOf", ())]
    for child in [*below, *([node["items"]] if "items" in node else [])]:
        check_strict(child, root or node)


CHECKS = {openai: json.dumps, openai_strict: check_strict, gemini: check_gemini}


# Schemas from anywhere: any JSON under the keywords, valid or not.
def _schemas() -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b", "c"])
    scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "date-time"])
    leaf = st.booleans() | st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(
                ["string", "integer", "number", "boolean", "null", "array", "object", ["string", "null"], ["integer", "string"]]
            ),
            "enum": st.lists(scalars, max_size=3),
            "const": scalars,
            "format": st.sampled_from(["date", "date-time", "uuid", "int32"]),
            "minimum": st.integers(0, 3),
            "exclusiveMinimum": st.booleans() | st.integers(0, 3),
            "default": scalars,
            "description": st.sampled_from(["", "What it is."]),
            "$ref": st.sampled_from(["#/$defs/A", "#/$defs/B", "#", "#/properties/p"]),
            "pattern": st.sampled_from(["^x", "^(?!x)"]),
            "required": st.lists(names, max_size=2) | st.booleans(),
            "examples": st.just([1]),
            "$schema": st.just("https://json-schema.org/draft/2020-12/schema"),
            "additionalProperties": st.booleans(),
        },
    )
    return st.recursive(
        leaf,
        lambda below: st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["object", "array", ["object", "null"]]),
                "properties": st.dictionaries(names, below, max_size=3),
                "required": st.lists(names, max_size=3),
                "items": below | st.lists(below, max_size=2),
                "prefixItems": st.lists(below, min_size=1, max_size=2),
                "anyOf": st.lists(below, min_size=1, max_size=3),
                "oneOf": st.lists(below, min_size=1, max_size=2),
                "allOf": st.lists(below, min_size=1, max_size=2),
                "not": below,
                "patternProperties": st.dictionaries(names, below, max_size=1),
                "additionalProperties": below,
                "description": st.just("A thing."),
            },
        ),
        max_leaves=8,
    )


ROOTS = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(st.sampled_from(["p", "q"]), _schemas(), max_size=2),
        "$defs": st.fixed_dictionaries({"A": _schemas(), "B": _schemas()}),
    },
    optional={
        "required": st.lists(st.sampled_from(["p", "q"]), max_size=2),
        "anyOf": st.lists(_schemas(), min_size=1, max_size=2),
    },
)


@settings(max_examples=examples(25))
@given(ROOTS)
def test_each_subset_gives_a_schema_that_its_provider_accepts_or_a_reason_and_changes_nothing(root):
    before = copy.deepcopy(root)
    for subset, check in CHECKS.items():
        made = subset(root)
        assert made == subset(root)
        if isinstance(made, Unsupported):
            assert made.reason
        elif made:
            json.dumps(made)
            check(made)
    assert before == root


OBJECTS = {f"L{n}": parameters(a={"$ref": f"#/$defs/L{n + 1}"}, b={"$ref": f"#/$defs/L{n + 1}"}) for n in range(20)}
EXPLODING = {**parameters(a={"$ref": "#/$defs/L0"}), "$defs": {**OBJECTS, "L20": {"type": "string"}}}
MOVED = {"a": {"type": "array", "items": [{"type": "string"}]}, "b": {"$ref": "#/properties/a/items/0"}}


@pytest.mark.parametrize(
    ("subsets", "schema", "words"),
    [
        (CHECKS, {"type": "array"}, "not an object"),
        (CHECKS, parameters(a={"$ref": "https://example.com/schema"}), "https://example.com/schema"),
        (CHECKS, parameters(a={"$ref": "#/$defs/None"}), "#/$defs/None"),
        (CHECKS, {"$ref": "#"}, "without an end"),
        (CHECKS, 7, "not an object"),
        ([gemini], EXPLODING, "too large"),
        ([openai], parameters(**MOVED), "#/properties/a/items/0"),
        ([openai_strict], one(Any), "/a may be anything"),
        ([openai_strict], one(dict[str, int]), "/a takes keys of any name"),
        ([openai_strict], one(list[dict]), "/a/items takes keys of any name"),
        ([openai_strict], parameters(a={"enum": [f"{n:060}" for n in range(251)]}), "15060 characters"),
        ([openai_strict], parameters(**{f"{n:0120}": {"type": "string"} for n in range(1001)}), "120120 characters"),
        ([openai_strict], parameters(a={"enum": list(range(1001))}), "1001 values"),
        ([openai_strict], parameters(a={"enum": [{}]}), "/a"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_unsupported_schema_has_a_reason(subsets, schema, words):
    for subset in subsets:
        made = subset(schema)
        assert isinstance(made, Unsupported)
        assert words in made.reason


def test_schema_that_openai_accepts_is_unchanged():
    def f(a: int, p: Point, n: Node, c: Optional[str], d: dict[str, int], m: Literal["x", "y"] = "x"): ...  # noqa: UP045

    schema = schema_of(f)
    assert openai(schema) is schema


def test_openai_schema_has_a_plain_object_root():
    branches = {"oneOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"$ref": "#/$defs/B"}]}
    schema = {**branches, "$defs": {"B": {"type": "object", "properties": {"b": {}}, "required": ["b"]}}, "$schema": "x"}
    made = openai(schema)
    assert {"type", "properties", "description", "$defs"} == set(made)
    assert {"a": {"type": "integer"}, "b": {}} == made["properties"]
    assert "Give either a or b." == made["description"]


REQUIRED_X = {"properties": {"x": {"type": "integer"}}, "required": ["x"]}
POINT = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "label": {"type": "string", "nullable": True}},
    "required": ["x"],
}
UNION = {"anyOf": [{"type": "string", "description": "A name."}, {"type": "integer"}, {"type": "null"}]}
LOOKS_AROUND = ("^(?!x)a", "(?<=a)b", r"\\(?=a)")


def schema_or_annotation(given: Any) -> dict[str, Any]:
    return {**parameters(a=given), "required": ["a"]} if isinstance(given, dict | bool) else one(given)


@pytest.mark.parametrize(
    ("subset", "given", "expected"),
    [
        # Older drafts
        (openai, {"type": "array"}, {"type": "array", "items": {}}),
        (
            openai,
            {"type": "array", "items": [{"type": "string"}], "additionalItems": False},
            {"type": "array", "prefixItems": [{"type": "string"}], "items": {"not": {}}},
        ),
        (openai, {"type": "integer", "minimum": 1, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": 1}),
        (openai, {"type": "string", "required": True}, {"type": "string"}),
        (openai, True, {}),
        # A pattern with lookaround becomes a description, others stay.
        *(
            (
                subset,
                {"type": "string", "pattern": each, "description": "A."},
                {"type": "string", "description": f"A. (pattern: {each})"},
            )
            for each in LOOKS_AROUND
            for subset in (openai, openai_strict)
        ),
        *(
            (subset, {"type": "string", "pattern": each}, {"type": "string", "pattern": each})
            for each in ("^x", r"\(?=", "a(?:b)", "(?i)c")
            for subset in (openai, openai_strict)
        ),
        # Everything has a type in strict mode.
        (openai_strict, Literal["a", 1, None], {"enum": ["a", 1, None], "type": ["string", "integer", "null"]}),  # noqa: PYI061
        (openai_strict, Literal[1, 2], {"type": "integer", "enum": [1, 2]}),
        (openai_strict, {"const": 1.5}, {"const": 1.5, "type": "number"}),
        (openai_strict, {"enum": [1.5, 2]}, {"enum": [1.5, 2], "type": "number"}),
        (openai_strict, {"items": {"type": "string"}}, {"items": {"type": "string"}, "type": "array"}),
        (openai_strict, tuple[int, int], {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
        (
            openai_strict,
            {"allOf": [REQUIRED_X, {"properties": {"x": {"type": "integer"}}}]},
            {**REQUIRED_X, "type": "object", "additionalProperties": False},
        ),
        (openai_strict, {"allOf": [REQUIRED_X]}, {**REQUIRED_X, "type": "object", "additionalProperties": False}),
        (openai_strict, {"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        # Gemini has types of its own.
        (gemini, {"type": "string", "format": "date"}, {"type": "string", "description": "Format: date."}),
        (gemini, {"items": {"type": "string"}}, {"type": "array", "items": {"type": "string"}}),
        (gemini, int | None, {"type": "integer", "nullable": True}),
        (gemini, int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (gemini, Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (gemini, Literal["a"], {"type": "string", "enum": ["a"]}),
        (gemini, Literal[1, 2], {"type": "integer", "description": "One of: 1, 2."}),
        (gemini, Literal["a"] | None, {"type": "string", "enum": ["a"], "nullable": True}),
        (
            gemini,
            Literal["a", 1],
            {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "integer", "description": "One of: 1."}]},
        ),
        (gemini, Annotated[int, Field(gt=0, description="Count")], {"type": "integer", "description": "Count (more than 0)"}),
        (
            gemini,
            tuple[int, str],
            {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "minItems": 2, "maxItems": 2},
        ),
        (gemini, dict[str, int], {"type": "object", "description": 'Each value: {"type": "integer"}.'}),
        (gemini, Point, POINT),
        (gemini, {"type": "string", "nullable": True}, {"type": "string"}),  # a keyword of OpenAPI admits no null
        (
            gemini,
            {**UNION, "description": "Who.", "default": 5},
            {
                "anyOf": [
                    {"type": "string", "description": "Who. (default: 5) A name.", "nullable": True},
                    {"type": "integer"},
                ]
            },
        ),
    ],
)
def test_each_property_is_written_in_the_subset(subset, given, expected):
    made = subset(schema_or_annotation(given))
    CHECKS[subset](made)
    assert expected == made["properties"]["a"]


def test_a_property_may_be_called_like_a_keyword():
    def f(items: int, anyOf: str, required: bool, properties: list[int]): ...  # noqa: N803

    schema = schema_of(f)
    assert openai(schema) is schema
    for subset in (openai_strict, gemini):
        assert {"items", "anyOf", "required", "properties"} == set(subset(schema)["properties"])


def test_gemini_recursive_schema_is_expanded_once():
    made = gemini(one(Node))
    check_gemini(made)
    inner = made["properties"]["a"]["properties"]["children"]["items"]
    assert {"type": "object", "description": "Again like Node, in which this stands."} == inner


def test_gemini_subset_omits_empty_parameters():
    assert {} == gemini({"type": "object", "properties": {}})


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("subset", [openai, openai_strict, gemini])
def test_nested_alternatives_take_bounded_time(subset, keyword):
    layers = {f"L{n}": {keyword: [{"$ref": f"#/$defs/L{n + 1}", "title": "x"}] * 3} for n in range(40)}
    leaf = {"L40": {"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": False}}
    for schema in (
        parameters(a={"$ref": "#/$defs/L0"}),
        {"$ref": "#/$defs/L0"},
        parameters(a={"$ref": "#/$defs/L0", "title": "y"}),
    ):
        assert isinstance(subset({**schema, "$defs": {**layers, **leaf}}), Unsupported | dict)


def test_long_chains_of_definitions_are_resolved():
    layers = {f"L{n}": parameters(a={"$ref": f"#/$defs/L{n + 1}"}) for n in range(2000)}
    schema = {**parameters(a={"$ref": "#/$defs/L0"}), "$defs": {**layers, "L2000": {"type": "string"}}}
    assert openai(schema) is schema
    assert openai(EXPLODING) is EXPLODING
    assert isinstance(gemini(schema), Unsupported)


def test_strict_mode_closes_every_object_and_requires_all():
    def f(
        city: str, point: Point, unit: Literal["C", "F"] = "C", limit: int = 5, day: int | str = 1, note: str | None = None
    ): ...

    made = openai_strict(schema_of(f))
    jsonschema_rs.Draft202012Validator(made)
    assert ["city", "point", "unit", "limit", "day", "note"] == made["required"]
    assert [{"type": "integer"}, {"type": "string"}, {"type": "null"}] == made["properties"]["day"]["anyOf"]
    assert made["additionalProperties"] is False
    assert {"type": ["integer", "null"], "description": "Default: 5."} == made["properties"]["limit"]
    assert {"anyOf": [{"type": "string", "enum": ["C", "F"]}, {"type": "null"}], "description": "Default: C."} == made[
        "properties"
    ]["unit"]
    assert {"$ref": "#/$defs/Point"} == made["properties"]["point"]
    assert (["x", "label"], False) == (made["$defs"]["Point"]["required"], made["$defs"]["Point"]["additionalProperties"])


def test_strict_mode_keeps_descriptions_of_recursive_references():
    items = {"$ref": "#/$defs/N", "description": "a child"}
    node = {**parameters(below={"type": "array", "items": items}), "required": ["below"], "additionalProperties": False}
    made = openai_strict({**parameters(a={"$ref": "#/$defs/N"}), "$defs": {"N": node}})
    check_strict(made)
    assert {"anyOf": [{"$ref": "#/$defs/N"}], "description": "a child"} == made["$defs"]["N"]["properties"]["below"]["items"]


def test_a_reference_to_a_place_that_a_subset_moves_is_followed():
    schema = {**parameters(a={"oneOf": [{"type": "string"}, {"type": "null"}]}, b={"$ref": "#/properties/a/oneOf/0"})}
    made = openai_strict({**schema, "required": ["a", "b"]})
    check_strict(made)
    assert {"type": "string"} == made["properties"]["b"]


def test_nulls_that_strict_mode_demanded_are_absent_again_and_others_stay():
    def f(a: int, b: int = 2, c: int | None = 3, points: list[Point] = []): ...  # noqa: B006

    schema = schema_of(f)
    assert "{}" == without_added_nulls(parameters(a={"type": "string", "nullable": True}), '{"a": null}')
    raw = '{"a": 1, "b": null, "c": null, "points": [{"x": 1, "label": null}]}'
    assert {"a": 1, "c": None, "points": [{"x": 1, "label": None}]} == json.loads(without_added_nulls(schema, raw))
    assert '{"a":  null}' == without_added_nulls(schema, '{"a":  null}')
    assert '{"a": 1,  "b": 2}' == without_added_nulls(schema, '{"a": 1,  "b": 2}')
    assert "[null" == without_added_nulls(schema, "[null")


LEAVES: list[tuple[dict[str, Any], st.SearchStrategy[Any]]] = [
    ({"type": "integer", "minimum": 0}, st.integers(0, 9)),
    ({"type": "string", "minLength": 1, "default": "x"}, st.text("ab", min_size=1, max_size=3)),
    ({"enum": ["a", "b"]}, st.sampled_from(["a", "b"])),
    ({"type": ["string", "null"]}, st.none() | st.just("t")),
    ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, st.none() | st.booleans()),
    ({"const": 5}, st.just(5)),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, st.lists(st.integers(0, 99), unique=True, max_size=3)),
]


@st.composite
def strict_pairs(draw: Any, depth: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """An object's schema, and what a model writes to it in strict mode: each property, null for those that it leaves out."""
    properties, required, written = {}, [], {}
    for name in draw(st.lists(st.sampled_from("abcd"), max_size=4, unique=True)):
        if depth < 2 and draw(st.booleans()):
            properties[name], value = draw(strict_pairs(depth=depth + 1))
        else:
            properties[name], values = draw(st.sampled_from(LEAVES))
            value = draw(values)
        if draw(st.booleans()):
            required.append(name)
        elif draw(st.booleans()):
            value = None
        written[name] = value
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}, written


@settings(max_examples=examples(15))
@given(strict_pairs())
def test_value_valid_in_the_strict_schema_is_valid_in_the_original_without_added_nulls(pair):
    schema, written = pair
    made = openai_strict(schema)
    assert not isinstance(made, Unsupported)
    assert jsonschema_rs.Draft202012Validator(made).is_valid(written)
    own = json.loads(without_added_nulls(schema, json.dumps(written)))
    assert jsonschema_rs.Draft202012Validator(schema).is_valid(own)
