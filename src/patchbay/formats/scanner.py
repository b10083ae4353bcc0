"""The incremental scanner: prose, and the regions that markers open in it.

Reading a whole text is feed and close, so a text read whole and in pieces cannot differ: every decision is taken at a place in
the text, never at the border of a chunk. What may begin a marker is held back exactly, everything else goes out at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from patchbay.formats.emitter import LAYOUT, Emitter
from patchbay.formats.source import MarkerSet, Source, Steps, line_starts, pauses

Region = Callable[[str], Steps[bool]]
"""Reads what a marker, its argument, opens: ``source.pos`` is at the marker, the source is marked there, the prose before it was
emitted. False where it opens nothing: the scanner takes the reading back, and the marker is prose."""


class LineStart(Protocol):
    """Reads what begins without any marker, at the beginning of a line or behind words that lead to it.

    ``starts``: the words it may begin with, as far as they emit (None: any). ``leading``: the line so far may lead to it;
    ``led``: it does.
    """

    starts: frozenset[str] | None
    leading: bool
    led: bool

    def looks_at(self, char: str) -> bool:
        """True if to read what begins with ``char``; False: it is prose."""

    def read(self) -> Steps[bool]:
        """Read at ``source.pos``, which is marked and behind the blanks. False: what stands there is prose."""

    def lead(self, end: int) -> int:
        """Look at prose up to ``end`` before it is emitted, while ``leading``; how far it may be emitted at once."""


class Scanner:
    """Emits prose to ``emitter``, and hands each of ``markers``, and each line's beginning, to its reader."""

    def __init__(
        self,
        source: Source,
        emitter: Emitter,
        markers: MarkerSet,
        region: Callable[[str], Region],
        line_start: LineStart | None = None,
    ) -> None:
        self.source = source
        self.emitter = emitter
        self.line_start = line_start
        self._markers = markers
        self._reader_of = region
        self.pause = pauses(markers, lines=line_start is not None).search
        """Finds where a chunk behind prose may begin a marker, or a line that is looked at."""
        self._starts: frozenset[str] | None = None
        self._line = line_starts(None).search
        self.waiting = False
        """Waiting in prose with nothing held back in the source."""
        self.open = False
        """The same with nothing held back at all: a chunk that does not ``pause`` is prose and goes out as it is."""
        self._spent = 0

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
                yield from self._region(marker)
            elif ended:
                return
            elif not source.ended and source.base + len(source.buf) == total:
                lines = self.line_start
                if lines is not None and lines.starts is not self._starts:
                    self._look_for(lines.starts)
                self.waiting = source.pos == len(source.buf) and not (lines is not None and (lines.leading or lines.led))
                self.open = self.waiting and not self.emitter.blank and self.emitter.clear
                yield
                self.waiting = self.open = False

    def _emit(self, end: int) -> None:
        source = self.source
        self.emitter.text(source.buf[source.pos : end])
        source.pos = end

    def _lines(self, lines: LineStart, end: int) -> Steps[bool]:
        """Emit prose up to ``end``, each line's beginning offered first; False where the text moved on under the search."""
        source, emitter = self.source, self.emitter
        stop = source.base + end
        while source.offset < stop:
            end = stop - source.base
            if emitter.blank or lines.led:
                begin = source.pos
                while begin < end and source.buf[begin] in LAYOUT:
                    begin += 1
                if begin > source.pos:
                    self._emit(begin)
                    continue
                offered = source.offset >= self._spent and not emitter.quoted and lines.looks_at(source.buf[begin])
                if offered and (yield from self._read(lines.read())):
                    return False
                lines.led = False
            if lines.starts is not self._starts:
                self._look_for(lines.starts)
            buf, pos, end = source.buf, source.pos, stop - source.base
            has_lines = buf.find("\n", pos, end) >= 0 or buf.find("\r", pos, end) >= 0
            line = self._line(buf, pos, end) if has_lines else None
            line_end = line.end() if line else end
            self._emit(lines.lead(line_end) if lines.leading else line_end)
        return True

    def _look_for(self, starts: frozenset[str] | None) -> None:
        """Search only for lines that begin so from now on."""
        self._starts = starts
        self._line = line_starts(starts).search

    def _region(self, marker: str) -> Steps[None]:
        source = self.source
        if source.offset >= self._spent and (yield from self._read(self._reader_of(marker)(marker))):
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
        # What was read in vain is not read again for a marker inside it: that would be quadratic.
        self._spent = max(self._spent, source.offset)
        source.rewind()
        self.emitter.forget_repairs(repairs)
        return False
