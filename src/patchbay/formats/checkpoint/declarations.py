"""Declarations in JSON or TOML, read field by field: errors name a field by its path. And patterns that are declared in them."""

from __future__ import annotations

import re
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import Enum
from functools import partial
from itertools import count, takewhile
from typing import NoReturn

from patchbay.errors import ConfigurationError

_KINDS: Mapping[type, str] = {dict: "a table", list: "a list", str: "text", bool: "true or false"}


def kind_of(value: object) -> str:
    """What a declared value is, in words: ``a list``, ``text``, ``nothing``."""
    return "nothing" if value is None else _KINDS.get(type(value), "a number" if isinstance(value, int | float) else "a date")


class Declaration:
    """One table of a declaration and its path, such as ``response_template.fields.tool_calls``.

    Each reading takes a field out; ``done`` names unread fields. All raise ConfigurationError.
    """

    def __init__(self, value: object, path: str) -> None:
        self.path = path
        if not isinstance(value, Mapping):
            refuse(path, f"must be a table, not {kind_of(value)}")
        self._fields: dict[str, object] = {str(key): field for key, field in value.items()}
        self._taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def at(self, key: str) -> str:
        """The path of one field."""
        return f"{self.path}.{key}" if self.path else key

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Refuse the declaration because of one field."""
        refuse(self.at(key), problem)

    def take(self, key: str, default: object = None) -> object:
        """The value as it was declared."""
        self._taken.add(key)
        return self._fields.get(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty; without a default it is due."""
        value = self.take(key, default)
        if value is None:
            self.refuse(key, "is missing")
        if not isinstance(value, str) or not value:
            self.refuse(key, f"must be text that is not empty, not {kind_of(value) if value != '' else 'an empty one'}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            self.refuse(key, f"must be true or false, not {kind_of(value)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """One text or a list of them, none empty, doubles left out; () where the field is not there."""
        value = self.take(key)
        if value is None:
            return ()
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
            self.refuse(key, f"must be text or a list of texts, none of them empty, not {kind_of(value)}")
        return tuple(dict.fromkeys(found))

    def one_of(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """One of some words."""
        value = self.text(key, default)
        if value not in allowed:
            self.refuse(key, f"is {value!r}, which is not one of {', '.join(allowed)}{_nearest(value, allowed)}")
        return value

    def table(self, key: str) -> Declaration:
        """A table inside this one; an empty one where the field is not there."""
        return Declaration(self.take(key, {}), self.at(key))

    def tables(self, key: str) -> Iterator[Declaration]:
        """The tables of a list, or the one that stands there instead of a list; none where the field is not there."""
        value = self.take(key, [])
        if isinstance(value, Mapping):
            yield Declaration(value, self.at(key))
            return
        if not isinstance(value, list):
            self.refuse(key, f"must be a table or a list of tables, not {kind_of(value)}")
        for index, one in enumerate(value):
            yield Declaration(one, f"{self.at(key)}[{index}]")

    def named(self) -> Iterator[str]:
        """The names of all fields."""
        yield from self._fields

    def done(self) -> None:
        """Refuse unread fields: a name that is spelled wrongly would be without effect."""
        self.only(*self._taken)

    def only(self, *known: str) -> None:
        """Refuse fields that are none of ``known``: before any is read, so that a name spelled wrongly is not called missing."""
        for key in self._fields:
            if key not in known:
                self.refuse(key, f"is not known here{_nearest(key, known)}")


def refuse(path: str, problem: str) -> NoReturn:
    """Refuse a declaration because of the field at ``path``."""
    raise ConfigurationError(f"{path} {problem}.")


def _nearest(word: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


MAX_MATCH = 1024
"""How many characters a marker may have; what would be longer is none."""

_MAX_SIZE = 20_000
_MAX_HEADS = 32
_MAX_HEAD = 64
_END, _COPY = "end", "__"
"""A group of a compiled pattern may stand in it several times: its name, the second of these, and a number."""


class Verdict(Enum):
    """Why there is no match: there is none, or more text is needed to know."""

    NONE = "none"
    MORE = "more"


@dataclass(frozen=True)
class Match:
    """Where a match ends in the text, and its named groups (those that took part)."""

    end: int
    groups: Mapping[str, str]


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern. ``names``: its groups. ``literals``: the texts it was made from, where it is no expression.

    ``starts``: texts that a match begins with, to be looked for. A match may also begin before one of them, in a part that may be
    missing (a name before the marker); such a part is not looked for, so that prose need not be held back for it.
    ``partial`` is ``whole``, matching as well where the text ends inside of a match: then its group ``_END`` takes no part.
    """

    text: str
    names: tuple[str, ...]
    starts: tuple[str, ...]
    literals: tuple[str, ...]
    whole: re.Pattern[str] = field(compare=False, repr=False)
    partial: re.Pattern[str] = field(compare=False, repr=False)

    def match(self, text: str, pos: int = 0, *, ended: bool = True) -> Match | Verdict:
        """Match at ``pos``. ``ended``: no more text will come behind ``text``."""
        limit = pos + MAX_MATCH
        if not ended and len(text) < limit and self._is_open(text, pos, len(text)):
            return Verdict.MORE
        found = self.whole.match(text, pos, limit)
        if found is None:
            return Verdict.NONE
        groups = {group.partition(_COPY)[0]: value for group, value in found.groupdict().items() if value is not None}
        return Match(found.end(), {name: groups[name] for name in self.names if name in groups})

    def length_in_vain(self, text: str, pos: int) -> int:
        """How many characters from ``pos`` on, where there is no match, may be the beginning of one."""
        return bisect_left(
            range(1, min(len(text) - pos, MAX_MATCH) + 1), x=True, key=lambda size: not self._is_open(text, pos, pos + size)
        )

    def _is_open(self, text: str, pos: int, end: int) -> bool:
        """True if a text that ends at ``end`` may become a match."""
        found = self.partial.match(text, pos, end)
        return found is not None and not (found.lastgroup or "").startswith(_END + _COPY)


@dataclass(frozen=True)
class Part:
    """A part of a pattern: a character, as the pattern spells it, or a group of alternatives.

    ``literal``: the one character that it stands for. ``name``: the group that it makes up. ``quantifier``: with "?" behind it
    where it is lazy.
    """

    char: str = ""
    literal: str = ""
    alternatives: tuple[tuple[Part, ...], ...] = ()
    name: str = ""
    quantifier: str = ""

    @property
    def is_text(self) -> bool:
        """True if it stands for one character, once."""
        return self.literal != "" and not (self.quantifier or self.name)


_TOKEN = re.compile(r"\(\?P<(?P<name>\w+)>|\(\?:|\((?!\?)|\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|[^(]", re.DOTALL)
_QUANTIFIER = re.compile(r"[*+?]\??(?![*+?])|(?![*+?]|\{\d)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}


class _Parser:
    """Reads the part of regular expressions that can be matched in a stream, in linear time. Raises ConfigurationError."""

    def __init__(self, text: str, path: str) -> None:
        self.text = text
        self.path = path
        self._pos = 0
        self._lazy = False

    def alternatives(self) -> tuple[tuple[Part, ...], ...]:
        """Read up to a closing parenthesis or the end."""
        found: list[tuple[Part, ...]] = []
        parts: list[Part] = []
        while self._pos < len(self.text) and self.text[self._pos] != ")":
            if self.text[self._pos] == "|":
                found.append(tuple(parts))
                parts.clear()
                self._pos += 1
            else:
                parts.append(self._part())
        return (*found, tuple(parts))

    def _part(self) -> Part:
        token = _TOKEN.match(self.text, self._pos)
        if token is None:
            self._refuse(self.text[self._pos : self._pos + 4])
        self._pos = token.end()
        char, name = token.group(), token["name"] or ""
        part = Part(char)
        if char[0] == "(":
            part = Part(alternatives=self.alternatives())
            self._pos += 1
            if name:
                part = self._named(name, part.alternatives)
        elif char[0] == "\\":
            if char[1] not in "wWsSdD":
                if char[1].isalnum() and char[1] not in _ESCAPED:
                    self._refuse(char)
                part = Part(char, literal=_ESCAPED.get(char[1], char[1]))
        elif char == "$":
            self._refuse(char)
        elif char not in (".", "^") and char[0] != "[":
            part = Part(char, literal=char)
        found = _QUANTIFIER.match(self.text, self._pos)
        if found is None:
            self._refuse(f"a quantifier of another kind behind {char}")
        self._pos = found.end()
        quantifier = found.group()
        if quantifier and (part.name or (part.alternatives and quantifier[0] != "?")):
            self._refuse(f"the quantifier {quantifier} behind a group")
        if quantifier in ("*?", "+?"):
            if self._lazy:
                self._refuse("a second lazy quantifier")
            self._lazy = True
        return replace(part, quantifier=quantifier) if quantifier else part

    def _named(self, name: str, alternatives: tuple[tuple[Part, ...], ...]) -> Part:
        parts = alternatives[0]
        if len(alternatives) > 1 or len(parts) != 1 or parts[0].alternatives or parts[0].quantifier[:1] == "?":
            self._refuse(f"the group {name!r}, which is not one run of characters")
        return replace(parts[0], name=name)

    def _refuse(self, what: str) -> NoReturn:
        refuse(self.path, f"has {what}, which cannot be read in a stream")


class _Speller:
    """Spells parts for ``re`` so that matching takes linear time: what a run takes it never gives back, unless it is lazy.

    ``partial``: also match where the text ends. Each copy of a group has a number of its own.
    """

    def __init__(self, path: str, *, partial: bool) -> None:
        self._path = path
        self._partial = partial
        self._copies = count()

    def compile(self, parts: Sequence[Part]) -> re.Pattern[str]:
        try:
            return re.compile(self._sequence(parts, lambda: self._group(_END, "")), re.DOTALL)
        except (RecursionError, OverflowError):
            refuse(self._path, "is too large a pattern")

    def _group(self, name: str, inside: str) -> str:
        return f"(?P<{name}{_COPY}{next(self._copies)}>{inside})" if name else inside

    def _sequence(self, parts: Sequence[Part], behind: Callable[[], str]) -> str:
        """Some parts and what stands behind them."""
        if not parts:
            return behind()
        text = [part.char for part in takewhile(lambda part: part.is_text, parts)]
        size = len(text) or 1
        rest = partial(self._sequence, parts[size:], behind)
        if not text:
            spelled = self._part(parts[0], rest)
        else:
            cut = "".join(f"|{''.join(text[:length])}\\Z" for length in range(size)) if self._partial else ""
            spelled = f"(?:{''.join(text)}{rest()}{cut})"
        if len(spelled) > _MAX_SIZE:
            refuse(self._path, "is too large a pattern")
        return spelled

    def _part(self, part: Part, behind: Callable[[], str]) -> str:
        quantifier, cut = part.quantifier, "|\\Z" if self._partial else ""
        if part.char == "^":
            return "(?!)"  # a match is looked for behind the beginning of the text only
        if quantifier in ("?", "??"):
            ways = [self._part(replace(part, quantifier=""), behind), behind()]
            return f"(?:{'|'.join(ways if quantifier == '?' else ways[::-1])})"
        if part.alternatives:
            return f"(?:{'|'.join(self._sequence(each, behind) for each in part.alternatives)})"
        if quantifier in ("*", "+"):
            run = self._group(part.name, f"{part.char}{quantifier}+") + (rf"(?:\Z|{behind()})" if self._partial else behind())
        else:
            run = self._group(part.name, part.char + quantifier) + behind()
        return run if quantifier[:1] == "*" else f"(?:{run}{cut})"


def compile_pattern(text: str, path: str) -> Pattern:
    """Compile a regular expression (Python's dialect, ``.`` is any character). Raises ConfigurationError that names ``path``."""
    return compile_parts(parse_pattern(text, path), text, path)


def compile_literals(literals: Sequence[str], path: str) -> Pattern:
    """A pattern for any of some texts, the longest that fits."""
    ordered = tuple(sorted(dict.fromkeys(literals), key=len, reverse=True))
    return replace(compile_pattern("|".join(map(re.escape, ordered)), path), literals=ordered)


def names_of(text: str, path: str) -> Iterable[str]:
    """The names of a regular expression's groups. Raises ConfigurationError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(text).groupindex
    except (re.error, RecursionError, OverflowError) as error:
        refuse(path, f"is no regular expression: {error}")


def parse_pattern(text: str, path: str) -> tuple[Part, ...]:
    """The parts of a pattern. Raises ConfigurationError."""
    names_of(text, path)
    return (Part(alternatives=_Parser(text, path).alternatives()),)


def compile_parts(parts: Sequence[Part], text: str, path: str) -> Pattern:
    """Compile some parts of a pattern. Raises ConfigurationError."""
    heads = [head for head, _ in _heads([("", True)], parts)]
    found = dict.fromkeys(filter(None, heads))
    starts = tuple(head for head in found if not any(head != other and head.startswith(other) for other in found))
    if not starts and heads:
        refuse(path, "must begin with literal text, at the latest behind parts that may be missing: only that can be looked for")
    whole, cut = (_Speller(path, partial=is_partial).compile(parts) for is_partial in (False, True))
    names = dict.fromkeys(group.partition(_COPY)[0] for group in whole.groupindex if not group.startswith(_END + _COPY))
    return Pattern(text, tuple(names), starts, (), whole, cut)


_Head = tuple[str, bool]
"""A text that matches may begin with, and whether it may go on."""


def _heads(heads: Sequence[_Head], parts: Iterable[Part]) -> list[_Head]:
    """What ``heads`` come to with ``parts`` behind them; those that only the beginning of the text has are left out."""
    closed = [head for head in heads if not head[1]]
    going = [head for head in heads if head[1]]
    for part in parts:
        if part.alternatives:
            longer = [head for each in part.alternatives for head in _heads(going, each)]
        elif part.char == "^":
            longer = []
        elif part.literal:
            longer = [(text + part.literal, len(text) < _MAX_HEAD and part.quantifier in ("", "?", "??")) for text, _ in going]
        else:
            longer = [(text, False) for text, _ in going]
        if part.quantifier[:1] in ("?", "*"):
            longer += going
        closed += [head for head in longer if not head[1]]
        going = [head for head in longer if head[1]]
        if len(closed) + len(going) > _MAX_HEADS:
            break
    return closed + going
