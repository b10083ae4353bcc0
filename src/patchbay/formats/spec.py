"""What a format is declared with: markers around calls, reasoning and the answer, and the channels of framed messages.

Plain data and small functions on it. ``catalog`` has the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from patchbay.formats.context import Context
    from patchbay.formats.scanner import Region
    from patchbay.formats.source import Steps
    from patchbay.formats.values.tool_names import ToolRules


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
    """A message of another author's, which the model made up: a part of the answer, and what follows it is no call."""
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
        """True if one of these markers stands in it."""
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
    ``ends``: they end a body. ``reasoning_ends``: they end reasoning, and nothing else.
    ``stops``: they begin something else, so the body before them is over.
    ``noise_markers``: they stand around calls and say nothing.
    ``noise``: they stand in bodies and are no part of them; one that ends in ":" goes on up to the next ">".
    ``fits``: whether a text may be, or become, what stands behind a start; None: any text of some length.
    ``implied``: the same for a header whose start the prompt holds; None: there is no such header.
    ``implied_words``, ``implied_name``: what such a header begins with, behind white space: words, an offered tool's name.
    ``words``: how many characters at a text's beginning are words of a header whose last marker was left out.
    ``special`` is False where the start is no special token but text: until the format is known, it counts only before the name
    of
    an offered tool.
    """

    reads: Callable[[Header], Body | None]
    starts: tuple[str, ...] = ()
    divides: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    reasoning_ends: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    noise_markers: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()
    fits: Callable[[str, ToolRules], bool] | None = None
    implied: Callable[[str, ToolRules], bool] | None = None
    implied_words: tuple[str, ...] = ()
    implied_name: bool = False
    words: Callable[[str], int] | None = None
    special: bool = True

    @cached_property
    def endings(self) -> tuple[str, ...]:
        """All at which a body may end."""
        return tuple(dict.fromkeys((*self.ends, *self.reasoning_ends, *self.starts, *self.alone, *self.stops, *self.noise)))


def last_part(header: str) -> str:
    """The name in what stands before the arguments: the last part, where separators divide it."""
    return header.rpartition("\n")[2].strip()


def first_part(header: str) -> str:
    """The name where it comes first, an id or the like behind it."""
    return header.partition("\n")[0].strip()


@dataclass(frozen=True)
class Wrapper:
    """Markers around one call or several. What stands between them may be any of the shapes that ``bodies`` reads.

    ``openers``, ``closers``: their spellings; a closer may be missing, and the closer of another wrapper does as well.
    ``noise_markers``: markers that may follow the opener and say nothing.
    ``separators``: markers between a call's name and its arguments, where the name stands outside of them.
    ``name``: the name in what stands before the arguments. ``body_prefix_len``: how many characters of the opener belong to the
    body.
    ``keyed``: in an object with one key and an object under it, the key is the name.
    ``closing_char``: a character that ends the wrapper where it stands behind a call; no marker elsewhere.
    ``noop_names``: names that mean that no tool is called: they are read like a call's, and nothing is emitted.
    ``code_tools``: the tools of which one takes code instead of a call, as the text it is.
    """

    openers: tuple[str, ...]
    closers: tuple[str, ...] = ()
    noise_markers: tuple[str, ...] = ()
    separators: tuple[str, ...] = ()
    name: Callable[[str], str] = last_part
    body_prefix_len: int = 0
    name_is_key: bool = False
    closing_char: str = ""
    noop_names: tuple[str, ...] = ()
    code_tools: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.openers)  # rows are the keys of caches: to hash all their fields would cost more than what is kept


@dataclass(frozen=True)
class ReasoningMarkers:
    """Markers around reasoning. ``special``: they count anywhere in a line (special tokens), not only where a line begins.

    ``alone``: a closer without its opener says that the prompt opened the reasoning. False for words, and for tokens that end
    other things too. ``needs_closer``: words that many answers may hold: unless their format was named, they open nothing where
    no closer follows.
    """

    openers: tuple[str, ...]
    closers: tuple[str, ...]
    special: bool = False
    alone: bool = True
    needs_closer: bool = False

    def __hash__(self) -> int:
        return hash(self.openers)  # rows are the keys of caches: to hash all their fields would cost more than what is kept


@dataclass(frozen=True)
class AnswerMarkers:
    """Markers around the answer itself.

    ``special``: special tokens, no text wherever they stand; else ``frames`` says where they count.
    """

    openers: tuple[str, ...]
    closers: tuple[str, ...]
    special: bool = False

    def __hash__(self) -> int:
        return hash(self.openers)  # rows are the keys of caches: to hash all their fields would cost more than what is kept


class Opening(Protocol):
    """Reads what a text begins with, behind white space: one of ``words``, or if there are none a tool's name."""

    words: ClassVar[tuple[str, ...]]

    def __init__(self, context: Context) -> None: ...

    def read(self) -> Steps[bool]:
        """Read from the first character on. False, with nothing read, where it is not there.

        The text waits meanwhile, so it may look on no further than it must to be sure.
        """


class RegionFactory(Protocol):
    """Calls behind ``markers`` that no wrapper describes: called with a text's parts, it makes their reader."""

    @property
    def markers(self) -> tuple[str, ...]:
        """The markers."""

    def __call__(self, context: Context) -> Region:
        """The reader of what they open."""


@dataclass(frozen=True)
class Format:
    """One way of writing calls.

    ``families``: who uses it. ``auto``: it is looked for without being named.
    ``wrappers``, ``reasoning_markers``, ``frames``: its markers. ``control_tokens``: special tokens that are no part of the
    answer where they show.
    ``implicit``: calls of offered tools that nothing marks are read too, for these markers are sometimes left out.
    ``inline``: lists of calls in Python are, where the format is named, no less calls in the middle of a line.
    ``channels``: the messages that its replies are sequences of. ``opening``: the reader of what only a text's start may hold.
    ``regions``: markers that no wrapper describes, and their reader.
    ``fenced``: fences labelled with the contract's tag hold calls.
    """

    name: str
    families: tuple[str, ...]
    auto: bool = True
    wrappers: tuple[Wrapper, ...] = ()
    reasoning_markers: tuple[ReasoningMarkers, ...] = ()
    answer_markers: tuple[AnswerMarkers, ...] = ()
    control_tokens: tuple[str, ...] = ()
    implicit: bool = True
    inline: bool = False
    channels: tuple[Channels, ...] = ()
    opening: type[Opening] | None = None
    regions: RegionFactory | None = None
    fenced: bool = False

    def __hash__(self) -> int:
        return hash(self.name)  # rows are the keys of caches: to hash all their fields would cost more than what is kept
