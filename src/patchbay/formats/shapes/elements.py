"""Arguments as elements that are named after them: ``<city>Paris</city>``, lists and objects as elements in elements.

MiniMax M3 writes so, a token before each of its tags, and Claude in 2023, within ``<parameters>``. What an element holds is typed
by the schema: the elements in it are an object's members or a list's items. Without the token only names of the schema are tags.

Nesting is read without recursion and bounded; an argument that is nested deeper is told as the text it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from patchbay.formats.engine.source import CutOff, Source, Steps
from patchbay.formats.shapes.untyped import UntypedArguments
from patchbay.formats.values.coerce import typed
from patchbay.formats.values.expected import Expected
from patchbay.formats.values.literals import MAX_DEPTH, json_string
from patchbay.formats.values.rawtext import End, escaped, read_text

_ROOM = 256
_ITEM: Final = "item"
_OUTER = frozenset({"invoke", "tool_call", "parameters"})
"""The tags around arguments: what closes them closes what is open in them."""
_TAG = re.compile(r"/?\s*+[A-Za-z_$][\w.$-]*+\s*+")
_BEGUN = re.compile(r"/?\s*+(?:[A-Za-z_$][\w.$-]*+\s*+)?")
"""What of ``_TAG`` there may be so far: as long as this fits, more of the text is waited for."""


@dataclass(frozen=True, slots=True)
class ElementTag:
    """A tag: what it names, with attributes if there are any, and its length."""

    name: str
    closes: bool
    size: int


@dataclass(slots=True)
class _Element:
    name: str
    expected: Expected
    text: list[str] = field(default_factory=list)
    inside: list[_Element] = field(default_factory=list)


class Elements:
    """Reads the elements of one call into ``arguments``. ``prefix`` stands before each tag. ``held``: nothing may be told yet."""

    def __init__(
        self, source: Source, arguments: UntypedArguments, note: Callable[[str], None], *, prefix: str = "", held: bool = False
    ) -> None:
        self.source = source
        self.arguments = arguments
        self.note = note
        self.prefix = prefix
        self.held = held
        self._head = f"{prefix}<"
        self._read: dict[str, list[_Element]] = {}

    def tag(self) -> Steps[ElementTag | None]:
        """The tag that stands at ``pos``, None if none does; nothing is read. Raises CutOff where the text ends inside of it."""
        source, head = self.source, self._head
        while True:
            buf, begin = source.buf, source.pos + len(head)
            if buf.startswith(head, source.pos):
                end = buf.find(">", begin, begin + _ROOM)
                if end >= 0:
                    return self._named(buf[begin:end], end + 1 - source.pos)
                if len(buf) - begin >= _ROOM or not (self.prefix or _BEGUN.fullmatch(buf, begin)):
                    return None
            elif not head.startswith(buf[source.pos : begin]):
                return None
            if source.ended:
                raise CutOff
            yield

    def _named(self, inside: str, size: int) -> ElementTag | None:
        name = inside.removeprefix("/").strip()
        if not name or "<" in name or not (self.prefix or _TAG.fullmatch(inside)):
            return None
        return ElementTag(name, inside.startswith("/"), size)

    def takes(self, tag: ElementTag | None, *, any_name: bool) -> bool:
        """Whether ``tag`` opens an argument. ``any_name``: also one that the schema does not know."""
        return tag is not None and not tag.closes and (any_name or tag.name in (self.arguments.types.keys or ()))

    def read(self, tag: ElementTag) -> Steps[None]:
        """Read the argument that ``tag``, which stands at ``pos``, opens."""
        key = tag.name
        self.source.pos += tag.size
        if key in (self.arguments.types.keys or ()) and self.arguments.passes(key) and not self.held:
            opened: Counter[str] = Counter()
            pieces = self.arguments.begin_text(key)
            yield from read_text(self.source, pieces, lambda: self._end(key, opened), mark=self._head[0], spell=escaped)
            self.arguments.end_text()
            return
        begin = self.source.offset
        element = _Element(key, self.arguments.types.expected(key))
        deep = yield from self._inside(element)
        if deep:
            self.note("too_deep")
            self.arguments.add(key, json_string(self.source.since(begin)[: deep - begin]))
            return
        same = self._read.setdefault(key, [])
        same.append(element)
        out: list[str] = []
        _write_all(same if "array" in element.expected.types else [element], element.expected, out)
        self.arguments.add(key, "".join(out))

    def _end(self, key: str, opened: Counter[str]) -> Steps[End]:
        """What stands at ``pos`` in the text of ``key``. What is opened in it and closed again is text."""
        tag = yield from self.tag()
        if tag is None:
            return End.NONE
        if not tag.closes or opened[tag.name] > 0:
            opened[tag.name] += -1 if tag.closes else 1
            return End.NONE
        if tag.name == key:
            self.source.pos += tag.size
            return End.CLOSED
        if tag.name in _OUTER:
            self.note("unclosed_tag")
            return End.BROKEN
        if not self.prefix:
            return End.NONE
        self.note("wrong_closer")
        self.source.pos += tag.size
        return End.CLOSED

    def _inside(self, element: _Element) -> Steps[int]:
        """Read up to the closer of ``element`` and with it; where that begins if the nesting is too deep to be kept, else 0."""
        source, mark = self.source, self._head[0]
        names, elements, opened = [element.name], [element], Counter([element.name])
        deep = False
        while True:
            at = source.buf.find(mark, source.pos)
            stop = at if at >= 0 else len(source.buf)
            elements[-1].text.append(source.buf[source.pos : stop])
            source.pos = stop
            if at < 0:
                if source.ended:
                    raise CutOff
                yield
                continue
            tag = yield from self.tag()
            if tag is None or not (tag.closes or self._opens(tag, elements[-1])):
                elements[-1].text.append(mark)
                source.pos += 1
                continue
            end = source.offset
            if tag.closes:
                outer = tag.name in _OUTER and not opened[tag.name]
                if not opened[tag.name]:
                    self.note("unclosed_tag" if outer else "wrong_closer")
                gone = len(names) if outer else 1
                while opened[tag.name] and names[-gone] != tag.name:
                    gone += 1
                for name in names[-gone:]:
                    opened[name] -= 1
                del names[-gone:]
                del elements[len(names) or 1 :]
                source.pos += 0 if outer else tag.size
            else:
                source.pos += tag.size
                names.append(tag.name)
                opened[tag.name] += 1
                if len(names) <= MAX_DEPTH:
                    elements.append(_child(elements[-1], tag.name))
                deep |= len(names) > MAX_DEPTH
            if not names:
                return end if deep else 0

    def _opens(self, tag: ElementTag, within: _Element) -> bool:
        """Whether ``tag`` opens an element and is no text: without the token before it, only what the schema speaks of does."""
        expected = within.expected
        return bool(self.prefix) or tag.name in expected.keys or ("array" in expected.types and tag.name == _ITEM)


def _child(parent: _Element, name: str) -> _Element:
    expected = parent.expected
    listed = "array" in expected.types and ("object" not in expected.types or name == _ITEM)
    child = _Element(name, expected.element(len(parent.inside)) if listed else expected.member(name))
    parent.inside.append(child)
    return child


def _write_all(elements: list[_Element], expected: Expected, out: list[str]) -> None:
    """One element, or several of one name that make up the list that is expected."""
    if len(elements) == 1:
        _write(elements[0], expected, out)
        return
    out.append("[")
    for index, element in enumerate(elements):
        out.append(", " if index else "")
        _write(element, expected.element(index) if "array" in expected.types else expected, out)
    out.append("]")


def _write(element: _Element, expected: Expected, out: list[str]) -> None:
    text = "".join(element.text)
    said = bool(text.strip())
    if not element.inside:
        out.append(typed(text, expected) if said or "string" in expected.types else _nothing(expected.types))
    elif not said and _is_list(element, expected):
        out.append("[")
        for index, item in enumerate(element.inside):
            out.append(", " if index else "")
            _write(item, expected.element(index), out)
        out.append("]")
    else:
        members: dict[str, list[_Element]] = {}
        for part in element.inside:
            members.setdefault(part.name, []).append(part)
        for index, (name, parts) in enumerate(members.items()):
            out.append(f"{', ' if index else '{'}{json_string(name)}: ")
            _write_all(parts, expected.member(name), out)
        if said:
            key = "$text"
            while key in members:
                key = "$" + key
            out.append(f", {json_string(key)}: {json_string(text)}")
        out.append("}")


def _is_list(element: _Element, expected: Expected) -> bool:
    listed = "array" in expected.types
    items = all(part.name == _ITEM for part in element.inside)
    return (listed and "object" not in expected.types) or (items and (listed or expected.says_nothing))


def _nothing(types: frozenset[str]) -> str:
    """What an element without anything in it stands for where no text is wanted."""
    return "[]" if "array" in types else "{}" if "object" in types else '""'
