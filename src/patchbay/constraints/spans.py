"""Arguments that are copied from the conversation, for very small models.

Such a model may choose where an argument stands, and what is said with it, but it does not write anything. A text is a run of
whole words, without the punctuation around it; a number, a date or a time is one that stands there; of an enumeration's values
those that are mentioned; and an optional argument is given if the conversation has something for it, and else left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from patchbay.constraints.forms import ConstantForm, Form, Member, NumberForm, ObjectForm, TextForm
from patchbay.constraints.gbnf import Grammar, alternatives, literal, sequence

_MAX_WORDS: Final = 200
"""Words that are copied from, the last ones of a text: each is a rule, or two."""
_WORD: Final = re.compile(r"\S+")
_LEADING: Final = "\"'`“”‘’«»([{<"
_TRAILING: Final = ".,;:!?…\"'`“”‘’«»)]}>"
_NUMBER: Final = re.compile(r"(?<![\w.:/-])[-+]?\d{1,15}(?:,\d{3})*(?:\.\d{1,15})?(?![\d:/]|-\d|\.\d)")
_UNITS: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen"
    " nineteen twenty"
)
_NUMBER_WORDS: Final = dict(zip(_UNITS.split(), range(21), strict=True)) | {
    "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90, "hundred": 100, "dozen": 12,
}  # fmt: skip
# fmt: off
_FUNCTION_WORDS: Final = frozenset({
    "a", "an", "the", "this", "that", "these", "those", "my", "your", "our", "his", "her", "its", "their", "me", "us", "him",
    "them", "it", "I", "you", "we", "to", "for", "of", "in", "on", "at", "by", "from", "with", "into", "over", "under",
    "about", "as", "is", "are", "was", "be", "do", "does", "and", "or", "but", "if", "then", "please", "what", "which",
    "where", "when", "who", "how", "can", "could", "would", "will", "like", "right", "now", "so", "up", "out", "off", "not",
    "no", "any", "some", "all", "next", "than", "also", "too", "there",
})
# fmt: on
"""English words that a name, a title or a search seldom begins or ends with."""
_MIN_STEM: Final = 4
_STEM: Final = 5


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of the text: as it stands, without what leads it, up to its end proper, neither; and the white space behind it."""

    whole: str
    opened: str
    closed: str
    core: str
    gap: str

    @property
    def is_name(self) -> bool:
        """Whether it begins with a capital letter."""
        return self.core[:1].isupper()

    @property
    def is_plain(self) -> bool:
        """Whether there is no punctuation around it."""
        return self.whole == self.core


class Spans:
    """What may be copied from one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lower = f" {re.sub(r'[^a-z0-9]+', ' ', text.lower())} "

    def fit(self, forms: Sequence[ObjectForm]) -> tuple[tuple[ObjectForm, ...], int]:
        """Return the forms of arguments as the text leaves them, and how well it fits them.

        That is the number of arguments that it evidently has; -1 if it lacks one that is required.
        """
        fitted = [self._object(form) for form in forms]
        return tuple(form for form, _ in fitted), max(evidence for _, evidence in fitted)

    def _object(self, form: ObjectForm) -> tuple[ObjectForm, int]:
        numbers = [member for member in form.members if isinstance(member.form, NumberForm)]
        spare = len(self._numbers) - sum(member.required for member in numbers)  # required arguments come first
        members: list[Member] = []
        taken: set[str] = set()
        evidence, is_complete = 0, True
        for member in form.members:
            found, evident = self._member(member.name, member.form)
            if not member.required and isinstance(member.form, NumberForm):
                evident = bool(evident) and spare > 0
                spare -= evident
            if evident is False and not member.required:
                continue
            if evident is False and not isinstance(member.form, ConstantForm):  # (a constant may be meant by another word)
                is_complete = False
            evidence += bool(evident)
            if evident and isinstance(member.form, TextForm):
                taken |= self._words_of(member.form)
            elif evident and isinstance(found, ConstantForm):
                taken.update(*(json.loads(raw).split() for raw in found.values if raw.startswith('"')))
            # A number that is left over may be meant for something else.
            is_given = bool(evident) and not isinstance(member.form, NumberForm)
            members.append(Member(member.name, found, member.required or is_given))
        if numbers and len(self._numbers) <= len(numbers):
            taken |= {word.core for word in self._words if _is_number(word.core)}
        copied = tuple(_without(member, frozenset(taken)) for member in members)
        return replace(form, members=copied), evidence if is_complete else -1

    def _member(self, name: str, form: Form) -> tuple[Form, bool | None]:
        """Return a form as the text leaves it, and whether the text has a value of it; None: it does not show."""
        if isinstance(form, ConstantForm):
            if set(form.values) <= {"true", "false"}:
                return form, self._mentions(name)
            values = tuple(raw for raw in form.values if raw.startswith('"') and self._has(json.loads(raw)))
            return (ConstantForm(values), True) if values else (form, False)
        if isinstance(form, NumberForm):
            numbers = tuple(number for number in self._numbers if _fits(number, form))
            return (ConstantForm(numbers), True) if numbers else (form, False)
        if isinstance(form, TextForm) and form.described is not None:
            values = tuple(json.dumps(word.zfill(5) if ":" in word else word) for word in sorted(self._words_of(form)))
            return (ConstantForm(values), True) if values else (replace(form, pattern=form.described), False)
        if isinstance(form, ObjectForm) and form.members:
            return self._object(form)[0], None
        return form, None

    def _words_of(self, form: TextForm) -> set[str]:
        """Return the dates or times of the text."""
        pattern = re.compile(form.described or "", re.ASCII)
        return {word.core for word in self._words if pattern.fullmatch(word.core)}

    def _has(self, value: str) -> bool:
        """Whether the text has these words, or a word that begins with the last of them."""
        words = re.sub(r"[^a-z0-9]+", " ", value.lower()).strip()
        return bool(words) and f" {words}" in self._lower

    def _mentions(self, name: str) -> bool:
        """Whether a word of the text has the beginning of a word of a name."""
        stems = {word[:_STEM] for word in re.findall(r"[a-z]+", name.replace("_", " ").lower()) if len(word) >= _MIN_STEM}
        return any(word[:_STEM] in stems for word in self._lower.split())

    @cached_property
    def _words(self) -> list[_Word]:
        found = list(_WORD.finditer(self._text))[-_MAX_WORDS:]
        ends = [*(match.start() for match in found[1:]), len(self._text)]
        words = []
        for match, end in zip(found, ends, strict=False):  # (a text without words has an end, too)
            whole = match[0]
            opened, closed = whole.lstrip(_LEADING), whole.rstrip(_TRAILING)
            words.append(_Word(whole, opened, closed, opened.rstrip(_TRAILING), self._text[match.end() : end]))
        return words

    @cached_property
    def _numbers(self) -> list[str]:
        found = [match[0].replace(",", "").removeprefix("+") for match in _NUMBER.finditer(self._text)]
        found += [str(_NUMBER_WORDS[word]) for word in self._lower.split() if word in _NUMBER_WORDS]
        return list(dict.fromkeys(_normal(number) for number in found))

    def texts(self, grammar: Grammar, inner: Callable[[str], str | None], taken: frozenset[str]) -> str:
        """Return the expression for a run of words, without those ``taken``, as it stands inside of quotes; "" if there is none.

        A run neither begins nor ends within a name of several words, or with a word such as "the".
        """
        words, begins, following = self._words, [], ""
        for index in range(len(words) - 1, -1, -1):
            word = words[index]
            written = [inner(piece) for piece in (word.core, word.closed, word.opened + word.gap, word.whole + word.gap)]
            if None in written or word.core in taken:
                following = ""
                continue
            alone, closing, opening, whole = (piece or "" for piece in written)
            starts, ends = self._may_start(index), self._may_end(index)
            first = [literal(alone)] if ends and word.core else []
            rest = [literal(closing)] if ends and word.core else []
            if following:
                first.append(sequence(literal(opening), following))
                rest.append(sequence(literal(whole), following))
            if first and starts and word.core:
                begins.append(grammar.rule("span", alternatives(first)))
            following = grammar.rule("words", alternatives(rest)) if rest else ""
        return grammar.rule("copied", alternatives(begins[::-1])) if begins else ""

    def _may_start(self, index: int) -> bool:
        word, before = self._words[index], self._words[index - 1] if index else None
        if before is None or word.whole != word.opened:
            return True
        is_in_name = index > 1 and word.is_name and before.is_name and before.is_plain
        return not is_in_name and word.core not in _FUNCTION_WORDS

    def _may_end(self, index: int) -> bool:
        word, last = self._words[index], len(self._words) - 1
        if index == last or not word.is_plain:
            return True
        is_in_name = index > 0 and word.is_name and self._words[index + 1].is_name
        return not is_in_name and word.core not in _FUNCTION_WORDS


def _without(member: Member, taken: frozenset[str]) -> Member:
    form = member.form
    return member._replace(form=replace(form, taken=taken)) if taken and isinstance(form, TextForm) and form.copied else member


def _is_number(word: str) -> bool:
    return _NUMBER.fullmatch(word.lstrip("$€£").rstrip("%")) is not None or word.lower() in _NUMBER_WORDS


def _normal(number: str) -> str:
    """Return a number as JSON has it."""
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
    whole, point, fraction = digits.partition(".")
    fraction = fraction.rstrip("0")
    return sign + (whole.lstrip("0") or "0") + (point + fraction if fraction else "")


def _fits(number: str, form: NumberForm) -> bool:
    value = float(number)
    if form.integer and "." in number:
        return False
    is_low = (form.least is not None and value < form.least) or (form.positive and value < 0)
    return not is_low and (form.most is None or value <= form.most)
