"""Calls as a name and pairs of tags: ``f<arg_key>k</arg_key><arg_value>v</arg_value>``, and as models damage them.

    get_weather <arg_key> city </arg_key> <arg_value> Paris </arg_value>               GLM, Ling, Spark, IQuest, Laguna
    get_weather<tool_sep> <arg_key:x> city </arg_key:x> ...                            Hunyuan, with a checkpoint's suffix
    lookup <ifm|arg_key> k </ifm|arg_key> <ifm|arg_type> t </ifm|arg_type> ...         K2 Horizon

Any of the tags may be missing, or replaced by another: under load some servers lose one in ten. A key without a value is dropped,
and so is a value without a key. Values are raw; a closer inside of one is text if its opener is in the value too, or if the call
does not continue behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from patchbay.formats.codecs.elements import Tag, Tags
from patchbay.formats.codecs.xml import ANGLE, TagContext
from patchbay.formats.context import Context, Reader
from patchbay.formats.source import MarkerSet, NoMatch, Steps, Truncated, discard
from patchbay.formats.spec import Wrapper
from patchbay.formats.values.coerce import coerce
from patchbay.formats.values.json_strict import escaped
from patchbay.formats.values.raw_text import Boundary, QuotedCalls, UntypedArguments, read_text, verbatim

KEY: Final = "arg_key"
VALUE: Final = "arg_value"
_TYPE, _SEPARATOR = "arg_type", "tool_sep"
TAGS: Final = Tags((KEY, VALUE, _TYPE, _SEPARATOR), ("ifm|",))
_WORD = re.compile(r"[^<>\n]{1,128}")
_MAX_WORD = 128


class Pairs:
    """Reads pairs into ``arguments``. ``closers``: markers that end wrappers."""

    def __init__(self, context: Context, structure: TagContext, closers: frozenset[str], arguments: UntypedArguments) -> None:
        self.context = context
        self.source = context.source
        self.structure = structure
        self.arguments = arguments
        self.note = context.emitter.note
        self._closers = closers
        self._begun = False
        self._prefix = ""
        """Prefix of this call's tags."""

    def read(self, key: str = "") -> Steps[None]:
        """Read to the call's end and emit the call. ``key``: the first key, if it was read already. Raises NoMatch, Truncated."""
        if key:
            yield from self._read_value_of(key)
            self._begun = True
        while (yield from self._next()):
            self._begun = True
        self.arguments.emit()

    def _next(self) -> Steps[bool]:
        """Read the next pair, or a stray tag; return False, with nothing read, at the end of the call."""
        source = self.source
        before = source.offset
        char = yield from self.structure.space()
        tag = (yield from TAGS.at(source)) if char == "<" else None
        if not char or (tag is not None and tag.cut):
            raise Truncated  # more pairs may be missing
        if tag is None:
            mark = yield from self.structure.ends.at(source)
            if not mark and self.structure.ends.is_cut_off(source):
                raise Truncated
            place = source.offset
            if mark not in self._closers:
                source.pos += len(mark)
            if mark not in self._closers and (yield from self._is_key()):
                self.note("wrong_opener" if mark else "unopened_tag")
                yield from self._read_value_of((yield from self._word()))
                return True
            if not self._begun:
                raise NoMatch
            source.rewind_to(place if mark else before)
            return False
        source.pos += tag.size
        self._prefix = tag.prefix
        if tag.word == KEY and not tag.closes:
            yield from self._read_value_of((yield from self._word()))
        elif tag.word == VALUE and not tag.closes:
            self.note("value_without_key")
            yield from self._text([])
        elif tag.word != _SEPARATOR:
            self.note("stray_tag")
        return True

    def _word(self, keys: tuple[str, ...] = ()) -> Steps[str]:
        """Read a key or a type's name, up to a tag or the end of the line, and only while it may become one of ``keys``."""
        source = self.source
        while True:
            found = _WORD.match(source.buf, source.pos)
            end = found.end() if found else source.pos
            word = source.buf[source.pos : end].strip()
            none = bool(keys) and not any(key.startswith(word) for key in keys)
            if end < len(source.buf) or end - source.pos >= _MAX_WORD or none:
                source.pos = end
                return word
            if source.ended:
                raise Truncated
            yield

    def _read_value_of(self, key: str) -> Steps[None]:
        """Read the rest of a pair from behind its key; a key without a value is dropped."""
        source = self.source
        declared = ""
        while True:
            before = source.offset
            char = yield from self.structure.space()
            tag = (yield from TAGS.at(source)) if char == "<" else None
            if not char or (tag is not None and tag.cut):
                raise Truncated
            if tag is None:
                if not (yield from self.structure.ends.at(source)):
                    self.note("unopened_tag")
                    break
                source.rewind_to(before)
                self.note("key_without_value")
                return
            if tag.word == KEY and not tag.closes:
                source.rewind_to(before)
                self.note("key_without_value")
                return
            source.pos += tag.size
            self._prefix = tag.prefix
            if tag.word == VALUE:
                if tag.closes:
                    self.note("key_without_value")
                    return
                break
            if tag.word == _TYPE and not tag.closes:
                declared = yield from self._word()
        if key:
            yield from self._value(key, declared)
        else:
            self.note("value_without_key")
            yield from self._text([])

    def _value(self, key: str, declared: str) -> Steps[None]:
        arguments = self.arguments
        known = key in (arguments.types.keys or ())
        if arguments.is_streamable(key) and (known or declared in ("", "string")):
            pieces = arguments.begin_text(key)
            yield from self._text(pieces, escaped)
            arguments.end_text()
            return
        sink: list[str] = []
        yield from self._text(sink, scalar=known and arguments.is_scalar(key))
        text = "".join(sink)
        arguments.add(key, self._json(key, text) if known or not declared else coerce(text, {"type": declared}, None), text)

    def _json(self, key: str, text: str) -> str:
        """Return JSON for a value; a JSON text with escaped quotes is unescaped first."""
        types = self.arguments.types
        value = types.json(key, text)
        if not value.startswith('"') or '\\"' not in text or types.is_text(key):
            return value
        try:
            unescaped = json.loads(f'"{text}"', strict=False)
        except ValueError:
            return value
        again = types.json(key, unescaped)
        if again.startswith('"'):
            return value
        self.note("escaped_value")
        return again

    def _text(self, sink: list[str], encode: Callable[[str], str] = verbatim, *, scalar: bool = False) -> Steps[None]:
        """Read a value into ``sink``. ``scalar``: no tag can stand in it."""
        quoted = QuotedCalls()
        yield from read_text(self.source, sink, lambda: self._end(quoted, scalar=scalar), encode=encode)

    def _end(self, quoted: QuotedCalls, *, scalar: bool) -> Steps[Boundary]:
        """Classify ``pos`` in a value. ``quoted``: the calls that the value quotes."""
        source, context = self.source, self.context
        begin = source.offset
        tag = yield from TAGS.at(source)
        if tag is not None and tag.cut:
            raise Truncated
        broken = False
        if tag is None:
            mark = yield from self.structure.ends.at(source)
            source.pos += len(mark)
            if mark in context.call_openers:
                quoted.open_call()
            elif mark in context.call_closers and not quoted.close_call():
                broken = scalar or (yield from self.structure.value_cannot_continue())
            elif mark.startswith("</"):
                quoted.close_call(mark.replace("/", "", 1))
            elif mark:
                quoted.open_call(mark)  # of a related format, with the same tags inside
        elif tag.prefix == self._prefix and tag.closes and tag.word in (KEY, VALUE):
            source.pos += tag.size
            after = source.offset
            closes = scalar or (yield from self._closes(tag, quoted))
            source.rewind_to(after if closes else begin)
            return Boundary.CLOSED if closes else Boundary.NONE
        elif tag.prefix == self._prefix and tag.word == VALUE:
            quoted.open_value()
        elif tag.prefix == self._prefix and tag.word == KEY and not quoted.any_open:
            source.pos += tag.size
            broken = (yield from self._is_key(new=True)) and (scalar or (yield from self._is_next()))
        source.rewind_to(begin)
        if broken:
            self.note("unclosed_tag")
        return Boundary.BROKEN if broken else Boundary.NONE

    def _is_next(self) -> Steps[bool]:
        """True if a key in a value is not quoted: the call continues behind its value, if all tags are there."""
        source = self.source
        while (yield from source.read_to(ANGLE, discard)):
            tag = yield from TAGS.at(source)
            if tag is None and (yield from self.structure.ends.at(source)) in self.context.call_closers:
                break
            if tag is not None and (tag.cut or (tag.word == KEY and not tag.closes)):
                break
            source.pos += tag.size if tag is not None else 1
            if tag is not None and tag.closes and tag.word == VALUE:
                if (yield from self.structure.value_cannot_continue()):
                    return True
                tag = yield from TAGS.at(source)
                return (yield from self._is_key(new=True)) if tag is None else tag.word == KEY
        return True

    def _closes(self, closer: Tag, quoted: QuotedCalls) -> Steps[bool]:
        """True if a closer, which was read, ends the value: only the call's rest can begin behind it."""
        if closer.word == KEY or quoted.close_value():
            return not quoted.any_open and (yield from self._own_markup_follows())
        if (yield from self.structure.value_cannot_continue()):
            return True
        tag = yield from TAGS.at(self.source)
        if tag is None:
            return (yield from self._is_key(new=True))
        return tag.cut or tag.closes or tag.word == KEY

    def _own_markup_follows(self) -> Steps[bool]:
        """True if the call's end or a new key of the schema follows, behind a closer that may belong to the value."""
        char = yield from self.structure.space()
        if not char or (yield from self.structure.ends.at(self.source)) in self.context.call_closers:
            return True
        tag = yield from TAGS.at(self.source)
        if tag is None or tag.closes or tag.word != KEY:
            return tag is not None and tag.cut
        self.source.pos += tag.size
        return (yield from self._is_key(new=True))

    def _is_key(self, *, new: bool = False) -> Steps[bool]:
        """True if a key stands at ``pos``, with the tag that closes it or opens its value; nothing is read.

        ``new``: only a key that was not given yet, and is in the schema if that names any.
        """
        source = self.source
        begin = source.offset
        keys = (self.arguments.types.keys or ()) if new else ()
        try:
            word = yield from self._word(keys)
            if (keys and word not in keys) or (new and word in self.arguments.keys):
                return False
            tag: Tag | None = yield from TAGS.at(source)
        except Truncated:
            return False
        finally:
            source.rewind_to(begin)
        return bool(word) and tag is not None and tag.word in (KEY, VALUE) and tag.closes == (tag.word == KEY)


_MAX_HEADER = 256
_HEADER = re.compile(r"""[^<>{}\[\]()"'`]{1,256}""")


class KeyValueCalls(Reader):
    """Reads one call from its name on.

    ``closers``: markers that end wrappers. ``ends``: all markers and special tokens, any of which may follow a value.
    """

    def __init__(self, context: Context, closers: tuple[str, ...], ends: MarkerSet) -> None:
        super().__init__(context)
        self.structure = TagContext(context.source, ends)
        self._closers = frozenset(closers)

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:  # noqa: ARG002 - the tags say that it is a call
        """Read one call and return 1."""
        if wrapper.body_prefix_len:
            raise NoMatch
        header = yield from self._header()
        tag = yield from TAGS.at(self.source)
        if tag is None and not (yield from self.structure.ends.at(self.source)):
            raise NoMatch
        name, key = self._split_header(header, tag)
        self.calls.name = name
        arguments = UntypedArguments(self.calls, name, self.rules.types(name), self.note)
        yield from Pairs(self.context, self.structure, self._closers, arguments).read(key)
        return 1

    def _header(self) -> Steps[str]:
        """Read up to the first tag."""
        source = self.source
        size = yield from source.run(0, _HEADER, _MAX_HEADER)
        header = source.buf[source.pos : source.pos + size]
        source.pos += size
        if not header or source.buf[source.pos : source.pos + 1] != "<":
            raise NoMatch
        return header.replace("\\n", "\n").strip()

    def _split_header(self, header: str, tag: Tag | None) -> tuple[str, str]:
        """Return the tool's name, and the first key if its opening tag is missing. Raises NoMatch."""
        if tag is None or tag.word not in (KEY, VALUE) or tag.closes != (tag.word == KEY):
            name = self.rules.resolve(header)
            if name is None:
                raise NoMatch
            return name, ""
        self.note("unopened_tag")
        line, _, key = header.partition("\n")
        name = self.rules.resolve(line) if key else None
        if name is not None:
            return name, key.strip()
        for name in self.rules.names_starting(header):
            key = header[len(name) :].strip()
            if key in (self.rules.types(name).keys or ()):
                return name, key
        raise NoMatch
