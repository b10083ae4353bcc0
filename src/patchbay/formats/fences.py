"""Fences: each run of three goes to its reader, blocks that hold calls (``fenced``) or blocks that are prose (``shown``)."""

from __future__ import annotations

from collections.abc import Callable

from patchbay.formats.emitter import Emitter
from patchbay.formats.fenced import BlockReader
from patchbay.formats.fencemarks import FenceMarks
from patchbay.formats.shown import ShownReader
from patchbay.formats.source import Source, Steps

_LENIENT_LABELS = frozenset({"", "json"})


class FenceReader:
    """Reads fences from ``source``. ``lenient``: blocks without the tag may hold calls, as long as no tagged one came."""

    def __init__(
        self,
        source: Source,
        emitter: Emitter,
        *,
        tag: str,
        is_tool: Callable[[str], bool],
        is_offered: Callable[[str], bool],
        schema_keys: Callable[[str], frozenset[str] | None],
        lenient: bool,
    ) -> None:
        self.source = source
        self.emitter = emitter
        self.lenient = lenient
        self.marks = FenceMarks(source, tag)
        self.blocks = BlockReader(source, emitter, self.marks, is_tool=is_tool, is_offered=is_offered, schema_keys=schema_keys)
        self.shown = ShownReader(source, emitter, self.marks)
        self._tagged_seen = False

    def read(self, char: str) -> Steps[None]:
        """Read the fence whose first three characters are at ``pos``."""
        source, emitter = self.source, self.emitter
        line_start = emitter.blank
        source.mark()
        length = yield from self.marks.run(char)
        label = yield from self.marks.peek_label()
        if self.marks.is_tag(label):
            if (yield from self.blocks.tagged(line_start=line_start)):
                self._tagged_seen = True
                return
            kind = "tag"
        elif self.lenient and line_start and label.lower() in _LENIENT_LABELS and not self._tagged_seen:
            if (yield from self.blocks.unmarked()):
                return
            kind = ""
        else:
            emitter.verbatim(source.take())
            yield from self.shown.read(char, length, line_start=line_start, kind="")
            return
        # It was read as calls and is not: from the start again, as prose.
        length = yield from self.marks.run(char)
        emitter.verbatim(char * length)
        yield from self.shown.read(char, length, line_start=line_start, kind=kind)
