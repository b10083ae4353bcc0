"""Whether the cost of reading is linear, and how fast prose is read, with auto and all formats on. CPU time, the least of several readings.

200 KB beside 20 KB of a call in every format (``carriers``) and of texts that are made to be slow (``hostile``), whole and in pieces of 4.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.fidelity import carriers, hostile
from bench.fidelity.readings import TookTooLong, limited, pieces
from bench.places import say
from bench.report import Section, Verdict
from patchbay import StreamParser
from patchbay.types import Reply

RATIO = 12.0
CUTS = {0: "whole", 4: "pieces of 4"}
SMALL, LARGE = 20_000, 200_000
PROSE = {0: 20.0, 40: 10.0}
"""Million characters per second of CPU, by the size of the pieces; 0 is the whole text."""
LONG_ENOUGH = 0.02
"""Seconds of CPU time below which a reading is repeated within itself: the clock's own cost must not show."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds of one reading, and its reply. ``seconds`` is infinite where the limit or an exception stopped it."""

    seconds: float
    reply: Reply


def cost(text: str, chunk: int, tools: Sequence[Any], *, readings: int, limit: float = 60.0) -> Cost:
    """The least of ``readings``; ``chunk`` 0 is the whole text. The making of the parser counts, that of the pieces does not."""
    fed = pieces(text, chunk)

    def run() -> Reply:
        parser = StreamParser(tools)
        feed = parser.feed
        for piece in fed:
            feed(piece)
        parser.close()
        return parser.reply

    try:
        with limited(limit):
            reply = run()
            return Cost(_least(run, readings), reply)
    except (TookTooLong, Exception):  # noqa: BLE001 - the other parts count the exceptions, and show them
        return Cost(math.inf, Reply(None))


def _least(run: Callable[[], Any], readings: int) -> float:
    """The collector stays on: users have it on."""
    repeats, best = 1, math.inf
    while readings:
        gc.collect()
        begun = time.thread_time()
        for _ in range(repeats):
            run()
        spent = time.thread_time() - begun
        if spent < LONG_ENOUGH and repeats < 10_000:
            repeats *= 4
            continue
        best = min(best, spent / repeats)
        readings -= 1
    return best


@dataclass(frozen=True)
class Growth:
    """The CPU seconds of a text of 20 KB and of one of 200 KB; ``right``: the larger one was read as its call."""

    name: str
    small: float
    large: float
    small_size: int
    large_size: int
    right: bool

    @property
    def ratio(self) -> float:
        """How many times more the tenfold text costs, for exactly ten times the characters."""
        if self.large == math.inf:
            return math.inf
        return self.large / self.small * (10 * self.small_size / self.large_size)


def growth(name: str, make: Callable[[int], str], chunk: int, *, right: Callable[[Reply], bool]) -> Growth:
    """Read both sizes; a ratio above the bar is measured again, since a neighbour on the machine may have caused it."""
    small_text, large_text = make(SMALL), make(LARGE)
    small = cost(small_text, chunk, carriers.TOOLS, readings=3, limit=10.0)
    if small.seconds == math.inf:
        return Growth(name, math.inf, math.inf, len(small_text), len(large_text), right=False)
    # Quadratic is a hundredfold: there is no need to wait for the end of it. The limit is for two readings.
    large = cost(large_text, chunk, carriers.TOOLS, readings=1, limit=min(30.0, max(1.0, 60 * small.seconds)))
    least_small, least_large, is_right = small.seconds, large.seconds, right(large.reply)
    for attempt in range(4):
        found = Growth(name, least_small, least_large, len(small_text), len(large_text), is_right)
        if found.ratio <= RATIO * 0.95 or found.large == math.inf or attempt == 3:
            break
        least_small = min(least_small, cost(small_text, chunk, carriers.TOOLS, readings=5).seconds)
        least_large = min(least_large, cost(large_text, chunk, carriers.TOOLS, readings=3).seconds)
    return found


def measure_growth(*, only: str) -> Section:
    """Both families of texts. ``only`` is a part of a text's name."""
    say("fidelity: linear ...")
    families = (
        ("formats", carriers.CARRIERS, carriers.text, is_the_call),
        ("hostile texts", hostile.UNITS, hostile.text, lambda _: True),
    )
    verdicts, raw = [], {}
    for title, names, text, right in families:
        chosen = [name for name in names if only in name]
        for cut, words in CUTS.items():
            found = [growth(name, partial(text, name), cut, right=right) for name in chosen]
            verdicts.append(growth_verdict(f"200 KB beside 20 KB, {len(chosen)} {title}, {words}: CPU", found))
            raw[f"{title}, {words}"] = {one.name: vars(one) | {"ratio": one.ratio} for one in found}
            if wrong := [one.name for one in found if not one.right]:
                verdicts.append(Verdict(f"200 KB calls that auto reads wrongly, {words}", "0", ", ".join(wrong), met=False))
    return Section(verdicts, raw={"linear": raw})


def is_the_call(reply: Reply) -> bool:
    """Whether the reply is the one call of a carrier, with its whole argument."""
    if len(reply.tool_calls) != 1:
        return False
    (call,) = reply.tool_calls
    content = call.arguments.get(carriers.KEY)
    return call.name == carriers.NAME and content in (carriers.value(LARGE), carriers.value(SMALL))


def growth_verdict(what: str, found: list[Growth]) -> Verdict:
    """The bar of the worst of some texts."""
    worst = max(found, key=lambda one: one.ratio, default=None)
    if worst is None:
        return Verdict(what, f"≤ {RATIO:g}", "no such text", None)
    above = sum(one.ratio > RATIO for one in found)
    shown = "stopped" if worst.ratio == math.inf else f"{worst.ratio:.1f}"
    measured = f"{shown} ({worst.name})" + (f", {above} above" if above > 1 else "")
    return Verdict(what, f"≤ {RATIO:g}", measured, worst.ratio <= RATIO)


def measure_speed() -> Section:
    """Prose, whole and in pieces."""
    say("fidelity: speed ...")
    text, verdicts, raw = prose(LARGE), [], {}
    for size, bar in PROSE.items():
        speed = len(text) / cost(text, size, carriers.TOOLS, readings=5).seconds / 1e6
        words = f"in pieces of {size}" if size else "in one piece"
        raw[words] = speed
        verdicts.append(
            Verdict(f"Prose {words}, million characters per second of CPU", f"≥ {bar:g}", f"{speed:.1f}", speed >= bar)
        )
    return Section(verdicts, raw={"speed": raw})


_SENTENCE = (
    "the numbers you asked about are in the second table so that we can compare the two places side by side before you "
    "decide which of them is worth the longer way there and back again on a day when most of the trains are late"
)
_WORDS = _SENTENCE.split()
_CODE = '```python\ndef total(rows):\n    """Add up what was measured."""\n    return sum(row["value"] for row in rows)\n```\n'


def prose(size: int) -> str:
    """Lines of plain prose with a fence of code now and then."""
    lines: list[str] = []
    length = 0
    while length < size:
        start = len(lines) * 7 % len(_WORDS)
        line = " ".join((_WORDS + _WORDS)[start : start + 14]).capitalize() + ".\n"
        lines.append(_CODE if len(lines) % 8 == 7 else line)
        length += len(lines[-1])
    return "".join(lines)[:size]
