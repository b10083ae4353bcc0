"""Why a text was read as it was, found in the table of formats and by reading it again. Nothing here knows how a format is read.

What lives here: which formats' markers the text holds, where each call was known and where it was complete, and which calls
stayed prose because their tools were not offered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from patchbay.formats import FORMATS, CallEnd, CallStart, Format, StreamParser
from patchbay.types import Reply

_MARKERS_SHOWN = 12
_WORD = re.compile(r"[\w\s-]*")  # a row names tools and keys too: those are no markers


@dataclass(frozen=True)
class Marker:
    """A marker that stands in the text: how often, where first (characters from the start), and which formats have it."""

    text: str
    count: int
    position: int
    formats: tuple[str, ...]


@dataclass(frozen=True)
class Timing:
    """Where in the text a call's name was told, and where the call was complete: the number of characters that had arrived."""

    name: str
    known: int
    complete: int | None


@dataclass(frozen=True)
class Why:
    """``unknown``: names of calls that stayed prose, because no such tool was offered."""

    markers: tuple[Marker, ...]
    timings: tuple[Timing, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Reader:
    """Reads texts with one set of tools and options. Raises ConfigurationError for options that cannot be."""

    tools: list[Any] | None
    options: dict[str, Any] = field(default_factory=dict)

    def parser(self, **others: Any) -> StreamParser:
        """A parser with these options, some of them replaced."""
        return StreamParser(self.tools, generate_id=_number, **{**self.options, **others})

    def read(self, text: str, chunk: int = 0, **others: Any) -> Reply:
        """Read the text, in pieces of ``chunk`` characters or whole."""
        parser = self.parser(**others)
        for at in range(0, len(text), chunk or len(text) or 1):
            parser.feed(text[at : at + (chunk or len(text))])
        parser.close()
        return parser.reply


def explain(reader: Reader, text: str, reply: Reply) -> Why:
    """Find out why ``text`` was read as ``reply``."""
    return Why(
        markers=tuple(_markers(text, reader.options.get("format"))),
        timings=tuple(_timings(reader.parser(), text)),
        unknown=tuple(_unknown(reader, text, reply)),
    )


def _number(index: int) -> str:
    """The same ids in every reading, so that readings can be compared."""
    return f"call_{index + 1}"


def _markers(text: str, given: object = None) -> Iterator[Marker]:
    """The markers that the text holds, in its order; of two that begin at one place the longer one.

    ``given``: the format that the text is read in; one of the caller's own is looked for, too.
    """
    formats: dict[str, list[str]] = {}
    for row in (*FORMATS.values(), *([given] if isinstance(given, Format) and given.name not in FORMATS else [])):
        for marker in dict.fromkeys(_strings((row.wrappers, row.thoughts, row.frames, row.channels, row.leaks))):
            formats.setdefault(marker, []).append(row.name)
    places = {marker: text.find(marker) for marker in formats if not _WORD.fullmatch(marker)}
    found = sorted((place, -len(marker), marker) for marker, place in places.items() if place >= 0)
    longest = {place: marker for place, _, marker in reversed(found)}
    for place, marker in sorted(longest.items())[:_MARKERS_SHOWN]:
        yield Marker(marker, text.count(marker), place, tuple(formats[marker]))


def _strings(value: Any) -> Iterator[str]:
    """What a row declares as text, wherever in it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _strings(part)
    elif is_dataclass(value):
        for declared in fields(value):
            yield from _strings(getattr(value, declared.name))


def _timings(parser: StreamParser, text: str) -> Iterator[Timing]:
    """Read character by character, as the slowest of streams."""
    known: dict[int, tuple[str, int]] = {}
    complete: dict[int, int] = {}
    for arrived, events in [*((at + 1, parser.feed(char)) for at, char in enumerate(text)), (len(text), parser.close())]:
        for event in events:
            if isinstance(event, CallStart):
                known[event.index] = event.name, arrived
            elif isinstance(event, CallEnd):
                complete[event.index] = arrived
    for index, (name, place) in known.items():
        yield Timing(name, place, complete.get(index))


def _unknown(reader: Reader, text: str, reply: Reply) -> Iterator[str]:
    if reader.tools is None or reader.options.get("unknown_tools") == "keep":
        return
    offered = {tool["function"]["name"] for tool in reader.tools}
    told = {call.name for call in reply.tool_calls}
    for call in reader.read(text, unknown_tools="keep").tool_calls:
        if call.name not in offered | told:
            told.add(call.name)
            yield call.name
