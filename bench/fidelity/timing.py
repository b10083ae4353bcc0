"""CPU time of readings, in this process and one after the other: the least of several, under a limit that stops what is quadratic."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.fidelity.readings import TookTooLong, limited, pieces
from patchbay import StreamParser
from patchbay.types import Reply

LONG_ENOUGH = 0.02
"""Seconds of CPU time below which a reading is repeated within itself: the clock's own cost must not show."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds of one reading, and what was read. ``seconds`` is infinite where the limit or an exception stopped it."""

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
    except (TookTooLong, Exception):  # noqa: BLE001 - the other parts count the exceptions, and say what they are
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
    """What a text of 20 KB and one of 200 KB cost, in seconds of CPU; ``right``: the larger one was read as its call."""

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


def growth(
    name: str, make: Callable[[int], str], chunk: int, tools: Sequence[Any], *, bar: float, right: Callable[[Reply], bool]
) -> Growth:
    """Read both sizes; a ratio above the bar is measured again, since a neighbour on the machine may have caused it."""
    texts = make(SMALL), make(LARGE)
    small = cost(texts[0], chunk, tools, readings=3, limit=10.0)
    if small.seconds == math.inf:
        return Growth(name, math.inf, math.inf, len(texts[0]), len(texts[1]), right=False)
    # Quadratic is a hundredfold: there is no need to wait for the end of it. The limit is for two readings.
    large = cost(texts[1], chunk, tools, readings=1, limit=min(30.0, max(1.0, 60 * small.seconds)))
    found = Growth(name, small.seconds, large.seconds, len(texts[0]), len(texts[1]), right(large.reply))
    for _ in range(3):
        if found.ratio <= bar * 0.95 or found.large == math.inf:
            break
        again = cost(texts[0], chunk, tools, readings=5).seconds, cost(texts[1], chunk, tools, readings=3).seconds
        found = Growth(name, min(found.small, again[0]), min(found.large, again[1]), len(texts[0]), len(texts[1]), found.right)
    return found


SMALL, LARGE = 20_000, 200_000
