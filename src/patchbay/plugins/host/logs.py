"""What plugins print and log, kept by plugin and within bounds.

What lives here: lines. What does not: the pipes they come from (``output``), and who is shown them (the command line).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

MOST_LINES: Final = 2000
MOST_CHARS: Final = 512 * 1024
"""What is kept of one plugin; the oldest go first."""

Stream = Literal["stdout", "stderr", "log", "host"]
"""``log`` is the plugin's ``logging``, ``host`` what the host has to say of it."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. ``time`` is in seconds since the epoch; ``level`` is a number of ``logging`` where there is one, else 0."""

    time: float
    plugin: str
    stream: Stream
    text: str
    level: int = 0


class LogBook:
    """The last lines of every plugin. Belongs to one event loop."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[LogLine]] = {}
        self._sizes: dict[str, int] = {}
        self._listeners: list[Callable[[LogLine], None]] = []

    def add(self, plugin: str, stream: Stream, text: str, *, level: int = 0, created: float | None = None) -> None:
        """Keep a line, and tell the listeners."""
        line = LogLine(time.time() if created is None else created, plugin, stream, text, level)
        lines = self._lines.setdefault(plugin, deque())
        lines.append(line)
        size = self._sizes.get(plugin, 0) + len(text)
        while len(lines) > MOST_LINES or (size > MOST_CHARS and len(lines) > 1):
            size -= len(lines.popleft().text)
        self._sizes[plugin] = size
        for listener in tuple(self._listeners):
            listener(line)

    def last(self, plugin: str | None = None, count: int = MOST_LINES) -> list[LogLine]:
        """Return the last lines of a plugin, or of all of them by their times."""
        if plugin is not None:
            lines = list(self._lines.get(plugin, ()))
        else:
            lines = sorted((line for each in self._lines.values() for line in each), key=lambda line: line.time)
        return lines[-count:] if count > 0 else []

    def subscribe(self, listener: Callable[[LogLine], None]) -> Callable[[], None]:
        """Have ``listener`` called with each new line; call what is returned to end that."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end
