"""Invalid scripts are rejected when they are set, with an error that lists what is allowed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.errors import ConfigurationError
from patchbay.testing.realtime import Answer, Call, Cancel, FakeOpenAI, Faults, Frame, GoAway, Interrupt, Pause, Say
from support.realtime_fakes import FakeGemini


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Answer("hello"), r"parts of an Answer are a sequence of Say, Quote, .*, not 'hello'\. A text is .*Say\(text\)"),
        (lambda: Answer(["hello"]), r"Each of the parts of an Answer is one of Say, .*not 'hello'"),
        (lambda: Answer(status="done"), "status of an Answer is one of 'completed', 'cancelled', .*, not 'done'"),
        (lambda: Answer(faults={"stole"}), "faults of an Answer is one of 'stale', 'mixed', 'fragments', not 'stole'"),
        (lambda: Answer(faults="stale"), "faults of an Answer are a collection of"),
        (lambda: Answer(late=-1), "late of an Answer is a number of at least 0, not -1"),
        (lambda: Answer(then=[Say("x")]), r"then is one of Pause, Interrupt, .*, not Say\("),
        (lambda: Call("get", faults={"typo"}), "faults of Call is one of 'done_twice', .*, not 'typo'"),
        (lambda: Call("get", ["Rome"]), "arguments of Call is one of Mapping, str, not "),
        (lambda: Call(print), "name of Call"),
        (lambda: Say(b"hello"), "text of Say is one of str, not b'hello'"),
        (lambda: Say("hello", audio="pcm"), "audio of Say is one of bytes, NoneType, not 'pcm'"),
        (lambda: Say("hello", piece=0), "piece of Say is a number of at least 1, not 0"),
        (lambda: Pause(-1), "seconds of Pause"),
        (lambda: GoAway(float("nan")), "seconds of GoAway"),
        (lambda: Interrupt(None), "text of Interrupt"),
        (lambda: Cancel("call_1"), "ids of Cancel are a sequence of str, not 'call_1'"),
        (lambda: Frame("{}"), "frame of Frame is one of Mapping, not '{}'"),
        (lambda: Faults(refuse=-1), "refuse of Faults"),
        (lambda: Faults(refuse_with="500"), "refuse_with of Faults is one of 'reset', '503', not '500'"),
        (lambda: Faults(updates=["refused"]), "updates of Faults is one of 'ok', 'refuse', 'silent', not 'refused'"),
        (lambda: Faults(idle=-2), "idle of Faults"),
    ],
)
def test_invalid_script_is_refused_at_construction(make: Any, words: str):
    with pytest.raises(ConfigurationError, match=words):
        make()


@pytest.mark.parametrize("fake", [FakeOpenAI, FakeGemini])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"script": "hello"}, "A script is a sequence of steps, one for each response, not 'hello'"),
        ({"script": Call("get")}, r"A script is a sequence of steps, one for each response, not Call\("),
        ({"script": {"say": "x"}}, "A script is a sequence of steps"),
        ({"script": [{"say": "x"}]}, "sequence of Say, .*, not {'say': 'x'}"),
        ({"script": [None]}, "sequence of Say, .*, not None"),
        ({"script": [["hello"]]}, r"one of Say, .*, not 'hello'. A text is a part as Say\(text\)"),
        ({"hears": "What time is it?"}, "texts that a fake hears are a sequence of str"),
        ({"hears": [b"What?"]}, "texts that a fake hears is one of str"),
        ({"utterance": 0}, "Utterance is a number of at least 1, not 0"),
        ({"crossing": -1.0}, "Crossing is a number of at least 0"),
    ],
)
def test_fake_rejects_an_invalid_script_at_creation(fake, options: Any, words: str):
    with pytest.raises(ConfigurationError, match=words):
        fake(**options)


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
