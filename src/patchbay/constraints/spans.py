"""Arguments that are copied from the conversation, for very small models.

Such a model may choose where an argument stands, and what is said with it, but it does not write anything. A text is a run of
whole words, without the punctuation around it; a number, a date or a time is one that stands there; of an enumeration's values
those that are mentioned; and an optional argument is given if the conversation has something for it, and else left out. Words
around a value say whose it is: a name beside a number, a "to" before a destination, an "on" or "off".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final, TypeGuard

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
# fmt: off
_COMMANDS: Final = frozenset({
    "add", "ask", "book", "buy", "call", "cancel", "change", "check", "convert", "copy", "create", "delete", "find", "forward",
    "get", "give", "let", "list", "look", "make", "move", "open", "order", "play", "put", "read", "remind", "remove", "rename",
    "save", "search", "send", "set", "show", "start", "stop", "switch", "tell", "translate", "turn", "write",
})
# fmt: on
_OPENERS: Final = _COMMANDS | {word.lower() for word in _FUNCTION_WORDS}
"""English words that a sentence of a request often begins with."""
_SWITCH: Final = {"on": "true", "off": "false"}
_TARGET: Final = re.compile("to_|new_|target|dest|arrival")
"""The beginning of the name of an argument that something is moved or changed to."""
_SINGULARS: Final = {"feet": "foot", "children": "child", "people": "person", "men": "man", "women": "woman"}
_MIN_NAME: Final = 3
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
        self._lower = f" {_plain(text)} "

    def fit(self, forms: Sequence[ObjectForm]) -> tuple[tuple[ObjectForm, ...], tuple[int, int]]:
        """Return the forms of arguments as the text leaves them, and how well it fits them.

        That is the number of arguments that it evidently has, -1 if it lacks one that is required; and less the required
        constants of which it has none: they may be meant by another word.
        """
        fitted = [self._object(form) for form in forms]
        return tuple(form for form, _ in fitted), max(fit for _, fit in fitted)

    def _object(self, form: ObjectForm) -> tuple[ObjectForm, tuple[int, int]]:
        numbers = [member for member in form.members if isinstance(member.form, NumberForm)]
        spare = len(self._numbers) - sum(member.required for member in numbers)  # required arguments come first
        known = self._named_numbers(numbers) | self._paired(form.members)
        named = {raw for found in known.values() for raw in found.values}
        others = [number for number in self._numbers if number not in named] or self._numbers
        members: list[Member] = []
        taken: set[str] = set()
        evidence, meant, is_complete = 0, 0, spare >= 0
        found: Form
        evident: bool | None
        for member in form.members:
            is_free = isinstance(member.form, NumberForm) and member.name not in known
            if member.name in known:
                found, evident = known[member.name], True
            else:
                found, evident = self._member(member.name, member.form, others)
            if is_free and not member.required:
                evident = bool(evident) and spare > 0
                spare -= evident
            if evident is False and not member.required:
                continue
            if evident is False:
                meant -= 1
                is_complete = is_complete and isinstance(member.form, ConstantForm)
            evidence += bool(evident)
            if evident and isinstance(member.form, TextForm):
                taken |= self._words_of(member.form)
            elif evident and isinstance(found, ConstantForm):
                taken.update(*(json.loads(raw).split() for raw in found.values if raw.startswith('"')))
            # A number that is left over may be meant for something else.
            members.append(Member(member.name, found, member.required or (bool(evident) and not is_free)))
        if numbers and len(self._numbers) <= len(numbers):
            taken |= self._number_words
        apart = self._apart([member.name for member in members if member.required and _is_copied(member.form)])
        copied = tuple(_without(member, apart.get(member.name, frozenset()) | taken) for member in members)
        return replace(form, members=copied), (evidence if is_complete else -1, meant)

    def _named_numbers(self, members: Sequence[Member]) -> dict[str, ConstantForm]:
        """Return the numbers that stand beside a word of an argument's name, by that name."""
        found: dict[str, ConstantForm] = {}
        for member in members:
            assert isinstance(member.form, NumberForm)
            names = [part for part in member.name.lower().split("_") if len(part) >= _MIN_NAME]
            values = [
                number
                for number, beside in self._numbers_beside
                if _fits(number, member.form) and any(_is_alike(word, name) for word in beside for name in names)
            ]
            if values:
                found[member.name] = ConstantForm(tuple(dict.fromkeys(values)))
        return found

    @cached_property
    def _number_words(self) -> frozenset[str]:
        return frozenset(word.core for word in self._words if _is_number(word.core))

    @cached_property
    def _numbers_beside(self) -> list[tuple[str, list[str]]]:
        """The numbers of the text, each with the words before and behind it."""
        words = [word.core.lower() for word in self._words]
        places = [index for index, word in enumerate(words) if _is_number(word)]
        return [(_value(words[at]), words[max(0, at - 1) : at] + words[at + 1 : at + 2]) for at in places]

    def _paired(self, members: Sequence[Member]) -> dict[str, ConstantForm]:
        """Return the values of arguments with the same enumeration, if the text has one for each: that of a number is first."""
        found: dict[str, ConstantForm] = {}
        for form in {member.form for member in members if isinstance(member.form, ConstantForm)}:
            names = [member.name for member in members if member.form == form]
            values = self._mentioned(form) if len(names) > 1 else ()
            if len(names) == len(values):
                values = tuple(sorted(values, key=lambda raw: self._place(json.loads(raw))))
                found |= {name: ConstantForm((value,)) for name, value in zip(names, values, strict=True)}
        return found

    def _place(self, value: str) -> tuple[bool, int]:
        """Return whether no number is before a value that the text has, and where it is."""
        place = self._lower.find(f" {_plain_value(value)}")
        before = self._lower[:place].split()[-1:]
        return not any(word.isdigit() or word in _NUMBER_WORDS for word in before), place

    def _apart(self, names: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return the words that two copied arguments leave to one another, if one is named as what follows a "to"."""
        targets = [name for name in names if _TARGET.match(name) or (name == "to" and "from" in names)]
        if len(names) != 2 or len(targets) != 1:
            return {}
        words = [word.core for word in self._words]
        begin = max((index + 1 for index, word in enumerate(words) if word in ("to", "into")), default=len(words))
        end = words.index("from", begin) if "from" in words[begin:] else len(words)
        behind = frozenset(words[begin:end])
        rest = frozenset(words) - behind
        return {name: rest if name in targets else behind for name in names} if behind and rest else {}

    def _member(self, name: str, form: Form, numbers: Sequence[str]) -> tuple[Form, bool | None]:
        """Return a form as the text leaves it, and whether the text has a value of it; None: it does not show."""
        if isinstance(form, ConstantForm):
            if set(form.values) <= {"true", "false"}:
                return self._switch(name, form)
            values = self._mentioned(form)
            return (ConstantForm(values), True) if values else (form, False)
        if isinstance(form, NumberForm):
            values = tuple(dict.fromkeys(number for number in numbers if _fits(number, form)))
            return (ConstantForm(values), True) if values else (form, False)
        if isinstance(form, TextForm) and form.described is not None:
            values = tuple(json.dumps(word.zfill(5) if ":" in word else word) for word in sorted(self._words_of(form)))
            return (ConstantForm(values), True) if values else (replace(form, pattern=form.described), False)
        if isinstance(form, ObjectForm) and form.members:
            return self._object(form)[0], None
        return form, None

    def _switch(self, name: str, form: ConstantForm) -> tuple[Form, bool]:
        """Return a boolean as the text leaves it: of one that is named "on", the value that is said."""
        said = [value for word, value in _SWITCH.items() if name == "on" and f" {word} " in self._lower]
        return (ConstantForm((said[0],)), True) if len(said) == 1 else (form, self.mentions(name) > 0)

    def _mentioned(self, form: ConstantForm) -> tuple[str, ...]:
        """Return the values of an enumeration that the text has."""
        return tuple(raw for raw in form.values if raw.startswith('"') and self._has(json.loads(raw)))

    def _words_of(self, form: TextForm) -> set[str]:
        """Return the dates or times of the text."""
        pattern = re.compile(form.described or "", re.ASCII)
        return {word.core for word in self._words if pattern.fullmatch(word.core)}

    def _has(self, value: str) -> bool:
        """Whether the text has these words, or a word that begins with the last of them."""
        words = _plain_value(value)
        return bool(words) and f" {words}" in self._lower

    def mentions(self, name: str) -> int:
        """Count the words of a name whose beginnings words of the text have."""
        return len(_stems(name) & self._stems)

    @cached_property
    def _stems(self) -> set[str]:
        return {word[:_STEM] for word in self._lower.split()}

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
        return [_normal(number) for number in found]

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
        if word.whole != word.opened or (before is not None and before.whole.endswith(":")):
            return True
        if before is None or before.whole.endswith((".", "!", "?")):
            return word.core.lower() not in _OPENERS
        is_in_name = index > 1 and word.is_name and before.is_name and before.is_plain
        return not is_in_name and word.core not in _FUNCTION_WORDS

    def _may_end(self, index: int) -> bool:
        word, last = self._words[index], len(self._words) - 1
        if index == last or not word.is_plain:
            return True
        after = self._words[index + 1]
        is_in_name = index > 0 and word.is_name and after.is_name
        return not is_in_name and word.core not in _FUNCTION_WORDS and after.core != "of"


def _without(member: Member, taken: frozenset[str]) -> Member:
    form = member.form
    return member._replace(form=replace(form, taken=taken)) if taken and _is_copied(form) else member


def _is_copied(form: Form) -> TypeGuard[TextForm]:
    return isinstance(form, TextForm) and form.copied


def _is_alike(one: str, other: str) -> bool:
    """Whether two words are the same, but for their ends: a plural and its singular."""
    return len(one) >= _MIN_NAME and (one.startswith(other) or other.startswith(one))


def _plain(text: str) -> str:
    """Return the words of a text in lower case, without punctuation and irregular plurals."""
    return " ".join(_SINGULARS.get(word, word) for word in re.findall("[a-z0-9]+", text.lower()))


_plain_value: Final = lru_cache(maxsize=1024)(_plain)


@lru_cache(maxsize=1024)
def _stems(name: str) -> frozenset[str]:
    return frozenset(word[:_STEM] for word in re.findall("[a-z]+", name.lower()) if len(word) >= _MIN_STEM)


def _value(word: str) -> str:
    """Return the number that a word is."""
    number = _NUMBER_WORDS.get(word.lower())
    return _normal(word.lstrip("$€£").rstrip("%").replace(",", "").removeprefix("+")) if number is None else str(number)


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
