"""What a format of framed messages is declared with: its markers, and what a message's header says of its body.

Such a reply is a sequence of messages, ``<start>header<begin>body<end>``, and the header tells the channel: the answer,
reasoning, a call. Plain data and small functions on headers; what reads it is ``channels``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from patchbay.formats.values.names import ToolRules


class Kind(Enum):
    """What becomes of a body."""

    CONTENT = auto()
    """The answer: read like any prose."""
    QUOTED = auto()
    """The answer, and nothing in it is a call."""
    REASONING = auto()
    NAMED = auto()
    """The arguments of the call that the header names."""
    CALLS = auto()
    """Calls, each with its name; where it is left out, the header's counts."""
    FOREIGN = auto()
    """A message of somebody else's, which the model made up: a part of the answer, and what follows it is no call."""
    DROPPED = auto()
    """Left out of the answer."""
    NOTHING = auto()
    """There is none: the header was all."""


@dataclass(frozen=True)
class Header:
    """A message's header: each marker in it with the text behind it, and the marker that ended it ("": it was left out)."""

    pieces: tuple[tuple[str, str], ...]
    begin: str

    def text(self, *markers: str) -> str:
        """What stands behind these markers, "" where they do not."""
        return " ".join(text for marker, text in self.pieces if marker in markers)

    def has(self, *markers: str) -> bool:
        """Whether one of these markers stands in it."""
        return any(marker in markers for marker, _ in self.pieces)


@dataclass(frozen=True)
class Body:
    """What a header says of the body.

    ``name``: the tool it names. ``doubtful``: another format may know the header better. ``damaged``: it holds words that no
    header has, so it is one only where a message must begin.
    """

    kind: Kind
    name: str = ""
    doubtful: bool = False
    damaged: bool = False


@dataclass(frozen=True, eq=False)
class Channels:
    """The markers of one format's messages, and how its headers are read.

    ``reads``: the body that a header stands before, None if it is no header of this format.
    ``starts``: they begin a header. ``divides``: they stand in it. ``begins``: they end it, and the body begins.
    ``alone``: the same, where the header may be left out.
    ``ends``: they end a body. ``thought_ends``: they end reasoning, and nothing else.
    ``stops``: they begin something else, so the body before them is over.
    ``leads``: they stand around calls and say nothing.
    ``noise``: they stand in bodies and are no part of them; one that ends in ":" goes on up to the next ">".
    ``fits``: whether a text may be, or become, what stands behind a start; None: any text of some length.
    ``implied``: the same for a header whose start the prompt holds; None: there is no such header.
    ``implied_words``, ``implied_name``: what such a header begins with, behind white space: words, an offered tool's name.
    ``words``: how many characters at a text's beginning are words of a header whose last marker was left out.
    ``loud`` is False where the start is no special token but text: until the format is known, it counts only before the name of
    an offered tool.
    """

    reads: Callable[[Header], Body | None]
    starts: tuple[str, ...] = ()
    divides: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    thought_ends: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()
    fits: Callable[[str, ToolRules], bool] | None = None
    implied: Callable[[str, ToolRules], bool] | None = None
    implied_words: tuple[str, ...] = ()
    implied_name: bool = False
    words: Callable[[str], int] | None = None
    loud: bool = True

    @cached_property
    def endings(self) -> tuple[str, ...]:
        """All at which a body may end."""
        return tuple(dict.fromkeys((*self.ends, *self.thought_ends, *self.starts, *self.alone, *self.stops, *self.noise)))
