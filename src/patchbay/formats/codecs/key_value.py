"""Calls as a name and pairs of tags: ``f<arg_key>k</arg_key><arg_value>v</arg_value>``, and as models damage them.

    get_weather <arg_key> city </arg_key> <arg_value> Paris </arg_value>               GLM, Ling, Spark, IQuest, Laguna
    get_weather<tool_sep> <arg_key:x> city </arg_key:x> ...                            Hunyuan, with a checkpoint's suffix
    lookup <ifm|arg_key> k </ifm|arg_key> <ifm|arg_type> t </ifm|arg_type> ...         K2 Horizon

Any of the tags may be missing, or replaced by another: under load some servers lose one in ten. A key without a value is dropped,
and so is a value without a key. Values are raw; a closer inside of one is text unless the call continues behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from patchbay.formats.codecs.elements import Tag, Tags
from patchbay.formats.codecs.xml import TagContext
from patchbay.formats.context import Context, Reader
from patchbay.formats.source import MarkerSet, NoMatch, Source, Steps, Truncated
from patchbay.formats.spec import Wrapper
from patchbay.formats.values.coerce import coerce
from patchbay.formats.values.json_strict import escaped
from patchbay.formats.values.raw_text import Boundary, UntypedArguments, read_text

KEY: Final = "arg_key"
VALUE: Final = "arg_value"
_TYPE, _SEPARATOR = "arg_type", "tool_sep"
TAGS: Final = Tags((KEY, VALUE, _TYPE, _SEPARATOR), ("ifm|",))
_WORD = re.compile(r"[^<>\n]{1,128}")
_MAX_WORD = 128


class Pairs:
    """Reads pairs into ``arguments``. ``closers``: markers that end wrappers."""

    def __init__(
        self,
        source: Source,
        structure: TagContext,
        closers: frozenset[str],
        arguments: UntypedArguments,
        note: Callable[[str], None],
    ) -> None:
        self.source = source
        self.structure = structure
        self.arguments = arguments
        self.note = note
        self._closers = closers
        self._begun = False

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
        if tag.word == KEY and not tag.closes:
            yield from self._read_value_of((yield from self._word()))
        elif tag.word == VALUE and not tag.closes:
            self.note("value_without_key")
            yield from read_text(source, [], self._end)
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
            yield from read_text(source, [], self._end)

    def _value(self, key: str, declared: str) -> Steps[None]:
        arguments = self.arguments
        known = key in (arguments.types.keys or ())
        if arguments.is_streamable(key) and (known or declared in ("", "string")):
            pieces = arguments.begin_text(key)
            yield from read_text(self.source, pieces, self._end, encode=escaped)
            arguments.end_text()
            return
        sink: list[str] = []
        scalar = known and arguments.is_scalar(key)
        yield from read_text(self.source, sink, lambda: self._end(scalar=scalar))
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

    def _end(self, *, scalar: bool = False) -> Steps[Boundary]:
        """Classify ``pos`` in a value. ``scalar``: no tag can stand in the value."""
        source = self.source
        begin = source.offset
        tag = yield from TAGS.at(source)
        if tag is not None and tag.cut:
            raise Truncated
        if tag is not None and tag.closes and tag.word in (KEY, VALUE):
            source.pos += tag.size
            after = source.offset
            goes_on = scalar or (yield from self._call_continues())
            source.rewind_to(after if goes_on else begin)
            return Boundary.CLOSED if goes_on else Boundary.NONE
        if tag is None:
            mark = yield from self.structure.ends.at(source)
            source.pos += len(mark)
            cannot_continue = mark in self._closers and (scalar or (yield from self.structure.value_cannot_continue()))
        else:
            source.pos += tag.size
            cannot_continue = tag.word == KEY and (yield from self._is_key(known=True))
        source.rewind_to(begin)
        if cannot_continue:
            self.note("unclosed_tag")
        return Boundary.BROKEN if cannot_continue else Boundary.NONE

    def _call_continues(self) -> Steps[bool]:
        """True if a value's closer is followed by something that only the call's rest can begin with."""
        if (yield from self.structure.value_cannot_continue()):
            return True
        tag = yield from TAGS.at(self.source)
        if tag is None:
            return (yield from self._is_key(known=True))
        return tag.cut or tag.closes or tag.word == KEY

    def _is_key(self, *, known: bool = False) -> Steps[bool]:
        """True if a key stands at ``pos``, with the tag that closes it or opens its value; nothing is read.

        ``known``: only a key of the schema, if that names any.
        """
        source = self.source
        begin = source.offset
        keys = (self.arguments.types.keys or ()) if known else ()
        try:
            word = yield from self._word(keys)
            if keys and word not in keys:
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
        yield from Pairs(self.source, self.structure, self._closers, arguments, self.note).read(key)
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
