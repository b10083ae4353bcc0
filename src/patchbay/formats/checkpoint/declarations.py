"""Validated reading of declarations in JSON or TOML, with errors that name a field by its path; patterns declared in them."""

from __future__ import annotations

import re
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import Enum
from typing import NoReturn

from patchbay.errors import ConfigurationError

_KINDS: Mapping[type, str] = {dict: "a table", list: "a list", str: "text", bool: "true or false"}


def kind_of(value: object) -> str:
    """Describe the type of a declared value: ``a list``, ``text``, ``nothing``."""
    return "nothing" if value is None else _KINDS.get(type(value), "a number" if isinstance(value, int | float) else "a date")


class Declaration:
    """One table of a declaration and its path, such as ``response_template.fields.tool_calls``.

    Each accessor consumes a field; ``done`` rejects the others. All raise ConfigurationError.
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
        """Return the path of one field."""
        return f"{self.path}.{key}" if self.path else key

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Reject the declaration because of one field."""
        refuse(self.at(key), problem)

    def take(self, key: str, default: object = None) -> object:
        """Return the declared value."""
        self._taken.add(key)
        return self._fields.get(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a non-empty text; without a default it is required."""
        value = self.take(key, default)
        if value is None:
            self.refuse(key, "is missing")
        if not isinstance(value, str) or not value:
            self.refuse(key, f"must be text that is not empty, not {kind_of(value) if value != '' else 'an empty one'}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            self.refuse(key, f"must be true or false, not {kind_of(value)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return one text or a list of them, none empty, without duplicates; () if the field is missing."""
        value = self.take(key)
        if value is None:
            return ()
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
            self.refuse(key, f"must be text or a list of texts, none of them empty, not {kind_of(value)}")
        return tuple(dict.fromkeys(found))

    def one_of(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """Return one of some words."""
        value = self.text(key, default)
        if value not in allowed:
            self.refuse(key, f"is {value!r}, which is not one of {', '.join(allowed)}{_nearest(value, allowed)}")
        return value

    def table(self, key: str) -> Declaration:
        """Return a table inside this one, an empty one if the field is missing."""
        return Declaration(self.take(key, {}), self.at(key))

    def tables(self, key: str) -> Iterator[Declaration]:
        """Yield the tables of a list, or a single table in place of a list; none if the field is missing."""
        value = self.take(key, [])
        if isinstance(value, Mapping):
            yield Declaration(value, self.at(key))
            return
        if not isinstance(value, list):
            self.refuse(key, f"must be a table or a list of tables, not {kind_of(value)}")
        for index, one in enumerate(value):
            yield Declaration(one, f"{self.at(key)}[{index}]")

    def named(self) -> Iterator[str]:
        """Yield the names of all fields."""
        yield from self._fields

    def done(self) -> None:
        """Reject unread fields: a misspelled name would have no effect."""
        self.only(*self._taken)

    def only(self, *known: str) -> None:
        """Reject fields other than ``known``. Call before reading, so that a misspelled field is not reported as missing."""
        for key in self._fields:
            if key not in known:
                self.refuse(key, f"is not known here{_nearest(key, known)}")


def refuse(path: str, problem: str) -> NoReturn:
    """Reject a declaration because of the field at ``path``."""
    raise ConfigurationError(f"{path} {problem}.")


def _nearest(word: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


MAX_MATCH = 1024
"""Maximum length of a marker; a longer match does not count."""

_END = "__end"
"""Prefix of the names of groups that show that a match is complete."""


class Verdict(Enum):
    """Reason for a missing match: there is none, or more text is needed."""

    NONE = "none"
    MORE = "more"


@dataclass(frozen=True)
class Match:
    """A match: its end in the text, and its named groups (those that took part)."""

    end: int
    groups: Mapping[str, str]


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern.

    ``names``: its groups. ``literals``: the texts it was made from, unless it is a regular expression.
    ``starts``: texts to search for, with which a match begins. A match may also begin earlier, with an optional part (a name
    before the marker); such a part is not searched for, so that prose need not be held back for it.
    ``partial``: like ``whole``, but matches too if the text ends inside of a match: then no group ``_END`` takes part.
    """

    text: str
    names: tuple[str, ...]
    starts: tuple[str, ...]
    literals: tuple[str, ...]
    whole: re.Pattern[str] = field(compare=False, repr=False)
    partial: re.Pattern[str] = field(compare=False, repr=False)

    def match(self, text: str, pos: int = 0, *, ended: bool = True) -> Match | Verdict:
        """Match at ``pos``. ``ended``: no more text will follow ``text``."""
        limit = pos + MAX_MATCH
        if not ended and len(text) < limit and self._is_open(text, pos, len(text)):
            return Verdict.MORE
        found = self.whole.match(text, pos, limit)
        if found is None:
            return Verdict.NONE
        return Match(found.end(), {name: value for name, value in found.groupdict().items() if value is not None})

    def partial_length(self, text: str, pos: int) -> int:
        """Return how many characters from ``pos`` on, where there is no match, looked like the beginning of one."""
        return bisect_left(
            range(1, min(len(text) - pos, MAX_MATCH) + 1), x=True, key=lambda size: not self._is_open(text, pos, pos + size)
        )

    def _is_open(self, text: str, pos: int, end: int) -> bool:
        """True if a text that ends at ``end`` may become a match."""
        found = self.partial.match(text, pos, end)
        return found is not None and not (found.lastgroup or "").startswith(_END)


@dataclass(frozen=True)
class Part:
    """A part of a pattern: ``text``, or a run of characters (``text`` is ""), and its ``regex``.

    ``quantifier``: as in the pattern, with "?" behind it if it is lazy. ``name``: the group that a run forms.
    """

    text: str
    regex: str
    quantifier: str = ""
    name: str = ""

    @property
    def may_be_missing(self) -> bool:
        """True if a match need not have it."""
        return self.quantifier[:1] in ("?", "*")

    def whole(self) -> str:
        """Return the part's regex: possessive, unless it is lazy."""
        run = self.regex + self.quantifier + ("+" if len(self.quantifier) == 1 else "")
        return f"(?P<{self.name}>{run})" if self.name else run

    def partial(self, behind: str) -> str:
        """Return the regex of the part and what stands ``behind`` it; it also matches if the text ends where more may follow."""
        cuts = "".join(rf"|{re.escape(self.text[:size])}\Z" for size in range(1, len(self.text)))
        if self.quantifier in ("*", "+"):
            behind = rf"(?:\Z|{behind})"
        if self.quantifier[:1] == "*":
            return self.whole() + behind
        return rf"(?:\Z{cuts}|{self.whole()}{behind})"


_CHAR = r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|[^()|]"
_PART = re.compile(
    rf"\(\?:(?P<text>(?:\\[\Wntrfv]|[^\\()|\[\].*+?^$])+)\)\?(?![*+?])|\(\?P<(?P<name>\w+)>(?P<named>{_CHAR})(?P<run>(?:[*+]\??)?)\)(?![*+?{{])"
    rf"|(?P<char>{_CHAR})(?P<quantifier>(?:[*+?]\??)?)(?![*+?]|\{{\d)",
    re.DOTALL,
)
"""An optional text, a named run, or a character of any kind and its quantifier."""
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_CLASSES = frozenset("wWsSdD")
_NEVER = "(?!)"
"""Replaces the beginning of the text: matches are searched for behind it only."""


def parse_pattern(text: str, path: str) -> tuple[tuple[Part, ...], ...]:
    """Parse a pattern into alternatives of parts. Raises ConfigurationError if it cannot be matched against a stream."""
    names_of(text, path)
    if text.startswith("(?:") and text.endswith(")") and not re.search(r"(?<!\\)[()]", text[3:-1]):
        text = text[3:-1]
    alternatives: list[list[Part]] = [[]]
    at = 0
    while at < len(text):
        if text[at] == "|":
            alternatives.append([])
            at += 1
            continue
        found = _PART.match(text, at)
        part = _part(found) if found else None
        parts = alternatives[-1]
        if found is None or part is None or (len(part.quantifier) > 1 and any(len(one.quantifier) > 1 for one in parts)):
            refuse(path, f"has {text[at : found.end() if found else at + 8]}, which cannot be read in a stream")
        if part.text and not part.quantifier and parts and parts[-1].text and not parts[-1].quantifier:
            part = _text_part(parts.pop().text + part.text)
        parts.append(part)
        at = found.end()
    return tuple(map(tuple, alternatives))


def _text_part(text: str, quantifier: str = "") -> Part:
    return Part(text, f"(?:{re.escape(text)})", quantifier)


def _part(found: re.Match[str]) -> Part | None:
    """Return the part that was found, None if it is not supported."""
    if found["text"]:
        return _text_part(_ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[1]), found["text"]), "?")
    char, quantifier = (found["named"], found["run"]) if found["name"] else (found["char"], found["quantifier"])
    if char == "$" or (char[0] == "\\" and char[1].isalnum() and char[1] not in _CLASSES and char[1] not in _ESCAPED):
        return None
    is_class = char in (".", "^") or char[0] == "[" or char[1:] in _CLASSES
    if not (is_class or found["name"] or len(quantifier) > 1 or quantifier in ("*", "+")):
        return _text_part(_ESCAPED.get(char[1:], char[-1]), quantifier)
    return Part("", _NEVER if char == "^" else char, quantifier, found["name"] or "")


def compile_pattern(text: str, path: str) -> Pattern:
    """Compile a regular expression (Python's dialect, ``.`` is any character). Raises ConfigurationError that names ``path``."""
    alternatives = [parts for parts in parse_pattern(text, path) if not any(part.regex == _NEVER for part in parts)]
    found = dict.fromkeys(start for parts in alternatives for start in _starts(parts))
    if alternatives and not found:
        refuse(path, "must begin with literal text, at the latest behind parts that may be missing: only that can be looked for")
    starts = tuple(start for start in found if not any(start != other and start.startswith(other) for other in found))
    cut = []
    for number, parts in enumerate(alternatives):
        regex = f"(?P<{_END}{number}>)"
        for part in reversed(parts):
            regex = part.partial(regex)
        cut.append(regex)
    whole = re.compile("|".join("".join(part.whole() for part in parts) for parts in alternatives) or _NEVER, re.DOTALL)
    return Pattern(text, tuple(whole.groupindex), starts, (), whole, re.compile("|".join(cut) or _NEVER, re.DOTALL))


def _starts(parts: Iterable[Part]) -> list[str]:
    """Return the texts that a match may begin with, except those at which an optional run begins."""
    found, before = list[str](), [""]
    for part in parts:
        if part.text and not part.may_be_missing:
            return found + [start + part.text for start in before]
        if part.text:
            before += [start + part.text for start in before]
            continue
        found += filter(None, before)
        if not part.may_be_missing:
            return found
        before = [""]
    return found + list(filter(None, before))


def compile_literals(literals: Sequence[str], path: str) -> Pattern:
    """Compile a pattern for any of some texts, the longest that fits."""
    ordered = tuple(sorted(dict.fromkeys(literals), key=len, reverse=True))
    return replace(compile_pattern("|".join(map(re.escape, ordered)), path), literals=ordered)


def names_of(text: str, path: str) -> Iterable[str]:
    """Return the names of a regular expression's groups. Raises ConfigurationError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(text).groupindex
    except (re.error, RecursionError, OverflowError) as error:
        refuse(path, f"is no regular expression: {error}")
