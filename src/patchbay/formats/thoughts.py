"""What becomes of reasoning once its markers are found: it is taken out of the content, or left in it as it stands."""

from __future__ import annotations

from typing import Protocol

from patchbay.formats.emitter import Emitter


class Thoughts(Protocol):
    """Where reasoning goes. Markers are told as they were written; "" where the prompt wrote one."""

    def begins(self, marker: str) -> None:
        """Reasoning is opened."""

    def text(self, text: str) -> None:
        """A piece of it."""

    def ends(self, marker: str) -> None:
        """It is closed."""

    def was_before(self, marker: str) -> None:
        """It is closed without having been opened: all that came was reasoning."""

    def said_twice(self, marker: str) -> None:
        """It is closed again."""


class TakenOut:
    """Reasoning is told apart from the content, and its markers go away."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.text = emitter.thought

    def begins(self, _marker: str) -> None:
        """Begin to tell reasoning."""
        self.emitter.thought_begins()

    def ends(self, _marker: str) -> None:
        """Go back to content."""
        self.emitter.thought_ends()

    def was_before(self, _marker: str) -> None:
        """Say of all content so far that it was reasoning."""
        self.emitter.all_was_reasoning()

    def said_twice(self, _marker: str) -> None:
        """Leave the marker out."""


class LeftIn:
    """Reasoning is content, markers and all. What follows it begins like a line: a call may stand there."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.text = emitter.text

    def begins(self, marker: str) -> None:
        """Tell the marker."""
        self.emitter.text(marker)

    def ends(self, marker: str) -> None:
        """Tell the marker; a line begins behind it."""
        self.emitter.text(marker)
        self.emitter.blank = True

    was_before = said_twice = ends
