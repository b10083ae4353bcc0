"""What stands between the tags of a call: white space, and whether what follows it goes on with calls or with anything else.

A closer inside of a raw value looks like the value's own. What tells them apart is what follows: only behind its own closer does
a call go on, or end. All looks ahead are bounded, and read nothing.
"""

from __future__ import annotations

from typing import Final

from patchbay.formats.engine.marks import Marks
from patchbay.formats.engine.source import Source, Steps

_ROOM = 256
"""White space behind a closer that is looked through; more of it is no part of a value either."""
_ARTEFACTS = "\u0120\u010a"
"""A blank and a line break, as some tokenizers let them through."""
BLANKS: Final = " \t\r\n" + _ARTEFACTS


class Structure:
    """Looks at ``source`` between tags. ``ends``: markers and special tokens; behind what may be a closer they say it is one."""

    def __init__(self, source: Source, ends: Marks) -> None:
        self.source = source
        self.ends = ends

    def space(self, room: int = 0) -> Steps[str]:
        """Read white space, line breaks that are written as two characters too; the next character, "" at the end of the text.

        ``room``: how much of it is read at most (0: all).
        """
        source = self.source
        begin = source.offset
        while True:
            char = yield from source.peek()
            if char == "\\":
                if not (yield from self._escaped_break()):
                    return char
                source.pos += 2
            elif not char or char not in BLANKS:
                return char
            else:
                source.pos += 1
            if room and source.offset - begin >= room:
                return " "

    def _escaped_break(self) -> Steps[bool]:
        source = self.source
        while len(source.buf) - source.pos < 2 and not source.ended:
            yield
        return source.buf.startswith("n", source.pos + 1)

    def broken(self) -> Steps[bool]:
        """Whether what stands behind white space is certainly no value: a marker, a special token, the end of the text.

        The white space is read.
        """
        char = yield from self.space(_ROOM)
        if not char or char == " ":
            return True
        return bool((yield from self.ends.at(self.source))) or self.ends.begun(self.source) or (yield from self._token(char))

    def _token(self, char: str) -> Steps[bool]:
        """Whether what looks like a special token stands at ``pos``."""
        source = self.source
        while char == "<" and len(source.buf) - source.pos < 2 and not source.ended:
            yield
        return source.buf[source.pos : source.pos + 2] in ("<|", "<｜")
