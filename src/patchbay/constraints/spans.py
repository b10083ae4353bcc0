"""Spans: arguments that are copied from the user's words.

A tiny model that may write any string writes a wrong one; one that may only choose where a string begins and ends in the request
mostly chooses right. A text is a run of whole words, without the punctuation around it, and a number one that stands there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Final

from patchbay.constraints.forms import NumberForm, TextForm
from patchbay.constraints.gbnf import Grammar, alternatives, literal, sequence

_MAX_WORDS: Final = 400
"""Words that spans are drawn from, the last ones of a text: each is a rule, or two."""
_WORD: Final = re.compile(r"\S+")
_OUTER: Final = "\"'`“”‘’«»()[]{}<>,;:!?…"
_NUMBER: Final = re.compile(r"(?<![\w.])[-+]?\d{1,15}(?:,\d{3})*(?:\.\d{1,15})?(?!\w)")
_NUMBER_WORDS: Final = dict(
    zip(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
            "twenty",
        ],
        range(21),
        strict=True,
    )
) | {"thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "ninety": 90, "hundred": 100, "dozen": 12}


class Spans:
    """The texts and numbers that may be copied from one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._rules: tuple[int, str] | None = None

    @cached_property
    def _words(self) -> list[tuple[str, str]]:
        """The words, each with the white space that follows it."""
        found = list(_WORD.finditer(self._text))[-_MAX_WORDS:]
        ends = [match.start() for match in found[1:]]
        return [(match[0], self._text[match.end() : end]) for match, end in zip(found, [*ends, len(self._text)], strict=True)]

    @cached_property
    def _numbers(self) -> list[str]:
        found = [match[0].replace(",", "").removeprefix("+") for match in _NUMBER.finditer(self._text)]
        words = (re.sub(r"\W", "", word).lower() for word, _ in self._words)
        found += [str(_NUMBER_WORDS[word]) for word in words if word in _NUMBER_WORDS]
        return list(dict.fromkeys(_normal(number) for number in found))

    def texts(self, grammar: Grammar, inner: Callable[[str], str | None], form: TextForm) -> str:
        """Return the expression for a run of words as it stands inside of quotes, "" if there is none.

        The length of the text is not bounded by the form.
        """
        if form.least > 1 or form.most is not None:
            return ""
        following = ""
        begins: list[str] = []
        for word, gap in reversed(self._words):
            core, first, last = word.strip(_OUTER).rstrip("."), word.lstrip(_OUTER), word.rstrip(_OUTER).rstrip(".")
            written = [inner(piece) for piece in (core, first, last, word, gap)]
            if None in written:
                following = ""
                continue
            alone, opening, closing, whole, blank = (piece or "" for piece in written)
            starts = [literal(alone)] if alone else []
            goes_on = [literal(closing)] if closing else []
            if following:
                starts += [sequence(literal(opening + blank), following)] if opening else []
                goes_on.append(sequence(literal(whole + blank), following))
            if starts:
                begins.append(grammar.rule("span", alternatives(starts)))
            following = grammar.rule("words", alternatives(goes_on)) if goes_on else ""
        return grammar.rule("copied", alternatives(begins[::-1])) if begins else ""

    def numbers(self, form: NumberForm) -> str:
        """Return the expression for a number of the text that the form allows, "" if there is none."""
        found = [number for number in self._numbers if _fits(number, form)]
        return alternatives([literal(number) for number in found]) if found else ""


def _normal(number: str) -> str:
    """Return a number as JSON has it."""
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
    whole, point, fraction = digits.partition(".")
    return sign + (whole.lstrip("0") or "0") + (point + fraction if fraction else "")


def _fits(number: str, form: NumberForm) -> bool:
    value = float(number)
    if form.integer and "." in number:
        return False
    is_low = (form.least is not None and value < form.least) or (form.positive and value < 0)
    return not is_low and (form.most is None or value <= form.most)
