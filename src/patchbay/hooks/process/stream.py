"""One of a process's output streams: read line by line, and not faster than it is worth.

What lives here: how much is read at a time. A process that prints without end costs the host little, and its own time: it is left
alone with its full pipe for a moment. Lines that somebody has waited for do not count. What does not: what a line is.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from patchbay.hooks.process.lines import LineReader, Overlong

WINDOW: Final = 0.1
MOST_BYTES: Final = 8 * 1024 * 1024
MOST_LINES: Final = 4000
"""How much is read within ``WINDOW`` seconds of what nobody waits for."""

MOST_SECONDS: Final = 0.02
"""How long reading that may take within ``WINDOW`` seconds: large lines may be much work, and be for nobody."""


class LineStream:
    """``take`` what comes; ``on_line`` is told of each line, and says whether somebody has waited for it."""

    def __init__(
        self, limit: int, on_line: Callable[[bytes | Overlong], bool], *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.is_open = True
        self._reader = LineReader(limit)
        self._lines: deque[bytes | Overlong] = deque()
        self._on_line = on_line
        self._pipe: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._clock = clock
        self._bytes = self._vain = 0
        self._seconds = 0.0
        self._is_paused = False

    def connect(self, pipe: Any) -> None:
        """Say which transport what comes is from."""
        self._pipe = pipe

    def take(self, data: bytes) -> None:
        """Read a piece."""
        self._lines += self._reader.feed(data)
        self._bytes += len(data)
        self._read()

    def end(self) -> None:
        """The stream has ended: read what is left of it."""
        self.stop()
        if self.is_open:
            self.is_open = False
            for line in (*self._lines, *self._reader.close()):
                self._on_line(line)
            self._lines.clear()

    def stop(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read(self) -> None:
        lines = self._lines
        since = self._clock()
        while lines and self._vain < MOST_LINES and self._seconds < MOST_SECONDS:
            is_answer = self._on_line(lines.popleft())
            since, before = self._clock(), since
            if is_answer:
                self._bytes = 0
            else:
                self._vain += 1
                self._seconds += since - before
        if (self._vain or self._bytes) and self._timer is None and self.is_open:
            self._timer = asyncio.get_running_loop().call_later(WINDOW, self._begin_anew)
        if self._pipe is not None:
            self._pause(lines or self._bytes > MOST_BYTES)

    def _begin_anew(self) -> None:
        self._timer = None
        self._bytes = self._vain = 0
        self._seconds = 0.0
        self._read()

    def _pause(self, wanted: Any) -> None:
        if bool(wanted) != self._is_paused and not self._pipe.is_closing():
            self._is_paused = bool(wanted)
            (self._pipe.pause_reading if wanted else self._pipe.resume_reading)()
