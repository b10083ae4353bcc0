"""Gemma's notation for calls: ``call:f{city:<|"|>Rome<|"|>,days:3}``, with the mistakes that models make in it.

Keys have no quotes, strings stand between two equal tokens, without escapes, and everything else is bare. A string is emitted
while it arrives. Models leave out a string's second token, or both, or use quotes, and leave out brackets: what is emitted then
is the nearest JSON.
"""

from __future__ import annotations

import json
import re

from patchbay.formats.codecs.named import BracketArguments
from patchbay.formats.context import Context, Reader
from patchbay.formats.source import MalformedCall, MarkerSet, NoMatch, Source, Steps, Truncated, UnknownTool, marker_set
from patchbay.formats.spec import Wrapper
from patchbay.formats.values.json_stream import COLON, COMMA, KEY, QUOTE_TOKENS, JsonReader, Nesting
from patchbay.formats.values.json_strict import JSON_NUMBER, JSON_WORDS, PYTHON_WORDS, escaped
from patchbay.formats.values.raw_text import QuotedCalls
from patchbay.formats.values.tool_names import ToolTypes

_NEEDS_NO_READER = re.compile(r'[^<"\\\x00-\x1f\x7f,}\]]*').fullmatch
_TAIL = re.compile(r"""(?:[}\]][}\]\s]{0,63}|,\s{0,8}["']?[\w.-]{0,64}["']?\s{0,4}:?\s{0,4})\Z""")
_TAIL_LOOKBEHIND = 96
"""The end of a string that does not belong to it if its second token is missing: brackets, or the next key."""
_NEXT_KEY = re.compile(r""",\s{0,8}["']?([\w.-]{1,64})["']?\s{0,4}:\s{0,4}\Z""")
_BRACKETS = re.compile(r"[}\]][}\]\s]{0,63}\Z")
_BARE = re.compile(r"[^,{}\[\]<]+")
_KEY = re.compile(r"""[^:{}\[\],<"'\s]+""")
_KEY_AHEAD = re.compile(
    r""",\s{0,32}(?:"(?:[^"\\\n]|\\.){1,64}"|(?:["']|<\|"\|>|<escape>)?[\w.-]{1,64}(?:["']|<\|"\|>|<escape>)?)\s{0,4}:(?!//)"""
)
_KEY_LOOKAHEAD = 128
_BEFORE_STRING = (":", ",", "[", "{")


class GemmaValues:
    """Reads the arguments of one call. Closers of ``wrapper`` end it, even in a string, and ``ends`` elsewhere."""

    def __init__(self, reader: JsonReader, wrapper: Wrapper, ends: MarkerSet, types: ToolTypes) -> None:
        self.source = reader.source
        self.note = reader.note
        self.types = types
        self._json = reader
        self._wrapper = wrapper
        self._ends = ends
        self._key = ""
        """Parameter whose value comes next."""
        self._broken = False
        """The arguments can only be repaired by inventing something."""

    def read(self, sink: list[str]) -> Steps[None]:
        """Read an object from its bracket on; append its JSON to ``sink``, a call's. Raises MalformedCall, Truncated."""
        source, nesting = self.source, Nesting(sink, self.note)
        while not nesting.complete:
            char = yield from self._json.space(nesting.gap, comments=False)
            token = (yield from QUOTE_TOKENS.at(source)) if char == "<" else ""
            if not char:
                raise Truncated
            if (nesting.due == COLON and char.isalnum()) or (nesting.lacks_value and nesting.depth and char in ",}]"):
                self._broken, nesting.due = True, COMMA  # it is unknown which word is a key, or what its value is
                nesting.sink = []
            if token and nesting.due == COMMA:
                self.note("stray_character")
                source.pos += len(token)
            elif char == "<" and not token and (yield from self._ends.at(source)):
                if nesting.lacks_value:
                    raise MalformedCall
                nesting.end()
            elif char in "}]":
                source.pos += nesting.close(char)
            elif nesting.consume(char):
                source.pos += 1
            elif nesting.due == KEY:
                nesting.write_gap()
                self._emit_key(nesting, (yield from self._read_key(char, token)))
            elif char in "{[":
                source.pos += 1
                nesting.open(char)
            elif token:
                source.pos += len(token)
                nesting.write_gap()
                yield from self._text(nesting, token)
            else:
                nesting.write_gap()
                yield from self._plain(nesting, char)
                nesting.end_value()
        if self._broken:
            raise MalformedCall

    def _emit_key(self, nesting: Nesting, key: str) -> None:
        if nesting.depth == 1:
            self._key = key
        nesting.sink.append(json.dumps(key, ensure_ascii=False))
        nesting.due = COLON

    def _read_key(self, char: str, token: str) -> Steps[str]:
        """Read a key, with or without quotes or tokens around it."""
        source = self.source
        if char in "\"'":
            written: list[str] = []
            yield from self._json.key(written, streamed=False)
            return str(json.loads("".join(written)))
        source.pos += len(token)
        key = yield from self.source.read_run(_KEY)
        if not key:
            key = source.buf[source.pos : source.pos + 1]
            source.pos += 1
        if token and (yield from QUOTE_TOKENS.at(source)) == token:
            source.pos += len(token)
        return key

    def _text(self, nesting: Nesting, token: str) -> Steps[None]:
        """Read strings from behind their first token: one, or several if second tokens were left out."""
        while True:
            encoded_twice = nesting.depth == 1 and self._key in self.types.unquoted
            pieces: list[str] = [] if encoded_twice else nesting.sink
            following = yield from self._string(pieces, token, nesting.depth, streamed=not (encoded_twice or self._broken))
            if encoded_twice:
                nesting.sink.append(self.types.decoded(self._key, "".join(pieces)))
            nesting.end_value()
            if not following:
                return
            self.note("unclosed_string")
            nesting.consume(",")
            nesting.write_gap()
            self._emit_key(nesting, following)
            nesting.consume(":")

    def _string(self, sink: list[str], token: str, depth: int, *, streamed: bool) -> Steps[str]:
        """Read up to and including the second token; return the next key if that token really begins the next value."""
        source, wrapper, quoted = self.source, self._wrapper, QuotedCalls()
        wanted = marker_set((token, *wrapper.openers, *wrapper.closers))
        sink.append('"')
        text = before = ""
        while True:
            end, mark = wanted.next(source, source.pos)
            text += source.buf[source.pos : end]
            source.pos = end
            if mark and _is_quoted(mark, token, wrapper, quoted, (before + text[-2:])[-2:]):
                text += mark
                source.pos += len(mark)
                continue
            if mark == token:
                source.pos += len(token)
                key = _NEXT_KEY.search(text, max(0, len(text) - _TAIL_LOOKBEHIND))
                opens = key is not None and (yield from source.peek()) not in ("", ",", "}", "]", "<")
                sink.append(escaped(text[: key.start()] if key and opens else text) + '"')
                return key[1] if key and opens else ""
            if mark:
                self.note("unclosed_string")
                brackets = _BRACKETS.search(text, max(0, len(text) - _TAIL_LOOKBEHIND))
                sink.append(escaped(_strip_brackets(text, brackets.start(), depth) if brackets else text) + '"')
                return ""
            if source.ended:
                sink.append(escaped(text + source.buf[source.pos :]))
                source.pos = len(source.buf)
                raise Truncated
            tail = _TAIL.search(text, max(0, len(text) - _TAIL_LOOKBEHIND))
            sure = tail.start() if tail else len(text)
            sink.append(escaped(text[:sure]))
            before = (before + text[max(0, sure - 2) : sure])[-2:]
            text = text[sure:]
            if streamed and not text and not quoted.any_open and source.pos == len(source.buf):
                source.fast_argument = _fast_chunk
            yield
            source.fast_argument = None

    def _plain(self, nesting: Nesting, char: str) -> Steps[None]:
        """Read a value without tokens: in quotes, a number, a constant, or a text."""
        member = nesting.depth == 1
        if char in "\"'":
            if not (member and self._key in self.types.unquoted):
                yield from self._json.string(nesting.sink, streamed=not self._broken)
                return
            pieces: list[str] = []
            yield from self._json.string(pieces, streamed=False)
            nesting.sink.append(self.types.decoded(self._key, "".join(pieces)))
            return
        text = (yield from self._bare(in_object=nesting.in_object)).strip()
        if text in JSON_WORDS or JSON_NUMBER.fullmatch(text):
            nesting.sink.append(text)
        elif text in PYTHON_WORDS:
            self.note("foreign_constant")
            nesting.sink.append(PYTHON_WORDS[text])
        else:
            self.note("unquoted_string")
            nesting.sink.append(self.types.json(self._key, text) if member else json.dumps(text, ensure_ascii=False))

    def _bare(self, *, in_object: bool) -> Steps[str]:
        """Read bare text up to the end of its value: an unmatched bracket, the next member, a token, a marker."""
        source = self.source
        pieces: list[str] = []
        depth = 0
        while True:
            pieces.append((yield from self.source.read_run(_BARE)))
            char = yield from source.peek()
            if not char:
                raise Truncated
            if char in "}]" and not depth:
                return "".join(pieces)
            if char == "<" and ((yield from QUOTE_TOKENS.at(source)) or (yield from self._ends.at(source))):
                return "".join(pieces)
            if char == "," and not depth and (not in_object or (yield from self._at_key())):
                return "".join(pieces)
            depth += (char in "{[") - (char in "}]")
            pieces.append(char)
            source.pos += 1

    def _at_key(self) -> Steps[bool]:
        """True if the comma at ``pos`` stands before a key."""
        source = self.source
        while len(source.buf) - source.pos < _KEY_LOOKAHEAD and not source.ended:
            found = _KEY_AHEAD.match(source.buf, source.pos)
            if found and len(source.buf) - found.end() >= len("//"):
                break
            yield
        return _KEY_AHEAD.match(source.buf, source.pos) is not None


def _is_quoted(mark: str, token: str, wrapper: Wrapper, quoted: QuotedCalls, before: str) -> bool:
    """Count a marker of a call that a string quotes; return False if it ends the string. ``before``: two characters."""
    if mark in wrapper.openers:
        quoted.open_call()
    elif mark != token:
        return quoted.close_call()
    elif quoted.any_open and before.rstrip().endswith(_BEFORE_STRING):
        quoted.open_value()
    else:
        return quoted.close_value()
    return True


def _fast_chunk(chunk: str) -> str | None:
    return chunk if _NEEDS_NO_READER(chunk) else None


def _strip_brackets(text: str, begin: int, depth: int) -> str:
    """Return a text without the brackets at its end that close open objects; ``begin``: where its last brackets begin."""
    end = len(text)
    for at in range(len(text) - 1, begin - 1, -1):
        if text[at] in "}]":
            if not depth:
                break
            depth -= 1
            end = at
    return text[:end]


CLOSERS = frozenset({"<tool_call|>", "<end_function_call>"})
"""Closers of wrappers in which a call needs no word before its name."""

_CALL_WORD = "call:"


_NAME = re.compile(r"[\w./:\\-]*")
_MAX_NAME = 256


def read_name(source: Source) -> Steps[str]:
    """Read what may be a tool's name; return "" if there is none. Raises NoMatch if it is too long."""
    size = yield from source.run(0, _NAME, _MAX_NAME + 1)
    if size > _MAX_NAME:
        raise NoMatch
    source.pos += size
    return source.buf[source.pos - size : source.pos]


class GemmaCalls(Reader):
    """Reads one call. ``ends``: all markers and special tokens, any of which ends a call outside of its strings."""

    def __init__(self, context: Context, ends: MarkerSet) -> None:
        super().__init__(context)
        self._json = context.json
        self._ends = ends
        self._brackets = BracketArguments(context)

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:  # noqa: ARG002 - the word, or the wrapper, says that it is a call
        """Read one call and return 1."""
        has_word = yield from self._call_word()
        if not has_word and CLOSERS.isdisjoint(wrapper.closers):
            raise NoMatch
        written = yield from self._name()
        char = yield from self.source.space()
        name = self.rules.resolve(written) if written else None
        if not char and (not written or self.rules.begins_name(written) or name is not None):
            self.calls.name = name or ""
            raise Truncated
        if not written or (not has_word and char != "{"):
            raise NoMatch
        if name is None:
            if char == "{":
                yield from self._skip_arguments(wrapper)
            raise UnknownTool
        self.calls.name = name
        if char == "(":
            yield from self._brackets.read(name)
            return 1
        if char == "{":
            types = self.rules.types(name)
            yield from GemmaValues(self._json, wrapper, self._ends, types).read(self.calls.start(name))
        elif (yield from self._ends.at(self.source)) and self.rules.offered(name) is not None:
            self.calls.start(name).append("{}")
        else:
            raise NoMatch
        self.calls.end()
        return 1

    def name(self) -> Steps[str]:
        """Read the word ``call:``, if there is one, and the name; return the name. Raises NoMatch, Truncated."""
        yield from self._call_word()
        return (yield from self._name())

    def _skip_arguments(self, wrapper: Wrapper) -> Steps[None]:
        try:
            yield from GemmaValues(self._json, wrapper, self._ends, self.rules.types("")).read([])
        except (MalformedCall, Truncated):
            pass
        self.calls.skipped_to = self.source.offset

    def _call_word(self) -> Steps[bool]:
        """Read the word ``call:`` before a name; return whether there is one."""
        source = self.source
        while (
            not source.ended
            and len(source.buf) - source.pos < len(_CALL_WORD)
            and _CALL_WORD.startswith(source.buf[source.pos :])
        ):
            yield
        rest = source.buf[source.pos : source.pos + len(_CALL_WORD)]
        if source.ended and rest and rest != _CALL_WORD and _CALL_WORD.startswith(rest):
            source.pos = len(source.buf)
            raise Truncated
        source.pos += len(_CALL_WORD) if rest == _CALL_WORD else 0
        return rest == _CALL_WORD

    def _name(self) -> Steps[str]:
        yield from self.source.space()
        return (yield from read_name(self.source)).lstrip(":")
