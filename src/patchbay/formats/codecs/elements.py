"""Tags in a growing text, and arguments as elements: ``<city>Paris</city>``, lists and objects as nested elements.

Not XML: only the words that a format knows are tags, everything else that looks like one is text. MiniMax M3 writes elements with
a token before each tag, Claude in 2023 within ``<parameters>``. Nesting is read without recursion and bounded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from patchbay.formats.context import Reader
from patchbay.formats.source import NoMatch, Source, Steps, Truncated, marker_set
from patchbay.formats.spec import Wrapper
from patchbay.formats.values.coerce import MAX_DEPTH, Expected, typed
from patchbay.formats.values.json_strict import escaped, json_string
from patchbay.formats.values.raw_text import Boundary, UntypedArguments, read_text

_MAX_BEGINNING = 64
_MAX_TAG = 512
_BLANK = r"[ \t\u0120]{0,3}+"
_NO_BLANKS = str.maketrans("", "", " \t\u0120")
"""Blanks between a tag's parts. Some models' tokenizers leave U+0120 in place of a blank."""
_END = re.compile(r"[<>\n]")
_NAMED = re.compile(
    r"""[ \t\u0120]*+(?:[^=]*[ \t\u0120])?name[ \t\u0120]*+=[ \t\u0120]*+(?:["“”„]([^"“”]*)["“”]|'([^']*)'|([^\s"'“”„/]+))"""
)
_QUOTED = re.compile(r"""(?:[ \t]*+[\w.-]++[ \t]*+=[ \t]*+["“”„'][^"“”'<]*["“”'])+""")
_STRING = re.compile(r"""\bstring[ \t]*+=[ \t]*+["'“”„]?(true|false)""")


def token_prefixes(name: str) -> tuple[str, ...]:
    """Return the spellings of the token ``｜name｜`` in a tag: with other bars, or with doubled ones."""
    return tuple(left + name + right for bar in "｜|" for left, right in product((bar, bar * 2), repeat=2))


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag: ``word`` is its kind, ``name`` what it names, as in ``<function=name>`` and ``<invoke name="name">``.

    ``prefix``: stands before the word. ``string``: the attribute of that name. ``empty``: the tag closes itself. ``size``: its
    length.
    If the text ended inside the tag, only ``closes`` is known.
    """

    word: str
    prefix: str = ""
    closes: bool = False
    name: str | None = None
    string: str = ""
    empty: bool = False
    size: int = 0

    @property
    def cut(self) -> bool:
        """True if the text ended inside of the tag."""
        return not self.word


class Tags:
    """Scanner for the tags of some ``words``, with or without one of the prefixes ``spaces``."""

    def __init__(self, words: tuple[str, ...], spaces: tuple[str, ...]) -> None:
        longest_first = sorted(words, key=len, reverse=True)
        self._word = re.compile(
            f"<{_BLANK}(/?){_BLANK}((?:{'|'.join(map(re.escape, spaces))})?){_BLANK}({'|'.join(longest_first)})"
            r"""(?=[ \t\r\n\u0120=:/>"']|name[ \t]*+=)"""
        )
        whole = {f"<{slash}{space}{word}" for slash, space, word in product(("", "/"), ("", *spaces), words)}
        self._starts = frozenset(text[:length] for text in whole for length in range(1, len(text) + 1)) | {
            f"{text}{rest}" for text in whole for rest in ("n", "na", "nam", "name")
        }

    def at(self, source: Source) -> Steps[Tag | None]:
        """Return the tag at ``pos``, None if there is none, without reading it."""
        if not (yield from source.peek()):
            return None
        while True:
            buf, pos = source.buf, source.pos
            found = self._word.match(buf, pos)
            if found:
                end = _END.search(buf, found.end(), pos + _MAX_TAG)
                rest = buf[found.end() : end.start() if end else pos + _MAX_TAG].strip(" \t\r\u0120")
                if found[1] and rest and rest[0] not in "=:":
                    return None  # nothing else stands in a closing tag
                if end:
                    return _tag(found, end)
                if len(buf) - pos >= _MAX_TAG:
                    return None
            elif len(buf) - pos > _MAX_BEGINNING or buf[pos : pos + _MAX_BEGINNING].translate(_NO_BLANKS) not in self._starts:
                return None
            if source.ended:
                return Tag("", closes="/" in buf[pos : pos + _MAX_BEGINNING])
            yield


def _tag(found: re.Match[str], end: re.Match[str]) -> Tag | None:
    """Return the tag between its word and its end. Only a tag that names something, or has a token, may lack its bracket."""
    buf, begin, stop = end.string, found.start(), end.start()
    closes, prefix, word = bool(found[1]), found[2], found[3]
    whole = buf[stop] == ">"
    if not whole and (attributes := _QUOTED.match(buf, found.end(), stop)):
        stop = attributes.end()  # its value is on the same line
    inside = buf[found.end() : stop].strip(" \t\r\u0120")
    empty = whole and inside.endswith("/") and not closes
    if empty:
        inside = inside[:-1].rstrip()
    if inside.startswith("="):
        name: str | None = inside[1:].strip(" \t\u0120\"'“”„")
    else:
        named = _NAMED.match(inside)
        name = (named[1] or named[2] or named[3] or "") if named else None
    if not whole and not (prefix if closes else name):
        return None
    string = _STRING.search(inside)
    size = stop + whole - begin
    return Tag(word, prefix, closes=closes, name=name, string=string[1] if string else "", empty=empty, size=size)


_MAX_ELEMENT_TAG = 256
_ITEM: Final = "item"
_OUTER = frozenset({"invoke", "tool_call", "parameters"})
"""Tags around arguments: their closers close everything open inside."""
_TAG = re.compile(r"/?\s*+[A-Za-z_$][\w.$-]*+\s*+")
_TAG_BEGINNING = re.compile(r"/?\s*+(?:[A-Za-z_$][\w.$-]*+\s*+)?")
"""Beginnings of ``_TAG``: wait for more text as long as this matches."""


@dataclass(frozen=True, slots=True)
class ElementTag:
    """An element's tag: its name, with attributes if there are any, and its length."""

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
    """Reads the elements of one call into ``arguments``. ``prefix``: stands before each tag. ``buffered``: emit nothing yet."""

    def __init__(
        self,
        source: Source,
        arguments: UntypedArguments,
        note: Callable[[str], None],
        *,
        prefix: str = "",
        buffered: bool = False,
    ) -> None:
        self.source = source
        self.arguments = arguments
        self.note = note
        self.prefix = prefix
        self.buffered = buffered
        self._head = f"{prefix}<"
        self._read: dict[str, list[_Element]] = {}

    def tag(self) -> Steps[ElementTag | None]:
        """Return the tag at ``pos``, None if there is none, without reading it. Raises Truncated inside of a tag."""
        source, head = self.source, self._head
        while True:
            buf, begin = source.buf, source.pos + len(head)
            if buf.startswith(head, source.pos):
                end = buf.find(">", begin, begin + _MAX_ELEMENT_TAG)
                if end >= 0:
                    return self._named(buf[begin:end], end + 1 - source.pos)
                if len(buf) - begin >= _MAX_ELEMENT_TAG or not (self.prefix or _TAG_BEGINNING.fullmatch(buf, begin)):
                    return None
            elif not head.startswith(buf[source.pos : begin]):
                return None
            if source.ended:
                raise Truncated
            yield

    def _named(self, inside: str, size: int) -> ElementTag | None:
        name = inside.removeprefix("/").strip()
        if not name or "<" in name or not (self.prefix or _TAG.fullmatch(inside)):
            return None
        return ElementTag(name, inside.startswith("/"), size)

    def opens_argument(self, tag: ElementTag | None, *, any_name: bool) -> bool:
        """True if ``tag`` opens an argument. ``any_name``: also one that is not in the schema."""
        return tag is not None and not tag.closes and (any_name or tag.name in (self.arguments.types.keys or ()))

    def read(self, tag: ElementTag) -> Steps[None]:
        """Read the argument that ``tag``, which stands at ``pos``, opens."""
        key = tag.name
        self.source.pos += tag.size
        if key in (self.arguments.types.keys or ()) and self.arguments.is_streamable(key) and not self.buffered:
            opened: Counter[str] = Counter()
            pieces = self.arguments.begin_text(key)
            yield from read_text(self.source, pieces, lambda: self._end(key, opened), marks=self._head[0], encode=escaped)
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
        self.arguments.add(key, _elements_json(same if "array" in element.expected.types else [element], element.expected))

    def _end(self, key: str, opened: Counter[str]) -> Steps[Boundary]:
        """Classify the tag at ``pos`` in the text of ``key``. Elements opened and closed within the text are text."""
        tag = yield from self.tag()
        if tag is None:
            return Boundary.NONE
        name = tag.name.partition(" ")[0]  # an opening tag may have attributes
        if not tag.closes or opened[name] > 0:
            opened[name] += -1 if tag.closes else 1
            return Boundary.NONE
        if tag.name == key:
            self.source.pos += tag.size
            return Boundary.CLOSED
        if tag.name in _OUTER:
            self.note("unclosed_tag")
            return Boundary.BROKEN
        if not self.prefix:
            return Boundary.NONE
        self.note("wrong_closer")
        self.source.pos += tag.size
        return Boundary.CLOSED

    def _inside(self, element: _Element) -> Steps[int]:
        """Read up to and including the closer of ``element``.

        Return 0, or the closer's offset if the nesting is too deep to be kept.
        """
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
                    raise Truncated
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
        """True if ``tag`` opens an element, not text: without a token before it, only names from the schema do."""
        expected = within.expected
        return bool(self.prefix) or tag.name in expected.keys or ("array" in expected.types and tag.name == _ITEM)


def _child(parent: _Element, name: str) -> _Element:
    expected = parent.expected
    listed = "array" in expected.types and ("object" not in expected.types or name == _ITEM)
    child = _Element(name, expected.element(len(parent.inside)) if listed else expected.member(name))
    parent.inside.append(child)
    return child


def _elements_json(elements: list[_Element], expected: Expected) -> str:
    """Return the JSON of one element, or of several of one name that make up an expected list."""
    if len(elements) == 1:
        return _element_json(elements[0], expected)
    return _list_json(elements, expected.element if "array" in expected.types else lambda _index: expected)


def _list_json(elements: list[_Element], expected: Callable[[int], Expected]) -> str:
    return "[" + ", ".join(_element_json(element, expected(index)) for index, element in enumerate(elements)) + "]"


def _element_json(element: _Element, expected: Expected) -> str:
    text = "".join(element.text)
    has_text = bool(text.strip())
    if not element.inside:
        return typed(text, expected) if has_text or "string" in expected.types else _empty_json(expected.types)
    if not has_text and _is_list(element, expected):
        return _list_json(element.inside, expected.element)
    members: dict[str, list[_Element]] = {}
    for part in element.inside:
        members.setdefault(part.name, []).append(part)
    written = [f"{json_string(name)}: {_elements_json(parts, expected.member(name))}" for name, parts in members.items()]
    if has_text:
        key = "$text"
        while key in members:
            key = "$" + key
        written.append(f"{json_string(key)}: {json_string(text)}")
    return "{" + ", ".join(written) + "}"


def _is_list(element: _Element, expected: Expected) -> bool:
    listed = "array" in expected.types
    items = all(part.name == _ITEM for part in element.inside)
    return (listed and "object" not in expected.types) or (items and (listed or expected.says_nothing))


def _empty_json(types: frozenset[str]) -> str:
    """Return the JSON of an empty element where no text is expected."""
    return "[]" if "array" in types else "{}" if "object" in types else '""'


TOKEN: Final = "]<]minimax[>["  # noqa: S105 - a token of the model's vocabulary
_TOKEN = marker_set((TOKEN,))
_INVOKE = Tags(("invoke",), ())
_MAX_STRAY_TEXT = 64


class NestedCalls(Reader):
    """Reads one call from the token before its opening tag on."""

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:  # noqa: ARG002 - a tag stands for itself
        """Read one call and return 1. Without a wrapper around it, it counts only if it is complete."""
        source = self.source
        if not (yield from _TOKEN.at(source)):
            raise NoMatch
        source.pos += len(TOKEN)
        tag = yield from _INVOKE.at(source)
        name = self.rules.resolve(tag.name) if tag is not None and tag.name else None
        if tag is None or tag.closes or name is None:
            raise NoMatch
        source.pos += tag.size
        self.calls.name = name
        bare = wrapper.body_prefix_len > 0
        arguments = UntypedArguments(self.calls, name, self.rules.types(name), self.note)
        try:
            closed = tag.empty or (
                yield from self._arguments(Elements(source, arguments, self.note, prefix=TOKEN, buffered=bare))
            )
        except Truncated:
            if bare:
                raise NoMatch from None
            raise
        if bare and not (closed and self.rules.offered(name) is not None and arguments.complete):
            raise NoMatch
        arguments.emit()
        return 1

    def _arguments(self, elements: Elements) -> Steps[bool]:
        """Read the elements of a call up to its end; return whether it was closed."""
        source, keys = self.source, elements.arguments.keys
        while True:
            before = source.offset
            char = yield from source.space()
            if not char:
                raise Truncated  # more arguments may be missing
            tag = yield from elements.tag()
            if tag is None:
                if not keys:
                    raise NoMatch
                source.rewind_to(before)
                if not (yield from self._skip_stray_text()):
                    return False
            elif not tag.closes and not tag.name.startswith("invoke "):
                yield from elements.read(tag)
            elif tag.name == "invoke":
                source.pos += tag.size
                return True
            elif not tag.closes or tag.name == "tool_call":
                source.rewind_to(before)
                return False
            else:
                self.note("stray_tag")
                source.pos += tag.size

    def _skip_stray_text(self) -> Steps[bool]:
        """Read short text between two tags that belongs to neither; return False if there is none."""
        source = self.source
        while True:
            end, token = _TOKEN.next(source, source.pos + 1)
            if token and end - source.pos <= _MAX_STRAY_TEXT:
                source.pos = end
                self.note("stray_text")
                return True
            if source.ended or end - source.pos > _MAX_STRAY_TEXT:
                return False
            yield
