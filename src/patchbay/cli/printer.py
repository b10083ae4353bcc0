"""Lines on standard output by a thread of its own, for a command whose event loop must not wait for who reads them.

What lives here: the thread, and what happens when nobody reads. What does not: what is printed.

A terminal that was stopped, or a program at the other end of a pipe that does not read, lets a write wait for ever. Then so many
lines are kept, the rest is left out, and it is said how many. A reader that is gone is printed nothing.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from typing import Final

MOST_LINES: Final = 10_000
_LAST_SECONDS: Final = 2.0
"""How long the last lines may take."""


class Printer:
    """``print`` lines from one thread at a time, and ``close``. ``fd`` is where they go: standard output, if it is not said."""

    def __init__(self, fd: int | None = None, *, most: int = MOST_LINES) -> None:
        self._fd = sys.stdout.fileno() if fd is None else fd
        self._encoding = sys.stdout.encoding or "utf-8"
        self._lines: queue.Queue[str | None] = queue.Queue(most)
        self._left_out = 0
        # A daemon, that writes past sys.stdout: one that waits for ever holds up neither the end nor the last flush.
        self._thread = threading.Thread(target=self._write, name="patchbay-printer", daemon=True)
        self._thread.start()

    def print(self, line: str) -> None:
        """Have a line printed. Returns at once."""
        if self._left_out:
            line = f"... ({self._left_out} lines left out)\n{line}"
        try:
            self._lines.put_nowait(line)
            self._left_out = 0
        except queue.Full:
            self._left_out += 1

    def close(self) -> None:
        """Have what still waits printed, in the time that there is for it."""
        try:
            self._lines.put(None, timeout=_LAST_SECONDS)
        except queue.Full:
            return
        self._thread.join(_LAST_SECONDS)

    def _write(self) -> None:
        is_gone = False
        while (line := self._lines.get()) is not None:
            data = f"{line}\n".encode(self._encoding, "backslashreplace")
            try:
                while data and not is_gone:
                    data = data[os.write(self._fd, data) :]
            except OSError:
                is_gone = True
