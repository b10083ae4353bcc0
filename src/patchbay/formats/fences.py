"""Fenced blocks: calls under the contract's label, blocks of nothing but calls under any label, marked calls, and prose.

What stands in a prose fence is quoted: a labelled block in a Markdown, HTML, plain or longer fence is never a call. In a fence of
code, or without a label, it is one only if that fence is never closed, which is known at the end of the text; until then it is
held back. A block with the label of the contract's results ends the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from patchbay.formats.codecs.json import CallReader
from patchbay.formats.context import MAX_LABEL, RUN, Context, FenceLexer, Reader, skip_label
from patchbay.formats.emitter import CallSink, Emitter, call_key
from patchbay.formats.events import TextDelta
from patchbay.formats.scanner import RegionReader
from patchbay.formats.source import MalformedCall, MarkerSet, NoMatch, Source, Steps, Truncated, discard
from patchbay.formats.unmarked_blocks import ImplicitCallReader
from patchbay.formats.values.json_stream import FENCES
from patchbay.formats.values.json_strict import escaped
from patchbay.formats.values.raw_text import Boundary, end_text_call, read_text, start_text_call
from patchbay.types import ToolCall

_BARE_WORD = re.compile(r"[\w+#.-]*")
QUOTING_LABELS = frozenset({
    "md", "markdown", "mdx", "text", "txt", "plain", "plaintext", "html", "xhtml", "htm", "xml", "svg", "rst", "adoc",
    "asciidoc", "log", "email", "eml", "diff", "quote", "output", "tool_result",
})  # fmt: skip


class ProseFenceReader:
    """Reads prose fences, from behind their opening run."""

    def __init__(self, source: Source, emitter: Emitter, lexer: FenceLexer) -> None:
        self.source = source
        self.emitter = emitter
        self.lexer = lexer
        self.promote = False
        """The end of the text was seen: fences that are still open will not be closed."""
        self.line_passed = False
        """A line ended since the last run of fence characters."""

    def read(self, char: str, length: int, *, line_start: bool, kind: str) -> Steps[None]:
        """Read a prose fence from behind its opening run to its closer. ``kind`` is "tag" for a labelled block without a call."""
        source, emitter = self.source, self.emitter
        info, ended = yield from self._opener_line(char)
        if ended != "line" or not (line_start or _BARE_WORD.fullmatch(info.strip())):
            return  # inline code on one line, not a block
        kind = kind or _kind(info, length)
        inner = 0
        run_on_line = False
        while True:
            if not (yield from self._until(char)):
                return
            run_on_line = run_on_line and not self.line_passed
            at_line_start = emitter.at_line_start
            source.mark()
            run = yield from self.lexer.run(char)
            bare = yield from self._is_bare()
            if bare and run >= length and (at_line_start or not run_on_line):
                emitter.verbatim(source.take())
                if not inner:
                    return
                inner -= 1
            elif at_line_start and not bare and run >= length:
                label = yield from self.lexer.peek_label()
                if self.lexer.is_tag(label) and (kind == "tag" or (kind != "quote" and self.promote)):
                    source.rewind()
                    return
                if self.lexer.is_tag(label) and kind != "quote":
                    self.promote = not (yield from self._closed_block(char, length, inner))
                    return
                emitter.verbatim(source.take())
                if kind in ("quote", "unlabelled"):
                    inner += 1
            else:
                emitter.verbatim(source.take())
            run_on_line = True

    def _opener_line(self, char: str) -> Steps[tuple[str, str]]:
        """Read the rest of an opener's line; return its first words, and what ended it: "line", "fence" or "text"."""
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
            info = (info + piece)[:MAX_LABEL] if len(info) < MAX_LABEL else info
            emitter.verbatim(piece)
            source.pos = end
            if why == "fence":
                # the run belongs to the inline code: skip it, so that it opens nothing
                emitter.verbatim(char * (yield from self.lexer.run(char)))
            if why:
                return info, why
            yield

    def _until(self, char: str) -> Steps[bool]:
        """Emit text up to the next run of three; return False at the end of the text. Sets ``line_passed``."""
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
                source.fast_prose = self._fast_prose
            yield
            source.fast_prose = None

    def _fast_prose(self, text: str) -> TextDelta | None:
        """Fast path: return the event for a chunk without fence characters."""
        if "`" in text or "~" in text or not self.emitter.nothing_pending:
            return None
        self.line_passed = self.line_passed or "\n" in text
        return self.emitter.verbatim_event(text)

    def _is_bare(self) -> Steps[bool]:
        """True if only white space follows on the line; nothing is read."""
        source = self.source
        while True:
            rest = source.buf[source.pos : source.pos + MAX_LABEL].lstrip(" \t\r")
            if rest or source.ended or len(source.buf) - source.pos >= MAX_LABEL:
                return not rest or rest[0] == "\n"
            yield

    def _closed_block(self, char: str, length: int, inner: int) -> Steps[bool]:
        """Handle a labelled block (marked) in a fence with ``inner`` open fences in it.

        If the fence is closed, emit the block as text and return True; else rewind.
        """
        source, emitter = self.source, self.emitter
        emitter.muted = True
        inner += 1
        while (yield from self._until(char)):
            at_line_start = emitter.at_line_start
            run = yield from self.lexer.run(char)
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
        emitter.at_line_start = True
        source.rewind()
        return False


def _kind(info: str, length: int) -> str:
    """Classify a fence: "quote" (another author's text, in which nothing is ever a call), "unlabelled", or "code"."""
    words = info.split()
    label = words[0].lower().strip("{}.") if words else ""
    return "quote" if length > 3 or label in QUOTING_LABELS else "code" if label else "unlabelled"


_QUOTING_EXCEPT_XML = QUOTING_LABELS - {"xml"}


class MarkedFenceReader(Reader):
    """Reads fences that hold nothing but marked calls.

    ``openers``: markers that open calls. ``make_readers``: makes their readers for a trial emitter.
    """

    def __init__(
        self, context: Context, openers: MarkerSet, make_readers: Callable[[Emitter], Callable[[str], RegionReader]]
    ) -> None:
        super().__init__(context)
        self._fences = context.fences
        self._openers = openers
        self._trial_readers = make_readers
        self._known_keys: set[str] = set()
        self._seen = 0
        self._read_until = 0
        """Text up to here is not read on trial again: unclosed fences would each be read to the end of the text."""

    def read(self, char: str, label: str) -> Steps[bool]:
        """Read a fence from behind its run of ``char``, marked before it; return False, with nothing read, if it is prose."""
        source = self.source
        begin = source.offset
        if (
            begin >= self._read_until
            and self.rules.has_tools
            and label.lower() not in _QUOTING_EXCEPT_XML
            and (yield from self._at_opener())
        ):
            trial = Emitter(source, str)
            ended = yield from self._read_calls(char, trial)
            if ended and self._accept(trial):
                return True
            self._read_until = source.offset
        source.rewind_to(begin)
        return False

    def _at_opener(self) -> Steps[bool]:
        """Read the label's line; return whether an opener of calls follows."""
        source = self.source
        skip_label(source)
        line = source.offset
        yield from source.space()
        return "\n" in source.since(line) and bool((yield from self._openers.at(source)))

    def _read_calls(self, char: str, trial: Emitter) -> Steps[bool]:
        """Read calls up to the end of the fence or the text; return False if anything else is in it."""
        source, reader_of = self.source, self._trial_readers(trial)
        while True:
            following = yield from source.space()
            if following in ("", char):
                break
            marker = yield from self._openers.at(source)
            if not marker or not (yield from reader_of(marker)(marker)):
                return False
        if not following:
            return True
        length = yield from self._fences.run(char)
        return length >= 3 and not (yield from self._fences.is_opener())

    def _accept(self, trial: Emitter) -> bool:
        """Emit the calls read on trial, if nothing else was read and at least one of them is new."""
        found = trial.reply()
        if not found.tool_calls or found.content or found.reasoning or found.incomplete:
            return False
        if any(self.rules.offered(call.name) is None for call in found.tool_calls):
            return False
        if self._keys(found.tool_calls) <= self._known_calls():
            return False
        self.emitter.repaired(found.repairs)
        for call in found.tool_calls:
            self.calls.start(call.name).append(call.raw_arguments)
            self.calls.end()
        return True

    def _known_calls(self) -> set[str]:
        """Return the keys of all calls emitted so far, in fences or not."""
        calls = self.emitter.calls
        self._known_keys |= self._keys(calls[self._seen :])
        self._seen = len(calls)
        return self._known_keys

    def _keys(self, calls: Iterable[ToolCall]) -> set[str]:
        return {call_key(call.name, call.raw_arguments) for call in calls}


_MAX_LINE = 200
_TEXT_TOOL = re.compile(r"""(?:[\s:]*name=|[\s:]+)["']?([\w.-]+)["']?\s*""")
"""The text behind the label of a block with a tool's plain text: the tool's name."""
_NAMED_OBJECT = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"')
_OBJECT_LOOKAHEAD = 160
_LINE_BLANKS = re.compile("[ \t\r]*")
_MAX_RUN = 100


class _BlockSink:
    """Emits calls as they are read; prose before the first one in its block is emitted first."""

    def __init__(self, emitter: Emitter, calls: CallSink) -> None:
        self.emitter = emitter
        self.calls = calls
        self.before: list[str] = []
        self.begun = False
        """A call of this block was emitted."""

    def start(self, name: str) -> list[str]:
        self.begun = True
        if self.before:
            self.emitter.text("".join(self.before).lstrip("\r\n"))
            self.before.clear()
        return self.calls.start(name)

    def end(self) -> None:
        self.calls.end()

    def skip_text(self, text: str) -> None:
        if self.begun:
            self.emitter.text(text)
        else:
            self.before.append(text)


class CallFenceReader:
    """Reads blocks that are labelled as calls, from behind their opening run; the source is marked before it."""

    def __init__(self, context: Context) -> None:
        self.source = context.source
        self.emitter = context.emitter
        self.lexer = context.fences
        self._rules = rules = context.rules
        self._json = context.json
        self._sink = context.calls
        self._block_sink = _BlockSink(context.emitter, context.calls)
        self._calls = CallReader(context.source, context.json, self._block_sink, rules, note=context.emitter.note)
        self._text_tool = ""
        """The tool whose plain text the block holds, by the opener's line."""

    def tagged(self, char: str, length: int, *, line_start: bool) -> Steps[bool]:
        """Read a block whose label is the tag, behind ``length`` times ``char``.

        Return False, with the source rewound to the mark, if it holds no call.
        """
        self._text_tool = ""
        self._json.in_blockquote = self.emitter.in_blockquote
        self._json.guarded = self._json.fenced = True
        self._block_sink.before.clear()
        self._block_sink.begun = False
        try:
            opened = yield from self._opener(line_start=line_start)
            if opened and self._text_tool and length <= _MAX_RUN and not (yield from self._is_call_of(self._text_tool)):
                yield from self._text(self._text_tool, char, length)
                return True
            read = opened and (yield from self._block())
        except NoMatch:
            read = False
        finally:
            self._json.guarded = self._json.fenced = False
        if not read:
            self.source.rewind()
        return read

    def _opener(self, *, line_start: bool) -> Steps[bool]:
        """Read the rest of the opener's line; return whether a value may follow."""
        source = self.source
        skip_label(source)
        glued = True
        while True:
            char = yield from source.peek()
            if char in ("\n", "\r", "[") or not char:
                return bool(char)
            if char == "{":
                if not (glued and (yield from source.char(1)).isalpha()):
                    return True
            elif char in " \t":
                source.pos += 1
                glued = False
                continue
            # other words on the line (tool_call:json, tool_call{x}, tool_call id=1): skipped if this is a fence's line at all
            while source.find("\n", source.pos) < 0 and not source.ended:
                if len(source.buf) - source.pos > _MAX_LINE:
                    return False
                yield
            end = source.find("\n", source.pos)
            words = source.buf[source.pos : end] if end >= 0 else ""
            if not line_start or end < 0 or len(words) > _MAX_LINE or FENCES & set(words):
                return False
            source.pos = end
            named = _TEXT_TOOL.fullmatch(words if glued else f" {words}")
            name = self._rules.offered(named[1]) if named else None
            if name is not None and self._rules.text_parameter(name) is not None and not self.emitter.in_blockquote:
                self._text_tool = name
            return True

    def _is_call_of(self, tool: str) -> Steps[bool]:
        """Return whether the block holds a JSON call of ``tool`` in spite of its opener. A call of another tool is data."""
        source = self.source
        if (yield from source.char(1)) != "{":
            return False
        named = _NAMED_OBJECT.match((yield from source.ahead(_OBJECT_LOOKAHEAD)))
        return named is not None and self._rules.offered(named[1]) == tool

    def _text(self, name: str, char: str, length: int) -> Steps[None]:
        """Read a tool's plain text, from the end of the opener's line to a line with a fence at least as long as the opener's.

        Without such a line the call is cut off: how much of the text is missing is unknown.
        """
        source, sink = self.source, self._sink
        pieces = start_text_call(sink, name, self._rules.text_parameter(name) or "")
        try:
            if (yield from self._at_text_end(char, length)) is Boundary.NONE:
                source.pos += 1
                yield from read_text(source, pieces, lambda: self._at_text_end(char, length), marks="\n", encode=escaped)
        except Truncated:
            sink.cut(source.take())
            return
        end_text_call(sink, pieces)
        source.take()

    def _at_text_end(self, char: str, length: int) -> Steps[Boundary]:
        """Classify the line break at ``pos``; a closing fence is read, nothing else."""
        source = self.source
        if (yield from source.char(1)) != char:
            return Boundary.NONE
        end = yield from source.run(1, RUN[char])
        if end <= length:
            return Boundary.NONE
        end = yield from source.run(end, _LINE_BLANKS)
        if (yield from source.char(end)) not in ("", "\n"):
            return Boundary.NONE
        source.pos += end
        return Boundary.CLOSED

    def _block(self) -> Steps[bool]:
        """Read a labelled block's body and its closer; return whether it held a call."""
        source, reader, block_sink = self.source, self._json, self._block_sink
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
                except NoMatch:
                    source.rewind_to(start)
                    block_sink.skip_text("".join(blanks))
                    block_sink.skip_text((yield from self._calls.skip_value()))
                    after_value = False
                except MalformedCall:
                    while (char := (yield from source.peek())) and not (char in FENCES and (yield from reader.at_fence())):
                        yield from self._prose(discard)
                    self._sink.name = self._calls.name
                    self._sink.cut(source.since(start))
                    count += 1
                except Truncated:
                    self._sink.name = self._calls.name
                    self._sink.cut(source.since(start) if count else source.take())
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
                block_sink.skip_text("".join(blanks))
                yield from self._prose(block_sink.skip_text)

    def _prose(self, emit: Callable[[str], None]) -> Steps[None]:
        """Read prose in a block, up to a line's end, a value or a fence."""
        source = self.source
        first = True
        while True:
            buf, pos = source.buf, source.pos
            end = source.find("\n", pos + first)
            limit = end if end >= 0 else len(buf)
            ends = [at for at in (source.find(mark, pos + first) for mark in ("{", "```", "~~~")) if 0 <= at < limit]
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
                emit(buf[pos:end])
                source.pos = end
                first = False
            if ends or source.ended:
                return
            yield

    def _closer(self, char: str) -> Steps[None]:
        """Read the fence that ends a block with calls; an opener in its place is left to be read as one."""
        source = self.source
        source.take()
        source.mark()
        length = yield from self.lexer.run(char)
        if (yield from self.lexer.is_opener()):
            source.rewind()
            if length >= 6:  # a closer directly followed by an opener
                source.pos += 3
            return
        source.take()


_LENIENT_LABELS = frozenset({"", "json"})
_QUOTED_LABEL = re.compile(
    ".*(?:result|response|output)|quote|diff|email|java|js|ts|(?:bash|c|cpp|cs|csharp|css|go|html?|kotlin|lua|perl|php|ps1|r|rb|ruby|rust|rs|"
    r"scala|sh|shell|sql|swift|typescript|ya?ml|zsh|console)\Z",
    re.IGNORECASE,
).match
"""Labels of fences that quote other authors, or hold code other than Python: no call of the model is in them."""


class FenceReader(Reader):
    """Reads the fences of a text.

    ``blocks``: for those labelled as calls (None: none are). ``implicit``: for those that hold nothing but calls. ``marked``: for
    those that hold nothing but marked calls. ``any_label``: ``implicit`` accepts any label.
    """

    def __init__(
        self,
        context: Context,
        blocks: CallFenceReader | None,
        implicit: ImplicitCallReader | None,
        marked: MarkedFenceReader,
        *,
        any_label: bool,
    ) -> None:
        super().__init__(context)
        self.lenient = context.lenient
        self.lexer = context.fences
        self.blocks = blocks
        self.implicit = implicit
        self.any_label = any_label
        self.marked = marked
        self.prose = ProseFenceReader(context.source, context.emitter, context.fences)
        self._tagged_seen = False

    def read_fence(self, marker: str) -> Steps[bool]:
        """Read the fence at ``pos``, of any kind; ``marker`` are its first three characters."""
        source, emitter, blocks, char = self.source, self.emitter, self.blocks, marker[0]
        line_start = emitter.at_line_start
        source.mark()
        length = yield from self.lexer.run(char)
        label = yield from self.lexer.peek_label()
        if blocks is not None and self.lexer.is_tag(label):
            if (yield from blocks.tagged(char, length, line_start=line_start)):
                self._tagged_seen = True
                return True
            kind = "tag"
        elif blocks is not None and line_start and not emitter.in_blockquote and self.lexer.is_result_tag(label):
            yield from self._end_text()
            return True
        elif line_start and length == 3 and not self._tagged_seen and (yield from self._holds_marked_calls(char, label)):
            source.take()
            return True
        elif self.implicit is not None and line_start and not self._tagged_seen and self._may_hold_calls(label):
            if (yield from self.implicit.fenced(self.lexer)):
                source.take()
                return True
            source.rewind()
            kind = ""
        else:
            emitter.verbatim(source.take())
            yield from self.prose.read(char, length, line_start=line_start, kind="")
            return True
        # It was read as calls and is not: read it again from the start, as prose.
        length = yield from self.lexer.run(char)
        emitter.verbatim(char * length)
        yield from self.prose.read(char, length, line_start=line_start, kind=kind)
        return True

    def _end_text(self) -> Steps[None]:
        """Drop the rest of the text: the model invented a result, and goes on from there."""
        self.source.release()
        self.emitter.markup()
        self.emitter.note("invented_result")
        while not self.source.ended:
            self.source.pos = len(self.source.buf)
            yield
        self.source.pos = len(self.source.buf)

    def _holds_marked_calls(self, char: str, label: str) -> Steps[bool]:
        if not self.lenient or self.emitter.in_blockquote or self.emitter.turn_ended:
            return False
        return (yield from self.marked.read(char, label))

    def _may_hold_calls(self, label: str) -> bool:
        if label.lower() in _LENIENT_LABELS:
            return self.lenient
        return self.lenient and self.any_label and _QUOTED_LABEL(label) is None
