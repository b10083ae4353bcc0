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


def test_a_dangling_call_is_settled_in_the_view_and_not_in_the_log():
    log = [text_event("hi"), call_event("1", "2"), response_event("1")]
    before = [event.to_json() for event in log]
    assert ["hi", "?1?2", "!1!2-"] == shape(model_contents(log))
    assert before == [event.to_json() for event in log]


def test_separately_recorded_responses_are_merged_in_call_order():
    assert ["?1?2?3", "!1!2!3"] == shape(
        model_contents([call_event("1", "2", "3"), response_event("3"), response_event("1"), response_event("2")])
    )


def test_duplicate_and_unmatched_responses_are_left_out():
    log = [
        response_event("0"),
        call_event("1"),
        response_event("1"),
        response_event("1"),
        response_event("9"),
        text_event("done", author="agent"),
    ]
    assert ["?1", "!1", "done"] == shape(model_contents(log))


def test_repeated_ids_match_the_latest_call():
    log = [call_event("0"), response_event("0"), call_event("0"), response_event("0"), call_event("0")]
    assert ["?0", "!0", "?0_2", "!0_2", "?0_3", "!0_3-"] == shape(model_contents(log))


def test_own_ids_of_calls_are_not_given_to_others():  # law 1
    log = [
        call_event("0", "0"),
        response_event("0", "0"),
        call_event("0_2"),
        response_event("0_2"),
        call_event("", ""),
        response_event("", ""),
    ]
    assert ["?0?0_2", "!0!0_2", "?0_2_2", "!0_2_2", "??look_2", "!!look_2"] == shape(model_contents(log))


def test_text_beside_a_call_and_a_response_is_kept():
    event = response_event("1")
    event.content.parts.append(Part("and more"))
    assert ["wait?1", "!1", "and more"] == shape(model_contents([call_event("1", text="wait"), event]))


def test_deltas_and_empty_events_are_left_out():
    log = [text_event("h", partial=True), Event(author="agent", error_code="TIMEOUT"), Event(content=Content()), text_event("hi")]
    assert ["hi"] == shape(model_contents(log))


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


def test_window_begins_at_the_start_of_a_turn():
    log = [
        text_event("hi"),
        call_event("1", "2"),
        response_event("1"),
        response_event("2"),
        text_event("so", author="agent"),
        text_event("on"),
    ]
    log += [call_event("3"), response_event("3")]
    assert [["on", "?3", "!3"]] * 5 == [shape(model_contents(log, limit=limit)) for limit in (1, 2, 3, 4, 5)]


def test_silent_events_and_other_branches_do_not_count():
    log = [
        text_event("hi"),
        *(text_event(str(number), branch="p.b") for number in range(50)),
        state_event({"k": 1}),
        text_event("on", branch="p.a"),
    ]
    assert ["hi", "on"] == shape(model_contents(log, limit=4, branch="p.a"))


def test_response_without_a_call_does_not_start_the_window():
    log = [text_event(str(number)) for number in range(5)] + [response_event("1"), text_event("end")]
    assert ["end"] == shape(model_contents(log, limit=2))


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


def test_parallel_branches_keep_their_pairs_together():
    log = [
        call_event("1", branch="p.a"),
        call_event("2", branch="p.b"),
        response_event("2", branch="p.b"),
        response_event("1", branch="p.a"),
    ]
    assert ["?1", "!1", "?2", "!2"] == shape(model_contents(log))
    assert ["?2", "!2"] == shape(model_contents(log, branch="p.b"))


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


def test_parts_after_responses_follow_all_responses_in_call_order():
    first, second = response_event("2"), response_event("1")
    first.content.parts += [Part("two"), Part("more of two")]
    second.content.parts.append(Part("one"))
    log = [call_event("1", "2"), first, second, text_event("go on")]
    assert ["?1?2", "!1!2", "onetwomore of two", "go on"] == shape(model_contents(log))


def test_parts_after_an_unmatched_response_stay_in_place():
    event = response_event("9")
    event.content.parts.append(Part("left"))
    assert ["hi", "left", "go on"] == shape(model_contents([text_event("hi"), event, text_event("go on")]))


def test_a_long_session_never_begins_with_a_call():
    log: list[Event] = []
    for number in range(60):
        log += [
            text_event(f"q{number}"),
            call_event(f"c{number}"),
            response_event(f"c{number}"),
            Event(author="a", content=Content("model", [Part("ok")])),
        ]
        contents = model_contents(log, limit=20)
        assert ("user", "q") == (contents[0].role, contents[0].parts[0].text[0])
        assert len(contents) <= 20
