"""How Gemini Live is told texts: by ``clientContent``, and its newer models by ``realtimeInput``, since they refuse that.

What lives here: the two ways, and what is still to be said with the next frame. What does not: the rest of the wire (``gemini``).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from patchbay.realtime.dialect import Frame, Line
from patchbay.realtime.dialects import reading
from patchbay.realtime.settings import RealtimeSettings

_GENERATION: Final = re.compile(r"gemini-(?:live-)?(\d{1,4})")
_NEWER: Final = 3
_HISTORY: Final = "historyConfig"
_ANNOUNCED: Final = "initialHistoryInClientContent"


class Texts(ABC):
    """One connection's way of being told texts."""

    @abstractmethod
    def announcing(self, lines: Sequence[Line]) -> dict[str, Any]:
        """Return what the setup says of ``lines``, which are to be recalled."""

    @abstractmethod
    def recalling(self, lines: Sequence[Line]) -> list[Frame]:
        """Return what tells lines without having them answered."""

    @abstractmethod
    def speaking(self, line: Line, *, answer: bool) -> list[Frame]:
        """Return what says a line, and has it answered or not."""

    @abstractmethod
    def responding(self) -> list[Frame]:
        """Return what has those lines answered that were told and not answered; nothing where there are none."""

    @abstractmethod
    def answering(self) -> None:
        """Results are told, and the model goes on with them."""


def texts_for(settings: RealtimeSettings, model: str) -> Texts:
    """Return the way of a model: by the generation in its name, or as the setup is told to announce a history."""
    found = _GENERATION.search(model)
    announced = reading.member(dict(settings.extra), _HISTORY).get(_ANNOUNCED) is True
    return SpokenTexts() if announced or (found is not None and int(found[1]) >= _NEWER) else ContentTexts()


class ContentTexts(Texts):
    """Turns of the conversation, at any time; one that is complete is answered."""

    def __init__(self) -> None:
        self._owes_turn = False

    def announcing(self, lines: Sequence[Line]) -> dict[str, Any]:  # noqa: ARG002  (the newer way does)
        """Nothing: they may come at any time."""
        return {}

    def recalling(self, lines: Sequence[Line]) -> list[Frame]:
        """All lines in one frame."""
        self._owes_turn = bool(lines)
        return [_content(lines, complete=False)] if lines else []

    def speaking(self, line: Line, *, answer: bool) -> list[Frame]:
        """One turn, and with it the user's end where an answer is wanted."""
        self._owes_turn = not answer
        return [_content([line], complete=answer)]

    def responding(self) -> list[Frame]:
        """The end of the turn."""
        owes, self._owes_turn = self._owes_turn, False
        return [{"clientContent": {"turnComplete": True}}] if owes else []

    def answering(self) -> None:
        """The lines that were told go with the results."""
        self._owes_turn = False


class SpokenTexts(Texts):
    """What is said is answered at once; turns are the history alone that the setup has announced.

    So a line that is not to be answered waits for the next that is.
    """

    def __init__(self) -> None:
        self._announced = False
        self._unsaid: list[str] = []

    def announcing(self, lines: Sequence[Line]) -> dict[str, Any]:
        """That a history comes. The server waits for what was announced, so it is only where there is one."""
        self._announced = any(line.role == "assistant" for line in lines)
        return {_HISTORY: {_ANNOUNCED: True}} if self._announced else {}

    def recalling(self, lines: Sequence[Line]) -> list[Frame]:
        """The lines as the history, but for those behind the model's last, which are still to be answered."""
        last = max((number for number, line in enumerate(lines, 1) if line.role == "assistant"), default=0)
        history, rest = (lines[:last], lines[last:]) if self._announced else ((), lines)
        self._unsaid += [line.text for line in rest]
        return [_content(history, complete=True)] if self._announced else []

    def speaking(self, line: Line, *, answer: bool) -> list[Frame]:
        """The line, with all that was not said before."""
        self._unsaid.append(line.text)
        return self.responding() if answer else []

    def responding(self) -> list[Frame]:
        """What was not said."""
        text = "\n\n".join(self._unsaid)
        self._unsaid.clear()
        return [{"realtimeInput": {"text": text}}] if text else []

    def answering(self) -> None:
        """What was not said waits: it is no part of the results."""


def _content(lines: Sequence[Line], *, complete: bool) -> Frame:
    """Lines as turns."""
    turns = [{"role": "model" if line.role == "assistant" else "user", "parts": [{"text": line.text}]} for line in lines]
    return {"clientContent": {"turns": turns, "turnComplete": complete}}
