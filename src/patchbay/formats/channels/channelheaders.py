"""The headers of messages: from a start marker to where the body begins, whole, damaged, or with a marker left out.

What a header means is its format's business (``Channels.reads``); here it is found where it ends, and whose it is where several
formats share a marker. Looking on is bounded, and what is no header is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from patchbay.formats.channelrows import Body, Channels, Header, Kind
from patchbay.formats.engine.marks import Marks, marks
from patchbay.formats.engine.source import Steps
from patchbay.formats.parts import Parts

_ROOM = 256
_HALF_MARKER = re.compile(r"<\|?\w*$")
CALLS = (Kind.NAMED, Kind.CALLS)


@dataclass(frozen=True)
class Message:
    """A message whose header was read: ``pos`` is where its body begins. ``start``: where the header began."""

    row: Channels
    body: Body
    start: int


class HeaderReader:
    """Reads headers of the formats that are asked for."""

    def __init__(self, parts: Parts) -> None:
        self.source = parts.source
        self.emitter = parts.emitter
        self.rules = parts.rules
        self.calls = parts.calls
        self.named = parts.named
        self.last: Channels | None = None
        """The format of the last message."""

    def implied(self, rows: Iterable[Channels]) -> Steps[Message | None]:
        """Read a header whose start was left out; None, with nothing read, if there is none."""
        source = self.source
        for alike in _implied_together(tuple(rows)):
            source.mark()
            message = yield from self.read("", alike)
            if message is not None:
                return message
            source.release()
        return None

    def read(self, marker: str, rows: Iterable[Channels], *, whole: bool = False) -> Steps[Message | None]:
        """Read a header from its start on. None, with nothing read, if it is none. ``whole``: no marker of it is left out."""
        start = self.source.offset
        message = yield from self._parts(marker, rows, whole=whole or not marker)
        if message is None:
            self.source.rewind_to(start)
        return message

    def _parts(self, marker: str, rows: Iterable[Channels], *, whole: bool) -> Steps[Message | None]:
        """Read a header's markers and the texts between them."""
        source = self.source
        start, implied = source.offset, not marker
        source.pos += len(marker)
        if not implied:
            alone = self._settle(start, rows, Header((), marker))
            if alone is not None:
                return alone if alone.body.kind in CALLS or self._is_due(alone.row) else None
        rows = tuple(row for row in rows if marker in row.starts or implied)
        wanted, begins, divides = _looked_for(rows)
        pieces: list[tuple[str, str]] = []
        while True:
            end, found = wanted.next(source, source.pos)
            text = source.buf[source.pos : end]
            rows = tuple(row for row in rows if self._fits(row, text, implied=implied))
            if not rows:
                return None
            if source.offset + len(text) - start > _ROOM:
                return None if whole else self._bare(start, rows, pieces, marker, text)
            if implied and found and not (pieces or text.strip()):
                return None
            if found in begins or found in divides:
                pieces.append((marker, text))
                source.pos = end + len(found)
                if found in begins:
                    return self._settle(start, rows, Header(tuple(pieces), found))
                marker = found
            elif found:
                return None if whole else self._bare(start, rows, pieces, marker, text, over=True)
            elif source.ended:
                return self._cut(start, rows, Header((*pieces, (marker, text)), ""))
            else:
                yield

    def _fits(self, row: Channels, text: str, *, implied: bool) -> bool:
        fits = row.implied if implied else row.fits
        return fits is None or fits(text, self.rules)

    def _settle(self, start: int, rows: Iterable[Channels], header: Header) -> Message | None:
        """The message whose header was read: the last message's format first, then the first that is sure."""
        found = [
            Message(row, body, start)
            for row in rows
            if (header.begin in row.begins or header.begin in row.alone)
            and (body := row.reads(header)) is not None
            and (row.loud or self._is_meant(row, header, body))
            and (not body.damaged or self._is_due(row))
        ]
        if not found:
            return None
        return next((message for message in found if message.row is self.last), None) or next(
            (message for message in found if not message.body.doubtful), found[0]
        )

    def _is_meant(self, row: Channels, header: Header, body: Body) -> bool:
        """Whether a header whose start is mere text, or was left out, is one: it names a tool, or the format is known."""
        if body.kind in CALLS and body.name:
            known = self.rules.resolve if any(marker for marker, _ in header.pieces) else self.rules.offered
            return known(body.name) is not None
        return self.named or row is self.last

    def _is_due(self, row: Channels) -> bool:
        """Whether a message of the row's is what must stand here: nothing but markup came before, or such messages did."""
        return row is self.last or not self.emitter.has_text or self.emitter.after_markup

    def _bare(
        self, start: int, rows: Iterable[Channels], pieces: list[tuple[str, str]], marker: str, text: str, *, over: bool = False
    ) -> Message | None:
        """The message of a header whose last marker was left out; ``over``: what follows ``text`` ends the message."""
        source = self.source
        for row in rows:
            if row.words is None or not self._is_due(row):
                continue
            length = row.words(text)
            body = row.reads(Header((*pieces, (marker, text[:length])), "")) if length or over else None
            if body is not None:
                source.pos += length
                return Message(row, body, start)
        return None

    def _cut(self, start: int, rows: Iterable[Channels], header: Header) -> Message | None:
        """What becomes of a header that the text ended in: a call that was begun, or markup."""
        source = self.source
        *before, (marker, text) = header.pieces
        if not (marker or before):
            return None  # no marker was seen: these are words
        header = Header((*before, (marker, _HALF_MARKER.sub("", text))), "")
        for row in rows:
            body = row.reads(header)
            if body is None:
                continue
            name = self.rules.offered(body.name) if body.kind in CALLS else None
            last = header.pieces[-1][1]
            if name is None and (
                not row.loud or body.damaged or (last and row.implied is not None and not row.implied(last, self.rules))
            ):
                continue
            source.pos = len(source.buf)
            if name is not None or (body.kind in CALLS and self.rules.begins_name(body.name)):
                self.calls.name = name or ""
                self.calls.cut(source.since(start))
            return Message(row, Body(Kind.NOTHING), start)
        return None


@lru_cache(maxsize=64)
def _implied_together(rows: tuple[Channels, ...]) -> tuple[tuple[Channels, ...], ...]:
    """The rows whose headers may lack their start, those with the same markers behind it together."""
    found: dict[tuple[str, ...], list[Channels]] = {}
    for row in rows:
        if row.implied is not None:
            found.setdefault((*row.begins, *row.alone), []).append(row)
    return tuple(map(tuple, found.values()))


@lru_cache(maxsize=256)
def _looked_for(rows: tuple[Channels, ...]) -> tuple[Marks, frozenset[str], frozenset[str]]:
    """What a header of these formats is read up to, and of that what ends it and what stands in it."""
    return (
        marks(tuple(mark for row in rows for mark in (*row.divides, *row.begins, *row.endings))),
        frozenset(mark for row in rows for mark in (*row.begins, *row.alone)),
        frozenset(mark for row in rows for mark in row.divides),
    )
