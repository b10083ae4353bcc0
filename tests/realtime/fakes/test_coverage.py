"""200 random scripts have every fault for each provider."""

from __future__ import annotations

import typing
from collections import Counter

import pytest

from patchbay.testing.realtime import Call, Cancel, FakeOpenAI, GoAway, Interrupt
from patchbay.testing.realtime.script import AnswerFault, CallFault, Point, Status
from realtime.random_scripts import random_script
from support.realtime_fakes import FakeGemini, FakeGLM, FakeQwen, FakeStepFun

FAKES = [FakeOpenAI, FakeQwen, FakeGLM, FakeStepFun, FakeGemini]
SCRIPTS = 200


def drawn_faults(provider) -> Counter[str]:
    """Count each fault in the scripts."""
    count: Counter[str] = Counter()
    for seed in range(SCRIPTS):
        answers, faults = random_script(seed, provider=provider)
        count.update({"refused connection": faults.refuse, "refused change": faults.updates.count("refuse")})
        count.update({f"refused by {faults.refuse_with}": faults.refuse, "noise": int(faults.noise)})
        for answer in answers:
            calls = [part for part in answer.parts if isinstance(part, Call)]
            count.update(answer.faults)
            count.update([f"status {answer.status}", f"kill {answer.kill}", f"{len(calls)} calls"])
            count.update(fault for call in calls for fault in call.faults)
            count.update({"late": int(answer.late > 0), "cut": sum(bool(call.cuts) for call in calls)})
            count.update(f"{type(part).__name__} within" for part in answer.parts)
            count.update(f"{type(part).__name__} behind" for part in answer.then)
    return +count


@pytest.mark.parametrize("provider", FAKES)
def test_every_fault_is_drawn_for_every_provider(provider):
    gemini = provider is FakeGemini
    statuses = ["completed", "cancelled"] if gemini else typing.get_args(Status)
    faults = ["done_twice", "no_call_id"] if gemini else typing.get_args(CallFault)
    wanted = {
        *("refused connection", "refused change", "refused by reset", "refused by 503", "noise", "late", "cut"),
        *("1 calls", "2 calls", "3 calls", f"{Interrupt.__name__} within", f"{Interrupt.__name__} behind"),
        *(typing.get_args(AnswerFault)),
        *faults,
        *(f"status {status}" for status in statuses),
        *(f"kill {point}" for point in typing.get_args(Point)),
        *([f"{Cancel.__name__} behind", f"{GoAway.__name__} behind"] if gemini else []),
    }
    count = drawn_faults(provider)
    assert {} == {what: count[what] for what in wanted if count[what] < 3}, count
