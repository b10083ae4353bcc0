"""Grammars of values: forms written in a family's notation, as JSON, Python literals, bare texts or elements."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from patchbay.constraints.forms import (
    MAX_TEXT,
    AnyForm,
    ArrayForm,
    ChoiceForm,
    ConstantForm,
    Form,
    Member,
    NumberForm,
    ObjectForm,
    TextForm,
)
from patchbay.constraints.gbnf import (
    Grammar,
    NoGrammarError,
    alternatives,
    character_class,
    complement,
    excluding,
    integers,
    literal,
    sequence,
)
from patchbay.constraints.patterns import Alternatives, AnyText, CharSet, Concat, Pattern, Repeated, read_pattern
from patchbay.constraints.spans import Spans
from patchbay.formats.render.styles import PYTHON, PYTHON_IN_DOUBLE_QUOTES, PYTHON_WITH_JSON_WORDS, gemma_key, gemma_notation
from patchbay.formats.render.values import Notation, quoted

_CONTROL: Final = "".join(map(chr, (*range(0x20), 0x7F)))
_SPACE: Final = "".join(filter(str.isspace, map(chr, range(0x3001))))
MAX_BARE: Final = 1000
"""Maximum length of a text without quotes that must not be empty."""
_MAX_INNER: Final = 32
"""Items and members of a value of any form."""


@dataclass(frozen=True)
class ValueNotation:
    """How values are written.

    ``write``: a constant, given as JSON text. ``quotes``: before and behind a text. ``excluded``: the characters that do not
    stand for themselves in a text; ``escapes``: an expression for those that are written otherwise. ``inner``: a given text as it
    stands inside of the quotes, None for one that cannot be written. ``markers``: a text of any length must not contain them.
    ``trimmed``: white space around a text is lost. ``free_key``: the expression of a key that no schema names; "" for a text.
    """

    write: Callable[[str], str]
    quotes: tuple[str, str]
    excluded: str
    escapes: str
    inner: Callable[[str], str | None]
    key: Callable[[str], str]
    comma: str = ", "
    colon: str = ": "
    markers: tuple[str, ...] = ()
    trimmed: bool = False
    free_key: str = ""


def _json_inner(text: str) -> str:
    return quoted(text)[1:-1]


def _python_inner(quote: str, also: str) -> Callable[[str], str]:
    written_as_code = re.compile(f"[{re.escape(_CONTROL + also)}]")

    def inner(text: str) -> str:
        for plain, written in (("\\", "\\\\"), (quote, f"\\{quote}"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
            text = text.replace(plain, written)
        return written_as_code.sub(lambda found: f"\\x{ord(found[0]):02x}", text)

    return inner


_JSON_ESCAPES: Final = '"\\\\" ["\\\\/bfnrt]'
_JSON_ESCAPES_IN_MARKUP: Final = '"\\\\" (["\\\\/bfnrt] | "u003c" | "u0026")'
_PYTHON_ESCAPES: Final = '"\\\\" [\'\\"\\\\nrt]'

JSON: Final = ValueNotation(
    write=lambda raw: raw,
    quotes=('"', '"'),
    excluded=f'"\\{_CONTROL}',
    escapes=_JSON_ESCAPES,
    inner=_json_inner,
    key=quoted,
)
JSON_IN_MARKUP: Final = ValueNotation(
    write=lambda raw: raw.replace("<", "\\u003c").replace("&", "\\u0026"),
    quotes=('"', '"'),
    excluded=f'"\\<&{_CONTROL}',
    escapes=_JSON_ESCAPES_IN_MARKUP,
    inner=lambda text: _json_inner(text).replace("<", "\\u003c").replace("&", "\\u0026"),
    key=lambda name: quoted(name).replace("<", "\\u003c").replace("&", "\\u0026"),
)
JSON_IN_TEXT: Final = ValueNotation(
    write=_json_inner,
    quotes=('\\"', '\\"'),
    excluded=f'"\\{_CONTROL}',
    escapes='"\\\\\\\\" ([nt] | "\\\\\\"" | "\\\\\\\\")',
    inner=lambda text: _json_inner(_json_inner(text)),
    key=lambda name: _json_inner(quoted(name)),
)
"""JSON as the content of a JSON string."""


def _python(notation: Notation, quote: str, also: str = "") -> ValueNotation:
    return ValueNotation(
        write=notation.convert,
        quotes=(quote, quote),
        excluded=f"{quote}\\{also}{_CONTROL}",
        escapes='"\\\\" ([\'\\"\\\\nrt] | "x3c" | "x26")' if also else _PYTHON_ESCAPES,
        inner=_python_inner(quote, also),
        key=notation.key,
    )


PYTHON_NOTATIONS: Final = {
    PYTHON: _python(PYTHON, "'"),
    PYTHON_IN_DOUBLE_QUOTES: _python(PYTHON_IN_DOUBLE_QUOTES, '"'),
    PYTHON_WITH_JSON_WORDS: _python(PYTHON_WITH_JSON_WORDS, '"'),
}
PYTHON_IN_MARKUP: Final = _python(PYTHON, "'", "<&")


PLAIN: Final = ValueNotation(
    write=json.loads, quotes=("", ""), excluded="", escapes="", inner=lambda text: text, key=lambda name: name
)
"""Text without quotes, escapes and end."""


def gemma(mark: str, markers: tuple[str, ...]) -> ValueNotation:
    """Return Gemma's notation; texts stand between two marks. ``markers``: the family's, which end a text for the reader."""
    written = gemma_notation(mark)
    return ValueNotation(
        write=written.convert,
        quotes=(mark, mark),
        excluded=mark[0],
        escapes="",
        inner=lambda text: None if any(marker in text for marker in markers) else text,
        key=gemma_key,
        comma=",",
        colon=":",
        markers=tuple(dict.fromkeys(('<|"|>', "<escape>", *markers))),  # (either mark may end a text, for the reader)
        free_key="[a-zA-Z] [a-zA-Z0-9_]{0,63}",
    )


def bare(markers: tuple[str, ...]) -> ValueNotation:
    """Return the notation of texts without quotes and escapes, which end at a marker."""
    return ValueNotation(
        write=json.loads,
        quotes=("", ""),
        excluded="".join(dict.fromkeys(marker[0] for marker in markers)) + "&\r\n",
        escapes="",
        inner=lambda text: None if any(marker in text for marker in markers) else text,
        key=lambda name: name,
        markers=markers,
        trimmed=True,
    )


class ValueWriter:
    """Writes the expressions of values in one notation into a grammar. ``spans``: where texts are copied from."""

    def __init__(self, grammar: Grammar, notation: ValueNotation, spans: Spans | None = None) -> None:
        self._grammar = grammar
        self._notation = notation
        self._spans = spans
        self._made: dict[Form | Member | CharSet, str] = {}

    def value(self, form: Form) -> str:
        """Return the expression of a value: a text in its quotes, an object in its braces."""
        if isinstance(form, ObjectForm):  # (slow to hash: one that is a member is found as such)
            return self._object(form)
        if (made := self._made.get(form)) is None:
            made = self._made[form] = self._value(form)
        return made

    def _value(self, form: Form) -> str:
        if isinstance(form, TextForm):
            begin, end = self._notation.quotes
            return sequence(literal(begin), self._inside(form), literal(end))
        if isinstance(form, NumberForm):
            return self._number(form)
        if isinstance(form, ConstantForm):
            return alternatives([literal(self._notation.write(raw)) for raw in form.values])
        if isinstance(form, ArrayForm):
            return self._array(form)
        if isinstance(form, ChoiceForm):
            return alternatives([self.value(option) for option in form.options])
        assert isinstance(form, AnyForm)
        return self._any(form)

    def _inside(self, form: TextForm) -> str:
        notation, grammar = self._notation, self._grammar
        if form.pattern is not None:
            tree = read_pattern(form.pattern)
            assert tree is not None
            return self.pattern(tree)
        if form.copied and self._spans is not None and (copied := self._spans.texts(grammar, notation.inner, form.taken)):
            return copied
        if form.least == 0 and form.most is None:
            return self._any_text()
        return self._bounded(form) if form.most != 0 else ""

    def _any_text(self) -> str:
        notation, grammar = self._notation, self._grammar
        if notation.markers:
            return grammar.without("text", notation.markers)
        return grammar.long("text", self._any_character)

    @cached_property
    def _any_character(self) -> str:
        notation = self._notation
        escapes = [notation.escapes] if notation.escapes else []
        return self._grammar.rule("char", alternatives([excluding(notation.excluded), *escapes]))

    def _bounded(self, form: TextForm) -> str:
        """Return the expression of a text with a least or a greatest length."""
        notation, grammar, character = self._notation, self._grammar, self._any_character
        if not notation.trimmed:
            if form.most is not None:
                return grammar.repeated("char", character, form.least, form.most)
            return sequence(grammar.repeated("char", character, form.least, form.least), grammar.long("text", character))
        edge = grammar.rule("edge", excluding(notation.excluded + _SPACE))
        most = MAX_BARE if form.most is None else form.most
        if most == 1:
            return edge if form.least else grammar.optional(edge)
        rest = sequence(grammar.repeated("char", character, max(0, form.least - 2), most - 2), edge)
        found = sequence(edge, rest if form.least > 1 else grammar.optional(rest))
        return found if form.least else grammar.optional(found)

    def pattern(self, tree: Pattern) -> str:
        """Return the expression of a text that a pattern matches as a whole, without its quotes."""
        if isinstance(tree, CharSet):
            if (made := self._made.get(tree)) is None:
                made = self._made[tree] = self._character(tree)
            return made
        if isinstance(tree, Concat):
            return sequence(*map(self.pattern, tree.parts))
        if isinstance(tree, Alternatives):
            return alternatives([self.pattern(option) for option in tree.options])
        if isinstance(tree, Repeated):
            part = self.pattern(tree.part)
            if tree.most < MAX_TEXT:
                return self._grammar.repeated("part", part, tree.least, tree.most)
            return sequence(self._grammar.repeated("part", part, tree.least, tree.least), self._grammar.long("run", part))
        assert isinstance(tree, AnyText)
        return self._any_text()

    def _character(self, wanted: CharSet) -> str:
        """Return the expression of one character, those that do not stand for themselves written as the notation has it."""
        notation = self._notation
        ranges = complement(wanted.ranges) if wanted.negated else wanted.ranges
        special = notation.excluded + _SPACE if notation.trimmed and not _is_one(ranges) else notation.excluded
        plain, escaped = _parted(tuple(ranges), special)
        options = [plain] if plain else []
        if not notation.markers or _is_one(ranges):
            options += [
                literal(inner)
                for one in escaped
                if one not in _CONTROL and one not in self._begins and (inner := notation.inner(one)) is not None
            ]
        if not options:
            raise NoGrammarError(f"no character of a pattern's part {wanted} can be written")
        return alternatives(options)

    @property
    def _begins(self) -> set[str]:
        """The characters that markers begin with."""
        return {marker[0] for marker in self._notation.markers}

    def _number(self, form: NumberForm) -> str:
        if form.integer:
            return self._grammar.rule("integer", integers(form.least, form.most))
        sign = "" if form.positive else '"-"?'
        return self._grammar.rule("number", sequence(sign, '([1-9] [0-9]{0,15} | "0") ("." [0-9]{1,16})?'))

    def _object(self, form: ObjectForm) -> str:
        if form.extra is None or form.members:
            return sequence(literal("{"), self.members(form.members), literal("}"))
        return self._pairs(self.value(form.extra))

    def _pairs(self, value: str) -> str:
        """Return the expression of an object with any keys."""
        key = self._notation.free_key or self.value(TextForm(1, 64))
        pair = sequence(key, literal(self._notation.colon), self._grammar.rule("value", value))
        pairs = self._grammar.separated("pair", self._grammar.rule("pair", pair), self._notation.comma, 0, _MAX_INNER)
        return sequence(literal("{"), pairs, literal("}"))

    def members(self, members: Sequence[Member]) -> str:
        """Return the expression of an object's members, without the braces."""
        written = [(self._member(member), member.required) for member in members]
        return join_members(self._grammar, written, self._notation.comma)

    def _member(self, member: Member) -> str:
        """Return the expression of a member, which many tools share."""
        if (made := self._made.get(member)) is None:
            key = literal(self._notation.key(member.name) + self._notation.colon)
            made = self._made[member] = sequence(key, self.value(member.form))
        return made

    def _array(self, form: ArrayForm) -> str:
        comma = literal(self._notation.comma)
        items = [self.value(item) for item in form.first]
        rest = "" if form.items is None else self._grammar.rule("item", self.value(form.items))
        if not items:
            inside = self._grammar.separated("item", rest, self._notation.comma, form.least, form.most) if rest else ""
            return sequence(literal("["), inside, literal("]"))
        more = form.most - len(items)
        tail = ""
        if rest and more > 0:
            tail = self._grammar.repeated("item-next", sequence(comma, rest), max(0, form.least - len(items)), more)
        for index in range(len(items) - 1, -1, -1):  # items behind the least number may be left out
            tail = sequence(comma if index else "", items[index], tail)
            if index >= form.least:
                tail = self._grammar.optional(tail)
        return sequence(literal("["), tail, literal("]"))

    def _any(self, form: AnyForm) -> str:
        options = [self.value(TextForm()), self.value(NumberForm()), *(literal(self._notation.write(raw)) for raw in _WORDS)]
        if form.depth > 0:
            inner = self._grammar.rule("any", self._any(AnyForm(form.depth - 1)))
            items = self._grammar.separated("any-item", inner, self._notation.comma, 0, _MAX_INNER)
            options += [sequence(literal("["), items, literal("]")), self._pairs(inner)]
        return self._grammar.rule("any", alternatives(options))


_WORDS: Final = ("true", "false", "null")


def join_members(grammar: Grammar, members: Sequence[tuple[str, bool]], separator: str) -> str:
    """Return members in their order, the optional ones or not, a separator between any two. Each has whether it is required."""
    between = literal(separator)
    parts: list[str] = []
    for index, (written, required) in enumerate(members):
        if required:  # what comes before it has a separator behind it, and what comes after it one before it
            parts += [written, *(_next(grammar, between, each) for each in members[index + 1 :])]
            return " ".join(parts)
        parts.append(f"({written} {between})?")
    options, rest = [""], ""
    for member in reversed(members):
        options.append(sequence(member[0], rest))
        rest = grammar.rule("members", sequence(_next(grammar, between, member), rest))
    return alternatives(options[::-1])


def _next(grammar: Grammar, between: str, member: tuple[str, bool]) -> str:
    written, required = member
    return f"{between} {written}" if required else grammar.rule("member", f"({between} {written})?")


def _is_one(ranges: Sequence[tuple[int, int]]) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


@lru_cache(maxsize=256)
def _parted(ranges: tuple[tuple[int, int], ...], special: str) -> tuple[str, list[str]]:
    """Return the expression of the ranges without the special characters, and those of these that are in the ranges."""
    found, parted = [], set()
    for low, high in ranges:
        begin = low
        for character in sorted(set(special)):
            code = ord(character)
            if begin <= code <= high:
                parted.add(character)
                if begin < code:
                    found.append((begin, code - 1))
                begin = code + 1
        if begin <= high:
            found.append((begin, high))
    return character_class(found) if found else "", sorted(parted)
