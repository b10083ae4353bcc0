"""What is being said on a connection, put together until somebody has said it to its end. Pure, and bounded."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 256 * 1024
"""So many characters of one utterance are put together; its pieces are told all the same."""


class _Pieces:
    """A text that comes in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0

    def add(self, text: str) -> None:
        """Add one; what is too much is left out."""
        if self._length < LONGEST:
            self._pieces.append(text)
            self._length += len(text)

    def take(self) -> str:
        """Return all of it, and begin anew."""
        text = "".join(self._pieces)
        self._pieces.clear()
        self._length = 0
        return text


class Utterances:
    """What the model says in its response, and what the user is heard to say."""

    def __init__(self) -> None:
        self.has_said = False
        """Whether anything has come of the model's last response: text, or audio. Who begins one sets it back."""
        self._said = _Pieces()
        self._spoken = False
        self._heard = _Pieces()

    def said(self, text: str, *, spoken: bool) -> None:
        """The model says a piece; ``spoken``: in audio, of which this is the transcript."""
        self.has_said = True
        self._spoken = self._spoken or spoken
        self._said.add(text)

    def take_said(self) -> tuple[str, bool]:
        """The response is over: return what was said, and whether that was spoken."""
        spoken, self._spoken = self._spoken, False
        return self._said.take(), spoken

    def heard(self, text: str) -> None:
        """The user is heard to say a piece."""
        self._heard.add(text)

    def take_heard(self) -> str:
        """Return what was heard in pieces; it is whole."""
        return self._heard.take()
