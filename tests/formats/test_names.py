"""Written tool names resolve by agreed spellings, never by similarity; a tool's schema types its text values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.errors import InvalidRequestError
from patchbay.formats.values.tool_names import ToolRules, make_rules
from patchbay.types import ToolSpec


def offering(*names: str, unknown_tools: Any = "text") -> ToolRules:
    return make_rules([ToolSpec(name) for name in names], unknown_tools)


@pytest.mark.parametrize(
    ("expected", "name"),
    [
        ("get_weather", "get_weather"),
        ("get_weather", " get_weather\n"),
        ("get_weather", "functions.get_weather"),
        ("get_weather", "default_api.get_weather"),
        ("get_weather", "tools.get_weather"),
        ("get_weather", "get.weather"),
        ("get_weather", "get\\_weather"),
        ("get_weather", "get\\\\_weather"),
        ("get_weather", " functions.get\\_weather "),
        ("get_weather", "get_weather.get_weather"),
        ("math.hypot_of", "math.hypot_of"),
        ("math.hypot_of", "math_hypot_of"),
        ("math.hypot_of", "math.hypot.of"),
        ("math.hypot_of", "functions.math_hypot_of"),
        ("math.hypot_of", "math.hypot_of.math.hypot_of"),
        ("math.hypot_of", "hypot_of"),
        ("math.hypot_of", "functions.hypot\\_of"),
        ("a\\_b", "a\\_b"),
    ],
)
def test_a_name_written_in_an_agreed_way_is_its_tools(expected: str, name: str) -> None:
    rules = offering("get_weather", "math.hypot_of", "a\\_b")
    assert expected == rules.resolve(name)
    assert expected == rules.offered(name)


@pytest.mark.parametrize(
    "name",
    [
        "circle.calculate_perimeter",
        "circle.calculate_area",
        "rectangle.calculate",
        "calculate",
        "perimeter",
        "area",
        "calculate_perimeters",
        "Calculate_perimeter",
        "rectangle.calculate_perimeters",
        "Rectangle.calculate_perimeter",
        "rectangle-calculate_perimeter",
        "rectangle.calculate perimeter",
        "shapes.rectangle.calculate_perimeter",
        "functions.functions.rectangle.calculate_perimeter",
        "functions",
        "functions.",
        ".",
        "",
        " ",
        "\\_",
    ],
)
def test_similar_name_is_not_a_tool_name(name: str) -> None:
    rules = offering("rectangle.calculate_perimeter", "rectangle.calculate_area")
    assert rules.resolve(name) is None
    assert rules.offered(name) is None


def test_a_last_part_is_its_tools_only_where_no_other_tool_has_it() -> None:
    rules = offering("currency.convert", "units.convert", "rates.latest", "latest", "time_now.a_b", "time.now", "clock.time_now")
    assert rules.resolve("convert") is None
    assert "latest" == rules.resolve("latest")
    assert "time.now" == rules.resolve("time_now")
    assert "time_now.a_b" == rules.resolve("a_b")


def test_spelling_shared_by_two_tools_is_ambiguous() -> None:
    rules = offering("a.b_c", "a_b.c")
    assert "a.b_c" == rules.resolve("a.b_c")
    assert "a_b.c" == rules.resolve("a_b.c")
    assert rules.resolve("a_b_c") is None
    assert rules.resolve("a.b.c") is None


def test_exact_name_precedes_a_spelling_variant() -> None:
    rules = offering("tools.search", "search", "functions_find", "find")
    assert "tools.search" == rules.resolve("tools.search")
    assert "search" == rules.resolve("functions.search")
    assert "find" == rules.resolve("functions.find")
    assert "functions_find" == offering("functions_find").resolve("functions.find")


def test_ambiguous_name_is_unresolved() -> None:
    assert offering("tools_a_b", "a_b").resolve("tools.a.b") is None


@pytest.mark.parametrize("unknown_tools", ["keep", "drop"])
def test_a_marked_name_of_no_tool_is_itself_where_unknown_tools_are_calls(unknown_tools: Any) -> None:
    rules = offering("get_weather", unknown_tools=unknown_tools)
    assert "get_weather" == rules.resolve("functions.get_weather")
    assert "tools.other\\_one" == rules.resolve("\ntools.other\\_one ")
    assert rules.resolve(" ") is None
    assert rules.offered("other") is None


def test_any_marked_name_is_a_call_without_known_tools() -> None:
    rules = make_rules(None, "text")
    assert "anything" == rules.resolve("anything")
    assert rules.offered("anything") is None
    assert rules.types("anything").keys is None


def test_with_no_tools_no_name_is_a_call() -> None:
    assert make_rules([], "text").resolve("anything") is None
    assert "anything" == make_rules([], "keep").resolve("anything")


def test_rules_that_were_made_are_used_as_they_are() -> None:
    rules = offering("f")
    assert make_rules(rules, "keep") is rules


def test_invalid_tools_are_refused() -> None:
    with pytest.raises(InvalidRequestError):
        make_rules([{"type": "function"}], "text")


NAMES = st.lists(st.text("ab._-", min_size=1, max_size=6), max_size=4)
WRITTEN = st.builds(
    str.__add__, st.sampled_from(["", " ", "functions.", "default_api.", "tools.", "x."]), st.text("ab._\\- ", max_size=13)
)


@given(NAMES, WRITTEN)
def test_a_name_means_an_offered_tool_whatever_the_order_of_the_tools(names: list[str], written: str) -> None:
    meant = offering(*names).resolve(written)
    assert meant == offering(*reversed(names)).resolve(written)
    assert meant in (written, None) if written in names else meant in (*names, None)


# Types of arguments

WEATHER = ToolSpec(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"$ref": "#/$defs/count"},
            "unit": {"enum": ["C", "F"]},
            "note": {"type": ["string", "null"]},
            "tags": {"type": "array"},
            "anything": {},
        },
        "$defs": {"count": {"type": "integer"}},
    },
)


def test_a_tools_types_are_those_of_its_schema() -> None:
    types = make_rules([WEATHER], "text").types("get_weather")
    assert ("city", "days", "unit", "note", "tags", "anything") == types.keys
    assert '"3"' == types.json("city", "3")
    assert "3" == types.json("days", "3")
    assert '["a"]' == types.json("tags", "['a']")
    assert '"3"' == types.json("other", "3")
    assert '["a"]' == types.decoded("tags", '"[\\"a\\"]"')
    assert '"[]"' == types.decoded("city", '"[]"')
    assert '"[]"' == types.decoded("other", '"[]"')


def test_combined_schema_has_the_keys_of_its_parts() -> None:
    parameters = {
        "allOf": [{"$ref": "#/$defs/a"}, {"properties": {"b": {"type": "integer"}, "c": {}}}],
        "$defs": {"a": {"properties": {"a": {}, "b": {"type": "null"}}}},
    }
    types = make_rules([ToolSpec("f", parameters=parameters)], "text").types("f")
    assert ("a", "b", "c") == types.keys
    assert ["null", "5"] == [types.json("b", text) for text in ("null", "5")]


def test_unknown_tool_takes_text_values() -> None:
    types = offering("f").types("g")
    assert types.keys is None
    assert types.is_text("a")
    assert '"5"' == types.json("a", "5")
    assert '"[1]"' == types.decoded("a", '"[1]"')


@pytest.mark.parametrize(
    "parameters", [{"properties": 5}, {"properties": {"a": 5, 1: {}}}, {"properties": {"a": None}, "type": []}]
)
def test_invalid_schema_leaves_values_text(parameters: Any) -> None:
    types = make_rules([ToolSpec("f", parameters=parameters)], "text").types("f")
    assert '"5"' == types.json("a", "5")


@given(st.text(), st.sampled_from(["city", "days", "unit", "note", "tags", "anything", "other"]))
def test_only_parameters_that_accept_any_text_stream_as_strings(text: str, key: str) -> None:
    types = make_rules([WEATHER], "text").types("get_weather")
    if types.is_text(key):
        assert text == json.loads(types.json(key, text))
    assert types.is_text(key) == (key in ("city", "unit", "anything", "other"))


class Untouchable(dict[str, Any]):
    """A schema that fails on access."""

    def get(self, key: str, default: Any = None) -> Any:
        raise AssertionError(key)


def test_prose_and_names_cost_no_look_into_a_schema() -> None:
    rules = make_rules([ToolSpec(f"tool_{index}", parameters=Untouchable()) for index in range(100)], "text")
    assert "tool_7" == rules.resolve("functions.tool.7")
    assert rules.offered("prose") is None
    assert rules.types("prose").keys is None
