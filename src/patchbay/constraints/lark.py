"""Grammars of plain texts, as custom tools of the Responses API have them: a regular expression, or a grammar in Lark's notation.

Of Lark it reads what such tools use: rules and terminals that do not contain themselves, strings and regular expressions without
flags, ranges, groups, repetitions, alternatives with their aliases, comments, and Lark's common terminals.
"""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass, replace
from functools import reduce
from typing import Final

from patchbay.constraints.forms import MAX_TEXT
from patchbay.constraints.patterns import MAX_REPEATS, Alternatives, CharSet, Concat, Pattern, Repeated, read_pattern

_MAX_ITEMS: Final = 1000
"""Repetitions of what is more than a character and has no bound of its own."""
_MAX_PARTS: Final = 4000
"""Parts of a grammar, each rule counted as often as it is used."""
_MAX_NESTED: Final = 60
_TOKEN: Final = re.compile(
    r"""(?P<blank>[ \t\r\f]+ | (?://|\#)[^\n]*)
    | (?P<line>\n)
    | (?P<text>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)
    | (?P<name>_?[A-Za-z][A-Za-z0-9_]*)
    | (?P<number>\d+)
    | (?P<directive>%[a-z]+)
    | (?P<mark>->|\.\.|[?*+~!|:()\[\]{},.])""",
    re.VERBOSE,
)
_COMMON: Final = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "NUMBER": r"[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
}


class TextGrammarError(ValueError):
    """A grammar of a text that cannot be read, or that a grammar of calls cannot hold."""


def read_text_grammar(syntax: str, definition: str) -> Pattern:
    """Read the grammar of a text that stands in a fenced block. Raises TextGrammarError.

    The text must not begin like a call, and no line of it like the block's end.
    """
    if syntax not in ("regex", "lark"):
        raise TextGrammarError(f"the syntax {syntax!r} is not known")
    try:
        pattern = _regex(definition) if syntax == "regex" else _LarkReader(definition).pattern("start")
        ends = _ends_of(pattern)
    except RecursionError:
        raise TextGrammarError("it is nested too deeply") from None
    if ends.is_optional or ends.begins_badly or ends.has_fence:
        raise TextGrammarError("its text could be empty, begin like a call or with a blank, or have a line that ends the block")
    return pattern


def _regex(source: str) -> Pattern:
    pattern = read_pattern(f"^(?:{source})$")
    if pattern is None:
        raise TextGrammarError(f"the regular expression {source!r:.80} is not understood")
    # A line of a text may be longer than a text in an argument; a bound that is written there is kept.
    return pattern if str(MAX_REPEATS) in source else _with_long_texts(pattern)


def _with_long_texts(pattern: Pattern) -> Pattern:
    if isinstance(pattern, Concat):
        return Concat(tuple(map(_with_long_texts, pattern.parts)))
    if isinstance(pattern, Alternatives):
        return Alternatives(tuple(map(_with_long_texts, pattern.options)))
    if isinstance(pattern, Repeated):
        inner = _with_long_texts(pattern.part)
        is_text = _is_character(inner) and pattern.most == MAX_REPEATS
        return Repeated(inner, pattern.least, MAX_TEXT if is_text else pattern.most)
    return pattern


def _is_character(pattern: Pattern) -> bool:
    return isinstance(pattern, CharSet) or (
        isinstance(pattern, Concat) and len(pattern.parts) == 1 and _is_character(pattern.parts[0])
    )


class _LarkReader:
    """Reads a grammar in Lark's notation; what is referred to is put in the place of its name."""

    def __init__(self, definition: str) -> None:
        self._definitions: dict[str, list[tuple[str, str]]] = {}
        self._read: dict[str, tuple[Pattern, int]] = {}
        self._open: list[str] = []
        self._tokens: list[tuple[str, str]] = []
        self._parts = 0
        for statement in _statements(definition):
            self._define(statement)

    def _define(self, statement: list[tuple[str, str]]) -> None:
        kind, first = statement[0]
        if first == "%import":
            self._import([text for _, text in statement[1:]])
            return
        while first in ("?", "!"):  # (they shape Lark's tree only)
            statement = statement[1:]
            kind, first = statement[0] if statement else ("", "")
        marks = [text for _, text in statement[1:4]]
        colon = 1 if marks[:1] == [":"] else 3 if marks[:1] == ["."] and marks[2:] == [":"] else 0
        if kind != "name" or not colon:
            raise TextGrammarError(f"{' '.join(text for _, text in statement)!r:.80} is not understood")
        if first in self._definitions:
            raise TextGrammarError(f"{first} is defined twice")
        self._definitions[first] = statement[colon + 1 :]

    def _import(self, words: list[str]) -> None:
        """Define common terminals: ``common.A``, ``common.A -> B``, ``common (A, B)``."""
        if words[:1] != ["common"]:
            raise TextGrammarError("only common terminals are imported")
        names = [word for word in words[1:] if word[0].isalpha()]
        pairs = [(names[0], names[1])] if "->" in words and len(names) == 2 else [(name, name) for name in names]
        for name, alias in pairs:
            if name not in _COMMON:
                raise TextGrammarError(f"common.{name} is not known")
            self._read[alias] = read_pattern(f"^(?:{_COMMON[name]})$") or Concat(()), 1

    def pattern(self, name: str) -> Pattern:
        """Return the pattern of a rule or a terminal."""
        if (found := self._read.get(name)) is None:
            if name not in self._definitions:
                raise TextGrammarError(f"{name} is not defined")
            if name in self._open or len(self._open) > _MAX_NESTED:
                raise TextGrammarError(f"{name} contains itself, or is nested too deeply")
            before = self._tokens, self._parts
            self._open.append(name)
            self._tokens, self._parts = self._definitions[name][::-1], 0
            made = self._alternatives()
            if self._tokens:
                raise TextGrammarError(f"{self._tokens[-1][1]!r:.80} in {name} is not understood")
            found = self._read[name] = made, self._parts
            self._open.pop()
            self._tokens, self._parts = before
        self._count(found[1])
        return found[0]

    def _count(self, parts: int) -> None:
        self._parts += parts
        if self._parts > _MAX_PARTS:
            raise TextGrammarError(f"it has more than {_MAX_PARTS} parts")

    def _next(self, *wanted: str) -> str:
        """Take the next token if it is one of these; "" for any other."""
        return self._tokens.pop()[1] if self._tokens and self._tokens[-1][1] in wanted else ""

    def _demand(self, kind: str, text: str = "") -> str:
        if not self._tokens or self._tokens[-1][0] != kind or (text and self._tokens[-1][1] != text):
            raise TextGrammarError(f"{text or f'a {kind}'} is missing in {self._open[-1]}")
        return self._tokens.pop()[1]

    def _alternatives(self) -> Pattern:
        options = [self._sequence()]
        while self._next("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def _sequence(self) -> Pattern:
        parts: list[Pattern] = []
        while self._tokens and self._tokens[-1][1] not in ("|", ")", "]", "->"):
            parts.append(self._repeated(self._atom()))
        if self._next("->"):
            self._demand("name")
        return Concat(tuple(parts))

    def _atom(self) -> Pattern:
        self._count(1)
        kind, text = self._tokens.pop()
        if kind == "name":
            return self.pattern(text)
        if kind == "text":
            first = _string(text)
            if not self._next(".."):
                return Concat(tuple(CharSet(((ord(each), ord(each)),)) for each in first))
            last = _string(self._demand("text"))
            if len(first) != 1 or len(last) != 1 or first > last:
                raise TextGrammarError(f"{first!r}..{last!r} is no range of characters")
            return CharSet(((ord(first), ord(last)),))
        if kind == "regex":
            source, _, flags = text[1:].rpartition("/")
            if flags:
                raise TextGrammarError(f"the flags of {text!r:.80} are not known")
            return _regex(source.replace("\\/", "/"))
        if text in ("(", "["):
            inner = self._alternatives()
            self._demand("mark", ")" if text == "(" else "]")
            return inner if text == "(" else Repeated(inner, 0, 1)
        raise TextGrammarError(f"{text!r} in {self._open[-1]} is not understood")

    def _repeated(self, part: Pattern) -> Pattern:
        endless = MAX_TEXT if _is_character(part) else _MAX_ITEMS
        if mark := self._next("?", "*", "+"):
            return Repeated(part, 1 if mark == "+" else 0, 1 if mark == "?" else endless)
        if self._next("~"):
            least = most = int(self._demand("number"))
            if self._next(".."):
                most = int(self._demand("number"))
        elif self._next("{"):
            least = most = int(self._demand("number"))
            if self._next(","):
                most = endless if self._next("}") else int(self._demand("number"))
            if most != endless:
                self._demand("mark", "}")
        else:
            return part
        if not least <= most <= endless or least > _MAX_ITEMS:
            raise TextGrammarError(f"{least} to {most} repetitions are too many, or none")
        return Repeated(part, least, most)


def _statements(definition: str) -> list[list[tuple[str, str]]]:
    """Split a definition into its statements, as kinds and texts of tokens: a line each, or more where it goes on with ``|``."""
    statements: list[list[tuple[str, str]]] = [[]]
    place, depth = 0, 0
    is_new = True
    while place < len(definition):
        found = _TOKEN.match(definition, place)
        if found is None:
            raise TextGrammarError(f"{definition[place : place + 20]!r} is not understood")
        place, kind, text = found.end(), str(found.lastgroup), found[0]
        if kind == "line":
            is_new = is_new or not depth
        elif kind != "blank":
            if is_new and text != "|":
                statements.append([])
            is_new = False
            depth += (text in ("(", "[")) - (text in (")", "]"))
            statements[-1].append((kind, text))
    return [statement for statement in statements if statement]


def _string(text: str) -> str:
    inner = text[1:-1]
    if not text.endswith('"') or not inner or _ESCAPES.sub("", inner).count("\\"):
        raise TextGrammarError(f"the string {text!r:.80} is empty, or has flags or escapes that are not known")
    return _ESCAPES.sub(lambda found: _ESCAPED.get(found[1]) or (chr(int(found[1][1:], 16)) if found[1][1:] else found[1]), inner)


_ESCAPES: Final = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[nrtf\\\"/'])")
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


@dataclass(frozen=True, slots=True)
class _Ends:
    """How the texts of a pattern can begin and end.

    ``is_optional``: one is empty. ``begins_badly``: one begins like a call, or with a blank. ``begins_fence``: one begins with a
    fence's character. ``ends_line``: one ends with a line break. ``has_fence``: one has a fence's character after a line break.
    """

    is_optional: bool = False
    begins_badly: bool = False
    begins_fence: bool = False
    ends_line: bool = False
    has_fence: bool = False


_EMPTY: Final = _Ends(is_optional=True)
_BAD_BEGIN: Final = "`~{ \t\r\n"


def _ends_of(pattern: Pattern) -> _Ends:
    if isinstance(pattern, CharSet):
        begins_fence = _allows(pattern, "`~")
        return _Ends(begins_badly=_allows(pattern, _BAD_BEGIN), begins_fence=begins_fence, ends_line=_allows(pattern, "\r\n"))
    if isinstance(pattern, Concat):
        return reduce(_joined, map(_ends_of, pattern.parts), _EMPTY)
    if isinstance(pattern, Alternatives):
        return _Ends(*(any(values) for values in zip(*map(astuple, map(_ends_of, pattern.options)), strict=True)))
    if isinstance(pattern, Repeated):
        part = _ends_of(pattern.part)
        again = _joined(part, part) if pattern.most > 1 else part
        return _EMPTY if not pattern.most else replace(again, is_optional=part.is_optional or not pattern.least)
    return _Ends(is_optional=True, begins_badly=True, begins_fence=True, ends_line=True, has_fence=True)


def _joined(one: _Ends, other: _Ends) -> _Ends:
    """Return the ends of two patterns, one after the other."""
    return _Ends(
        is_optional=one.is_optional and other.is_optional,
        begins_badly=one.begins_badly or (one.is_optional and other.begins_badly),
        begins_fence=one.begins_fence or (one.is_optional and other.begins_fence),
        ends_line=other.ends_line or (other.is_optional and one.ends_line),
        has_fence=one.has_fence or other.has_fence or (one.ends_line and other.begins_fence),
    )


def _allows(wanted: CharSet, characters: str) -> bool:
    return any(any(low <= ord(each) <= high for low, high in wanted.ranges) is not wanted.negated for each in characters)
