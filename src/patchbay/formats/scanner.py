"""The one incremental engine: prose, and the regions that markers open in it.

Whole text is feed and close, so a text read whole and the same text read in pieces cannot differ: every decision is taken at a
place in the text, never at the border of a chunk. What may begin a marker is held back exactly, everything else goes out at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from patchbay.formats.emitter import Emitter
from patchbay.formats.source import Source, Steps

Region = Callable[[], Steps[None]]
"""Reads what a marker opens. ``source.pos`` is at the marker; prose before it was told."""


@dataclass(frozen=True)
class _Markers:
    """What a set of markers is looked for with."""

    any: re.Pattern[str]
    first: re.Pattern[str]
    starts: frozenset[str]
    longest: int


@lru_cache(maxsize=64)
def _markers(markers: tuple[str, ...]) -> _Markers:
    return _Markers(
        any=re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True)))),
        first=re.compile(f"[{re.escape(''.join(sorted({marker[0] for marker in markers})))}]"),
        starts=frozenset(marker[:length] for marker in markers for length in range(1, len(marker))),
        longest=max(map(len, markers)) - 1,
    )


class Scanner:
    """Tells prose to ``emitter`` and hands each of ``regions``' markers to its reader."""

    def __init__(self, source: Source, emitter: Emitter, regions: Mapping[str, Region]) -> None:
        self.source = source
        self.emitter = emitter
        self.regions = regions
        self._markers = _markers(tuple(regions))
        self.quiet = self._markers.first.search
        """Finds a character that may begin a marker; a chunk without one is prose."""
        self.idle = False
        """Waiting in prose with nothing held back in the source."""

    def run(self) -> Steps[None]:
        """Read to the end of the text."""
        source, emitter = self.source, self.emitter
        while True:
            found = self._markers.any.search(source.buf, source.pos)
            end = found.start() if found else self._safe_end()
            emitter.text(source.buf[source.pos : end])
            source.pos = end
            if found:
                yield from self.regions[found.group()]()
            elif source.ended:
                return
            else:
                self.idle = end == len(source.buf)
                yield
                self.idle = False

    def _safe_end(self) -> int:
        """Up to where the text cannot be part of a marker."""
        buf, size, markers = self.source.buf, len(self.source.buf), self._markers
        if not self.source.ended:
            for start in range(max(self.source.pos, size - markers.longest), size):
                if buf[start:] in markers.starts:
                    return start
        return size
