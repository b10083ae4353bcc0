"""Grammars in GBNF: rules, literals, repetitions, and texts that leave out a marker.

GBNF is llama.cpp's notation; xgrammar (vLLM, SGLang) reads it as EBNF. A grammar is built from expressions, which are texts;
whatever is used more than once is a rule. Nothing repeats without a bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Final

from patchbay.constraints.forms import MAX_TEXT

ROOT: Final = "root"
_LAST: Final = 0x10FFFF
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_NAMED: Final = {"\r": "\\r", "\t": "\\t"}
_CHUNK: Final = 64
_CHUNKS: Final = 16
_SEGMENTS: Final = 1000
"""Times that a marker may begin, without being complete, in a text that must not contain it."""


class NoGrammarError(ValueError):
    """There is no grammar for the calls of a tool in a format."""


def literal(text: str) -> str:
    """Return the expression for a fixed text, "" for none."""
    if text.isprintable():
        return encode_basestring(text) if text else ""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{_UNPRINTABLE.sub(_escape, escaped)}"'


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return _NAMED.get(character) or _code(ord(character))


def _code(code: int) -> str:
    return f"\\x{code:02X}" if code <= 0xFF else f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def character_class(ranges: Iterable[tuple[int, int]]) -> str:
    """Return the expression for one character of these ranges of code points, both ends inclusive."""
    inside = "".join(_in_class(low) if low == high else f"{_in_class(low)}-{_in_class(high)}" for low, high in ranges)
    return f"[{inside}]"


def _in_class(code: int) -> str:
    is_plain = 0x20 < code < 0x7F and chr(code) not in ']\\^-["'
    return chr(code) if is_plain else _code(code)


@lru_cache(maxsize=256)
def excluding(characters: str) -> str:
    """Return the expression for one character of Unicode other than these.

    The class is not negated: llama.cpp would allow the bytes of code points that do not exist.
    """
    return character_class(complement((ord(character), ord(character)) for character in characters))


def complement(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of all characters of Unicode outside of these."""
    found, begin = [], 0
    for low, high in sorted([*ranges, (0xD800, 0xDFFF)]):
        if low > begin:
            found.append((begin, low - 1))
        begin = max(begin, high + 1)
    return [*found, (begin, _LAST)] if begin <= _LAST else found


def sequence(*parts: str) -> str:
    """Return expressions one after the other; empty ones are left out."""
    return " ".join(filter(None, parts))


def alternatives(options: Sequence[str]) -> str:
    """Return a choice of expressions, in parentheses unless there is one alone."""
    if len(options) != 1 and len(found := dict.fromkeys(options)) != 1:
        return f"({' | '.join([option or _NOTHING for option in found])})"
    return options[0]


_NOTHING: Final = '""'


class Grammar:
    """The rules of a grammar; an expression is a rule once."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._texts: dict[tuple[str, ...], str] = {}

    def rule(self, hint: str, expression: str) -> str:
        """Return the name of the rule for an expression. ``hint``: letters and hyphens that its name begins with; not "root"."""
        if expression in self._rules:
            return expression
        if (name := self._names.get(expression)) is None:
            number = self._counts[hint] = self._counts.get(hint, 0) + 1
            name = hint if number == 1 else f"{hint}-{number}"
            self._rules[name] = expression
            self._names[expression] = name
        return name

    def text(self, root: str) -> str:
        """Return the whole grammar, with the expression ``root`` for a reply."""
        lines = [f"{ROOT} ::= {root}", *(f"{name} ::= {expression}" for name, expression in self._rules.items())]
        return "\n".join(lines) + "\n"

    def optional(self, expression: str) -> str:
        """Return an expression, or nothing."""
        return f"({expression})?" if expression else ""

    def repeated(self, hint: str, item: str, least: int, most: int) -> str:
        """Return ``least`` to ``most`` of an item."""
        if most == 0:
            return ""
        name = item if _is_atom(item) else self.rule(hint, item)
        if (least, most) in ((1, 1), (0, 1)):
            return name if least else f"{name}?"
        return f"{name}{{{least}}}" if least == most else f"{name}{{{least},{most}}}"

    def separated(self, hint: str, item: str, separator: str, least: int, most: int) -> str:
        """Return ``least`` to ``most`` of an item, a literal between any two."""
        if most == 0:
            return ""
        rest = self.repeated(f"{hint}-next", sequence(literal(separator), item), max(0, least - 1), most - 1)
        found = sequence(item, rest)
        return found if least else self.optional(found)

    def long(self, hint: str, character: str) -> str:
        """Return at most ``MAX_TEXT`` of a character.

        A bound of its own for each character would cost a rule each, so they are counted in chunks of chunks; a chunk is left out
        or complete, so that a reader follows three ways at most.
        """
        chunk = self.rule(f"{hint}-chunk", f"{character}{{{_CHUNK}}}")
        block = self.rule(f"{hint}-block", f"{chunk}{{{_CHUNKS}}}")
        blocks = (MAX_TEXT + 1) // (_CHUNK * _CHUNKS) - 1
        return self.rule(hint, f"{block}{{0,{blocks}}} {chunk}{{0,{_CHUNKS - 1}}} {character}{{0,{_CHUNK - 1}}}")

    def without(self, hint: str, markers: Sequence[str]) -> str:
        """Return any text without these markers.

        Of a marker in which the beginning of one occurs again, the part before that must not occur.
        """
        place = (hint, *markers)
        if (made := self._texts.get(place)) is None:
            made = self._texts[place] = self._without(hint, markers)
        return made

    def _without(self, hint: str, markers: Sequence[str]) -> str:
        begins = "".join(dict.fromkeys(marker[0] for marker in markers))
        markers = list(dict.fromkeys(_first_part(marker, begins) for marker in markers))
        plain = self.long(f"{hint}-plain", self.rule(f"{hint}-char", excluding(begins)))
        longer = [marker for marker in markers if len(marker) > 1]
        if not longer:
            return plain
        begun = []
        for character in dict.fromkeys(marker[0] for marker in longer):
            rests = tuple(marker[1:] for marker in longer if marker[0] == character)
            begun.append(sequence(literal(character), _unfinished(rests, begins, plain)))
        segment = self.rule(f"{hint}-segment", alternatives(begun))
        return self.rule(f"{hint}-free", sequence(plain, f"{segment}{{0,{_SEGMENTS}}}"))


@lru_cache(maxsize=256)
def _unfinished(rests: tuple[str, ...], excluded: str, plain: str) -> str:
    """Return what may follow the beginning of markers: nothing, a part of one, or a part and another character."""
    characters = "".join(dict.fromkeys([rest[0] for rest in rests]))
    options = ["", sequence(excluding(characters + excluded), plain)]
    for character in characters:
        longer = tuple(rest[1:] for rest in rests if rest[0] == character)
        if all(longer):  # (a marker that would be complete is left out)
            options.append(sequence(literal(character), _unfinished(longer, excluded, plain)))
    return alternatives(options)


def _first_part(marker: str, begins: str) -> str:
    """Return the part of a marker in which no marker can begin again."""
    while len(marker) > 1 and marker[1] == marker[0]:  # ("]>" is in "]]>")
        marker = marker[1:]
    found = next((index for index in range(1, len(marker)) if marker[index] in begins), len(marker))
    return marker[:found]


_ATOM: Final = re.compile(r'[\w-]+|\[(?:[^\\\]]|\\.)+\]|"(?:[^\\"]|\\.)+"', re.ASCII)


def _is_atom(expression: str) -> bool:
    return _ATOM.fullmatch(expression) is not None


def integers(least: int | None, most: int | None) -> str:
    """Return the expression for the integers between two bounds, both inclusive, without leading zeros."""
    if least is None and most is None:
        return '("-"? [1-9] [0-9]{0,15} | "0")'
    if least is None:
        assert most is not None
        return f"({_negative(None, min(most, -1))} | {_range(0, most)})" if most >= 0 else _negative(None, most)
    if most is None:
        if least >= 0:
            return _from(least)
        return f"({_negative(least, -1)} | {_from(0)})"
    options = [_negative(least, min(most, -1))] if least < 0 else []
    if most >= 0:
        options.append(_range(max(least, 0), most))
    return alternatives(options)


def _negative(least: int | None, most: int) -> str:
    """Return the negative integers from ``least`` to ``most``."""
    return sequence('"-"', _from(-most) if least is None else _range(-most, -least))


def _from(least: int) -> str:
    """Return the integers from ``least``, which is not negative, with at most 15 digits more."""
    if least == 0:
        return '([1-9] [0-9]{0,15} | "0")'
    digits = len(str(least))
    return alternatives([_range(least, 10**digits - 1), f"[1-9] [0-9]{{{digits},{digits + 15}}}"])


def _range(least: int, most: int) -> str:
    """Return the integers from ``least`` to ``most``, neither negative."""
    options = []
    for digits in range(len(str(least)), len(str(most)) + 1):
        low, high = max(least, 0 if digits == 1 else 10 ** (digits - 1)), min(most, 10**digits - 1)
        options += _of_length(str(low), str(high))
    return alternatives(options)


def _of_length(low: str, high: str) -> list[str]:
    """Return expressions for the numbers between two of the same length."""
    if not low:
        return [""]
    if low == "0" * len(low) and high == "9" * len(high):
        return [_digits(len(low))]
    if low[0] == high[0]:
        return [sequence(literal(low[0]), rest) for rest in _of_length(low[1:], high[1:])]
    first, last = int(low[0]), int(high[0])
    options = []
    if low[1:] != "0" * (len(low) - 1):
        options += [sequence(literal(low[0]), rest) for rest in _of_length(low[1:], "9" * (len(low) - 1))]
        first += 1
    ends = []
    if high[1:] != "9" * (len(high) - 1):
        ends = [sequence(literal(high[0]), rest) for rest in _of_length("0" * (len(high) - 1), high[1:])]
        last -= 1
    if first <= last:
        digit = f"[{first}-{last}]" if first < last else literal(str(first))
        options.append(sequence(digit, _digits(len(low) - 1)))
    return [*options, *ends]


def _digits(count: int) -> str:
    return "" if count == 0 else "[0-9]" if count == 1 else f"[0-9]{{{count}}}"
