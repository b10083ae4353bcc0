r"""Regular expressions of JSON Schemas as trees that a grammar can be written from.

A pattern that is not anchored may stand anywhere in its string. What needs more than a regular language (lookarounds, word
boundaries, references to groups) cannot be read. ``\d`` and ``\w`` mean ASCII, as in ECMAScript; for ``\s`` a blank is
written.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

_sre: Any = importlib.import_module("re._parser")  # (the module that ``re`` itself reads patterns with)
_names: Any = importlib.import_module("re._constants")

MAX_REPEATS: Final = 255
"""Repetitions of a part of a pattern that has no bound of its own, or a greater one."""


@dataclass(frozen=True, slots=True)
class CharSet:
    """One character: of these ranges of code points, both ends inclusive, or of all others if ``negated``."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Concat:
    """Parts one after the other."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One of several parts."""

    options: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A part, ``least`` to ``most`` times."""

    part: Pattern
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class AnyText:
    """Any text, before or behind a pattern that is not anchored."""


Pattern: TypeAlias = CharSet | Concat | Alternatives | Repeated | AnyText

_DATE = "[12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = "[a-z0-9]{1,20}(-[a-z0-9]{1,20}){0,2}"
FORMATS: Final = {
    name: f"^{pattern}$"
    for name, pattern in {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}T{_TIME}",
        "duration": r"P(_D|_M(_D)?|_Y(_M(_D)?)?|T(_H(_M(_S)?)?|_M(_S)?|_S)|_W)".replace("_", "[0-9]{1,4}"),
        "email": rf"[A-Za-z0-9_+-]{{1,15}}(\.[A-Za-z0-9_+-]{{1,15}}){{0,3}}@{_LABEL}(\.{_LABEL}){{0,2}}\.[a-z]{{2,20}}",
        "hostname": rf"{_LABEL}(\.{_LABEL}){{0,2}}",
        "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
        "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    }.items()
}
"""Patterns of formats. They are narrower than the formats: 29 February is left out."""
DESCRIBED: Final = {
    "YYYY-MM-DD": FORMATS["date"],
    "HH:MM:SS": "^([01][0-9]|2[0-3])(:[0-5][0-9]){2}$",
    "HH:MM": "^([01]?[0-9]|2[0-3]):[0-5][0-9]$",
}
"""Patterns by the words of a description."""


@lru_cache(maxsize=256)
def read_pattern(pattern: str) -> Pattern | None:
    """Read a pattern; None for one that is no regular language, or that is not understood."""
    if "{," in pattern:  # (no repetition in ECMAScript)
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # operators of sets, in some engines
            tree = _sre.parse(pattern)
    except (_sre.error, OverflowError, RecursionError, FutureWarning):
        return None
    if tree.state.flags & ~32:  # (32: Unicode)
        return None
    return _read_anchored(list(tree))


def _read_anchored(items: list[Any]) -> Pattern | None:
    """Read the whole of a pattern, or a top-level alternative, with its anchors."""
    if len(items) == 1 and items[0][0] is _names.BRANCH:
        return _alternatives(_read_anchored(list(option)) for option in items[0][1][1])
    begins = bool(items) and items[0] == (_names.AT, _names.AT_BEGINNING)
    ends = len(items) > begins and items[-1] == (_names.AT, _names.AT_END)
    if begins and not ends and len(items) == 2 and items[1][0] is _names.BRANCH:
        return _alternatives(_read_anchored([items[0], *option]) for option in items[1][1][1])
    inner = _read_all(items[begins : len(items) - ends])
    if inner is None:
        return None
    return Concat((*(() if begins else (AnyText(),)), inner, *(() if ends else (AnyText(),))))


def _alternatives(options: Iterable[Pattern | None]) -> Pattern | None:
    found = list(options)
    return None if None in found else Alternatives(tuple(option for option in found if option is not None))


def _read_all(items: Iterable[Any]) -> Pattern | None:
    parts = [_read(name, value) for name, value in items]
    return None if None in parts else Concat(tuple(part for part in parts if part is not None))


def _read(name: Any, value: Any) -> Pattern | None:
    if name is _names.LITERAL:
        return CharSet(((value, value),))
    if name is _names.NOT_LITERAL:
        return CharSet(((value, value),), negated=True)
    if name is _names.ANY:
        return CharSet(((10, 10), (13, 13), (0x2028, 0x2029)), negated=True)
    if name is _names.IN:
        return _read_set(value)
    if name is _names.SUBPATTERN:
        _, added, removed, items = value
        return None if added or removed else _read_all(items)
    if name is _names.BRANCH:
        return _alternatives(_read_all(option) for option in value[1])
    if name in (_names.MAX_REPEAT, _names.MIN_REPEAT):
        least, most, items = value
        part = _read_all(items)
        if part is None or least > MAX_REPEATS:
            return None
        return Repeated(part, least, min(most, MAX_REPEATS))
    return None


_DIGITS: Final = ((48, 57),)
_WORD: Final = ((48, 57), (65, 90), (95, 95), (97, 122))
_BLANK: Final = ((32, 32),)
_SPACE: Final = (
    (9, 13), (28, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
"""White space in any engine."""
_CATEGORIES: Final = {"DIGIT": (_DIGITS, _DIGITS), "WORD": (_WORD, _WORD), "SPACE": (_BLANK, _SPACE)}
"""Ranges of the characters that are written for a class, and of those that are not written for its complement."""
_LAST: Final = 0x10FFFF


def _read_set(items: Iterable[Any]) -> CharSet | None:
    ranges: list[tuple[int, int]] = []
    negated = False
    for name, value in items:
        if name is _names.NEGATE:
            negated = True
        elif name is _names.LITERAL:
            ranges.append((value, value))
        elif name is _names.RANGE:
            ranges.append((value[0], value[1]))
        elif name is _names.CATEGORY:
            kind = str(value).removeprefix("CATEGORY_")
            written, left_out = _CATEGORIES[kind.removeprefix("NOT_")]
            if kind.startswith("NOT_"):
                ranges += _without(written if negated else left_out)
            else:
                ranges += left_out if negated else written
        else:
            return None
    return CharSet(tuple(ranges), negated)


def _without(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return all code points outside of sorted ranges."""
    found, begin = [], 0
    for low, high in ranges:
        if low > begin:
            found.append((begin, low - 1))
        begin = high + 1
    return [*found, (begin, _LAST)]
