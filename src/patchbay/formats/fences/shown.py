"""Fences that are prose: code to be shown, and quotes of somebody else's text.

What stands inside is quoted: a tagged block in a Markdown, HTML, plain or longer fence is never a call. In a fence of code it is
one only if that fence is never closed, which shows at the end of the text; until then it is held back.
"""

from __future__ import annotations

import re

from patchbay.formats.engine.emitter import Emitter
from patchbay.formats.engine.source import Source, Steps
from patchbay.formats.events import TextDelta
from patchbay.formats.fences.fencemarks import LABEL_ROOM, FenceMarks

_BARE_WORD = re.compile(r"[\w+#.-]*")
QUOTING_LABELS = frozenset(
    {
        "md",
        "markdown",
        "mdx",
        "text",
        "txt",
        "plain",
        "plaintext",
        "html",
        "xhtml",
        "htm",
        "xml",
        "svg",
        "rst",
        "adoc",
        "asciidoc",
        "log",
        "email",
        "eml",
        "diff",
        "quote",
        "output",
        "tool_result",
    }
)


class ShownReader:
    """Reads fences that are prose, from behind their opening run."""

    def __init__(self, source: Source, emitter: Emitter, marks: FenceMarks) -> None:
        self.source = source
        self.emitter = emitter
        self.marks = marks
        self.promote = False
        """The end of the text was seen: fences that are still open will not be closed."""
        self.line_passed = False
        """A line ended since the last run of fence characters."""

    def read(self, char: str, length: int, *, line_start: bool, kind: str) -> Steps[None]:
        """Read a fence that is prose, from behind its opening run to its closer. ``kind`` is "tag" for a block without a call."""
        source, emitter = self.source, self.emitter
        info, ended = yield from self._opener_line(char)
        if ended != "line" or not (line_start or _BARE_WORD.fullmatch(info.strip())):
            return  # words in backticks on one line, not a block
        kind = kind or _kind(info, length)
        inner = 0
        run_on_line = False
        while True:
            if not (yield from self._until(char)):
                return
            run_on_line = run_on_line and not self.line_passed
            at_line_start = emitter.blank
            source.mark()
            run = yield from self.marks.run(char)
            bare = yield from self._is_bare()
            if bare and run >= length and (at_line_start or not run_on_line):
                emitter.verbatim(source.take())
                if not inner:
                    return
                inner -= 1
            elif at_line_start and not bare and run >= length:
                label = yield from self.marks.peek_label()
                if self.marks.is_tag(label) and (kind == "tag" or (kind == "code" and self.promote)):
                    source.rewind()
                    return
                if self.marks.is_tag(label) and kind == "code":
                    if (yield from self._held(char, length)):
                        return
                    self.promote = True
                    return
                emitter.verbatim(source.take())
                if kind == "quote":
                    inner += 1
            else:
                emitter.verbatim(source.take())
            run_on_line = True

    def _opener_line(self, char: str) -> Steps[tuple[str, str]]:
        """Read the rest of an opener's line; its first words, and what ended it: "line", "fence" or "text"."""
        source, emitter = self.source, self.emitter
        fence = char * 3
        info = ""
        while True:
            buf, pos = source.buf, source.pos
            newline, run = source.find("\n", pos), source.find(fence, pos)
            if newline >= 0 and (run < 0 or newline < run):
                end, why = newline + 1, "line"
            elif run >= 0:
                end, why = run, "fence"
            elif source.ended:
                end, why = len(buf), "text"
            else:
                end, why = max(pos, len(buf) - 2), ""
            piece = buf[pos:end]
            info = (info + piece)[:LABEL_ROOM] if len(info) < LABEL_ROOM else info
            emitter.verbatim(piece)
            source.pos = end
            if why == "fence":
                # the run belongs to the inline code: pass over it, so that it opens nothing
                emitter.verbatim(char * (yield from self.marks.run(char)))
            if why:
                return info, why
            yield

    def _until(self, char: str) -> Steps[bool]:
        """Tell text up to the next run of three; False at the end of the text. Sets ``line_passed``."""
        source, emitter = self.source, self.emitter
        fence = char * 3
        self.line_passed = False
        while True:
            buf, pos = source.buf, source.pos
            end = source.find(fence, pos)
            found = end >= 0
            if not found:
                end = len(buf)
                if not source.ended and buf.endswith(char):
                    end -= 2 if buf.endswith(char * 2) else 1
                    end = max(end, pos)
            piece = buf[pos:end]
            self.line_passed = self.line_passed or "\n" in piece
            emitter.verbatim(piece)
            source.pos = end
            if found or source.ended:
                return found
            if end == len(buf) and not emitter.muted:
                source.pass_on = self._pass_on
            yield
            source.pass_on = None

    def _pass_on(self, text: str) -> TextDelta | None:
        """Tell a piece of text without any fence character, as the event that is returned."""
        if "`" in text or "~" in text or not self.emitter.clear:
            return None
        self.line_passed = self.line_passed or "\n" in text
        return self.emitter.passed_verbatim(text)

    def _is_bare(self) -> Steps[bool]:
        """Whether nothing but blanks follows on the line; not read."""
        source = self.source
        while True:
            rest = source.buf[source.pos : source.pos + LABEL_ROOM].lstrip(" \t\r")
            if rest or source.ended or len(source.buf) - source.pos >= LABEL_ROOM:
                return not rest or rest[0] == "\n"
            yield

    def _held(self, char: str, length: int) -> Steps[bool]:
        """A tagged block in a fence of code (marked): True, told as text, once the fence is closed; else rewound at the end."""
        source, emitter = self.source, self.emitter
        emitter.muted = True
        inner = 1
        while (yield from self._until(char)):
            at_line_start = emitter.blank
            run = yield from self.marks.run(char)
            bare = yield from self._is_bare()
            if not at_line_start or run < length:
                continue
            if not bare:
                inner += 1
            elif inner:
                inner -= 1
            else:
                emitter.muted = False
                emitter.verbatim(source.take())
                return True
        emitter.muted = False
        emitter.blank = True
        source.rewind()
        return False


def _kind(info: str, length: int) -> str:
    """What a fence shows: "quote" (somebody's text: nothing in it is ever a call) or "code"."""
    words = info.split()
    label = words[0].lower().strip("{}.") if words else ""
    return "quote" if length > 3 or not label or label in QUOTING_LABELS else "code"
