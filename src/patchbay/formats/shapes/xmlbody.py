"""What stands in a call of tags: parameters, or a JSON object, up to the call's own closer, any closer of which may be missing.

Values are raw: no entity is undone, ``<`` and ``&`` stand for themselves. A closer inside of a value is text unless the call goes
on behind it, or ends there; that can be seen a few characters ahead. A next parameter, or an end of the call with nothing else
behind it, ends a value whose closer was left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from patchbay.formats.engine.source import CutOff, NotACall, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.shapes.elements import Elements
from patchbay.formats.shapes.jsonmembers import tell_object
from patchbay.formats.shapes.structure import Structure
from patchbay.formats.shapes.tags import Tag, Tags
from patchbay.formats.shapes.untyped import UntypedArguments
from patchbay.formats.values.literals import json_string
from patchbay.formats.values.names import ToolTypes
from patchbay.formats.values.rawtext import End, escaped, read_text, verbatim

CALLS: Final = frozenset({"function", "invoke"})
_PARAMETERS = frozenset({"parameter", "param"})
_PREFIXES = ("antml:", "atem:", "rfl:", "steptml:", "｜DSML｜", "|DSML|", "｜GCML｜", "|GCML|")
_TYPED_PREFIXES = ("｜DSML｜", "|DSML|", "｜GCML｜", "|GCML|")
TAGS: Final = Tags((*CALLS, *_PARAMETERS, "parameters", "tool_name"), _PREFIXES)
_CDATA, _CDATA_END = "<![CDATA[", "]]>"


class XmlBody:
    """Reads one call from behind its opening tag into ``arguments``.

    ``lines``: values may have lines of their own. ``held``: nothing may be told before all is read.
    """

    def __init__(
        self,
        parts: Parts,
        structure: Structure,
        closers: frozenset[str],
        arguments: UntypedArguments,
        *,
        lines: bool,
        held: bool,
    ) -> None:
        self.parts = parts
        self.source = parts.source
        self.note = parts.emitter.note
        self.structure = structure
        self.arguments = arguments
        self.lines = lines
        self.held = held
        self.begun = False
        """Something of the call came: it is more than a mention of its opening tag."""
        self.told = False
        """The call was told to its end."""
        self._own_lines = False
        """A parameter stood on a line of its own: then so do values, as their family's template has it."""
        self._closers = closers
        self._elements = Elements(parts.source, arguments, parts.emitter.note, held=held)

    def read(self) -> Steps[bool]:
        """Read up to the call's end; whether it was closed. Raises NotACall, CutOff."""
        source, keys = self.source, self.arguments.keys
        inside = False
        while True:
            before = source.offset
            char = yield from self.structure.space()
            tag = (yield from TAGS.at(source)) if char == "<" else None
            if not char or (tag is not None and tag.cut):
                self.begun |= tag is not None
                raise CutOff  # another argument may have been about to come
            if tag is None:
                if char == "{" and not keys:
                    yield from self._object()
                elif not (char == "<" and (yield from self._element(any_name=inside))):
                    if not (yield from self.structure.ends.at(source)) and self.structure.ends.begun(source):
                        raise CutOff
                    source.rewind_to(before)
                    if keys or (yield from self._marked()):
                        return False
                    raise NotACall
            elif tag.word in CALLS:
                if tag.closes:
                    source.pos += tag.size
                else:
                    source.rewind_to(before)
                return tag.closes
            else:
                source.pos += tag.size
                self.begun = True
                if tag.word == "parameters":
                    inside = not tag.closes
                elif tag.word in _PARAMETERS and tag.name and not tag.closes:
                    self._own_lines = self.lines and (self._own_lines or "\n" in source.since(before)[: -tag.size])
                    yield from self._parameter(tag)
                else:
                    self.note("stray_tag")
            if self.told:
                yield from self._closer(CALLS)
                return True

    def _marked(self) -> Steps[bool]:
        """Whether a marker follows: the call has no arguments, and its closer was left out."""
        begin = self.source.offset
        yield from self.structure.space()
        marked = bool((yield from self.structure.ends.at(self.source)))
        self.source.rewind_to(begin)
        return marked

    def _element(self, *, any_name: bool) -> Steps[bool]:
        """Read an argument that is an element named after it."""
        tag = yield from self._elements.tag()
        if tag is None or not self._elements.takes(tag, any_name=any_name):
            return False
        self.begun = True
        yield from self._elements.read(tag)
        return True

    def _object(self) -> Steps[None]:
        """Read all arguments as one JSON object."""
        reader, name = self.parts.json, self.arguments.name
        self.begun = True
        if not self.held:
            reader.guarded = False
            yield from tell_object(reader, self.parts.calls, self.parts.rules, name)
            self.told = True
            return
        sink: list[str] = []
        yield from reader.value(sink)
        arguments = "".join(sink)
        try:
            self.arguments.replace(arguments, set(json.loads(arguments)))
        except (ValueError, RecursionError):
            raise NotACall from None

    def _closer(self, words: frozenset[str]) -> Steps[None]:
        """Read a closing tag with one of these words, if it is there."""
        source = self.source
        before = source.offset
        if (yield from self.structure.space()) == "<":
            tag = yield from TAGS.at(source)
            if tag is not None and tag.closes and tag.word in words:
                source.pos += tag.size
                return
        source.rewind_to(before)

    def _parameter(self, tag: Tag) -> Steps[None]:
        """Read a parameter from behind its opening tag."""
        arguments, key = self.arguments, tag.name or ""
        if tag.empty:
            arguments.add(key, arguments.types.json(key, ""))
            return
        raw = tag.string == "true" or (not tag.string and arguments.types.is_text(key) and not self._says_type(tag))
        if raw and not self.held and not arguments.holds_all(key):
            yield from self._value(tag, arguments.begin_text(key), escaped)
            arguments.end_text()
            return
        sink: list[str] = []
        yield from self._value(tag, sink, verbatim)
        text = "".join(sink)
        if raw:
            value = json_string(text)
        elif tag.string or self._says_type(tag):
            value = _as_json(text, key, arguments.types)
        else:
            value = arguments.types.json(key, text)
        arguments.add(key, value, text)

    def _says_type(self, tag: Tag) -> bool:
        """Whether a value of no known type is JSON, for its family says so where it is a text."""
        return tag.prefix in _TYPED_PREFIXES and tag.name not in (self.arguments.types.keys or ())

    def _value(self, tag: Tag, sink: list[str], spell: Callable[[str], str]) -> Steps[None]:
        if tag.word == "param" and (yield from self._is_cdata()):
            yield from read_text(self.source, sink, self._cdata_end, mark="]", spell=spell)
            while (yield from self._is_cdata()):  # what holds the end of a section is written in two
                yield from read_text(self.source, sink, self._cdata_end, mark="]", spell=spell)
            yield from self._closer(_PARAMETERS)
            return
        yield from read_text(self.source, sink, lambda: self._end(tag), spell=spell, lines=self._own_lines)

    def _end(self, opener: Tag) -> Steps[End]:
        """What stands at ``pos`` in the value that ``opener`` opened."""
        source = self.source
        begin = source.offset
        plain = self.arguments.is_plain(opener.name or "")
        tag = yield from TAGS.at(source)
        if tag is not None and tag.cut:
            raise CutOff
        if tag is None:
            mark = yield from self.structure.ends.at(source)
            source.pos += len(mark)
            broken = mark in self._closers and (plain or (yield from self.structure.broken()))
        elif tag.word in _PARAMETERS and tag.closes:
            source.pos += tag.size
            after = source.offset
            goes_on = plain or (yield from self._goes_on())
            source.rewind_to(after if goes_on else begin)
            return End.CLOSED if goes_on else End.NONE
        elif tag.word in _PARAMETERS:
            broken = self._is_new(tag.name, opener)
        else:
            source.pos += tag.size
            broken = tag.closes and tag.word in CALLS and (plain or (yield from self._over()))
        source.rewind_to(begin)
        if broken:
            self.note("unclosed_tag")
        return End.BROKEN if broken else End.NONE

    def _is_new(self, key: str | None, opener: Tag) -> bool:
        """Whether a parameter that opens within a value is the next one, the value's closer being left out."""
        known = self.arguments.types.keys
        return bool(key) and key != opener.name and key not in self.arguments.keys and (known is None or key in known)

    def _over(self) -> Steps[bool]:
        """Whether nothing but the end, or another call, follows a call's closer."""
        if (yield from self.structure.broken()):
            return True
        tag = yield from TAGS.at(self.source)
        return tag is not None and tag.word in CALLS

    def _goes_on(self) -> Steps[bool]:
        """Whether what follows a value's closer can follow no other text."""
        if (yield from self.structure.broken()):
            return True
        tag = yield from TAGS.at(self.source)
        if tag is None:
            return False
        return tag.cut or tag.word in CALLS or (tag.word == "parameters" and tag.closes) or bool(tag.name)

    def _is_cdata(self) -> Steps[bool]:
        """Read the opener of a CDATA section, if one stands at ``pos``."""
        source = self.source
        while True:
            ahead = source.buf[source.pos : source.pos + len(_CDATA)]
            if ahead == _CDATA:
                source.pos += len(_CDATA)
                return True
            if source.ended or not _CDATA.startswith(ahead):
                return False
            yield

    def _cdata_end(self) -> Steps[End]:
        """Whether a CDATA section ends at ``pos``: a closing tag, or another section, stands behind it."""
        source = self.source
        while not source.buf.startswith(_CDATA_END, source.pos):
            if source.ended or not _CDATA_END.startswith(source.buf[source.pos : source.pos + len(_CDATA_END)]):
                return End.NONE
            yield
        begin = source.offset
        source.pos += len(_CDATA_END)
        after = source.offset
        over = yield from self._is_cdata()
        if not over:
            char = yield from self.structure.space()
            tag = (yield from TAGS.at(source)) if char == "<" else None
            over = not char or (tag is not None and tag.cut)
            if tag is not None and tag.word in _PARAMETERS and tag.closes:
                source.pos += tag.size
                over = yield from self._goes_on()
        source.rewind_to(after if over else begin)
        return End.CLOSED if over else End.NONE


def _as_json(text: str, key: str, types: ToolTypes) -> str:
    """A value that is said to be JSON: as it stands if it is, else what the schema makes of it."""
    bare = text.strip()
    try:
        json.loads(bare, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return types.json(key, text)
    return bare


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
