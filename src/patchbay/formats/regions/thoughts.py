"""What becomes of reasoning once its markers are found: it is taken out of the content, or left in it as it stands."""

from __future__ import annotations

from typing import Protocol

from patchbay.formats.engine.emitter import Emitter


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

    def stays_open(self) -> None:
        """It is not closed where the text is over, or where a call may begin."""


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

    def stays_open(self) -> None:
        """Nothing is held back."""


class LeftIn:
    """Reasoning is content, markers and all. What follows it begins like a line: a call may stand there.

    Markers with nothing but white space between them are no reasoning that could be asked for, and go away.
    """

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self._empty: list[str] | None = None
        """The opener and the white space behind it, as long as there is nothing else."""

    def begins(self, marker: str) -> None:
        """Hold the marker back until something follows."""
        self._empty = [marker]

    def text(self, text: str) -> None:
        """Tell a piece of it."""
        if self._empty is not None and not text.strip():
            self._empty.append(text)
            return
        self.stays_open()
        self.emitter.text(text)

    def stays_open(self) -> None:
        """Tell what was held back."""
        held, self._empty = self._empty, None
        if held is not None:
            self.emitter.text("".join(held))

    def ends(self, marker: str) -> None:
        """Tell the marker; a line begins behind it."""
        if self._empty is not None:
            self._empty = None
            self.emitter.markup()
        else:
            self.said_twice(marker)

    def was_before(self, marker: str) -> None:
        """Tell the marker, or leave it out where nothing came before it."""
        if self.emitter.has_text:
            self.said_twice(marker)
        else:
            self.emitter.markup()

    def said_twice(self, marker: str) -> None:
        """Tell the marker."""
        self.emitter.text(marker)
        self.emitter.blank = True
