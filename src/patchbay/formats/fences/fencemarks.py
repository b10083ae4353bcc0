"""What both kinds of fences are read with: runs of fence characters, and the labels behind them."""

from __future__ import annotations

import re
from functools import lru_cache

from patchbay.formats.engine.source import Source, Steps

LABEL = re.compile(r"[ \t]*([\w.-]*)")
LABEL_ROOM = 80
"""How far a label is looked for."""
_RUN = {"`": re.compile("`+"), "~": re.compile("~+")}


@lru_cache(maxsize=64)
def label_forms(tag: str) -> frozenset[str]:
    """The spellings of a tag that count: any case, ``-`` or ``.`` for ``_``, with or without a final s."""
    plain = _plain(tag)
    return frozenset({plain, plain + "s", plain.removesuffix("s")})


def _plain(label: str) -> str:
    return label.lower().replace("-", "_").replace(".", "_")


class FenceMarks:
    """Reads runs and labels from ``source``. ``tag`` is the label of a block that holds calls."""

    def __init__(self, source: Source, tag: str) -> None:
        self.source = source
        self._labels = label_forms(tag)

    def is_tag(self, label: str) -> bool:
        """Whether a fence's label says that the block holds calls."""
        return _plain(label) in self._labels

    def run(self, char: str) -> Steps[int]:
        """Read a run of fence characters; its length."""
        source = self.source
        length = 0
        while True:
            found = _RUN[char].match(source.buf, source.pos)
            if found:
                length += found.end() - source.pos
                source.pos = found.end()
            if source.pos < len(source.buf) or source.ended:
                return length
            yield

    def peek_label(self) -> Steps[str]:
        """The label after a run of fence characters; not read."""
        source = self.source
        while True:
            found = LABEL.match(source.buf, source.pos)
            assert found is not None
            if found.end() < len(source.buf) or source.ended or len(found.group()) > LABEL_ROOM:
                return found.group(1)
            yield

    def is_opener(self) -> Steps[bool]:
        """Whether the label after the run at ``pos`` opens a block: the tag, or a word that is all of the line."""
        source = self.source
        label = yield from self.peek_label()
        if self.is_tag(label):
            return True
        if not label or not source.buf.startswith(label, source.pos):
            return False
        while True:
            rest = source.buf[source.pos + len(label) : source.pos + len(label) + 2].lstrip(" \t")
            if rest or source.ended:
                return rest[:1] in ("\n", "\r")
            yield
