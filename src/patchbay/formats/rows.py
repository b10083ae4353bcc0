"""What a format is declared with: a row of the table, the markers around its calls and around its reasoning.

Plain data. What reads it is the engine (``scanner``, ``wrapped``, ``reasoning``); what writes it is ``writing``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from patchbay.formats.channelrows import Channels
    from patchbay.formats.engine.scanner import Region
    from patchbay.formats.engine.source import Steps
    from patchbay.formats.fences.fenced import BlockReader
    from patchbay.formats.fences.fencemarks import FenceMarks
    from patchbay.formats.parts import Parts


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
    ``leads``: markers that may follow the opener and say nothing.
    ``separators``: markers between a call's name and its arguments, where the name stands outside of them.
    ``name``: the name in what stands before the arguments. ``keeps``: how many characters of the opener belong to the body.
    ``keyed``: in an object with one key and an object under it, the key is the name.
    ``tail``: a character that ends the wrapper where it stands behind a call; no marker elsewhere.
    ``idle``: names that mean that no tool is called: they are read like a call's, and nothing is told.
    ``code``: the tools of which one takes what is no call at all but code, as the text it is.
    """

    openers: tuple[str, ...]
    closers: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()
    separators: tuple[str, ...] = ()
    name: Callable[[str], str] = last_part
    keeps: int = 0
    keyed: bool = False
    tail: str = ""
    idle: tuple[str, ...] = ()
    code: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.openers)  # rows are the keys of caches: to hash all their fields would cost more than what is kept


@dataclass(frozen=True)
class Thought:
    """Markers around reasoning. ``loud``: they count anywhere in a line (special tokens), not only where a line begins.

    ``alone``: a closer without its opener says that the prompt opened the reasoning. False for words, and for tokens that end
    other things too. ``paired``: words that many answers may hold: unless their format was named, they open nothing where no
    closer follows.
    """

    openers: tuple[str, ...]
    closers: tuple[str, ...]
    loud: bool = False
    alone: bool = True
    paired: bool = False

    def __hash__(self) -> int:
        return hash(self.openers)  # rows are the keys of caches: to hash all their fields would cost more than what is kept


@dataclass(frozen=True)
class Frame:
    """Markers around the answer itself.

    ``loud``: special tokens, no text wherever they stand; else ``frames`` says where they count.
    """

    openers: tuple[str, ...]
    closers: tuple[str, ...]
    loud: bool = False

    def __hash__(self) -> int:
        return hash(self.openers)  # rows are the keys of caches: to hash all their fields would cost more than what is kept


class Opening(Protocol):
    """Reads what a text begins with, behind white space: one of ``words``, or if there are none a tool's name."""

    words: ClassVar[tuple[str, ...]]

    def __init__(self, parts: Parts) -> None: ...

    def read(self) -> Steps[bool]:
        """Read from the first character on. False, with nothing read, where it is not there.

        The text waits meanwhile, so it may look on no further than it must to be sure.
        """


class Marked(Protocol):
    """Calls behind ``markers`` that no wrapper describes: called with a text's parts, it makes their reader."""

    @property
    def markers(self) -> tuple[str, ...]:
        """The markers."""

    def __call__(self, parts: Parts) -> Region:
        """The reader of what they open."""


@dataclass(frozen=True)
class Format:
    """One way of writing calls.

    ``families``: who uses it. ``auto``: it is looked for without being named.
    ``wrappers``, ``thoughts``, ``frames``: its markers. ``leaks``: special tokens that are no part of the answer where they show.
    ``loose``: calls of offered tools that nothing marks are read too, for these markers are sometimes left out.
    ``inline``: lists of calls in Python are, where the format is named, no less calls in the middle of a line.
    ``channels``: the messages that its replies are sequences of. ``opening``: the reader of what only a text's start may hold.
    ``regions``: markers that no wrapper describes, and their reader. ``blocks``: the reader of calls in fences.
    """

    name: str
    families: tuple[str, ...]
    auto: bool = True
    wrappers: tuple[Wrapper, ...] = ()
    thoughts: tuple[Thought, ...] = ()
    frames: tuple[Frame, ...] = ()
    leaks: tuple[str, ...] = ()
    loose: bool = True
    inline: bool = False
    channels: tuple[Channels, ...] = ()
    opening: type[Opening] | None = None
    regions: Marked | None = None
    blocks: Callable[[Parts, FenceMarks], BlockReader] | None = None

    def __hash__(self) -> int:
        return hash(self.name)  # rows are the keys of caches: to hash all their fields would cost more than what is kept
