"""Arguments that are copied from the conversation: what a very small model may choose, and what it may not write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from patchbay.constraints.backends import Backend
from patchbay.constraints.plan import ConstraintPlanner
from patchbay.constraints.replies import ReplyRules
from patchbay.formats.render import writer_for
from patchbay.types import ToolSpec

from .matchers import Matcher

TEXT = {"type": "string"}
INTEGER = {"type": "integer"}


def tool(name: str, required: Mapping[str, Any], **optional: Any) -> ToolSpec:
    return ToolSpec(name, "", {"type": "object", "properties": {**required, **optional}, "required": list(required)})


def matcher(text: str, *specs: ToolSpec) -> Matcher:
    planner = ConstraintPlanner(specs, writer_for("bare_json"))
    return Matcher(planner.constraint(Backend.LLAMA_CPP, ReplyRules(needed=True, most=1), copied_from=text).fields["grammar"])


def call(name: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("What is the weather in Paris?", "Paris"),
        ('Play "Yesterday, again" by The Beatles', "Yesterday, again"),
        ("Play Yesterday by The Beatles.", "The Beatles"),
        ("Find running shoes for my son", "running shoes"),
        ("Öffne den Ordner «Büro»!", "Büro"),
        ("Read C:\\temp\\a.txt now", "C:\\temp\\a.txt"),
        ("Tell Bob: the door\nis open", "door\nis open"),
    ],
)
def test_run_of_whole_words_may_be_copied_without_the_punctuation_around_it(said: str, value: str) -> None:
    assert matcher(said, tool("f", {"text": TEXT})).accepts(call("f", {"text": value}))


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("What is the weather in Paris?", "London"),
        ("What is the weather in Paris?", "Pari"),
        ("What is the weather in Paris?", "the"),
        ("I want to hear Hotel California.", "California"),
        ("I want to hear Hotel California.", "I want to hear Hotel California"),
        ("Play Yesterday by The Beatles", "Yesterday by"),
        ("Find running shoes", "running  shoes"),
    ],
)
def test_nothing_else_may_be_written(said: str, value: str) -> None:
    assert not matcher(said, tool("f", {"text": TEXT})).accepts(call("f", {"text": value}))


@pytest.mark.parametrize(
    ("said", "schema", "allowed", "refused"),
    [
        ("Set it to 21 degrees", INTEGER, 21, 20),
        ("Twenty of them, for 3.50 each", INTEGER, 20, 3),
        ("It costs 1,250.50 euros", {"type": "number"}, 1250.5, 1250),
        ("Between -5 and 3", {"type": "integer", "minimum": 0}, 3, -5),
        ("Some of them", INTEGER, 7, "some"),
        ("on 2026-07-19 at 18:00", {"type": "string", "description": "as YYYY-MM-DD"}, "2026-07-19", "2026-07-20"),
        ("at 8:15", {"type": "string", "description": "HH:MM"}, "08:15", "8:15"),
        ("soon", {"type": "string", "description": "HH:MM"}, "18:30", "soon"),
        ("in the living room", {"enum": ["kitchen", "living room"]}, "living room", "kitchen"),
        ("upstairs", {"enum": ["kitchen", "living room"]}, "kitchen", "upstairs"),
        ("Paris", {"type": "string", "maxLength": 3}, "Rom", "Paris"),
    ],
)
def test_value_is_one_that_is_said_where_there_is_one(said: str, schema: Any, allowed: Any, refused: Any) -> None:
    found = matcher(said, tool("f", {"value": schema}))
    assert found.accepts(call("f", {"value": allowed}))
    assert not found.accepts(call("f", {"value": refused}))


def test_optional_argument_is_given_if_the_conversation_has_something_for_it() -> None:
    spec = tool("forecast", {"city": TEXT}, days=INTEGER, unit={"enum": ["celsius", "fahrenheit"]}, hidden={"type": "boolean"})
    plain = matcher("the weather in Paris", spec)
    assert plain.accepts(call("forecast", {"city": "Paris"}))
    assert not plain.accepts(call("forecast", {"city": "Paris", "days": 1}))
    detailed = matcher("the weather in Paris for 5 in celsius, hidden too", spec)
    assert detailed.accepts(call("forecast", {"city": "Paris", "days": 5, "unit": "celsius", "hidden": True}))
    assert not detailed.accepts(call("forecast", {"city": "Paris", "days": 5}))
    assert detailed.accepts(call("forecast", {"city": "Paris", "unit": "celsius", "hidden": True}))  # 5 may be something else


def test_words_of_another_argument_are_not_copied_again() -> None:
    found = matcher(
        "Remind me at 18:00 to water 3 plants", tool("f", {"text": TEXT, "time": {"type": "string", "description": "HH:MM"}})
    )
    assert found.accepts(call("f", {"text": "plants", "time": "18:00"}))
    assert not found.accepts(call("f", {"text": "18:00", "time": "18:00"}))
    weekly = matcher("join yoga on Friday", tool("f", {"course": TEXT, "day": {"enum": ["Monday", "Friday"]}}))
    assert not weekly.accepts(call("f", {"course": "Friday", "day": "Friday"}))
    counted = matcher("add two rolls", tool("f", {"item": TEXT, "count": INTEGER}))
    assert counted.accepts(call("f", {"item": "rolls", "count": 2}))
    assert not counted.accepts(call("f", {"item": "two rolls", "count": 2}))


def test_tool_that_needs_what_is_not_said_is_left_out_unless_all_are() -> None:
    count, name = tool("count", {"number": INTEGER}), tool("name", {"text": TEXT})
    assert not matcher("hello Bob", count, name).accepts(call("count", {"number": 1}))
    assert matcher("hello Bob", count).accepts(call("count", {"number": 1}))


def test_tools_that_take_what_is_said_are_chosen_from() -> None:
    trains = tool("trains", {"start": TEXT, "end": TEXT})
    flights = tool("flights", {"start": TEXT, "end": TEXT, "date": {"type": "string", "description": "YYYY-MM-DD"}})
    dated = matcher("from Madrid to Vienna on 2026-07-19", trains, flights)
    assert dated.accepts(call("flights", {"start": "Madrid", "end": "Vienna", "date": "2026-07-19"}))
    assert not dated.accepts(call("trains", {"start": "Madrid", "end": "Vienna"}))
    assert matcher("from Madrid to Vienna", trains, flights).accepts(call("trains", {"start": "Madrid", "end": "Vienna"}))


def test_text_without_words_leaves_arguments_free() -> None:
    assert matcher("?!", tool("f", {"text": TEXT})).accepts(call("f", {"text": "anything"}))


@pytest.mark.parametrize("text", ["", " \n"])
def test_conversation_without_words_leaves_an_argument_free(text: str) -> None:
    assert matcher(text, tool("get_weather", {"city": TEXT})).accepts(call("get_weather", {"city": "Oslo"}))


LENGTH = {"enum": ["meter", "mile", "foot"]}


@pytest.mark.parametrize(
    ("said", "schemas", "allowed", "refused"),
    [
        ("sow 20 seeds in bed 4", {"count": INTEGER, "bed": INTEGER}, {"count": 20, "bed": 4}, {"count": 4, "bed": 20}),
        ("how many meters are 6 feet?", {"from": LENGTH, "to": LENGTH}, {"from": "foot", "to": "meter"}, {"from": "meter", "to": "foot"}),
        ("from Ulm to Bonn", {"from": TEXT, "to": TEXT}, {"from": "Ulm", "to": "Bonn"}, {"from": "Bonn", "to": "Bonn"}),
        ("to Bonn from Ulm", {"from": TEXT, "to": TEXT}, {"from": "Ulm", "to": "Bonn"}, {"from": "Ulm", "to": "Bonn from Ulm"}),
        ("the alarm off, please", {"on": {"type": "boolean"}}, {"on": False}, {"on": True}),
        ("Remind me to call", {"text": TEXT}, {"text": "call"}, {"text": "Remind me to call"}),
        ("Buy two rolls of tape", {"item": TEXT}, {"item": "rolls of tape"}, {"item": "rolls"}),
        ("Note: the door is open", {"text": TEXT}, {"text": "the door is open"}, {"text": "the"}),
    ],
)  # fmt: skip
def test_words_around_a_value_say_whose_it_is(said: str, schemas: Any, allowed: Any, refused: Any) -> None:
    spec = matcher(said, tool("f", schemas))
    assert spec.accepts(call("f", allowed))
    assert not spec.accepts(call("f", refused))


def test_of_tools_that_take_as_much_the_one_named_is_left_and_one_number_is_not_taken_twice() -> None:
    named = [
        tool("show_score", {"team": TEXT}),
        tool("show_standings", {"league": TEXT}),
        tool("sow", {"a": INTEGER, "b": INTEGER}),
    ]
    found = matcher("the standings of League 1", *named)
    assert found.accepts(call("show_standings", {"league": "League 1"}))
    assert not found.accepts(call("show_score", {"team": "League 1"}))
    assert not found.accepts(call("sow", {"a": 1, "b": 1}))
