"""Calls are assembled from any deltas and lists of a server."""

from __future__ import annotations

import itertools
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.realtime import call_assembly, response_state
from patchbay.realtime.response_state import CallAssembler
from patchbay.realtime.server_events import CallDelta, FinalCall


def book() -> CallAssembler:
    made = CallAssembler(0.5, Mock(), Mock())
    made.begin_response("r1")
    return made


def assembled(made: CallAssembler) -> list[tuple[str, str, str]]:
    return [(call.call_id, call.name, call.text) for call in made.all_calls()]


@given(text=st.text(max_size=40), cuts=st.lists(st.integers(0, 40), max_size=6))
def test_any_split_gives_the_same_text(text, cuts):
    made = book()
    places = [0, *sorted({cut for cut in cuts if cut < len(text)}), len(text)]
    for begin, end in itertools.pairwise(places):
        made.add_delta(CallDelta("r1", "k", "c1", "f", delta=text[begin:end]))
    made.add_delta(CallDelta("r1", "k", done=True))
    assert text == made.all_calls()[0].text


DONE = CallDelta("r1", "k", "c1", "f", arguments="{}", done=True)


@pytest.mark.parametrize(
    ("deltas", "final", "expected"),
    [
        pytest.param([DONE, DONE], [FinalCall("k", "c1", "f", "{}")], [("c1", "f", "{}")], id="a duplicate is one call"),
        pytest.param(
            [CallDelta("r1", "k", "c1", arguments='{"a":1}', done=True)],
            [FinalCall("k", "c1", "f", '{"a":1}')],
            [("c1", "f", '{"a":1}')],
            id="the response end names the tool",
        ),
        pytest.param(
            [CallDelta("r1", "k", "", "f", arguments="{}", done=True)],
            [FinalCall("k", "c9", "f", "{}")],
            [("c9", "f", "{}")],
            id="the response end has the id",
        ),
        pytest.param(
            [CallDelta("r1", "b", "c2", "g", arguments="{}", done=True)],
            [FinalCall("a", "c1", "f", "{}"), FinalCall("b", "c2", "g", "{}")],
            [("c1", "f", "{}"), ("c2", "g", "{}")],
            id="the response end has the order",
        ),
        pytest.param(
            [CallDelta("r1", "k", "c", "f", delta='{"a":1}'), CallDelta("r1", "k", arguments='{"a":', done=True)],
            [],
            [("c", "f", '{"a":1}')],
            id="valid deltas win over an invalid text",
        ),
        pytest.param(
            [CallDelta("r1", "k", "c", "f", delta='{"a"'), CallDelta("r1", "k", arguments='{"a":2}', done=True)],
            [],
            [("c", "f", '{"a":2}')],
            id="a valid text wins over invalid deltas",
        ),
    ],
)
def test_deltas_and_the_response_end_form_calls(deltas, final, expected):
    made = book()
    for delta in deltas:
        made.add_delta(delta)
    made.finish(final)
    assert expected == assembled(made)


WHOLE = '{"a":"' + "x" * 592 + '"}'  # 600 characters


def feed_in_pieces(made: CallAssembler, number: int) -> None:
    for start in range(0, len(WHOLE), 50):
        made.add_delta(CallDelta("r1", f"k{number}", f"c{number}", "f", delta=WHOLE[start : start + 50]))
    made.add_delta(CallDelta("r1", f"k{number}", done=True))


def feed_whole(made: CallAssembler, number: int) -> None:
    made.add_delta(CallDelta("r1", f"k{number}", f"c{number}", "f", arguments=WHOLE, done=True))


def feed_at_the_end(made: CallAssembler, number: int) -> None:
    made.finish([FinalCall(f"k{number}", f"c{number}", "f", WHOLE)])


@pytest.mark.parametrize("tell", [feed_in_pieces, feed_whole, feed_at_the_end])
def test_arguments_of_a_response_are_bounded_in_total(tell, monkeypatch):
    monkeypatch.setattr(response_state, "MAX_RESPONSE_CHARS", 1500)
    made = book()
    for number in range(10):
        tell(made, number)
    outcome = sorted(made.calls, key=lambda call: call.call_id)
    assert [False] * 2 + [True] * 8 == [call.truncated for call in outcome]
    assert [600, 600, 300] + [0] * 7 == [len(call.text) for call in outcome]
    made.begin_response("r2")  # which has the same room
    made.add_delta(CallDelta("r2", "k", "c", "f", arguments=WHOLE, done=True))
    assert [(False, WHOLE)] == [(call.truncated, call.text) for call in made.calls]


@pytest.mark.parametrize("tell", [feed_in_pieces, feed_whole, feed_at_the_end])
@pytest.mark.parametrize("most", [599, 600])
def test_arguments_of_a_call_are_bounded_exactly(tell, most, monkeypatch):
    monkeypatch.setattr(call_assembly, "MAX_ARGUMENT_CHARS", most)
    made = book()
    tell(made, 1)
    assert [(most < 600, WHOLE[:most])] == [(call.truncated, call.text) for call in made.calls]
