"""What the model was told and has not answered to its end: the next connection may have to tell it again. Pure.

What lives here: those lines, and whether their answer is still to come although nothing says so. What does not: what was asked
for on a connection (``arbiter``), and what a connection that cannot be resumed is told (``remembered``).
"""

from __future__ import annotations

from patchbay.realtime.dialect import Line
from patchbay.realtime.remembered import Remembered
from patchbay.realtime.settings import RealtimeLimits


class Unanswered:
    """No wire tells what its server has heard. So a line is taken for answered when an answer that began behind it is whole."""

    def __init__(self, limits: RealtimeLimits) -> None:
        self.is_awaited = False
        """The server has given up what it had begun, for something newer: what it answers to that has not begun."""
        self._is_wanted = False  # an answer to any of it
        items, chars = limits.kept_items, limits.kept_chars
        self._told = Remembered(items, chars)
        self._begun = Remembered(items, chars)  # by an answer
        self._resumed = Remembered(items, chars)  # with that, should the connection be lost

    def lines(self) -> tuple[Line, ...]:
        """What a resumed server may not know, the oldest first."""
        return self._begun.lines() + self._told.lines()

    def add(self, line: Line, *, wanted: bool = True) -> None:
        """Take what was told, and whether it is to be answered."""
        self._is_wanted = self._is_wanted or wanted
        self._told.add(line.role, line.text)

    def began(self) -> None:
        """The model answers, as far as anybody can tell to all of it."""
        self.is_awaited = False
        _move(self._told, self._begun)

    def can_be_resumed(self) -> None:
        """The server has told with what its side is resumed: that stands for what it has begun to answer."""
        _move(self._begun, self._resumed)

    def gave_up(self) -> None:
        """The server has ended its answer, or taken its calls back: it has heard something newer, and answers to that."""
        for lines in (self._begun, self._told):
            _move(lines, self._resumed)
        _move(self._resumed, self._told)
        self.is_awaited = self._is_wanted

    def answered(self) -> None:
        """An answer is whole."""
        self._begun.clear()
        self._resumed.clear()
        self._is_wanted = self._is_wanted and bool(len(self._told))

    def hush(self) -> None:
        """Nobody wants an answer to what was told by now."""
        self.is_awaited = self._is_wanted = False

    def wait_no_longer(self) -> None:
        """Nothing is to come: nobody wants it any more, or nothing has come for long."""
        self.is_awaited = False


def _move(lines: Remembered, behind: Remembered) -> None:
    """Put lines behind others."""
    for line in lines.lines():
        behind.add(line.role, line.text)
    lines.clear()
