"""Invalid scripts are rejected when they are written, with an error that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.testing.realtime import Answer, Call, Cancel, FakeOpenAI, Faults, Frame, GoAway, Interrupt, Pause, Say


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Answer(parts="hello"), "parts"),
        (lambda: Answer(parts=["hello"]), r"parts\.0\.Say"),
        (lambda: Answer(status="done"), "status"),
        (lambda: Answer(faults={"stole"}), "faults"),
        (lambda: Answer(faults="stale"), "faults"),
        (lambda: Answer(late=-1), "late"),
        (lambda: Answer(then=[Say("x")]), r"then\.0\.Pause"),
        (lambda: Call("get", faults={"typo"}), "faults"),
        (lambda: Call("get", arguments=["Rome"]), "arguments"),
        (lambda: Call(name=print), "name"),
        (lambda: Say(text=b"hello"), "text"),
        (lambda: Say("hello", audio="pcm"), "audio"),
        (lambda: Say("hello", piece=0), "piece"),
        (lambda: Pause(seconds=-1), "seconds"),
        (lambda: GoAway(seconds=float("nan")), "seconds"),
        (lambda: Interrupt(text=None), "text"),
        (lambda: Cancel(ids="call_1"), "ids"),
        (lambda: Frame(frame="{}"), "frame"),
        (lambda: Faults(refuse=-1), "refuse"),
        (lambda: Faults(refuse_with="500"), "refuse_with"),
        (lambda: Faults(updates=["refused"]), r"updates\.0"),
        (lambda: Faults(idle=-2), "idle"),
    ],
)
def test_invalid_script_is_refused_at_construction(make: Any, field: str):
    with pytest.raises(ValueError, match=rf"(?m)^{field}"):
        make()


@pytest.mark.parametrize(
    "options",
    [
        {"script": "hello"},
        {"script": Call("get")},
        {"script": {"say": "x"}},
        {"script": [{"say": "x"}]},
        {"script": [None]},
        {"script": [["hello"]]},
        {"utterance": 0},
    ],
)
def test_fake_rejects_an_invalid_script_at_creation(options: Any):
    with pytest.raises(ValueError, match=r"(?i)sequence|instance of Say|at least 1 byte"):
        FakeOpenAI(**options)


def test_valid_scripts_are_accepted_in_any_collection_type():
    script = ["text", Call("get", "{broken", faults={"no_name"}), [Say("a"), Call("get")], (Say("b"),), Answer(faults=["mixed"])]
    assert 5 == FakeOpenAI(tuple(script), hears=("a", "b"), faults=Faults(updates=("ok", "silent"), idle=0.5)).remaining


@given(text=st.text(), cuts=st.sets(st.integers(-1, 40)), ascii=st.booleans())
def test_the_deltas_of_a_call_join_to_its_arguments_wherever_they_are_cut(text, cuts, ascii):  # noqa: A002
    call = Call("any", {"text": text}, cuts=tuple(cuts), ascii=ascii)
    assert call.text == "".join(call.deltas)
    assert {"text": text} == json.loads(call.text)
    assert all(call.deltas)


def test_arguments_can_be_cut_within_an_escape():
    call = Call("any", {"city": "Zürich"}, cuts=(13,))
    assert ['{"city":"Z\\u0', '0fcrich"}'] == call.deltas
