"""The bars for the figures. A missed bar is reported but does not fail the run: figures move with the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench import building, parsers, proxies, start, texts
from bench.hooks import idle
from bench.hooks import process as hook_process
from bench.programs import LITELLM, NGINX, ORIGINAL, OURS
from bench.proxies import PACED, REQUEST, STREAM
from bench.realtime import call as realtime
from bench.turns.cases import CLIENT_CASES, LARGE, MANY, ONE, SIXTEEN, SMALL, Case
from bench.turns.measure import Figures, Outcome
from bench.turns.rows import AGENT, CLIENT_FLOOR, CLIENT_OURS, PEERS

MEGABYTES = 60.0
GROWTH = 12.0
OF_ORIGINAL = 0.1
PROSE_SPEED = 20.0
IMPORT_MILLISECONDS = 150.0
BUILDING_MILLISECONDS = 1.5
READY_MILLISECONDS = 1_000.0
TURN_MICROSECONDS: tuple[tuple[Case | None, float], ...] = ((ONE, 150.0), (SIXTEEN, 450.0), (None, 25.0), (MANY, 200.0))
"""CPU time of an agent's turn at most, and of each call beyond the first (None)."""

OF_BEST_FRAMEWORK = 0.1
SMALL_OF_CLIENT, NATIVE_OF_CLIENT, TEXT_OF_CLIENT = 1.2, 2.0, 2.5
"""What a turn costs beside the bare ``openai`` client with the same two requests, at most."""
LARGE_MILLISECONDS = 15.0

RATIOS = (
    (REQUEST, ORIGINAL, 0.45, "0.45"),
    (REQUEST, LITELLM, 1 / 50, "1/50"),
    (STREAM, ORIGINAL, 0.5, "0.5"),
    (STREAM, LITELLM, 1 / 100, "1/100"),
    (STREAM, NGINX, 5.0, "5"),
    (PACED, ORIGINAL, 0.55, "0.55"),
)
"""Scenario, peer, and how much of the peer's CPU time ours may cost at most."""


HEADLINES = (
    f"{REQUEST.title}: CPU beside {ORIGINAL}",
    f"{REQUEST.title}: CPU beside {LITELLM}",
    "Turn of an agent, 1 call: CPU beside the best framework",
)
"""The bars that README.md shows."""


@dataclass(frozen=True)
class Verdict:
    """One bar. ``met`` is None where it could not be measured; ``measured`` then says why."""

    what: str
    bar: str
    measured: str
    met: bool | None

    @property
    def word(self) -> str:
        """How the table says it."""
        return {True: "met", False: "**MISSED**", None: "not measured"}[self.met]


def of_proxies(outcome: proxies.Outcome, chosen: tuple[proxies.Scenario, ...]) -> Iterator[Verdict]:
    """The proxies' bars, for the scenarios that were run."""
    for scenario, peer, limit, written in RATIOS:
        if scenario not in chosen:
            continue
        what, bar = f"{scenario.title}: CPU beside {peer}", f"≤ {written}"
        ours, theirs = outcome.find(OURS, scenario), outcome.find(peer, scenario)
        if ours is None or theirs is None:
            missing = OURS if ours is None else peer
            yield Verdict(what, bar, f"no figures of {missing}", None)
            continue
        ratio = ours.cpu / theirs.cpu
        # Fractions are said as fractions: 1/63 is easier to hold against 1/50 than 0.0159.
        yield Verdict(what, bar, f"1/{1 / ratio:.0f}" if limit < 0.1 else f"{ratio:.2f}", ratio <= limit)
    if PACED in chosen:
        what, bar = "Memory with 64 open streams, one worker", f"≤ {MEGABYTES:.0f} MB"
        paced = outcome.find(OURS, PACED)
        if paced is None:
            yield Verdict(what, bar, f"no figures of {OURS}", None)
        else:
            yield Verdict(what, bar, f"{paced.memory:.0f} MB", paced.memory <= MEGABYTES)


def of_parsers(outcome: parsers.Outcome) -> Iterator[Verdict]:
    """The parser's bars."""
    small = outcome.ours.get(("one_big_call", 20_000, parsers.TINY))
    large = outcome.ours.get(("one_big_call", 200_000, parsers.TINY))
    original = outcome.original.get(("one_big_call", 200_000, parsers.TINY))
    prose = outcome.ours.get(("prose", texts.SIZES[-1], parsers.WHOLE))
    ours_missing = "no figures of patchbay"

    what, bar = "200 KB call in 4-character chunks beside a 20 KB one: CPU", f"≤ {GROWTH:.0f}"
    if small is None or large is None:
        yield Verdict(what, bar, ours_missing, None)
    else:
        yield Verdict(what, bar, f"{large / small:.1f}", large / small <= GROWTH)

    what, bar = "200 KB call in 4-character chunks beside the original: CPU", f"≤ {OF_ORIGINAL}"
    if large is None or original is None:
        reason = ours_missing if large is None else "no figures of the original"
        yield Verdict(what, bar, reason, None)
    else:
        measured = f"{large / original:.3f} ({large:.0f} ms beside {original:,.0f} ms)"
        yield Verdict(what, bar, measured, large / original <= OF_ORIGINAL)

    what, bar = "Whole prose, million characters per second of CPU", f"≥ {PROSE_SPEED:.0f}"
    if prose is None:
        yield Verdict(what, bar, ours_missing, None)
    else:
        speed = texts.SIZES[-1] / prose / 1e3
        yield Verdict(what, bar, f"{speed:.0f}", speed >= PROSE_SPEED)
    for complaint in outcome.wrong:
        yield Verdict(f"Calls found ({complaint.partition(':')[0]})", "all", complaint.partition(": ")[2], met=False)


def of_start(outcome: start.Outcome) -> Iterator[Verdict]:
    """The bars of beginning."""
    for what, limit, bar in (
        (start.IMPORT, IMPORT_MILLISECONDS, f"≤ {IMPORT_MILLISECONDS:.0f} ms"),
        (start.READY, READY_MILLISECONDS, "< 1 s"),
    ):
        measured = outcome.readings.get(what)
        if measured is None:
            yield Verdict(what, bar, "–", None)  # the reason is below the start-up table
        else:
            yield Verdict(what, bar, f"{measured.wall:.0f} ms (CPU {measured.cpu:.0f} ms)", measured.wall <= limit)
    foreign = outcome.foreign.get(start.IMPORT)
    if foreign is not None:
        yield Verdict(f"{start.IMPORT}: third-party imports", "none", ", ".join(foreign) or "none", not foreign)


def of_building(outcome: building.Outcome) -> Iterator[Verdict]:
    """The bar of making a tool."""
    bar = f"≤ {BUILDING_MILLISECONDS} ms"
    for what, cost in outcome.costs.items():
        yield Verdict(f"a tool of a function: {what}", bar, f"{cost.first_use:.2f} ms", cost.first_use <= BUILDING_MILLISECONDS)


def of_turns(outcome: Outcome) -> Iterator[Verdict]:
    """The bars of an agent's turn: the time itself, and beside whichever of the peers is the best at it."""
    ours = outcome.figures.get(AGENT)
    missing = [name for name in (AGENT, *PEERS) if name not in outcome.figures]
    for case, limit in TURN_MICROSECONDS:
        title = f"Turn of an agent, {case.name if case else 'each further call'}: CPU"
        what, bar = title, f"≤ {limit:.0f} µs"
        if ours is None:
            yield Verdict(what, bar, f"no figures of {AGENT}", None)
        else:
            mine = _microseconds(ours, case)
            yield Verdict(what, bar, f"{mine:.0f} µs" if mine >= 100 else f"{mine:.1f} µs", mine <= limit)
        what, bar = f"{title} beside the best framework", "≤ 1/10"
        if ours is None or missing:  # the missing one might be the best
            yield Verdict(what, bar, f"no figures of {missing[0]}", None)
        else:
            best = min(PEERS, key=lambda name: _microseconds(outcome.figures[name], case))
            ratio = _microseconds(ours, case) / _microseconds(outcome.figures[best], case)
            yield Verdict(what, bar, f"1/{1 / ratio:.1f} ({best})", ratio <= OF_BEST_FRAMEWORK)


def of_clients(outcome: Outcome) -> Iterator[Verdict]:
    """The bars of a turn over the real client: beside the client alone, and the time of the largest."""
    floor = outcome.figures.get(CLIENT_FLOOR)
    for name in CLIENT_OURS:
        ours = outcome.figures.get(name)
        for case in CLIENT_CASES:
            limit = SMALL_OF_CLIENT if case is SMALL else TEXT_OF_CLIENT if name.endswith("text") else NATIVE_OF_CLIENT
            what = f"{name}, {case.name}: CPU beside the client alone"
            if ours is None or floor is None:
                yield Verdict(what, f"≤ {limit}", "no figures", None)
                continue
            ratio = ours.cpu(case) / floor.cpu(case)
            yield Verdict(what, f"≤ {limit}", f"{ratio:.2f}", ratio <= limit)
        if ours is not None:
            spent = ours.cpu(LARGE) / 1e3
            bar = f"≤ {LARGE_MILLISECONDS:.0f} ms"
            yield Verdict(f"{name}, {LARGE.name}: CPU of a turn", bar, f"{spent:.1f} ms", spent <= LARGE_MILLISECONDS)


def of_hooks(in_process: idle.Outcome, other: hook_process.Outcome) -> Iterator[Verdict]:
    """The bars of hooks: what one adds that has nothing to say, and each point of one that is a process."""
    for what, limit in idle.BARS:
        cost = in_process.costs[what]
        yield Verdict(f"An idle hook, {what}: CPU added", f"≤ {limit:.0f} µs", f"{cost.added:.1f} µs", cost.added <= limit)
    for what, each in other.costs.items():
        bar = hook_process.BAR_MICROSECONDS
        yield Verdict(
            f"A hook that is a process, {what}: CPU of a point", f"≤ {bar:.0f} µs", f"{each.both:.0f} µs", each.both <= bar
        )


def of_realtime(outcome: realtime.Outcome) -> Iterator[Verdict]:
    """The bar of calls of a realtime session: what one costs more than in the same process."""
    limit = realtime.BAR_MILLISECONDS
    for count, cost in outcome.costs.items():
        what = f"Call over realtime, {count} in a turn, over one in the same process: CPU"
        yield Verdict(what, f"≤ {limit} ms", f"{cost.more / 1e3:.3f} ms", cost.more / 1e3 <= limit)


def _microseconds(figures: Figures, case: Case | None) -> float:
    return figures.further_call if case is None else figures.cpu(case)
