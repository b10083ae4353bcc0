"""Declarations in JSON or TOML, read field by field: errors name a field by its path. And patterns that are declared in them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import Enum
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NoReturn

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

CHAR, MATCH, SPLIT, SAVE, JUMP, BEGIN, END = "char", "match", "split", "save", "jump", "begin", "end"
"""What a step of a program does: wants a character, is done, goes two ways (the better one first), notes its place, goes on
elsewhere, wants the text's beginning or its end."""


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
    """

    text: str
    names: tuple[str, ...]
    starts: tuple[str, ...]
    literals: tuple[str, ...]
    program: tuple[tuple[Any, ...], ...] = field(compare=False, repr=False)

    def begin(self, *, first: bool = False) -> Attempt:
        """Begin to match at a place. ``first``: the whole text begins there."""
        return Attempt(self, first=first)

    def match(self, text: str, pos: int = 0, *, first: bool = False, ended: bool = True) -> Match | Verdict:
        """Match at ``pos``, all at once. ``ended``: no more text will come behind ``text``."""
        return self.begin(first=first).read(text, pos, ended=ended)


_Thread = tuple[int, tuple[int, ...]]
"""A place in the program, and where the named groups begin and end so far, counted from where the match begins."""


class Attempt:
    """One attempt to match at a place. It reads on where it stopped, so a text that comes in pieces is read once.

    ``seen``: how many characters it has looked at.
    """

    def __init__(self, pattern: Pattern, *, first: bool) -> None:
        self._pattern = pattern
        self._first = first
        self.seen = 0
        self._threads: list[_Thread] = [(0, (-1,) * (2 * len(pattern.names)))]
        self._best: tuple[int, tuple[int, ...]] | None = None

    def read(self, text: str, pos: int, *, ended: bool) -> Match | Verdict:
        """The match at ``pos`` of ``text``, which begins with what was there before. ``ended``: no more will come."""
        program = self._pattern.program
        while True:
            at = pos + self.seen
            ready, waits = self._reached(at_end=at == len(text))
            if waits and not ended:
                return Verdict.MORE
            if ready and program[ready[-1][0]][0] is MATCH:
                self._best = self.seen, ready.pop()[1]
            if not ready or self.seen == MAX_MATCH:
                return self._result(text, pos)
            if at == len(text):
                return self._result(text, pos) if ended else Verdict.MORE
            char = text[at]
            self._threads = [(place + 1, slots) for place, slots in ready if program[place][1](char)]
            self.seen += 1

    def _result(self, text: str, pos: int) -> Match | Verdict:
        if self._best is None:
            return Verdict.NONE
        length, slots = self._best
        spans = zip(self._pattern.names, slots[::2], slots[1::2], strict=True)
        return Match(pos + length, {name: text[pos + begin : pos + end] for name, begin, end in spans if begin >= 0})

    def _reached(self, *, at_end: bool) -> tuple[list[_Thread], bool]:
        """The threads that want a character, in order of preference, up to one that matches; all behind it is less wanted.

        Also whether the text's being at its end decides about one of them.
        """
        program, reached, waits = self._pattern.program, set[int](), False
        ready: list[_Thread] = []
        stack = self._threads[::-1]
        while stack:
            place, slots = stack.pop()
            if place in reached:
                continue
            reached.add(place)
            code = program[place]
            if code[0] is CHAR:
                ready.append((place, slots))
            elif code[0] is MATCH:
                ready.append((place, slots))
                break
            elif code[0] is SPLIT:
                stack += [(code[2], slots), (code[1], slots)]
            elif code[0] is SAVE:
                stack.append((place + 1, (*slots[: code[1]], self.seen, *slots[code[1] + 1 :])))
            elif code[0] is JUMP:
                stack.append((code[1], slots))
            elif code[0] is BEGIN:
                if self._first and self.seen == 0:
                    stack.append((place + 1, slots))
            elif at_end:
                waits = True
                stack.append((place + 1, slots))
        return ready, waits


_MAX_PROGRAM = 4096
_MAX_HEADS = 32
_MAX_HEAD = 64

Item = tuple[Any, Any]
"""A node of ``re``'s parsed pattern: what it is, and its argument."""


def compile_pattern(text: str, path: str) -> Pattern:
    """Compile a regular expression (Python's dialect, ``.`` is any character). Raises ConfigurationError that names ``path``."""
    items, names = parse_pattern(text, path)
    return compile_items(items, names, text, path)


def compile_literals(literals: Sequence[str], path: str) -> Pattern:
    """A pattern for any of some texts, the longest that fits."""
    ordered = tuple(sorted(dict.fromkeys(literals), key=len, reverse=True))
    return replace(compile_pattern("|".join(map(re.escape, ordered)), path), literals=ordered)


def parse_pattern(text: str, path: str) -> tuple[list[Item], dict[int, str]]:
    """A pattern's nodes, and the names of its groups by their number. Raises ConfigurationError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = parser.parse(text, re.DOTALL)
    except (re.error, RecursionError, OverflowError) as error:
        refuse(path, f"is no regular expression: {error}")
    if tree.state.flags & (re.IGNORECASE | re.MULTILINE | re.VERBOSE | re.LOCALE | re.ASCII):
        refuse(path, "sets flags, which is not supported: write the pattern out")
    return list(tree), {number: name for name, number in tree.state.groupdict.items()}


def compile_items(items: Sequence[Item], names: Mapping[int, str], text: str, path: str) -> Pattern:
    """Compile some nodes of a parsed pattern. Raises ConfigurationError."""
    used = tuple(names[number] for number in sorted(names))
    compiler = _Compiler({number: index for index, number in enumerate(sorted(names))}, path)
    compiler.sequence(items)
    compiler.emit(MATCH)
    heads = _heads(items)
    found = tuple(dict.fromkeys(head for head, _ in heads if head))
    starts = tuple(head for head in found if not any(head != other and head.startswith(other) for other in found))
    if not starts and not all(anchored for _, anchored in heads):
        refuse(path, "must begin with literal text, at the latest behind parts that may be missing: only that can be looked for")
    return Pattern(text, used, starts, (), tuple(compiler.program))


class _Compiler:
    """Turns nodes into a program. ``slots``: where each named group is noted."""

    def __init__(self, slots: Mapping[int, int], path: str) -> None:
        self.program: list[tuple[Any, ...]] = []
        self._slots = slots
        self._path = path
        self._repeated = False

    def emit(self, *code: Any) -> int:
        if len(self.program) >= _MAX_PROGRAM:
            refuse(self._path, "is too large a pattern")
        self.program.append(code)
        return len(self.program) - 1

    def sequence(self, items: Iterable[Item]) -> None:
        for kind, argument in items:
            self._item(kind, argument)

    def _item(self, kind: Any, argument: Any) -> None:
        if kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            self.emit(CHAR, one_character(kind, argument))
        elif kind is op.SUBPATTERN:
            self._group(*argument)
        elif kind is op.BRANCH:
            self._branch(argument[1])
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            self._repeat(*argument, greedy=kind is op.MAX_REPEAT)
        elif kind is op.AT and argument in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            self.emit(BEGIN)
        elif kind is op.AT and argument in (op.AT_END, op.AT_END_STRING):
            self.emit(END)
        else:
            refuse(self._path, f"has {_WORDS.get(kind, str(kind).lower())}, which cannot be read in a stream")

    def _group(self, number: int | None, added: int, removed: int, items: Iterable[Item]) -> None:
        if added or removed:
            refuse(self._path, "sets flags, which is not supported: write the pattern out")
        slot = self._slots.get(number) if number is not None else None
        if slot is not None:
            self.emit(SAVE, 2 * slot)
        self.sequence(items)
        if slot is not None:
            self.emit(SAVE, 2 * slot + 1)

    def _branch(self, branches: Sequence[Iterable[Item]]) -> None:
        if self._repeated:
            refuse(self._path, "has alternatives in a repeated group: write a choice of characters as [...]")
        leaves = []
        for branch in branches[:-1]:
            split = self.emit(SPLIT)
            self.sequence(branch)
            leaves.append(self.emit(JUMP))
            self.program[split] = (SPLIT, split + 1, len(self.program))
        self.sequence(branches[-1])
        for leave in leaves:
            self.program[leave] = (JUMP, len(self.program))

    def _repeat(self, least: int, most: Any, items: Sequence[Item], *, greedy: bool) -> None:
        if self._repeated:
            refuse(self._path, "has a quantifier inside a quantified group")
        outer, self._repeated = self._repeated, most is op.MAXREPEAT or most > 1
        for _ in range(least):
            self.sequence(items)
        if most is op.MAXREPEAT:
            split = self.emit(SPLIT)
            self.sequence(items)
            self.emit(JUMP, split)
            self._choice(split, greedy=greedy)
        else:
            splits = []
            for _ in range(most - least):
                splits.append(self.emit(SPLIT))
                self.sequence(items)
            for split in splits:
                self._choice(split, greedy=greedy)
        self._repeated = outer

    def _choice(self, split: int, *, greedy: bool) -> None:
        into, past = split + 1, len(self.program)
        self.program[split] = (SPLIT, into, past) if greedy else (SPLIT, past, into)


_WORDS = {
    op.ASSERT: "a look-around",
    op.ASSERT_NOT: "a look-around",
    op.GROUPREF: "a reference to a group",
    op.GROUPREF_EXISTS: "a condition on a group",
    op.ATOMIC_GROUP: "an atomic group",
    op.POSSESSIVE_REPEAT: "a possessive quantifier",
    op.AT: "a word boundary",
}

_CATEGORIES: Mapping[Any, Callable[[str], bool]] = {
    op.CATEGORY_DIGIT: str.isdecimal,
    op.CATEGORY_NOT_DIGIT: lambda char: not char.isdecimal(),
    op.CATEGORY_SPACE: str.isspace,
    op.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    op.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    op.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}


def one_character(kind: Any, argument: Any) -> Callable[[str], bool]:
    """True if a character fits a node that stands for one."""
    if kind is op.ANY:
        return lambda _char: True
    if kind is op.LITERAL:
        return chr(argument).__eq__
    if kind is op.NOT_LITERAL:
        return chr(argument).__ne__
    wanted = argument[0][0] is not op.NEGATE
    members = argument if wanted else argument[1:]
    singles = frozenset(chr(value) for what, value in members if what is op.LITERAL)
    ranges = tuple((chr(value[0]), chr(value[1])) for what, value in members if what is op.RANGE)
    categories = tuple(_CATEGORIES[value] for what, value in members if what is op.CATEGORY)

    def fits(char: str) -> bool:
        found = char in singles or any(low <= char <= high for low, high in ranges) or any(is_one(char) for is_one in categories)
        return found is wanted

    return fits


def _heads(items: Iterable[Item]) -> list[tuple[str, bool]]:
    """The literal texts that matches of ``items`` can begin with, and whether they are bound to the beginning of the text."""
    return [(text, anchored) for text, anchored, _ in _extend([("", False, True)], items)]


_Head = tuple[str, bool, bool]
"""A literal text, whether it is bound to the beginning of the text, and whether it may go on."""


def _extend(heads: list[_Head], items: Iterable[Item]) -> list[_Head]:
    for kind, argument in items:
        if len(heads) > _MAX_HEADS or not any(is_open for _, _, is_open in heads):
            break
        closed = [head for head in heads if not head[2]]
        heads = closed + _extend_one([head for head in heads if head[2]], kind, argument)
    return heads


def _extend_one(heads: list[_Head], kind: Any, argument: Any) -> list[_Head]:
    if kind is op.LITERAL:
        return [(text + chr(argument), anchored, len(text) < _MAX_HEAD) for text, anchored, _ in heads]
    if kind is op.SUBPATTERN:
        return _extend(heads, argument[3])
    if kind is op.BRANCH:
        return [head for branch in argument[1] for head in _extend(heads, branch)]
    if kind is op.AT:
        begins = argument in (op.AT_BEGINNING, op.AT_BEGINNING_STRING)
        return [(text, anchored or begins, is_open) for text, anchored, is_open in heads]
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        least, most, body = argument
        repeated = _extend(heads, body)
        if most is op.MAXREPEAT or most > 1:
            repeated = [(text, anchored, False) for text, anchored, _ in repeated]
        return repeated if least else [*heads, *repeated]
    return [(text, anchored, False) for text, anchored, _ in heads]
