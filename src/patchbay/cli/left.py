"""Noticing that nobody reads any more: for commands that go on, and may have nothing to print for hours.

Who prints into a pipe whose reader is gone is told so by the write. Who prints nothing is not told, and would stay for ever:
``patchbay audit --follow --json | head -1``.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import Final

GONE: Final = 1
"""The exit status, the same as where a write fails because nobody reads."""


def end_with_reader() -> None:
    """Have this process end, at once and without a word, when whoever reads its standard output has gone.

    For commands that only read: nothing is finished or taken back. Where the system does not tell of it (Windows), only the next
    write does.
    """
    if not hasattr(select, "poll"):
        return
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):  # what is printed goes nowhere else than into this process
        return
    threading.Thread(target=_end_with, args=(fd,), name="patchbay-reader", daemon=True).start()


def _end_with(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, 0)  # no room to write is waited for: only what cannot be left out, an error or a hang-up
    if any(what & (select.POLLERR | select.POLLHUP) for _, what in poll.poll()):
        os._exit(GONE)  # the main thread may be waiting in a read that nothing ends
