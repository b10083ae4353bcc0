"""The view of a log for a model: each call is followed by exactly one response."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.agents import Content, Event, Part
from patchbay.agents.convert import to_messages
from patchbay.agents.view import NO_RESULT, is_visible, model_contents

from .event_builders import call_event, response_event, state_event, text_event


def shape(contents) -> list[str]:
    """Each content as one word: texts, ``?id`` for calls, ``!id`` for responses, ``!id-`` for one that stands for none."""
    words = []
    for content in contents:
        word = ""
        for part in content.parts:
            if part.text is not None:
                word += part.text
            if part.function_call is not None:
                word += f"?{part.function_call.id}"
            if part.function_response is not None:
                word += f"!{part.function_response.id}" + ("-" if {"error": NO_RESULT} == part.function_response.response else "")
        words.append(word)
    return words


def with_parts(event: Event, *texts: str) -> Event:
    event.content.parts += [Part(text) for text in texts]
    return event


HI = text_event("hi")
DONE = text_event("done", author="agent")


@pytest.mark.parametrize(
    ("expected", "log"),
    [
        pytest.param(["hi", "?1?2", "!1!2-"], [HI, call_event("1", "2"), response_event("1")], id="dangling call"),
        pytest.param(
            ["?1?2?3", "!1!2!3"],
            [call_event("1", "2", "3"), response_event("3"), response_event("1"), response_event("2")],
            id="responses recorded separately",
        ),
        pytest.param(
            ["?1", "!1", "done"],
            [response_event("0"), call_event("1"), response_event("1"), response_event("1"), response_event("9"), DONE],
            id="duplicate and unmatched responses",
        ),
        pytest.param(
            ["?0", "!0", "?0_2", "!0_2", "?0_3", "!0_3-"],
            [call_event("0"), response_event("0"), call_event("0"), response_event("0"), call_event("0")],
            id="repeated ids match the latest call",
        ),
        pytest.param(
            ["?0?0_2", "!0!0_2", "?0_2_2", "!0_2_2", "??look_2", "!!look_2"],
            [
                *(call_event("0", "0"), response_event("0", "0"), call_event("0_2"), response_event("0_2")),
                *(call_event("", ""), response_event("", "")),
            ],
            id="own ids are not given to others",
        ),
        pytest.param(
            ["wait?1", "!1", "and more"],
            [call_event("1", text="wait"), with_parts(response_event("1"), "and more")],
            id="text beside a call and a response",
        ),
        pytest.param(
            ["?1?2", "!1!2", "onetwomore of two", "hi"],
            [
                *(call_event("1", "2"), with_parts(response_event("2"), "two", "more of two")),
                *(with_parts(response_event("1"), "one"), HI),
            ],
            id="parts after responses in call order",
        ),
        pytest.param(
            ["hi", "left", "done"], [HI, with_parts(response_event("9"), "left"), DONE], id="parts after an unmatched response"
        ),
        pytest.param(
            ["hi"],
            [text_event("h", partial=True), Event(author="agent", error_code="TIMEOUT"), Event(content=Content()), HI],
            id="deltas and empty events",
        ),
        pytest.param(
            ["?1", "!1", "?2", "!2"],
            [
                *(call_event("1", branch="p.a"), call_event("2", branch="p.b")),
                *(response_event("2", branch="p.b"), response_event("1", branch="p.a")),
            ],
            id="pairs of parallel branches",
        ),
    ],
)
def test_each_call_is_followed_by_its_response_and_the_log_is_unchanged(expected, log):  # laws 1 and 7
    before = [event.to_json() for event in log]
    assert expected == shape(model_contents(log))
    assert before == [event.to_json() for event in log]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1, ["b", "?1", "!1"]), (2, ["b", "?1", "!1"]), (3, ["b", "?1", "!1"]), (0, []), (9, ["a", "b", "?1", "!1"])],
)
def test_last_turn_is_shown_from_its_user_message_despite_the_limit(limit, expected):
    log = [text_event("a"), text_event("b"), call_event("1"), response_event("1")]
    assert expected == shape(model_contents(log, limit=limit))


@pytest.mark.parametrize(("limit", "starts"), [(16, 12), (40, 3), (100, 1), (None, 1)])
def test_the_window_begins_at_the_same_event_for_a_quarter_of_its_limit(limit, starts):
    log: list[Event] = []
    seen = set()
    for number in range(30):
        log += [text_event(f"q{number}"), text_event(f"a{number}", author="agent")]
        shown = shape(model_contents(log, limit=limit))
        assert shape(model_contents(log))[-len(shown) :] == shown
        assert len(shown) == len(log) or 3 / 4 * limit < len(shown) <= limit
        seen.add(shown[0])
    assert starts == len(seen)


TWO_TURNS = [HI, call_event("1", "2"), response_event("1"), response_event("2"), DONE]
TWO_TURNS += [text_event("on"), call_event("3"), response_event("3")]


@pytest.mark.parametrize(
    ("expected", "log", "limits"),
    [
        (["on", "?3", "!3"], TWO_TURNS, [1, 2, 3, 4, 5]),
        (["4"], [*(text_event(str(number)) for number in range(4)), response_event("1"), text_event("4")], [2]),
        (["hi", "on"], [HI, *[text_event("b", branch="p.b")] * 50, state_event({"k": 1}), text_event("on", branch="p.a")], [4]),
    ],
    ids=["at the start of a turn", "not at a response without a call", "silent events and other branches do not count"],
)
def test_where_the_window_begins(expected, log, limits):
    assert [expected] * len(limits) == [shape(model_contents(log, limit=limit, branch="p.a")) for limit in limits]


@pytest.mark.parametrize(
    ("branch", "seen_from", "expected"),
    [
        (None, "p.a", True),
        ("p.a", None, True),
        ("p.a", "p.a", True),
        ("p", "p.a", True),
        ("p.a.q.x", "p.a", True),
        ("p.a", "p.b", False),
        ("p.a", "p.ab", False),
        ("p.a.q.x", "p.a.q.y", False),
    ],
)
def test_branch_sees_its_own_path_only(branch, seen_from, expected):
    assert expected is is_visible(branch, from_branch=seen_from)
    assert (["hi"] if expected else []) == shape(model_contents([text_event("hi", branch=branch)], branch=seen_from))


def test_parallel_branches_with_equal_ids_keep_their_own_results():
    log = [
        text_event("hi"),
        call_event("0", branch="p.a"),
        call_event("0", branch="p.b"),
        response_event("0", branch="p.b"),
        response_event("0", branch="p.a"),
    ]
    log[3].content.parts[0].function_response.response = {"result": "of b"}
    log[4].content.parts[0].function_response.response = {"result": "of a"}
    for limit in (None, 1, 2, 3, 4):
        contents = model_contents(log, limit=limit)
        parts = [content.parts[0].function_response for content in contents]
        assert ["of a", "of b"] == [response.response["result"] for response in parts if response is not None]


def test_editing_a_request_does_not_change_the_history():
    log = [text_event("hi"), call_event("1"), response_event("1")]
    log[1].content.extra_content = {"thought": {"signature": "s"}}
    log[1].content.parts[0].extra_content = {"thought": {"signature": "s"}}
    before = [event.to_json() for event in log]
    messages = to_messages(model_contents(log))
    for message in [messages[1], messages[1]["tool_calls"][0]]:
        message["thought"]["signature"] = "another"
        message["id"] = "2"
    messages[1]["tool_calls"][0]["function"]["arguments"] = ""
    del messages[0]
    assert before == [event.to_json() for event in log]


IDS = st.sampled_from(["", "0", "1", "2"])
LOGS = st.lists(
    st.builds(lambda ids: call_event(*ids), st.lists(IDS, max_size=3))
    | st.builds(lambda ids: response_event(*ids), st.lists(IDS, max_size=3))
    | st.builds(text_event, st.sampled_from("ab")),
    max_size=12,
)


@given(LOGS, st.none() | st.integers(0, 8))
def test_each_call_is_followed_by_its_one_response_for_any_log(log, limit):  # law 1
    contents = model_contents(log, limit=limit)
    waiting: list[str] = []
    for content in contents:
        responses = [part.function_response.id for part in content.parts if part.function_response is not None]
        assert waiting == responses
        waiting = [part.function_call.id for part in content.parts if part.function_call is not None]
    assert [] == waiting
    ids = [part.function_call.id or "look" for content in contents for part in content.parts if part.function_call]
    assert len(ids) == len(set(ids))
    if limit is None:
        assert sum(len(event.get_function_calls()) for event in log) == len(ids)


@given(LOGS)
def test_for_any_log_the_view_of_a_view_is_the_view(log):
    contents = model_contents(log)
    assert contents == model_contents([Event(content=content) for content in contents])
