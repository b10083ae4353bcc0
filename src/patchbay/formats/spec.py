"""Declaration of a format: markers around calls, reasoning and the answer, and the channels of framed messages.

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
    from patchbay.formats.scanner import RegionReader
    from patchbay.formats.source import Steps
    from patchbay.formats.values.tool_names import ToolRules


class Kind(Enum):
    """Treatment of a message's body."""

    CONTENT = auto()
    """The answer, read like any prose."""
    QUOTED = auto()
    """The answer; nothing in it is read as a call."""
    REASONING = auto()
    NAMED = auto()
    """Arguments of the call that the header names."""
    CALLS = auto()
    """Calls that carry their own names; a call without a name takes the header's."""
    FOREIGN = auto()
    """A message in another author's name, invented by the model: part of the answer, and nothing after it is a call."""
    DROPPED = auto()
    """Dropped from the answer."""
    NOTHING = auto()
    """No body follows the header."""


@dataclass(frozen=True)
class Header:
    """A message's header: each marker with the text behind it, and the marker that ended it ("" if that was left out)."""

    parts: tuple[tuple[str, str], ...]
    body_start: str

    def text(self, *markers: str) -> str:
        """Return the text behind these markers, "" if none of them occurs."""
        return " ".join(text for marker, text in self.parts if marker in markers)

    def has(self, *markers: str) -> bool:
        """True if one of these markers occurs."""
        return any(marker in markers for marker, _ in self.parts)


@dataclass(frozen=True)
class Body:
    """The body that a header announces.

    ``name``: the tool, if one is named. ``doubtful``: another format may understand the header better. ``damaged``: it has words
    that no header has, so it counts only where a message must begin.
    """

    kind: Kind
    name: str = ""
    doubtful: bool = False
    damaged: bool = False


@dataclass(frozen=True, eq=False)
class Channels:
    """Markers of one format's messages, and how its headers are read.

    ``parse_header``: returns the body that a header announces, None if it is not a header of this format.
    ``starts``: begin a header. ``dividers``: separate its parts. ``body_starts``: end it and begin the body.
    ``headerless_starts``: likewise begin a body, and may stand without a header.
    ``ends``: end any body. ``reasoning_ends``: end reasoning only. ``stops``: open something else, and so end the body before
    them.
    ``noise_markers``: surround calls and carry no meaning.
    ``noise``: occur in bodies and are dropped; one that ends in ":" extends to the next ">".
    ``may_follow_start``: True if a text is, or may become, the text behind a start; None accepts any text of limited length.
    ``may_be_implied``: the same for a header whose start is in the prompt; None if there is no such header.
    ``implied_words``, ``implied_name``: how such a header begins, after white space: with one of these words, with a tool's name.
    ``header_words``: the length of the header's words at the start of a text, for headers whose last marker was left out.
    ``special``: the start is a special token. If False it is plain text, and counts only before the name of an offered tool until
    the format is known.
    """

    parse_header: Callable[[Header], Body | None]
    starts: tuple[str, ...] = ()
    dividers: tuple[str, ...] = ()
    body_starts: tuple[str, ...] = ()
    headerless_starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    reasoning_ends: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    noise_markers: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()
    may_follow_start: Callable[[str, ToolRules], bool] | None = None
    may_be_implied: Callable[[str, ToolRules], bool] | None = None
    implied_words: tuple[str, ...] = ()
    implied_name: bool = False
    header_words: Callable[[str], int] | None = None
    special: bool = True

    @cached_property
    def endings(self) -> tuple[str, ...]:
        """All markers that may end a body."""
        return tuple(
            dict.fromkeys((*self.ends, *self.reasoning_ends, *self.starts, *self.headerless_starts, *self.stops, *self.noise))
        )


def last_part(header: str) -> str:
    """Return the name from the text before the arguments: the last part, if separators divide it."""
    return header.rpartition("\n")[2].strip()


def first_part(header: str) -> str:
    """Return the name from the text before the arguments where it comes first, followed by an id or the like."""
    return header.partition("\n")[0].strip()


@dataclass(frozen=True)
class Wrapper:
    """Markers around one or several calls. The calls may be in any notation that ``codecs`` read.

    ``openers``, ``closers``: their spellings. A closer may be missing, and another wrapper's closer is accepted too.
    ``noise_markers``: may follow the opener and carry no meaning.
    ``separators``: stand between a call's name and its arguments, in formats with the name outside of the JSON.
    ``name``: extracts the name from the text before the arguments.
    ``body_prefix_len``: how many characters at the opener's end belong to the call itself.
    ``name_is_key``: in an object with one key and an object under it, the key is the tool's name.
    ``closing_char``: a character that ends the wrapper directly behind a call; it is not a marker elsewhere.
    ``noop_names``: names that mean "no tool"; such calls are read and not emitted.
    ``code_tools``: names of tools that take code, as plain text, instead of a call.
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
        return hash(self.openers)  # rows are keys of caches: hashing every field would cost more than the cache saves


@dataclass(frozen=True)
class ReasoningMarkers:
    """Markers around reasoning.

    ``special``: special tokens; they count anywhere in a line, other markers only at its beginning.
    ``alone``: a closer without an opener means that the prompt opened the reasoning. False for words, and for tokens that end
    other things too.
    ``needs_closer``: words that ordinary answers may contain: in ``auto`` they open nothing unless a closer follows.
    """

    openers: tuple[str, ...]
    closers: tuple[str, ...]
    special: bool = False
    alone: bool = True
    needs_closer: bool = False

    def __hash__(self) -> int:
        return hash(self.openers)  # rows are keys of caches: hashing every field would cost more than the cache saves


@dataclass(frozen=True)
class AnswerMarkers:
    """Markers around the answer itself.

    ``special``: special tokens, dropped wherever they occur; for others see ``AnswerMarkerReader``.
    """

    openers: tuple[str, ...]
    closers: tuple[str, ...]
    special: bool = False

    def __hash__(self) -> int:
        return hash(self.openers)  # rows are keys of caches: hashing every field would cost more than the cache saves


class OpeningReader(Protocol):
    """Reader for calls that only the start of a text may hold, after white space.

    They begin with one of ``words``, or without words with a tool's name.
    """

    words: ClassVar[tuple[str, ...]]

    def __init__(self, context: Context) -> None: ...

    def read(self) -> Steps[bool]:
        """Read from the first character on. Return False, with nothing read, if there is no such call.

        The text is withheld meanwhile, so look ahead no further than needed.
        """


class RegionFactory(Protocol):
    """Makes the reader for calls behind ``markers`` that no ``Wrapper`` describes."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that open such calls."""

    def __call__(self, context: Context) -> RegionReader:
        """Return the reader for what the markers open."""


@dataclass(frozen=True)
class Format:
    """One way of writing calls.

    ``families``: model families that use it. ``auto``: detected without being named.
    ``wrappers``, ``reasoning_markers``, ``answer_markers``: its markers.
    ``control_tokens``: special tokens that are dropped where a server lets them through.
    ``implicit``: calls of offered tools are read without markers too, because models leave the markers out.
    ``inline``: when the format is named, Python lists of calls are also read in the middle of a line.
    ``channels``: the framed messages that its replies consist of. ``opening``: reader for what only the start of a text may hold.
    ``regions``: makes a reader for markers that no wrapper describes. ``fenced``: fences with the contract's label hold calls.
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
    opening: type[OpeningReader] | None = None
    regions: RegionFactory | None = None
    fenced: bool = False

    def __hash__(self) -> int:
        return hash(self.name)  # rows are keys of caches: hashing every field would cost more than the cache saves
