"""The incremental scanner: prose, and the regions that markers open in it.

A whole text is read by feed and close, so reading it whole or in pieces gives the same result: every decision depends on a
position in the text, never on chunk borders. Only what may begin a marker is held back; everything else is emitted at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from patchbay.formats.emitter import LAYOUT, Emitter
from patchbay.formats.source import MarkerSet, Source, Steps, line_start_pattern, pause_pattern

RegionReader = Callable[[str], Steps[bool]]
"""Reads the region that a marker, its argument, opens. ``source.pos`` is at the marker, and marked; the prose before it is out.

Returns False if the marker opens nothing: the scanner then rewinds, and the marker is prose.
"""


class LineStart(Protocol):
    """Reader for calls without markers, at the beginning of a line or behind a lead-in (``Calls:``, ``x =``).

    ``call_starts``: texts that a line with a call starts with (None: anything). ``in_lead_in``: the line so far may become a
    lead-in.
    ``after_lead_in``: it is one.
    """

    call_starts: frozenset[str] | None
    in_lead_in: bool
    after_lead_in: bool

    def may_begin_call(self, char: str) -> bool:
        """True if a call may begin with ``char`` here; otherwise it is prose."""

    def read(self) -> Steps[bool]:
        """Read at ``source.pos``, which is marked and behind white space. Return False if the text there is prose."""

    def scan_lead_in(self, end: int) -> int:
        """Scan prose up to ``end`` for a lead-in, while ``in_lead_in``; return how far it may be emitted."""


class Scanner:
    """Emits prose to ``emitter``, and hands each marker and each line's beginning to its reader."""

    def __init__(
        self,
        source: Source,
        emitter: Emitter,
        markers: MarkerSet,
        reader_of: Callable[[str], RegionReader],
        line_start: LineStart | None = None,
    ) -> None:
        self.source = source
        self.emitter = emitter
        self.line_start = line_start
        self._markers = markers
        self._reader_of = reader_of
        self.pause = pause_pattern(markers, lines=line_start is not None).search
        """Finds where a chunk that follows prose may begin a marker, or a line."""
        self._marker_start = pause_pattern(markers, lines=False).search
        self._starts: frozenset[str] | None = None
        self._line = line_start_pattern(None).search
        self.waiting = False
        """Waiting in prose, with nothing held back in the source."""
        self.open = False
        """Waiting in prose, with nothing held back at all: a chunk in which ``pause`` finds nothing is emitted unchanged."""
        self._read_until = 0

    def is_prose(self, text: str) -> bool:
        """True if a chunk in which ``pause`` found something is prose, with no line to examine. Call only while ``open``."""
        return self.line_start is not None and self._marker_start(text) is None and self._line(text) is None

    def run(self) -> Steps[None]:
        """Read to the end of the text."""
        source = self.source
        while True:
            ended, total = source.ended, source.base + len(source.buf)
            end, marker = self._markers.next(source, source.pos)
            if self.line_start is None:
                self._emit(end)
            elif not (yield from self._lines(self.line_start, end)):
                continue
            if marker:
                yield from self._read_region(marker)
            elif ended:
                return
            elif not source.ended and source.base + len(source.buf) == total:
                lines = self.line_start
                if lines is not None and lines.call_starts is not self._starts:
                    self._look_for(lines.call_starts)
                self.waiting = source.pos == len(source.buf) and not (
                    lines is not None and (lines.in_lead_in or lines.after_lead_in)
                )
                self.open = self.waiting and not self.emitter.at_line_start and self.emitter.nothing_pending
                yield
                self.waiting = self.open = False

    def _emit(self, end: int) -> None:
        source = self.source
        self.emitter.text(source.buf[source.pos : end])
        source.pos = end

    def _lines(self, lines: LineStart, end: int) -> Steps[bool]:
        """Emit prose up to ``end``, offering each line's beginning to ``lines``.

        Return False if a reader moved past the position of the search.
        """
        source, emitter = self.source, self.emitter
        stop = source.base + end
        while source.offset < stop:
            end = stop - source.base
            if emitter.at_line_start or lines.after_lead_in:
                begin = source.pos
                while begin < end and source.buf[begin] in LAYOUT:
                    begin += 1
                if begin > source.pos:
                    self._emit(begin)
                    continue
                offered = (
                    source.offset >= self._read_until and not emitter.in_blockquote and lines.may_begin_call(source.buf[begin])
                )
                if offered and (yield from self._read(lines.read())):
                    return False
                lines.after_lead_in = False
            if lines.call_starts is not self._starts:
                self._look_for(lines.call_starts)
            buf, pos, end = source.buf, source.pos, stop - source.base
            has_lines = buf.find("\n", pos, end) >= 0 or buf.find("\r", pos, end) >= 0
            line = self._line(buf, pos, end) if has_lines else None
            line_end = line.end() if line else end
            self._emit(lines.scan_lead_in(line_end) if lines.in_lead_in else line_end)
        return True

    def _look_for(self, starts: frozenset[str] | None) -> None:
        """From now on, search only for lines that begin with these texts."""
        self._starts = starts
        self._line = line_start_pattern(starts).search

    def _read_region(self, marker: str) -> Steps[None]:
        source = self.source
        if source.offset >= self._read_until and (yield from self._read(self._reader_of(marker)(marker))):
            return
        self.emitter.text(marker)
        source.pos += len(marker)

    def _read(self, reading: Steps[bool]) -> Steps[bool]:
        """Read what begins at ``pos``; False: the reading is taken back, and the repairs that it needed."""
        source, repairs = self.source, self.emitter.repairs
        source.mark()
        if (yield from reading):
            source.release()
            return True
        # Text that a reader gave up on is not read again for a marker inside it: that would be quadratic.
        self._read_until = max(self._read_until, source.offset)
        source.rewind()
        self.emitter.forget_repairs(repairs)
        return False
