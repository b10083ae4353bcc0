"""Patterns that somebody else wrote, compiled to programs that ``attempts`` runs.

A pattern is parsed as ``re`` does. What cannot be run in linear time, or not over a chunk's border (look around, refer back), is
refused, and so are quantifiers inside quantified groups: other readers of the same declaration may choke on them. Which texts a
match begins with (``Pattern.starts``) is worked out here as well: a scanner looks for them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from patchbay.formats.outside.attempts import BEGIN, CHAR, END, JUMP, MATCH, SAVE, SPLIT, Pattern
from patchbay.formats.outside.declared import refuse

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
    """Whether a character fits a node that stands for one."""
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
