"""200 scripts by chance hold, for each provider, every fault that there is, and have its server say everything that it can say."""

from __future__ import annotations

import re
import typing
from collections import Counter
from dataclasses import replace

import pytest

from patchbay.realtime import server_events
from patchbay.testing.realtime import (
    Call,
    Cancel,
    FakeGemini,
    FakeGLM,
    FakeOpenAI,
    FakeQwen,
    FakeStepFun,
    Faults,
    GoAway,
    Interrupt,
    Quote,
    Say,
)
from patchbay.testing.realtime.script import AnswerFault, CallFault, Point, Status
from realtime.providers.frames import dialect
from realtime.random_scripts import KINDS, random_script
from support.running import run

from .raw import VOICED, CorrectFamilyClient, CorrectGeminiClient

FAKES = [FakeOpenAI, FakeQwen, FakeGLM, FakeStepFun, FakeGemini]
SCRIPTS = 200
PLAYED = 60
"""So many of them are looked at, until all has been seen; those with nothing that was not played often before are passed over."""

NEWS = {one.__name__ for one in typing.get_args(server_events.ServerEvent)}
GEMINIS_OWN = {"CallsCancelled", "GoAway", "SessionResumption"}


def within_an_escape(call: Call) -> bool:
    """Whether a delta ends in the midst of an escape of JSON."""
    escapes = [(found.start(), found.end()) for found in re.finditer(r"\\(u[0-9a-f]{4}|.)", call.text)]
    return any(start < cut < end for cut in call.cuts or () for start, end in escapes)


def drawn_faults(provider) -> Counter[str]:
    """How often each thing that can go wrong is in the scripts."""
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
            count.update({"late": int(answer.late > 0), "cut within an escape": sum(map(within_an_escape, calls))})
            count.update(f"{type(part).__name__} within" for part in answer.parts)
            count.update(f"{type(part).__name__} behind" for part in answer.then)
    return +count


@pytest.mark.parametrize("provider", FAKES)
def test_every_fault_is_drawn_for_every_provider(provider):
    gemini = provider is FakeGemini
    statuses = ["completed", "cancelled"] if gemini else typing.get_args(Status)
    faults = ["done_twice", "no_call_id"] if gemini else typing.get_args(CallFault)
    wanted = {
        *("refused connection", "refused change", "refused by reset", "refused by 503", "noise", "late", "cut within an escape"),
        *("1 calls", "2 calls", "3 calls", f"{Interrupt.__name__} within", f"{Interrupt.__name__} behind"),
        *(typing.get_args(AnswerFault)),
        *faults,
        *(f"status {status}" for status in statuses),
        *(f"kill {point}" for point in typing.get_args(Point)),
        *([f"{Cancel.__name__} behind", f"{GoAway.__name__} behind"] if gemini else []),
    }
    count = drawn_faults(provider)
    assert {} == {what: count[what] for what in wanted if count[what] < 3}, count


def test_each_requested_fault_kind_appears_in_scripts_and_no_other():
    def scripts(*kinds: str):
        return [
            random_script(seed, provider=fake, kinds=frozenset(kinds)) for seed in range(60) for fake in (FakeOpenAI, FakeGemini)
        ]

    plain = scripts()
    assert [] == [kind for kind in sorted(KINDS) if scripts(kind) == plain]
    assert {Faults()} == {replace(faults, refuse_with="reset") for _, faults in plain}
    answers = [answer for script, _ in plain for answer in script]
    assert {(frozenset(), None, "completed", 0.0, ())} == {
        (answer.faults, answer.kill, answer.status, answer.late, answer.then) for answer in answers
    }
    parts = [part for answer in answers for part in answer.parts]
    assert {Call, Quote, Say} == {type(part) for part in parts}
    assert {frozenset()} == {part.faults for part in parts if isinstance(part, Call)}


def event_kinds(provider, wanted: set[str]) -> set[str]:
    """The kinds of news and ends of responses in what the server says in scripts, as our dialects understand it."""
    seen: set[str] = set()
    played: Counter[object] = Counter()
    for seed in range(PLAYED):
        if seen >= wanted:
            break
        script, faults = random_script(seed, provider=provider, late=0.001)
        kinds = {kind for answer in script for kind in (answer.status, *map(type, answer.parts), *map(type, answer.then))}
        if all(played[kind] >= 4 for kind in kinds):
            continue
        played.update(kinds)
        voiced = seed % 2 == 0
        session = VOICED[provider.provider] if voiced else {}
        with provider(script, faults=faults, crossing=10.0) as fake:
            client = (CorrectGeminiClient if provider is FakeGemini else CorrectFamilyClient)(fake, **session)
            run(client.turns(["one", "two", "three"]))
            assert [] == fake.violations
        for line in client.lines:
            one = dialect(provider.provider, output="audio" if voiced else "text")
            news = [each for frame in line.seen for each in one.read(frame)]
            seen.update(type(each).__name__ for each in news)
            done = [each for each in news if isinstance(each, server_events.ResponseDone)]
            seen.update(each.status for each in done)
            seen.update("with calls" for each in done if each.calls)
    return seen


@pytest.mark.parametrize("provider", FAKES)
def test_every_event_kind_is_produced_by_every_provider(provider):
    # Gemini refuses with the end of the connection, and confirms nothing but its setup; its calls are whole where they come. That
    # the user has ended it does not say.
    wanted = NEWS - {"ServerError", "SessionUpdated", "SpeechStopped"} if provider is FakeGemini else NEWS - GEMINIS_OWN
    wanted |= {"completed", "cancelled"} if provider is FakeGemini else {*typing.get_args(Status), "with calls"}
    seen = event_kinds(provider, wanted)
    assert set() == wanted - seen
    assert wanted >= seen & NEWS
