"""Calls as a name and pairs of tags: ``f<arg_key>k</arg_key><arg_value>v</arg_value>``, GLM's way and many others'.

    get_weather <arg_key> city </arg_key> <arg_value> Paris </arg_value>               GLM, Ling, Spark, IQuest, Laguna
    get_weather<tool_sep> <arg_key:x> city </arg_key:x> ...                            Hunyuan, with a checkpoint's suffix
    lookup <ifm|arg_key> k </ifm|arg_key> <ifm|arg_type> t </ifm|arg_type> ...         K2 Horizon

This is the name, also where its end is lost in the first key's beginning; the pairs are ``pairs``'.
"""

from __future__ import annotations

import re

from patchbay.formats.engine.marks import Marks
from patchbay.formats.engine.source import NotACall, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.rows import Wrapper
from patchbay.formats.shapes.pairs import KEY, TAGS, VALUE, Pairs
from patchbay.formats.shapes.structure import Structure
from patchbay.formats.shapes.tags import Tag
from patchbay.formats.shapes.untyped import UntypedArguments

_ROOM = 256
_HEADER = re.compile(r"""[^<>{}\[\]()"'`]{1,256}""")


class KeyValueCalls:
    """Reads one call from its name on.

    ``closers``: the markers that end wrappers. ``ends``: all markers and special tokens, any of which may follow a value.
    """

    def __init__(self, parts: Parts, closers: tuple[str, ...], ends: Marks) -> None:
        self.source = parts.source
        self.calls = parts.calls
        self.rules = parts.rules
        self.note = parts.emitter.note
        self.structure = Structure(parts.source, ends)
        self._closers = frozenset(closers)

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:  # noqa: ARG002 - the tags say that it is a call
        """Read one call; 1."""
        if wrapper.keeps:
            raise NotACall
        header = yield from self._header()
        tag = yield from TAGS.at(self.source)
        if tag is None and not (yield from self.structure.ends.at(self.source)):
            raise NotACall
        name, key = self._parted(header, tag)
        self.calls.name = name
        arguments = UntypedArguments(self.calls, name, self.rules.types(name), self.note)
        yield from Pairs(self.source, self.structure, self._closers, arguments, self.note).read(key)
        return 1

    def _header(self) -> Steps[str]:
        """Read up to the first tag."""
        source = self.source
        while True:
            found = _HEADER.match(source.buf, source.pos)
            end = found.end() if found else source.pos
            if end < len(source.buf) or source.ended or end - source.pos >= _ROOM:
                break
            yield
        if end == source.pos or source.buf[end : end + 1] != "<":
            raise NotACall
        header = source.buf[source.pos : end]
        source.pos = end
        return header.replace("\\n", "\n").strip()

    def _parted(self, header: str, tag: Tag | None) -> tuple[str, str]:
        """The tool's name, and the first key where that has no tag before it. Raises NotACall."""
        if tag is None or tag.word not in (KEY, VALUE) or tag.closes != (tag.word == KEY):
            name = self.rules.resolve(header)
            if name is None:
                raise NotACall
            return name, ""
        self.note("unopened_tag")
        line, _, key = header.partition("\n")
        name = self.rules.resolve(line) if key else None
        if name is not None:
            return name, key.strip()
        for name in self.rules.beginning(header):
            key = header[len(name) :].strip()
            if key in (self.rules.types(name).keys or ()):
                return name, key
        raise NotACall
