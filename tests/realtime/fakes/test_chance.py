"""A correct client passes any random script without a violation."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from patchbay.testing.realtime import Call, FakeOpenAI
from realtime.random_scripts import random_script
from support.realtime_fakes import FakeGemini, FakeGLM, FakeQwen, FakeStepFun
from support.repeated import examples, repeated
from support.running import run

from .raw import CorrectFamilyClient, CorrectGeminiClient

FAKES = [FakeOpenAI, FakeQwen, FakeGLM, FakeStepFun, FakeGemini]


def client_of(fake):
    return (CorrectGeminiClient if fake.provider == "gemini" else CorrectFamilyClient)(fake)


@pytest.mark.parametrize("provider", FAKES)
@given(chance=st.randoms(use_true_random=False))
@repeated(max_examples=min(examples(10), 100), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_correct_client_passes_any_random_script(provider, chance):
    script, faults = random_script(chance, provider=provider, turns=3, late=0.001)
    with provider(script, faults=faults) as fake:
        client = client_of(fake)
        run(client.turns(["one", "two", "three"]))
        assert [] == fake.violations
        assert [] == fake.unanswered
        assert [] == fake.unasked
        assert all(len(call.results) <= 1 for call in fake.calls)
        assert {"one", "two", "three"} <= {outcome.text for outcome in fake.heard}
        assert fake.connections <= fake.attempts


@given(text=st.text(), cuts=st.sets(st.integers(-1, 40)), ascii=st.booleans())
def test_the_deltas_of_a_call_join_to_its_arguments_wherever_they_are_cut(text, cuts, ascii):  # noqa: A002
    call = Call("any", {"text": text}, cuts=tuple(cuts), ascii=ascii)
    assert call.text == "".join(call.deltas)
    assert {"text": text} == json.loads(call.text)
    assert all(call.deltas)


def test_arguments_can_be_cut_within_an_escape():
    call = Call("any", {"city": "Zürich"}, cuts=(13,))
    assert ['{"city":"Z\\u0', '0fcrich"}'] == call.deltas
