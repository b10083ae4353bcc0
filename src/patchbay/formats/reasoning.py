"""Reasoning between tags: where it counts, and what becomes of a call that is drafted in it.

An opening tag counts at the start of the reply and at the start of a line; in the middle of a line it is a word about the tag. At
the start of the reply it needs no closer (the reply may have been cut off); later it does, and is held back until the closer is
seen. A closing tag without an opener means that the prompt opened the reasoning. A tagged block inside is a draft if the closing
tag follows; if the text ends without one, the model forgot to close and really called.
"""

from __future__ import annotations

from patchbay.formats.emitter import Emitter
from patchbay.formats.fences import FenceReader
from patchbay.formats.source import Source, Steps


class ReasoningReader:
    """Reads ``<tag>`` regions. ``prefilled``: the prompt opened the reasoning (None: found out from the text)."""

    def __init__(self, source: Source, emitter: Emitter, fences: FenceReader | None, *, tag: str, prefilled: bool | None) -> None:
        self.source = source
        self.emitter = emitter
        self.fences = fences
        self.opener = f"<{tag}>"
        self.closer = f"</{tag}>"
        self.prefilled = prefilled
        self._seen = False
        self._unclosed = False
        self._mentioned = False

    def begin(self) -> Steps[None]:
        """Read the reasoning that the prompt opened."""
        self.emitter.thought_begins()
        yield from self._read(closer_due=False)

    def open(self) -> Steps[None]:
        """Read from an opening tag."""
        source, emitter = self.source, self.emitter
        if not emitter.blank or emitter.quoted or self._unclosed:
            self._mentioned = True
            emitter.text(self.opener)
            source.pos += len(self.opener)
            return
        closer_due = emitter.has_text
        if closer_due:
            source.mark()
            source.pos += len(self.opener)
            emitter.muted = True
            closed = yield from self._skip_to_closer()
            emitter.muted = False
            if not closed:
                source.rewind()
                self._unclosed = True
                emitter.blank = True
                return
            source.rewind()
        source.pos += len(self.opener)
        emitter.thought_begins()
        yield from self._read(closer_due=closer_due)

    def _skip_to_closer(self) -> Steps[bool]:
        source = self.source
        while True:
            found = source.find(self.closer, source.pos)
            if found >= 0:
                source.pos = found
                return True
            if source.ended:
                source.pos = len(source.buf)
                return False
            source.pos = max(source.pos, len(source.buf) - len(self.closer) + 1)
            yield

    def _read(self, *, closer_due: bool) -> Steps[None]:
        """Read up to and with the closing tag, or to the end of the text."""
        source, emitter = self.source, self.emitter
        self._seen = True
        while True:
            buf, pos = source.buf, source.pos
            closer = source.find(self.closer, pos)
            fence = source.find("```", pos) if self.fences and not closer_due else -1
            if 0 <= fence < (closer if closer >= 0 else len(buf)):
                emitter.thought(buf[pos:fence])
                source.pos = fence
                if (yield from self._draft()):
                    return
                continue
            if closer >= 0:
                emitter.thought(buf[pos:closer])
                source.pos = closer + len(self.closer)
                emitter.thought_ends()
                return
            end = len(buf) if source.ended else max(pos, len(buf) - len(self.closer) + 1)
            emitter.thought(buf[pos:end])
            source.pos = end
            if source.ended:
                return
            yield

    def _draft(self) -> Steps[bool]:
        """At a fence inside reasoning: True if it is a call after all and the reasoning is over (rewound to the fence)."""
        source, emitter, fences = self.source, self.emitter, self.fences
        assert fences is not None
        at_line_start = emitter.blank
        source.mark()
        yield from fences.marks.run("`")
        label = yield from fences.marks.peek_label()
        if not (at_line_start and fences.marks.is_tag(label)):
            emitter.thought(source.take())
            return False
        if (yield from self._skip_to_closer()):
            emitter.thought(source.take())
            return False
        source.rewind()
        emitter.thought_ends()
        self._unclosed = True
        return True

    def stray(self) -> Steps[None]:
        """A closing tag outside of reasoning: what came before it was reasoning, if nothing speaks against it."""
        source, emitter = self.source, self.emitter
        if self._seen or self._mentioned or emitter.has_calls or emitter.last == "`" or self.prefilled is False:
            emitter.text(self.closer)
        else:
            self._seen = True
            emitter.all_was_reasoning()
        source.pos += len(self.closer)
        yield from ()
