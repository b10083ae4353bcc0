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

from patchbay.schema import FunctionSchema
from patchbay.schema.coercion import unresolved
from patchbay.schema.subsets import Unsupported, gemini, openai, openai_strict, without_added_nulls
from patchbay.schema.subsets.common import types_of
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


@settings(max_examples=examples(40))
@given(ROOTS)
def test_each_subset_gives_a_schema_or_a_reason_and_changes_nothing(root):
    before = copy.deepcopy(root)
    for subset in (openai, openai_strict, gemini):
        made = subset(root)
        assert isinstance(made, Unsupported | dict)
        assert made == subset(root)
        if isinstance(made, Unsupported):
            assert made.reason
        else:
            json.dumps(made)
    assert before == root


@settings(max_examples=examples(40))
@given(ROOTS)
def test_gemini_schema_has_no_refused_keywords(root):
    made = gemini(root)
    if not isinstance(made, Unsupported) and made:
        check_gemini(made)


@settings(max_examples=examples(40))
@given(ROOTS)
def test_strict_subset_is_valid_for_strict_mode(root):
    made = openai_strict(root)
    if not isinstance(made, Unsupported):
        check_strict(made)


@pytest.mark.parametrize("subset", [openai, openai_strict, gemini])
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array"}, "not an object"),
        (parameters(a={"$ref": "https://example.com/schema"}), "https://example.com/schema"),
        (parameters(a={"$ref": "#/$defs/None"}), "#/$defs/None"),
        ({"$ref": "#"}, "without an end"),
        (7, "not an object"),
    ],
)
def test_unsupported_schema_has_a_reason(subset, schema, words):
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


def test_openai_subset_translates_older_drafts():
    made = openai(
        parameters(
            a={"type": "array"},
            b={"type": "array", "items": [{"type": "string"}], "additionalItems": False},
            c={"type": "integer", "minimum": 1, "exclusiveMinimum": True},
            d={"type": "string", "required": True},
            e=True,
        )
    )
    assert {
        "a": {"type": "array", "items": {}},
        "b": {"type": "array", "prefixItems": [{"type": "string"}], "items": {"not": {}}},
        "c": {"type": "integer", "exclusiveMinimum": 1},
        "d": {"type": "string"},
        "e": {},
    } == made["properties"]


def test_a_property_may_be_called_like_a_keyword():
    def f(items: int, anyOf: str, required: bool, properties: list[int]): ...  # noqa: N803

    schema = schema_of(f)
    assert openai(schema) is schema
    assert {"items", "anyOf", "required", "properties"} == set(gemini(schema)["properties"])
    assert {"items", "anyOf", "required", "properties"} == set(openai_strict(schema)["properties"])


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int | None, {"type": "integer", "nullable": True}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a"], {"type": "string", "enum": ["a"]}),
        (Literal[1, 2], {"type": "integer", "description": "One of: 1, 2."}),
        (Literal["a"] | None, {"type": "string", "enum": ["a"], "nullable": True}),
        (
            Literal["a", 1],
            {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "integer", "description": "One of: 1."}]},
        ),
        (Annotated[int, Field(gt=0, description="How many")], {"type": "integer", "description": "How many (more than 0)"}),
        (tuple[int, str], {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "minItems": 2, "maxItems": 2}),
        (dict[str, int], {"type": "object", "description": 'Each value: {"type": "integer"}.'}),
        (
            Point,
            {
                "type": "object",
                "properties": {"x": {"type": "number"}, "label": {"type": "string", "nullable": True}},
                "required": ["x"],
            },
        ),
    ],
)  # fmt: skip
def test_gemini_schema_uses_its_own_types(annotation, expected):
    made = gemini(one(annotation))["properties"]["a"]
    check_gemini(made)
    assert expected == made


def test_gemini_recursive_schema_is_expanded_once():
    made = gemini(one(Node))
    check_gemini(made)
    inner = made["properties"]["a"]["properties"]["children"]["items"]
    assert {"type": "object", "description": "Again like Node, in which this stands."} == inner


def test_gemini_subset_omits_empty_parameters():
    assert {} == gemini({"type": "object", "properties": {}})


def test_a_schema_that_grows_without_measure_when_written_out_is_refused():
    layers = {f"L{n}": parameters(a={"$ref": f"#/$defs/L{n + 1}"}, b={"$ref": f"#/$defs/L{n + 1}"}) for n in range(20)}
    schema = {**parameters(a={"$ref": "#/$defs/L0"}), "$defs": {**layers, "L20": {"type": "string"}}}
    made = gemini(schema)
    assert isinstance(made, Unsupported)
    assert "too large" in made.reason
    assert openai(schema) is schema


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


@pytest.mark.parametrize(
    ("annotation", "words"),
    [(Any, "/a may be anything"), (dict[str, int], "/a takes keys of any name"), (list[dict], "/a/items takes keys of any name")],
)
def test_unsupported_in_strict_mode_has_a_reason_with_its_path(annotation, words):
    made = openai_strict(one(annotation))
    assert isinstance(made, Unsupported)
    assert words in made.reason


REQUIRED_X = {"properties": {"x": {"type": "integer"}}, "required": ["x"]}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Literal["a", 1, None], {"enum": ["a", 1, None], "type": ["string", "integer", "null"]}),  # noqa: PYI061
        (Literal[1, 2], {"type": "integer", "enum": [1, 2]}),
        (Annotated[Any, Field(json_schema_extra={"const": 1.5})], {"const": 1.5, "type": "number"}),
        (Annotated[Any, Field(json_schema_extra={"enum": [1.5, 2]})], {"enum": [1.5, 2], "type": "number"}),
        (Annotated[Any, Field(json_schema_extra={"items": {"type": "string"}})], {"items": {"type": "string"}, "type": "array"}),
        (tuple[int, int], {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
        (
            Annotated[Any, Field(json_schema_extra={"allOf": [REQUIRED_X, {"properties": {"x": {"type": "integer"}}}]})],
            {**REQUIRED_X, "type": "object", "additionalProperties": False},
        ),
    ],
)
def test_everything_has_a_type_in_strict_mode(annotation, expected):
    made = openai_strict(one(annotation))
    check_strict(made)
    assert expected == made["properties"]["a"]


@pytest.mark.parametrize("pattern", ["^(?!x)a", "(?<=a)b", r"\\(?=a)"])
@pytest.mark.parametrize("subset", [openai, openai_strict])
def test_openai_lookaround_pattern_becomes_a_description(subset, pattern):
    schema = {**parameters(a={"type": "string", "pattern": pattern, "description": "A."}), "required": ["a"]}
    assert {"type": "string", "description": f"A. (pattern: {pattern})"} == subset(schema)["properties"]["a"]


@pytest.mark.parametrize("pattern", ["^x", r"\(?=", "a(?:b)", "(?i)c"])
def test_other_patterns_stay_patterns(pattern):
    schema = {**parameters(a={"type": "string", "pattern": pattern}), "required": ["a"]}
    assert pattern == openai(schema)["properties"]["a"]["pattern"] == openai_strict(schema)["properties"]["a"]["pattern"]


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
    moved = openai(parameters(a={"type": "array", "items": [{"type": "string"}]}, b={"$ref": "#/properties/a/items/0"}))
    assert isinstance(moved, Unsupported)
    assert "#/properties/a/items/0" in moved.reason


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (parameters(a={"enum": [f"{n:060}" for n in range(251)]}), "15060 characters"),
        (parameters(**{f"{n:0120}": {"type": "string"} for n in range(1001)}), "120120 characters"),
        (parameters(a={"enum": list(range(1001))}), "1001 values"),
        (parameters(a={"enum": [{}]}), "/a"),
    ],
)
def test_excess_in_strict_mode_has_a_reason(schema, words):
    made = openai_strict(schema)
    assert isinstance(made, Unsupported)
    assert words in made.reason


def test_openapi_keyword_admits_no_unwanted_null():
    schema = parameters(a={"type": "string", "nullable": True})
    assert {"type": "string"} == gemini(schema)["properties"]["a"]
    assert "{}" == without_added_nulls(schema, '{"a": null}')


def test_gemini_union_description_is_on_its_first_alternative():
    union = {"anyOf": [{"type": "string", "description": "A name."}, {"type": "integer"}, {"type": "null"}]}
    made = gemini(parameters(a={**union, "description": "Who.", "default": 5}))["properties"]["a"]
    check_gemini(made)
    first = {"type": "string", "description": "Who. (default: 5) A name.", "nullable": True}
    assert {"anyOf": [first, {"type": "integer"}]} == made


def test_nulls_that_strict_mode_demanded_are_absent_again_and_others_stay():
    def f(a: int, b: int = 2, c: int | None = 3, points: list[Point] = []): ...  # noqa: B006

    schema = schema_of(f)
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


@settings(max_examples=examples(40))
@given(strict_pairs())
def test_value_valid_in_the_strict_schema_is_valid_in_the_original_without_added_nulls(pair):
    schema, written = pair
    made = openai_strict(schema)
    assert not isinstance(made, Unsupported)
    assert jsonschema_rs.Draft202012Validator(made).is_valid(written)
    own = json.loads(without_added_nulls(schema, json.dumps(written)))
    assert jsonschema_rs.Draft202012Validator(schema).is_valid(own)
