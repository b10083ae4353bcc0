"""Contents and events: the contract's shapes, and JSON that loses nothing."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.agents import Content, Event, EventActions, FunctionCall, FunctionResponse, Part
from patchbay.errors import InvalidRequestError

from .event_builders import call_event, response_event, text_event

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
CALLS = st.builds(FunctionCall, TEXT, OBJECTS, TEXT)
RESPONSES = st.builds(FunctionResponse, TEXT, OBJECTS, TEXT)
PARTS = st.builds(
    Part, st.none() | TEXT, st.none() | CALLS, st.none() | RESPONSES, thought=st.booleans(), extra_content=st.none() | OBJECTS
)
CONTENTS = st.builds(Content, st.sampled_from(["user", "model"]), st.lists(PARTS, max_size=3))
EVENTS = st.builds(
    Event,
    id=TEXT,
    author=TEXT,
    invocation_id=TEXT,
    timestamp=st.floats(allow_nan=False, allow_infinity=False),
    branch=st.none() | TEXT,
    content=st.none() | CONTENTS,
    partial=st.booleans(),
    actions=st.builds(
        EventActions, OBJECTS, st.dictionaries(TEXT, st.integers()), st.none() | TEXT, st.none() | st.booleans(), st.none()
    ),
    error_code=st.none() | TEXT,
    error_message=st.none() | TEXT,
)


@given(EVENTS)
def test_any_event_is_the_same_after_json_and_back(event):
    assert event == Event.from_json(event.to_json())
    assert event == Event.from_dict(json.loads(event.to_json()))
    assert json.loads(event.to_json()) == event.to_dict()


def test_numbers_keep_all_digits():
    call = FunctionCall("f", {"n": 12345678901234567890123456789, "x": 0.1, "zero": -0.0})
    back = FunctionCall.from_json(call.to_json())
    assert 12345678901234567890123456789 == back.args["n"]
    assert -1.0 == math.copysign(1.0, back.args["zero"])


def test_defaults_are_those_of_the_contract():
    event, call, response = Event(), FunctionCall("f"), FunctionResponse("f")
    assert ("", "", None, None, False, None, None) == (
        event.author, event.invocation_id, event.branch, event.content, event.partial, event.error_code, event.error_message
    )  # fmt: skip
    assert ("model", []) == (Content().role, Content().parts)
    assert ({}, {}, "") == (call.args, response.response, response.id)
    assert EventActions({}, {}, None, None, None) == event.actions


@pytest.mark.parametrize(
    ("expected", "event"),
    [
        (True, text_event("done", author="agent")),
        (False, text_event("do", author="agent", partial=True)),
        (False, call_event("1", text="wait")),
        (False, response_event("1")),
        (False, Event(error_code="TIMEOUT")),
        (False, Event(content=Content())),
    ],
)
def test_final_response_is_complete_has_content_and_no_calls(expected, event):
    assert expected is event.is_final_response()


def test_a_contents_text_is_its_parts_without_thoughts():
    assert "ab" == Content("model", [Part("a"), Part("hm", thought=True), Part("b")]).text


@pytest.mark.parametrize("text", ["", "[]", '{"content": 1}', '{"content": {"parts": [{"text": 5}]}}', b"\xff", "[" * 100_000])
def test_invalid_event_json_is_an_error(text):
    with pytest.raises(InvalidRequestError, match="Invalid Event"):
        Event.from_json(text)


def test_unknown_members_are_ignored():
    assert "a" == Event.from_json('{"author": "a", "of_tomorrow": 1}').author
