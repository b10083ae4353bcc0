"""Fences: which blocks hold calls, which are code to be shown, and which quote somebody else.

A block whose label is the contract's tag holds calls. A block labelled ``json``, or not at all, holds calls only when the whole
of it is calls of known tools (``lenient``). Everything else is prose, and what stands inside it is quoted: a tagged block in a
Markdown, HTML, plain or longer fence is never a call. In a fence of code it is one only if that fence is never closed, which
shows at the end of the text; until then it is held back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache

from patchbay.formats.callreader import CallReader
from patchbay.formats.emitter import Emitter
from patchbay.formats.jsonreader import FENCES, JsonReader
from patchbay.formats.source import CutOff, NotACall, Source, Steps

_LABEL = re.compile(r"[ \t]*([\w.-]*)")
_RUN = {"`": re.compile("`+"), "~": re.compile("~+")}
_LABEL_ROOM = 80
_LINE_ROOM = 200
_BARE_WORD = re.compile(r"[\w+#.-]*")
_LENIENT_LABELS = frozenset({"", "json"})
_QUOTING_LABELS = frozenset(
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


@lru_cache(maxsize=64)
def label_forms(tag: str) -> frozenset[str]:
    """The spellings of a tag that count: any case, ``-`` or ``.`` for ``_``, with or without a final s."""
    plain = _plain(tag)
    return frozenset({plain, plain + "s", plain.removesuffix("s")})


def _plain(label: str) -> str:
    return label.lower().replace("-", "_").replace(".", "_")


class _Staged:
    """Calls of a block that is not accepted yet."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def start(self, name: str) -> list[str]:
        pieces: list[str] = []
        self.calls.append((name, pieces))
        return pieces

    def end(self) -> None:
        pass

    def passed_over(self, text: str) -> None:
        pass  # such a block is not accepted


class _Told:
    """Tells calls as they are read; prose that came before the first one in its block goes first."""

    def __init__(self, emitter: Emitter, reader: JsonReader) -> None:
        self.emitter = emitter
        self.reader = reader
        self.before: list[str] = []
        self.begun = False
        """A call of this block was told."""

    def start(self, name: str) -> list[str]:
        self.begun = True
        if self.before:
            self.emitter.text("".join(self.before).lstrip("\r\n"))
            self.before.clear()
        self.reader.guarded = False
        return self.emitter.start(name)

    def end(self) -> None:
        self.emitter.end()

    def passed_over(self, text: str) -> None:
        if self.begun:
            self.emitter.text(text)
        else:
            self.before.append(text)


class FenceReader:
    """Reads fences from ``source``.

    ``tag`` is the label of a block that holds calls. ``is_tool`` says which names are calls in such a block, ``is_offered`` which
    are in a block without the label.
    """

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
        self._labels = label_forms(tag)
        self._json = JsonReader(source, emitter.note)
        self._told = _Told(emitter, self._json)
        self._calls = CallReader(source, self._json, self._told, is_tool=is_tool, schema_keys=schema_keys, note=emitter.note)
        self._is_tool = is_tool
        self._is_offered = is_offered
        self._schema_keys = schema_keys
        self._tagged_seen = False
        self._promote = False
        """The end of the text was seen: fences that are still open will not be closed."""
        self.idle = False
        """Waiting inside a shown fence with nothing held back in the source."""
        self.line_passed = False
        """A line ended since the last run of fence characters."""

    @property
    def live_string(self) -> bool:
        """Waiting inside a string of a call's arguments."""
        return self._json.live_string and self.emitter.in_call

    def read(self, char: str) -> Steps[None]:
        """Read the fence whose first three characters are at ``pos``."""
        source, emitter = self.source, self.emitter
        line_start = emitter.blank
        source.mark()
        length = yield from self.run(char)
        label = yield from self.peek_label()
        if self.is_tag(label):
            if (yield from self._tagged(line_start=line_start)):
                self._tagged_seen = True
                return
            kind = "tag"
        elif self.lenient and line_start and label.lower() in _LENIENT_LABELS and not self._tagged_seen:
            if (yield from self._unmarked()):
                return
            kind = ""
        else:
            emitter.verbatim(source.take())
            yield from self._shown(char, length, line_start=line_start, kind="")
            return
        # It was read as calls and is not: from the start again, as prose.
        length = yield from self.run(char)
        emitter.verbatim(char * length)
        yield from self._shown(char, length, line_start=line_start, kind=kind)

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
            found = _LABEL.match(source.buf, source.pos)
            assert found is not None
            if found.end() < len(source.buf) or source.ended or len(found.group()) > _LABEL_ROOM:
                return found.group(1)
            yield

    # blocks that hold calls

    def _tagged(self, *, line_start: bool) -> Steps[bool]:
        """Read a block whose label is the tag; False, with the source rewound to the mark, if it holds no call."""
        self._json.quoted = self.emitter.quoted
        self._json.guarded = True
        self._told.before.clear()
        self._told.begun = False
        try:
            opened = yield from self._opener(line_start=line_start)
            read = opened and (yield from self._block())
        except NotACall:
            read = False
        finally:
            self._json.guarded = False
        if not read:
            self.source.rewind()
        return read

    def _opener(self, *, line_start: bool) -> Steps[bool]:
        """Read the label and what else stands on the opener's line; whether a value may follow."""
        source = self.source
        found = _LABEL.match(source.buf, source.pos)
        assert found is not None
        source.pos = found.end()
        glued = True
        while True:
            char = yield from source.peek()
            if char in ("\n", "\r", "[") or not char:
                return bool(char)
            if char == "{":
                while len(source.buf) - source.pos < 2 and not source.ended:
                    yield
                following = source.buf[source.pos + 1 : source.pos + 2]
                if not (glued and following.isalpha()):
                    return True
            elif char in " \t":
                source.pos += 1
                glued = False
                continue
            # other words on the line (tool_call:json, tool_call{x}, tool_call id=1): passed over, if it is a fence's line at all
            while source.buf.find("\n", source.pos) < 0 and not source.ended:
                if len(source.buf) - source.pos > _LINE_ROOM:
                    return False
                yield
            end = source.buf.find("\n", source.pos)
            words = source.buf[source.pos : end] if end >= 0 else ""
            if not line_start or end < 0 or len(words) > _LINE_ROOM or FENCES & set(words):
                return False
            source.pos = end
            return True

    def _block(self) -> Steps[bool]:
        """Read a tagged block's body and its closer; whether a call was in it."""
        source, reader, told = self.source, self._json, self._told
        count = 0
        after_value = False
        while True:
            blanks: list[str] = []
            char = yield from reader.space(blanks, comments=False)
            if not char:
                if count:
                    source.take()
                return count > 0
            if char in FENCES and (yield from reader.at_fence()):
                if count:
                    yield from self._closer(char)
                return count > 0
            if char in "{[":
                start = source.offset
                reader.guarded = True
                try:
                    read = yield from self._calls.read()
                except NotACall:
                    source.rewind_to(start)
                    told.passed_over("".join(blanks))
                    told.passed_over((yield from self._calls.skip_value()))
                    after_value = False
                except CutOff:
                    self.emitter.cut(source.since(start) if count else source.take(), self._calls.name)
                    return True
                else:
                    count += read
                    after_value = True
            elif after_value and char in ",;}]":
                source.pos += 1
                if char in "}]":
                    self.emitter.note("stray_bracket")
            else:
                after_value = False
                told.passed_over("".join(blanks))
                yield from self._prose(told.passed_over)

    def _prose(self, tell: Callable[[str], None]) -> Steps[None]:
        """Read words in a block, up to a line's end, a value or a fence."""
        source = self.source
        first = True
        while True:
            buf, pos = source.buf, source.pos
            end = buf.find("\n", pos + first)
            limit = end if end >= 0 else len(buf)
            ends = [at for at in (buf.find(mark, pos + first, limit) for mark in ("{", "```", "~~~")) if at >= 0]
            if ends:
                end = min(ends)
            elif end >= 0:
                end += 1
                ends.append(end)
            elif source.ended:
                end = len(buf)
            else:
                end = max(pos, len(buf) - 2)
            if end > pos:
                tell(buf[pos:end])
                source.pos = end
                first = False
            if ends or source.ended:
                return
            yield

    def _closer(self, char: str) -> Steps[None]:
        """Read the fence that ends a block with calls; an opener that stands in its place is left to be read as one."""
        source = self.source
        source.take()
        source.mark()
        length = yield from self.run(char)
        if (yield from self._is_opener()):
            source.rewind()
            if length >= 6:  # a closer and an opener, glued
                source.pos += 3
            return
        source.take()

    def _is_opener(self) -> Steps[bool]:
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

    def _unmarked(self) -> Steps[bool]:
        """Read a fence labelled ``json`` or not at all: calls if it holds nothing but calls. Else rewound to the mark."""
        source, reader = self.source, self._json
        staged = _Staged()
        self._calls.calls, self._calls.strict, self._calls.is_tool = staged, True, self._is_offered
        reader.guarded = True
        try:
            found = _LABEL.match(source.buf, source.pos)
            assert found is not None
            source.pos = found.end()
            accepted = yield from self._only_calls()
        except (NotACall, CutOff):
            accepted = False
        finally:
            self._calls.calls, self._calls.strict, self._calls.is_tool = self._told, False, self._is_tool
            reader.guarded = False
        if not accepted or any(self._echoes_schema(name, "".join(pieces)) for name, pieces in staged.calls):
            source.rewind()
            return False
        source.take()
        for name, pieces in staged.calls:
            self.emitter.start(name).extend(pieces)
            self.emitter.end()
        return True

    def _only_calls(self) -> Steps[bool]:
        source, reader = self.source, self._json
        count = 0
        while True:
            char = yield from reader.space()
            if char and char in "{[":
                read = yield from self._calls.read()
                if not read:
                    return False
                count += read
            elif char and char in ",;" and count:
                source.pos += 1
            elif not char:
                return count > 0
            elif char in FENCES and count and (yield from reader.at_fence()):
                yield from self.run(char)
                return not (yield from self._is_opener())
            else:
                return False

    def _echoes_schema(self, name: str, arguments: str) -> bool:
        """A tool's own schema shown as an example has the shape of a call: its arguments are a JSON Schema."""
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return False
        if not isinstance(value, dict) or not {"type", "properties"} <= value.keys():
            return False
        keys = self._schema_keys(name)
        return keys is None or not {"type", "properties"} <= keys

    # blocks that are shown

    def _shown(self, char: str, length: int, *, line_start: bool, kind: str) -> Steps[None]:
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
            run = yield from self.run(char)
            bare = yield from self._is_bare()
            if bare and run >= length and (at_line_start or not run_on_line):
                emitter.verbatim(source.take())
                if not inner:
                    return
                inner -= 1
            elif at_line_start and not bare and run >= length:
                label = yield from self.peek_label()
                if self.is_tag(label) and (kind == "tag" or (kind == "code" and self._promote)):
                    source.rewind()
                    return
                if self.is_tag(label) and kind == "code":
                    if (yield from self._held(char, length)):
                        return
                    self._promote = True
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
            newline, run = buf.find("\n", pos), buf.find(fence, pos)
            if newline >= 0 and (run < 0 or newline < run):
                end, why = newline + 1, "line"
            elif run >= 0:
                end, why = run, "fence"
            elif source.ended:
                end, why = len(buf), "text"
            else:
                end, why = max(pos, len(buf) - 2), ""
            piece = buf[pos:end]
            info = (info + piece)[:_LABEL_ROOM] if len(info) < _LABEL_ROOM else info
            emitter.verbatim(piece)
            source.pos = end
            if why == "fence":
                # the run belongs to the inline code: pass over it, so that it opens nothing
                emitter.verbatim(char * (yield from self.run(char)))
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
            end = buf.find(fence, pos)
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
            self.idle = end == len(buf) and not emitter.muted
            yield
            self.idle = False

    def _is_bare(self) -> Steps[bool]:
        """Whether nothing but blanks follows on the line; not read."""
        source = self.source
        while True:
            rest = source.buf[source.pos : source.pos + _LABEL_ROOM].lstrip(" \t\r")
            if rest or source.ended or len(source.buf) - source.pos >= _LABEL_ROOM:
                return not rest or rest[0] == "\n"
            yield

    def _held(self, char: str, length: int) -> Steps[bool]:
        """A tagged block in a fence of code (marked): True, told as text, once the fence is closed; else rewound at the end."""
        source, emitter = self.source, self.emitter
        emitter.muted = True
        inner = 1
        while (yield from self._until(char)):
            at_line_start = emitter.blank
            run = yield from self.run(char)
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
    return "quote" if length > 3 or not label or label in _QUOTING_LABELS else "code"
