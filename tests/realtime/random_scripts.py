"""Random scripts for fake realtime providers, reproducible from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final, Literal

from patchbay.testing.realtime import Answer, Call, Cancel, FakeRealtime, Faults, GoAway, Interrupt, Pause, Quote, Say
from patchbay.testing.realtime.script import AnswerFault, CallFault, Part, Point, Status, Update

KINDS: Final = frozenset({"calls", "mixed", "fragments", "stale", "noise", "status", "late"}) | frozenset(
    {"interrupt", "cancel", "kill", "leave", "refuse", "update"}
)
"""Kinds of events and faults: malformed calls ("calls"), events of several calls mixed, messages in fragments, old calls, noise,
responses that are not completed, the user speaking, calls taken back, connections killed, ended with a warning ("leave") and
refused, slow beginnings, changes of the session refused ("update")."""

_POINTS: Final[tuple[Point, ...]] = ("asked", "created", "deltas", "calls", "running", "result", "results")
_WORDS: Final = ("Rome", "Zürich", "東京", 'a "quoted" \\ place', "🌧️ Kraków", "line\nbreak", "\u2028", "é\u0301", "")


def any_arguments(chance: Random, _tool: str) -> Mapping[str, Any]:
    """Return arguments of the shape ``{"city": text}``."""
    return {"city": chance.choice(_WORDS)}


def random_script(
    chance: int | Random,
    *,
    provider: type[FakeRealtime],
    tools: Sequence[str] = ("get_weather",),
    arguments: Callable[[Random, str], Mapping[str, Any]] = any_arguments,
    turns: int = 3,
    kinds: frozenset[str] = KINDS,
    late: float = 0.05,
) -> tuple[list[Answer], Faults]:
    """Return a script for ``turns`` turns of the user, and the server's faults.

    ``chance`` is a seed, or a Random (Hypothesis gives one: ``st.randoms(use_true_random=False)``). ``tools`` are names on the
    wire. A slow response begins after ``late`` seconds.
    """
    dice = Dice(chance if isinstance(chance, Random) else Random(chance), provider.provider, kinds)
    answers: list[Answer] = []
    for _ in range(turns):
        rounds = dice.random.choice((0, 1, 1, 2))
        answers.extend(_calling(dice, tools, arguments, late) for _ in range(rounds))
        last: Part = dice.random.choice((Quote(), Say("Done: ✓ café"), Say("Well. " * 8, piece=3)))
        parts: tuple[Part, ...] = (last, Interrupt("And?"), last) if dice.may("interrupt", 0.15) else (last,)
        answers.append(Answer(parts, late=dice.late(late), faults=dice.faults()))
    for _ in range(2 if "kill" in kinds else 0):
        if dice.may("kill", 0.4):
            place = dice.random.randrange(len(answers))
            answers[place] = _killed(answers[place], dice.random.choice(_POINTS))
    refuse = dice.random.randrange(1, 3) if dice.may("refuse", 0.2) else 0
    how: Sequence[Literal["reset", "503"]] = ("reset", "503")
    fates: list[Update] = [dice.random.choice(("ok", "refuse")) for _ in range(2)] if dice.may("update", 0.2) else []
    return answers, Faults(refuse, dice.random.choice(how), updates=tuple(fates), noise=dice.may("noise", 0.5))


class Dice:
    """A source of random choices, limited to the allowed kinds."""

    def __init__(self, random: Random, provider: str, kinds: frozenset[str]) -> None:
        self.random = random
        self.gemini = provider == "gemini"
        self.kinds = kinds

    def may(self, kind: str, likely: float) -> bool:
        """True with this probability (0 to 1), if the kind is allowed."""
        return kind in self.kinds and self.random.random() < likely

    def late(self, seconds: float) -> float:
        """Return how late a response begins."""
        return seconds if self.may("late", 0.1) else 0.0

    def faults(self) -> frozenset[AnswerFault]:
        """Return what is wrong with an answer."""
        faults: list[AnswerFault] = ["stale", "mixed", "fragments"]
        return frozenset(fault for fault in faults if self.may(fault, 0.2))

    def call_faults(self) -> frozenset[CallFault]:
        """Return what is wrong with a call."""
        faults: Sequence[CallFault] = ("done_twice", "no_name", "no_call_id", "only_in_response_done", "unheralded")
        return frozenset(fault for fault in faults if self.may("calls", 0.15))

    def batch_faults(self) -> frozenset[CallFault]:
        """Return the faults of all calls of an answer that share one message (Gemini).

        Not both: a call that is issued twice without an id cannot be recognised as one.
        """
        faults: Sequence[CallFault] = ("done_twice", "no_call_id")
        return frozenset({self.random.choice(faults)}) if self.may("calls", 0.25) else frozenset()


def _calling(dice: Dice, tools: Sequence[str], arguments: Callable[[Random, str], Mapping[str, Any]], late: float) -> Answer:
    parts: list[Part] = [Say("One moment.")] if dice.random.random() < 0.3 else []
    batch = dice.batch_faults() if dice.gemini else None
    for _ in range(dice.random.choice((1, 1, 2, 3))):
        name = dice.random.choice(tools)
        faults = dice.call_faults() if batch is None else batch
        call = Call(name, arguments(dice.random, name), ascii=dice.random.random() < 0.5, faults=faults)
        size = len(call.text)
        cuts = sorted(dice.random.sample(range(size), dice.random.randint(0, min(size, 6))))
        parts.append(replace(call, cuts=tuple(cuts)))
    status: Status = "completed"
    then: list[Part] = []
    if dice.may("status", 0.15):
        status = "cancelled" if dice.gemini else dice.random.choice(("cancelled", "incomplete", "failed"))
    elif dice.may("interrupt", 0.15):
        then = [Pause(dice.random.choice((0.0, 0.01))), Interrupt("Stop, and tell me the time.")]
    elif dice.gemini and dice.may("cancel", 0.2):
        then = [Pause(dice.random.choice((0.0, 0.01))), Cancel()]
    elif dice.gemini and dice.may("leave", 0.1):
        then = [Pause(dice.random.choice((0.0, 0.01))), GoAway(0.02)]
    if dice.may("interrupt", 0.1):
        parts.insert(dice.random.randint(0, len(parts)), Interrupt("No, wait."))
    return Answer(tuple(parts), status=status, then=tuple(then), late=dice.late(late), faults=dice.faults())


def _killed(answer: Answer, point: Point) -> Answer:
    return Answer(answer.parts, status=answer.status, late=answer.late, faults=answer.faults, kill=point)
