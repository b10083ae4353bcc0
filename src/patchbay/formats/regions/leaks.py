"""Special tokens that a server let through: no part of the answer at its ends and around calls, a word in the middle of prose."""

from __future__ import annotations

import re

from patchbay.formats.engine.emitter import Emitter
from patchbay.formats.engine.marks import extent
from patchbay.formats.engine.source import Source, Steps

_TURN = re.compile("assistant|model|user", re.IGNORECASE)
"""What a token names that begins another turn."""


def ends_or_tag(source: Source) -> Steps[bool]:
    """Whether nothing but white space follows up to the end of the text or to what may be a tag; nothing is read."""
    begin = source.offset
    char = yield from source.peek()
    while char and char in " \t\r\n":
        source.pos += 1
        char = yield from source.peek()
    source.rewind_to(begin)
    return not char or char == "<"


class LeakReader:
    """Reads such tokens."""

    def __init__(self, source: Source, emitter: Emitter) -> None:
        self.source = source
        self.emitter = emitter

    def read(self, marker: str) -> Steps[bool]:
        """Drop the token where it stands at an end of the answer or beside markup."""
        source, emitter = self.source, self.emitter
        if emitter.opens_code:
            return False
        size = yield from extent(source, marker)
        source.pos += size
        if not size:
            return False
        if emitter.has_calls and _TURN.search(marker):
            emitter.over = True
        yield from source.peek()
        if emitter.has_calls or emitter.after_markup or not emitter.has_text:
            return True
        if source.buf[source.pos : source.pos + 1] in ("{", "["):
            emitter.markup()  # calls may follow a token that was to open them
            return True
        return (yield from ends_or_tag(source))
