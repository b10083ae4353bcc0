"""Rows over several processes: batches in, results out in order, progress on a terminal, and nothing left behind by Ctrl-C."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
_BATCH = 40


def spread(work: Callable[[T], R], items: Sequence[T], *, jobs: int, title: str) -> Iterator[R]:
    """``work`` of each item, in order. It must be a function of a module, so that another process can find it."""
    progress = Progress(title, len(items))
    if jobs <= 1:
        for item in items:
            yield work(item)
            progress.step()
    else:
        # The terminal sends Ctrl-C to every process; the workers leave it to this one, which ends them when it unwinds.
        with multiprocessing.get_context("spawn").Pool(jobs, _ignore_interrupts) as pool:
            for result in pool.imap(work, items, chunksize=_BATCH):
                yield result
                progress.step()
    progress.done()


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Progress:
    """A line on standard error that is written over; nothing where that is not a terminal."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._count = 0
        self._every = max(1, total // 200)
        self._shown = sys.stderr.isatty()

    def step(self) -> None:
        """One more is done."""
        self._count += 1
        if self._shown and self._count % self._every == 0:
            sys.stderr.write(f"\r\033[K{self._title}: {self._count:,} of {self._total:,}")
            sys.stderr.flush()

    def done(self) -> None:
        """Take the line away."""
        if self._shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
