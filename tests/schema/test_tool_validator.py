"""Third-party schemas are validated by their draft and never fetched; an unusable schema never accepts a call."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay import ToolValidator
from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.schema.coercion import Coercer
from patchbay.types import ToolSpec


def validator(schema: dict[str, Any], **options: Any) -> ToolValidator:
    return ToolValidator([{"type": "function", "function": {"name": "t", "parameters": schema}}], **options)


def errors(schema: dict[str, Any], raw: str, **options: Any) -> tuple[str, ...]:
    result = validator(schema, **options).validate("t", raw)
    assert result.valid is (not result.errors)
    return result.errors


CITY = {"type": "object", "properties": {"city": {"type": "string"}, "a": {"type": "integer"}}, "required": ["city"]}


def test_complaints_read_like_pointer_and_expectation():
    assert ("(root) must have required property 'city'",) == errors(CITY, "")
    assert ("/city must be string", "/a must be integer") == errors(CITY, '{"city": 1, "a": "5"}')
    closed = {**CITY, "additionalProperties": False}
    assert ("(root) must NOT have additional properties: 'zz'",) == errors(closed, '{"city": "Rome", "zz": 1}')
    assert ('/b must be equal to one of the allowed values: "x", 3',) == errors(
        {"properties": {"b": {"enum": ["x", 3]}}}, '{"b": "y"}'
    )


@pytest.mark.parametrize(
    ("sub", "value", "expected"),
    [
        ({"minimum": 3}, "1", "must be >= 3"),
        ({"exclusiveMaximum": 3}, "3", "must be < 3"),
        ({"minLength": 2}, '"a"', "must NOT have fewer than 2 characters"),
        ({"maxItems": 1}, "[1,2]", "must NOT have more than 1 items"),
        ({"pattern": "^a"}, '"b"', "must match pattern '^a'"),
        ({"const": 5}, "4", "must be equal to 5"),
        ({"uniqueItems": True}, "[1,1]", "must NOT have duplicate items"),
        ({"multipleOf": 2}, "3", "must be multiple of 2"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, '"q"', "must be integer or must be null"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 0}]}, "3", "must match exactly one schema in oneOf, but matches several"),
        ({"not": {"type": "integer"}}, "3", "does not fit 'not'"),
        ({"type": ["integer", "null"]}, '"q"', "must be integer or null"),
        (False, "1", "must NOT be given"),
    ],
)
def test_each_keyword_names_the_expected_value(sub, value, expected):
    (line,) = errors({"properties": {"v": sub}}, f'{{"v": {value}}}')
    assert line.startswith(f"/v {expected}")


@pytest.mark.parametrize(
    "uri",
    [
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-04/schema#",
        "https://json-schema.org/draft-07/schema",
        "http://json-schema.org/schema#",
    ],
)
def test_every_draft_is_checked(uri):
    schema = {"$schema": uri, **CITY}
    assert ("(root) must have required property 'city'",) == errors(schema, "{}")
    assert () == errors(schema, '{"city": "Rome"}')


def test_draft_determines_the_meaning_of_a_keyword():
    pair = {"properties": {"p": {"prefixItems": [{"type": "integer"}]}}}
    assert ("/p/0 must be integer",) == errors(pair, '{"p": ["x"]}')
    assert () == errors({"$schema": "http://json-schema.org/draft-07/schema#", **pair}, '{"p": ["x"]}')
    above = {"properties": {"n": {"minimum": 1, "exclusiveMinimum": True}}}
    assert ("/n must be > 1",) == errors({"$schema": "http://json-schema.org/draft-04/schema#", **above}, '{"n": 1}')


@pytest.mark.parametrize(
    ("schema", "bad", "good"),
    [
        ({"properties": {"p": {"type": "string", "format": "date"}}}, '{"p": "soon"}', '{"p": "2026-11-01"}'),
        ({"properties": {"p": {"$ref": "#/$defs/P"}}, "$defs": {"P": {"type": "integer"}}}, '{"p": "x"}', '{"p": 1}'),
        ({"properties": {"p": {"$ref": "#/definitions/P"}}, "definitions": {"P": {"type": "integer"}}}, '{"p": "x"}', '{"p": 1}'),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, '{"b": 1}', '{"a": 1}'),
        ({"properties": {"a": {}}, "dependentRequired": {"a": ["b"]}}, '{"a": 1}', '{"a": 1, "b": 2}'),
    ],
)
def test_the_words_of_2020_12_are_applied(schema, bad, good):
    assert errors(schema, bad)
    assert () == errors(schema, good)


REMOTE = "http://127.0.0.1:1/x.json"
NEVER = "remote references are never fetched"
UNUSABLE = {
    "remote": ({"properties": {"a": {"$ref": REMOTE}}}, NEVER),
    "remote root": ({"$ref": REMOTE}, NEVER),
    "file": ({"properties": {"a": {"$ref": "file:///etc/hostname"}}}, NEVER),
    "relative": ({"properties": {"a": {"$ref": "other.json"}}}, "other.json"),
    "relative to a remote id": ({"$id": REMOTE, "properties": {"a": {"$ref": "y.json"}}}, NEVER),
    "dangling": ({"properties": {"a": {"$ref": "#/$defs/Nope"}}}, "Nope"),
    "type": ({"type": "strnig"}, "strnig"),
    "pattern": ({"properties": {"a": {"pattern": "("}}}, "regex"),
    "names": ({"patternProperties": {"(?!a)": {}}}, "regex"),
    "draft": ({"$schema": "https://example.com/mine"}, "https://example.com/mine"),
    "draft kind": ({"$schema": 7}, "7"),
}


@pytest.mark.parametrize(("schema", "words"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_schema_is_an_error_and_never_valid(schema, words):
    tool = validator(schema)
    with pytest.raises(ConfigurationError, match="'t'"):
        tool.check()
    result = tool.validate("t", '{"a": 1}')
    assert not result.valid
    assert result.errors[0].startswith("(schema) the tool's own schema cannot be used: ")
    assert words in result.errors[0]


@pytest.mark.parametrize(
    ("schema", "accepted"),
    [
        ({"pattern": r"^(?!\.)(?!.*\.\.)[a-z.]+@[a-z.]+$"}, ["a..b@c"]),
        ({"pattern": "a{100000}"}, ["b"]),
        ({"pattern": "(?i)(?P<z>(?=z))"}, ["b"]),
        ({"allOf": [{"pattern": "(?=z)"}, {"pattern": "^b", "maxLength": 9}]}, ["bc"]),
        ({"not": {"pattern": r"(a)\1"}, "maxLength": 9}, ["b", "aa"]),
        ({"oneOf": [{"pattern": "(?=z)"}, {"pattern": "^b"}], "maxLength": 9}, ["bc", "c"]),
        ({"items": {"pattern": "(?=z)"}, "maxLength": 9}, [["b"]]),
    ],
)
def test_pattern_that_may_take_long_is_left_to_the_tool_and_the_rest_is_checked(schema, accepted):
    of_a = {"properties": {"a": {**schema, "type": ["string", "array"]}}}
    assert [()] * len(accepted) == [errors(of_a, json.dumps({"a": each})) for each in accepted]
    assert ("/a must be string or array",) == errors(of_a, '{"a": 1}')
    assert ("pattern" in schema) is (not errors(of_a, json.dumps({"a": "x" * 10})))


HOSTILE = r"""
import json, random
from patchbay.schema import ToolValidator
texts = ["".join(random.Random(1).choices("ab", k=20_000)), "a" * 100_000, "a" * 20_000 + "x"]
patterns = [
    "a{100000}", "(a+)+$", "^(?:(?=.*x)a)*b", r"^(a+)\1*(a+)\2*b$", "(?=(?:(?=(?:(?=.*x)a)*)a)*)b", "[ab]*a[ab]{680}c", "(x+x+)+y",
    "((a{100}){100}){100}", "^(a{0,1000}){0,1000}$", "a{1500}",
]
for schema in [*({"pattern": each} for each in patterns), {"format": "regex"}, {"propertyNames": {"pattern": "a{100000}"}}]:
    tool = ToolValidator([{"type": "function", "function": {"name": "t", "parameters": {"properties": {"a": schema}}}}])
    for text in [*texts, *patterns]:
        tool.validate("t", json.dumps({"a": {text: 1} if "propertyNames" in schema else text}))
print("done")
"""


def test_patterns_take_bounded_time():
    """With the backtracking engine, or without a limit of size, each of the first patterns takes minutes."""
    done = subprocess.run([sys.executable, "-c", HOSTILE], capture_output=True, text=True, timeout=120, check=True)
    assert "done\n" == done.stdout


def test_a_deep_schema_is_refused_without_exhausting_a_stack():
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(50_000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(ConfigurationError, match="nested"):
        validator(schema).check()


def test_a_schema_may_have_an_id_and_refer_to_itself():
    schema = {"$id": "https://example.com/s.json", "$ref": "#/$defs/X", "$defs": {"X": {"required": ["q"]}}}
    assert ("(root) must have required property 'q'",) == errors(schema, "{}")


@pytest.mark.parametrize("raw", ["", " ", "{}", "null"])
def test_blank_arguments_are_an_empty_object(raw):
    assert {} == validator({}).validate("t", raw).value


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        *((raw, "not valid JSON") for raw in ("nope", "{", "\x00", "\ud800")),
        *((raw, "must be object") for raw in ("[]", "7", '"x"', "true")),
        *((raw * 10_000, "nested") for raw in ("[", '{"a":')),
    ],
)
def test_non_object_schema_is_one_error(raw, part):
    (line,) = errors({}, raw)
    assert part in line


def test_nested_and_referenced_defaults_are_filled_in():
    schema = {
        "properties": {
            "a": {"default": 1},
            "b": {"$ref": "#/$defs/B"},
            "c": {"allOf": [{"properties": {"d": {"default": []}}}]},
        },
        "$defs": {"B": {"default": {"deep": True}, "properties": {"x": {"default": "y"}}}},
    }
    assert {"a": 1, "b": {"deep": True}, "c": {"d": []}} == validator(schema).validate("t", '{"c": {}}').value
    assert {"a": 2, "b": {"x": "y"}} == validator(schema).validate("t", '{"a": 2, "b": {}}').value
    assert {"c": {}} == validator(schema, use_defaults=False).validate("t", '{"c": {}}').value


def test_a_filled_in_default_is_a_copy():
    tool = validator({"properties": {"a": {"default": []}}})
    tool.validate("t", "{}").value["a"].append(1)
    assert {"a": []} == tool.validate("t", "{}").value


def test_recursive_default_ends():
    schema = {"properties": {"a": {"$ref": "#", "default": {}}, "b": {"allOf": [{"$ref": "#/properties/b"}]}}}
    assert {"a": {}} == validator(schema).validate("t", "{}").value


def test_a_schema_that_names_the_same_part_again_and_again_costs_no_more():
    """Each level is named twice by the one above it: a walk of every path would take 2**60 steps."""
    definitions: dict[str, Any] = {"n60": {"properties": {"leaf": {"default": 1}}}}
    for level in range(60):
        below = {"$ref": f"#/$defs/n{level + 1}"}
        definitions[f"n{level}"] = {
            "allOf": [below, {"properties": {"x": {"$ref": "#/$defs/n0"}}}, below, {"$ref": below["$ref"]}]
        }
    value: dict[str, Any] = {}
    for _ in range(60):
        value = {"x": value}
    root = {"$ref": "#/$defs/n0", "$defs": definitions}  # the compiled validator would walk every path
    converted = Coercer(root, coerce_types=True, use_defaults=True).apply(value)
    assert 1 == converted["x"]["x"]["leaf"]


@pytest.mark.parametrize(
    ("sub", "value", "expected"),
    [
        ({"type": "integer"}, '"5"', 5),
        ({"type": "integer"}, '"12345678901234567890"', 12345678901234567890),
        ({"type": "integer"}, "12345678901234567890123", 12345678901234567890123),
        ({"type": "integer"}, '"5.0"', 5),
        ({"type": "number"}, '"1.5"', 1.5),
        ({"type": "boolean"}, '"true"', True),
        ({"type": "boolean"}, '"False"', False),
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, "true", "true"),
        ({"type": ["integer", "null"]}, '"null"', None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, '"7"', 7),
        ({"type": "array", "items": {"type": "integer"}}, '"[1, \\"2\\"]"', [1, 2]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"k": "1"}', {"k": 1}),
        ({"prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}}, '["1", "true"]', [1, True]),
        # Nothing is bent that fits already.
        ({"type": ["string", "integer"]}, '"5"', "5"),
        ({}, '"5"', "5"),
    ],
)
def test_coercion_follows_the_schema(sub, value, expected):
    result = validator({"properties": {"v": sub}}, coerce_types=True).validate("t", f'{{"v": {value}}}')
    assert result.errors == ()
    assert {"v": expected} == result.value
    assert type(expected) is type(result.value["v"])


@pytest.mark.parametrize("value", ['"5x"', '""', '"1e999"', '"0x10"', '" "', '"٣"', "null", "[1]"])
def test_coercion_does_not_guess(value):
    assert ("/v must be integer",) == errors({"properties": {"v": {"type": "integer"}}}, f'{{"v": {value}}}', coerce_types=True)
    assert ("/v must be array",) == errors({"properties": {"v": {"type": "array"}}}, '{"v": "[1"}', coerce_types=True)


def test_property_name_with_half_a_surrogate_pair_is_an_error():
    (line,) = errors({"additionalProperties": False}, '{"\\ud800": 1}')
    assert "half of a surrogate pair" in line


def test_unknown_tool_is_invalid_and_not_listed():
    tool = ToolValidator([ToolSpec("t")])
    assert (True, False) == (tool.has_tool("t"), tool.has_tool("u"))
    assert ("(root) there is no tool 'u'",) == tool.validate("u", "{}").errors


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(InvalidRequestError, match="'t'"):
        ToolValidator([ToolSpec("t"), ToolSpec("t")])


def test_many_complaints_are_bounded():
    lines = errors({"required": [f"p{number}" for number in range(100)]}, "{}")
    assert 21 == len(lines)
    assert "... and 80 more" == lines[-1]


# Lone surrogates too: JSON can hold them.
TEXT = st.text(alphabet=st.characters() | st.sampled_from("\ud800\udfff"), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(JSON.map(json.dumps) | TEXT, st.booleans())
def test_validation_of_any_arguments_does_not_raise(raw, coerce):
    schema = {
        "properties": {"a": {"type": "integer", "default": 1}},
        "additionalProperties": {"type": "array", "items": {"$ref": "#"}},
    }
    result = validator(schema, coerce_types=coerce).validate("t", raw)
    assert result.valid is (not result.errors)
