"""One text read by our parser: whole or in pieces, under a limit of CPU time, with what went wrong instead of an exception."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from patchbay import StreamParser
from patchbay.types import Reply

LIMIT = 20.0
"""CPU seconds that one reading may take before it counts as failed: a parser that hangs must not hang its measuring."""

Cut = int | str
"""How a text is cut: 0 whole, n in pieces of n characters, "random" in pieces of 1 to 24 (the same for the same text)."""

NOTHING = Reply(None)

SLOW = 5.0
"""CPU milliseconds that no text of a corpus may take."""


@dataclass(frozen=True)
class Reading:
    """What was read, and the CPU seconds; ``error`` says what was raised instead."""

    reply: Reply
    seconds: float
    error: str = ""


class TookTooLong(BaseException):
    """The limit of CPU time is reached. No Exception: what it interrupts must not catch it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TookTooLong after ``seconds`` of CPU time. Only in a process's main thread.

    While it is armed, Linux counts the time of a process in ticks of milliseconds: measure with ``time.thread_time`` inside.
    """
    before = signal.signal(signal.SIGPROF, _raise)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _raise(_number: int, _frame: Any) -> None:
    raise TookTooLong


def read(text: str, tools: Sequence[Any] | None, cut: Cut, **options: Any) -> Reading:
    """Read ``text``; the options are StreamParser's. The making of the parser counts, that of the pieces does not."""
    fed = pieces(text, cut)
    begun = time.thread_time()
    try:
        with limited(LIMIT):
            parser = StreamParser(tools, generate_id=_number, **options)
            feed = parser.feed
            for piece in fed:
                feed(piece)
            parser.close()
            reply = parser.reply
    except TookTooLong:
        return Reading(NOTHING, LIMIT, f"took longer than {LIMIT:.0f} s of CPU")
    except Exception as error:  # noqa: BLE001 - an exception is what is counted here
        return Reading(NOTHING, time.thread_time() - begun, f"{type(error).__name__}: {error}"[:300])
    return Reading(reply, time.thread_time() - begun)


def milliseconds(first: Reading, text: str, tools: Sequence[Any] | None, **options: Any) -> float:
    """What the whole text costs: the first reading, or the least of several where that one may be the machine's fault."""
    best = first.seconds
    if SLOW / 2e3 < best < LIMIT:
        best = min([best, *(read(text, tools, 0, **options).seconds for _ in range(5))])
    return best * 1e3


def pieces(text: str, cut: Cut) -> list[str]:
    """The text, cut."""
    if cut == "random":
        return _random_pieces(text)
    assert isinstance(cut, int)
    return [text[at : at + cut] for at in range(0, len(text), cut)] if cut else [text]


def _random_pieces(text: str) -> list[str]:
    dice = random.Random(text)
    cut, at = [], 0
    while at < len(text):
        size = dice.randint(1, 24)
        cut.append(text[at : at + size])
        at += size
    return cut


def _number(index: int) -> str:
    """Ids that two readings of one text share."""
    return f"call_{index}"
