"""Fences: each run of three goes to its reader, blocks that hold calls (``fenced``) or blocks that are prose (``shown``)."""

from __future__ import annotations

import re

from patchbay.formats.engine.source import Steps
from patchbay.formats.fences.fenced import BlockReader
from patchbay.formats.fences.fencedmarkup import FencedMarkup
from patchbay.formats.fences.shown import ShownReader
from patchbay.formats.parts import Parts
from patchbay.formats.unmarked.loose import LooseReader

_LENIENT_LABELS = frozenset({"", "json"})
_SHOWN_LABEL = re.compile(
    ".*(?:result|response|output)|quote|diff|email|java|js|ts|(?:bash|c|cpp|cs|csharp|css|go|html?|kotlin|lua|perl|php|ps1|r|rb|ruby|rust|rs|"
    r"scala|sh|shell|sql|swift|typescript|ya?ml|zsh|console)\Z",
    re.IGNORECASE,
).match
"""What shows what somebody else wrote, or code that is no Python: no call of the model's stands in it."""


class FenceReader:
    """Reads the fences of a text.

    ``blocks`` reads those that are labelled as calls (None: none is), ``loose`` those that hold nothing but calls, ``markup``
    those that hold nothing but marked calls. ``any_label``: whatever a block for ``loose`` is labelled.
    """

    def __init__(
        self, parts: Parts, blocks: BlockReader | None, loose: LooseReader | None, markup: FencedMarkup, *, any_label: bool
    ) -> None:
        self.source = parts.source
        self.emitter = parts.emitter
        self.lenient = parts.lenient
        self.marks = parts.fences
        self.blocks = blocks
        self.loose = loose
        self.any_label = any_label
        self.markup = markup
        self.shown = ShownReader(parts.source, parts.emitter, parts.fences)
        self._tagged_seen = False

    def region(self, marker: str) -> Steps[bool]:
        """Read the fence at ``pos``, whatever it is."""
        yield from self.read(marker[0])
        return True

    def read(self, char: str) -> Steps[None]:
        """Read the fence whose first three characters are at ``pos``."""
        source, emitter, blocks = self.source, self.emitter, self.blocks
        line_start = emitter.blank
        source.mark()
        length = yield from self.marks.run(char)
        label = yield from self.marks.peek_label()
        if blocks is not None and self.marks.is_tag(label):
            if (yield from blocks.tagged(line_start=line_start)):
                self._tagged_seen = True
                return
            kind = "tag"
        elif line_start and length == 3 and not self._tagged_seen and (yield from self._unwrapped(char, label)):
            source.take()
            return
        elif self.loose is not None and line_start and not self._tagged_seen and self._may_hold_calls(label):
            if (yield from self.loose.fenced(self.marks)):
                source.take()
                return
            source.rewind()
            kind = ""
        else:
            emitter.verbatim(source.take())
            yield from self.shown.read(char, length, line_start=line_start, kind="")
            return
        # It was read as calls and is not: from the start again, as prose.
        length = yield from self.marks.run(char)
        emitter.verbatim(char * length)
        yield from self.shown.read(char, length, line_start=line_start, kind=kind)

    def _unwrapped(self, char: str, label: str) -> Steps[bool]:
        if not self.lenient or self.emitter.quoted or self.emitter.over:
            return False
        return (yield from self.markup.read(char, label))

    def _may_hold_calls(self, label: str) -> bool:
        if label.lower() in _LENIENT_LABELS:
            return self.lenient
        return self.lenient and self.any_label and _SHOWN_LABEL(label) is None
