"""Markers around the answer itself (``<response>``, ``<|START_TEXT|>``): dropped, and what stands between them is the answer.

A special token is no text anywhere. A tag of plain letters may be the answer's own, so it counts where a model's template puts it
and nowhere else: the opener where the answer begins, which without the format being named is right behind reasoning or calls; the
closer at the end of what such an opener began, or right behind calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from patchbay.formats.engine.emitter import Emitter
from patchbay.formats.engine.source import Source, Steps
from patchbay.formats.regions.leaks import ends_or_tag
from patchbay.formats.rows import Frame


class FrameReader:
    """Reads the markers of ``frames``. ``named``: they are those of the one format that the text is known to be in."""

    def __init__(self, source: Source, emitter: Emitter, frames: Sequence[Frame], *, named: bool) -> None:
        self.source = source
        self.emitter = emitter
        self.named = named
        self._due: frozenset[str] = frozenset()
        self._closers_of = {opener: frozenset(frame.closers) for frame in frames for opener in frame.openers}

    def drop(self, marker: str) -> Steps[bool]:
        """Drop a special token."""
        yield from ()
        mentioned = self.emitter.opens_code
        if not mentioned:
            self.source.pos += len(marker)
        return not mentioned

    def open(self, marker: str) -> Steps[bool]:
        """Drop a tag where the answer begins."""
        yield from ()
        emitter = self.emitter
        if emitter.has_text or emitter.quoted or not (self.named or emitter.after_markup):
            return False
        self.source.pos += len(marker)
        emitter.markup()
        self._due = self._closers_of[marker]
        return True

    def close(self, marker: str) -> Steps[bool]:
        """Drop a tag where the answer ends."""
        source, emitter = self.source, self.emitter
        if marker not in self._due and not (emitter.has_calls and emitter.after_markup):
            return False
        source.pos += len(marker)
        if not (yield from ends_or_tag(source)):
            return False
        emitter.markup()
        self._due = frozenset()
        return True
