"""Events of a ``StreamParser``: one small class per kind of event.

The classes are not frozen: one is made for each streamed chunk, and a frozen dataclass costs three times as much to make.
"""

from __future__ import annotations

from dataclasses import dataclass

from patchbay.types import IncompleteCall, ToolCall


@dataclass(slots=True)
class TextDelta:
    """A piece of the answer's prose."""

    text: str


@dataclass(slots=True)
class ReasoningDelta:
    """A piece of the model's reasoning."""

    text: str


@dataclass(slots=True)
class TextWasReasoning:
    """All text emitted so far was reasoning: its closing marker arrived, the opening one was in the prompt."""


@dataclass(slots=True)
class CallStart:
    """A call's name is known and its arguments begin. ``index`` counts the calls of one text from 0."""

    index: int
    id: str
    name: str


@dataclass(slots=True)
class CallArguments:
    """A piece of a call's arguments. All pieces joined are ``ToolCall.raw_arguments``."""

    index: int
    text: str


@dataclass(slots=True)
class CallEnd:
    """A call is complete."""

    index: int
    call: ToolCall


@dataclass(slots=True)
class CallCut:
    """A call ended inside its arguments. ``index`` is None if its name was not known yet (there was no CallStart).

    ``broken``: the model went on behind it; else the text ended there.
    """

    index: int | None
    call: IncompleteCall
    broken: bool = False


Event = TextDelta | ReasoningDelta | TextWasReasoning | CallStart | CallArguments | CallEnd | CallCut
