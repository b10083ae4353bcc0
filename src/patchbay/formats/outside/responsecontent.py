"""The content parsers of a response template: the text of a region as a value. Which text that is, ``responsetemplate`` says.

``read`` of each takes a whole region's text and raises ValueError where it does not fit. NaN and the infinities fit nowhere. No
text is searched twice, so all of them are linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any, Literal

from patchbay.formats.outside.attempts import Match, Pattern
from patchbay.formats.outside.declared import Declared
from patchbay.formats.outside.jsonvalues import quoted, read_json
from patchbay.formats.outside.patterns import Item, compile_items, parse_pattern

Trim = Literal["", "line", "space"]

_MAX_NESTING = 4


@dataclass(frozen=True)
class Text:
    """The text itself. ``strip``: without the white space around it."""

    strip: bool = True

    def read(self, body: str) -> Any:
        """The value of a region's text."""
        return body.strip() if self.strip else body


@dataclass(frozen=True)
class Number:
    """A number: ``int``, ``float`` or ``bool`` (true for ``true`` and ``1``, in any case)."""

    kind: str

    def read(self, body: str) -> Any:
        """The value of a region's text."""
        word = body.strip()
        if self.kind == "bool":
            return word.lower() in ("true", "1")
        number = int(word) if self.kind == "int" else float(word)
        if number != number or number in (float("inf"), float("-inf")):
            raise ValueError(f"{word!r} is no number that JSON knows")
        return number


@dataclass(frozen=True)
class Json:
    """JSON, or a dialect of it.

    ``unquoted_keys``: keys may stand without quotes. ``string_delims``: other marks around strings, in which nothing is escaped.
    ``allow_non_json``: what is no JSON is text.
    """

    unquoted_keys: bool = False
    string_delims: tuple[tuple[str, str], ...] = ()
    allow_non_json: bool = False

    @property
    def strict(self) -> bool:
        """Plain JSON and nothing else: its text can be passed on as it is read."""
        return not (self.unquoted_keys or self.string_delims or self.allow_non_json)

    def json(self, body: str) -> str:
        """The same value as plain JSON; text that is plain JSON already stays as it is. Raises ValueError."""
        text = "".join(self._plain(body)) if self.unquoted_keys or self.string_delims else body.strip()
        read_json(text)
        return text

    def read(self, body: str) -> Any:
        """The value of a region's text."""
        try:
            return read_json("".join(self._plain(body)) if self.unquoted_keys or self.string_delims else body)
        except ValueError:
            if self.allow_non_json:
                return body.strip()
            raise

    def _plain(self, body: str) -> Iterator[str]:
        closers = dict(self.string_delims)
        openers = "|".join(map(re.escape, sorted(closers, key=len, reverse=True))) or "(?!)"
        keys = r"[{,]\s*\w+\s*:" if self.unquoted_keys else "(?!)"
        token = re.compile(f'(?P<mark>{openers})|(?P<quote>")|{keys}')
        at = 0
        while found := token.search(body, at):
            yield body[at : found.start()]
            at = found.end()
            if found["mark"]:
                closer = closers[found["mark"]]
                end = body.find(closer, at)
                if end < 0:
                    raise ValueError(f"{found['mark']!r} is never closed")
                yield quoted(body[at:end])
                at = end + len(closer)
            elif found["quote"]:
                end = _end_of_string(body, at)
                yield body[found.start() : end]
                at = end
            else:
                yield _WORD.sub(r'"\g<0>"', found.group())
        yield body[at:]


@dataclass(frozen=True)
class Tags:
    """A sequence of tags, each a key and its value, with anything between them.

    A tag is what ``head`` matches (its group ``key`` is the key), the value up to the next ``tail``, and the tail. ``left`` and
    ``right``: what white space at that end of a value is markup, all of it or a line break. Of a key that comes twice the last
    value stays, or all as a list with ``merge``.
    """

    head: Pattern
    tail: str
    left: Trim = ""
    right: Trim = ""
    value: Content | None = None
    merge: bool = False

    def pairs(self, body: str) -> Iterator[tuple[str, str]]:
        """Each key with its value's text."""
        at = 0
        while (head := self._head(body, at)) is not None:
            end = body.find(self.tail, head.end)
            if end < 0:
                return
            at = end + len(self.tail)
            yield head.groups["key"], _trimmed(body[head.end : end], self.left, self.right)

    def is_whole(self, body: str) -> bool:
        """Whether the text ends outside of a tag, so that no value in it was cut off."""
        at = body.rfind(self.tail) + len(self.tail) if self.tail in body else 0
        if self._head(body, at) is not None:
            return False
        starts = self.head.starts
        ends = (body[begin:] for begin in range(max(at, len(body) - max(map(len, starts)) + 1), len(body)))
        return not any(start.startswith(end) for end in ends for start in starts)

    def _head(self, body: str, at: int) -> Match | None:
        """The next tag's beginning."""
        start = re.compile("|".join(map(re.escape, self.head.starts)))
        while found := start.search(body, at):
            head = self.head.match(body, found.start())
            if isinstance(head, Match) and "key" in head.groups:
                return head
            at = found.end()
        return None

    def read(self, body: str) -> Any:
        """The value of a region's text."""
        return _gathered(self.pairs(body), self.value, merge=self.merge)


@dataclass(frozen=True)
class Lines:
    """A line for each key and its value. ``line``, ``sign``: what stands between lines, and between a key and its value."""

    line: str = "\n"
    sign: str = ":"
    strip: bool = True
    value: Content | None = None

    def pairs(self, body: str) -> Iterator[tuple[str, str]]:
        """Each key with its value's text; lines without the sign are passed over."""
        for line in body.split(self.line):
            key, sign, value = line.partition(self.sign)
            if sign:
                yield (key.strip(), value.strip()) if self.strip else (key, value)

    def read(self, body: str) -> Any:
        """The value of a region's text."""
        return _gathered(self.pairs(body), self.value, merge=False)


Content = Text | Number | Json | Tags | Lines

NAMES = ("text", "int", "float", "bool", "json", "xml-inline", "kv-lines")
"""The content parsers by the names that templates use."""


def content(name: str, arguments: Declared, nesting: int = 0) -> Content:
    """The content parser of a name with its arguments. Raises ConfigurationError with the argument's path."""
    if name == "json":
        made: Content = Json(
            arguments.flag("unquoted_keys", default=False),
            _delimiters(arguments),
            arguments.flag("allow_non_json", default=False),
        )
    elif name == "xml-inline":
        made = _tags(arguments, nesting)
    elif name == "kv-lines":
        made = Lines(
            arguments.text("line_sep", "\n"),
            arguments.text("kv_sep", ":"),
            arguments.flag("strip", default=True),
            _value_parser(arguments, nesting),
        )
    else:
        strip = arguments.flag("strip", default=True)
        made = Text(strip) if name == "text" else Number(name)
    arguments.done()
    return made


def _trimmed(value: str, left: Trim, right: Trim) -> str:
    value = value.lstrip() if left == "space" else value.removeprefix("\n") if left else value
    return value.rstrip() if right == "space" else value.removesuffix("\n") if right else value


def _delimiters(arguments: Declared) -> tuple[tuple[str, str], ...]:
    value = arguments.take("string_delims", [])
    pairs: list[Any] = value if isinstance(value, list) else [None]
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(mark, str) and mark for mark in pair):
            arguments.refuse("string_delims", "must be a list of pairs, each [opening text, closing text]")
    return tuple((opening, closing) for opening, closing in pairs)


def _value_parser(arguments: Declared, nesting: int) -> Content | None:
    if "value_parser" not in arguments:
        return None
    if nesting == _MAX_NESTING:
        arguments.refuse("value_parser", f"is nested more than {_MAX_NESTING} deep")
    parser = arguments.table("value_parser")
    made = content(parser.one_of("name", NAMES, "text"), parser.table("args"), nesting + 1)
    parser.done()
    return made


def _tags(arguments: Declared, nesting: int) -> Tags:
    """Take a ``tag_pattern`` apart at its value: before it the head, behind it the text that ends the value."""
    text, path = arguments.text("tag_pattern"), arguments.at("tag_pattern")
    items, names = parse_pattern(text, path)
    if sorted(names.values()) != ["key", "value"]:
        arguments.refuse("tag_pattern", "must have the named groups 'key' and 'value', and no others")
    at = next((i for i, (kind, argument) in enumerate(items) if kind is op.SUBPATTERN and names.get(argument[0]) == "value"), -1)
    if at < 0 or not _is_any_text(list(items[at][1][3])):
        arguments.refuse("tag_pattern", "must have its value as (?P<value>.*?), not inside of another group")
    head, tail = items[:at], items[at + 1 :]
    left, right = bool(head) and _is_space(head[-1]), bool(tail) and _is_space(tail[0])
    head, tail = head[: -1 if left else None], tail[1 if right else 0 :]
    while tail and _is_space(tail[-1]):
        tail = tail[:-1]
    if not tail or any(kind is not op.LITERAL for kind, _ in tail):
        arguments.refuse("tag_pattern", "must have literal text behind the value, which ends it")
    compiled = compile_items(head, {number: name for number, name in names.items() if name == "key"}, text, path)
    return Tags(
        head=compiled,
        tail="".join(chr(code) for _, code in tail),
        left="space" if left else "",
        right="space" if right else "",
        value=_value_parser(arguments, nesting),
        merge=arguments.flag("merge_duplicates", default=False),
    )


def _is_any_text(items: list[Item]) -> bool:
    """``.*?`` or ``.+?``, or a greedy run of all but some characters: what ends such a value is the text behind it."""
    if len(items) != 1 or items[0][0] not in (op.MIN_REPEAT, op.MAX_REPEAT):
        return False
    kind, (least, most, body) = items[0]
    if len(body) != 1:
        return False
    what, argument = body[0]
    is_all = what is op.ANY and kind is op.MIN_REPEAT
    is_rest = what is op.NOT_LITERAL or (what is op.IN and argument[0][0] is op.NEGATE)
    return least <= 1 and most is op.MAXREPEAT and (is_all or is_rest)


def _is_space(item: Item) -> bool:
    r"""``\s*``, greedy or not."""
    kind, argument = item
    if kind not in (op.MIN_REPEAT, op.MAX_REPEAT):
        return False
    least, most, body = argument
    return least == 0 and most is op.MAXREPEAT and list(body) == [(op.IN, [(op.CATEGORY, op.CATEGORY_SPACE)])]


def _gathered(pairs: Iterator[tuple[str, str]], value: Content | None, *, merge: bool) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for key, text in pairs:
        found.setdefault(key, []).append(text if value is None else value.read(text))
    return {key: values if merge and len(values) > 1 else values[-1] for key, values in found.items()}


def _end_of_string(body: str, at: int) -> int:
    """Behind the quote that ends a JSON string; ``at`` is behind the one that begins it."""
    for found in _STRING_PART.finditer(body, at):
        if found.group() == '"':
            return found.end()
    raise ValueError("a string is never closed")


_WORD = re.compile(r"\w+")
_STRING_PART = re.compile(r'\\.|"', re.DOTALL)


def raw_texts(parser: Content, body: str) -> Mapping[str, str] | None:
    """Each key's text as the model wrote it, where the parser reads keys and no key comes twice; else None."""
    if not isinstance(parser, Tags | Lines):
        return None
    pairs = list(parser.pairs(body))
    return dict(pairs) if len({key for key, _ in pairs}) == len(pairs) else None
