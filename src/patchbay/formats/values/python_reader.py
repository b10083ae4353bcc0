"""Lenient streaming reader for Python call arguments and values, to JSON.

``PythonReader`` reads by the character, with its own stack for nesting. A Python literal becomes JSON; anything else (a name, a
call, words without quotes) is kept as it is written, to be typed by the schema (``arguments_json``). It raises ``NoMatch``, with
``pos`` at the offending position, if the text cannot be arguments, and ``Truncated`` if it ends too early. The source must be
marked at or before the start: values are taken from the text kept.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace

from patchbay.formats.source import LINE_END, NoMatch, Steps, Truncated, discard
from patchbay.formats.values.coerce import MAX_DEPTH
from patchbay.formats.values.json_strict import json_text
from patchbay.formats.values.python_text import (
    BLANKS,
    CLOSERS,
    NAME,
    Place,
    PythonStrings,
    arithmetic_json,
    constant_json,
    number_of,
)
from patchbay.formats.values.python_values import NULL, PythonArguments, PythonValue, array_of, as_key, object_of, unescaped

ITEM = Place()
KEY = Place(ends=ITEM.ends | {":", "="}, is_key=True)


@dataclass(slots=True)
class OpenBracket:
    """An open bracket. ``opener``: the bracket, with the name of a constructor before it (``dict(``). ``begin``: its offset."""

    opener: str
    begin: int
    items: list[PythonValue] = field(default_factory=list)
    fields: dict[str, PythonValue] = field(default_factory=dict)
    key: str | None = None
    comma: bool = False

    @property
    def closer(self) -> str:
        """The matching bracket."""
        return {"[": "]", "(": ")", "{": "}"}[self.opener[-1]]

    @property
    def place(self) -> Place:
        """Syntactic position of the next value."""
        return KEY if self.key is None and self.opener in ("{", "dict(") else ITEM

    def add(self, value: PythonValue) -> None:
        """Add a complete value."""
        if self.key is None:
            self.items.append(value)
        else:
            self.fields[self.key] = value
            self.key = None

    def value(self) -> PythonValue:
        """Return the value of the brackets."""
        items, fields = self.items, self.fields
        if self.opener == "{" and fields:
            return object_of({**fields, **{key: NULL for key in map(as_key, items) if key not in fields}})
        if self.opener in ("{", "dict(") and not items:
            return object_of(fields)
        if self.opener == "(" and len(items) == 1 and not self.comma:
            return replace(items[0], text="")
        if self.opener in "([{" or not items:
            return array_of(items)
        # a constructor around one value of the same type; any other is an expression
        json_start = (items[0].json or "")[:1]
        is_same = len(items) == 1 and not fields and json_start == ("{" if self.opener == "dict(" else "[")
        return replace(items[0], text="") if is_same else PythonValue(None)


KEYWORD = Place(in_call=True)
POSITION = Place(ends=KEY.ends, in_call=True)
LINE = Place(ends=KEY.ends, is_line=True)
_WORD_RUN = re.compile(r"\w+")
_SPACE = re.compile(r"[ \t\r]+")
_LISTED_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?)[,)\]}]")
"""Fast path for the usual item of a list, with the same result."""
_CLOSER_OF = {"(": ")", "[": "]", "{": "}"}
_AFTER_BACKSLASH = frozenset("\n\r()[]{}")
_MAX_WORDS = 64
_MAX_KEPT_DEPTH = 16
_MAX_KEPT_LENGTH = 2000
_CONTINUES_VALUE = frozenset("+-*/%|&<>=.?:\"'([{")
_CONTINUING_WORDS = frozenset({"if", "else", "for", "and", "or", "in", "is", "not"})
_BEFORE_WORD = frozenset({"lambda", "not", "await", "new"})


class PythonBare(PythonStrings):
    """Reads unquoted values."""

    def at_end(self) -> Steps[bool]:
        """True if a fence or a marker stands at ``pos``."""
        char = self.source.buf[self.source.pos]
        if char in "`~":
            return (yield from self.source.char(1)) == char == (yield from self.source.char(2))
        return char in "<[" and (yield from self.at_stop())

    def at_stop(self) -> Steps[bool]:
        """True if a marker that ends the block around the call stands at ``pos``."""
        return self.stops is not None and bool((yield from self.stops.at(self.source)))

    def space(self) -> Steps[str]:
        """Read white space, comments, and Markdown's backslashes before a line's end or a bracket; return the next character."""
        source = self.source
        while True:
            found = BLANKS.match(source.buf, source.pos)
            if found:
                source.pos = found.end()
            char = yield from source.peek()
            if char == "#":
                yield from self.comment()
            elif char == "\\" and (yield from self.source.char(1)) in _AFTER_BACKSLASH:
                source.pos += 1
            elif not char or char not in " \t\r\n":
                return char

    def comment(self) -> Steps[None]:
        """Read a comment to the end of the line."""
        self.note("comment")
        yield from self.source.read_to(LINE_END, discard)

    def bare(self, begin: int, place: Place, depth: int, *, colon: bool = False) -> Steps[PythonValue]:
        """Read a value that began at ``begin``, ``depth`` brackets deep; raises NoMatch, Truncated.

        ``colon``: the arguments are written ``name: value``. Inside brackets, an expression that begins with a value is kept only
        if it is short: otherwise nested brackets would be copied again and again.
        """
        source = self.source
        fresh = begin == source.offset
        if place is ITEM and fresh and (found := _LISTED_NUMBER.match(source.buf, source.pos)):
            source.pos = found.end(1)
            return PythonValue(found.group(1), found.group(1))
        end = yield from _BareText(self, place, depth, colon=colon, fresh=fresh).read()
        if depth and not fresh and (depth > _MAX_KEPT_DEPTH or end - begin > _MAX_KEPT_LENGTH):
            return PythonValue(None)
        text = source.since(begin)[: end - begin].rstrip()
        if not text:
            if source.buf[source.pos : source.pos + 1] not in (",", ")"):
                raise NoMatch
            self.note("missing_value")
            return PythonValue("null")
        return self._bare_value(text)

    def _bare_value(self, text: str) -> PythonValue:
        word = constant_json(text)
        if word is not None:
            if word == text:
                self.note("foreign_constant")
            return PythonValue(word, text)
        digits = number_of(text)
        if digits is not None:
            return PythonValue(digits, text)
        result = arithmetic_json(text.replace("\\*", "*"))
        if result is not None:
            self.note("arithmetic")
            return PythonValue(result, text, computed=True)
        self.note("unquoted_string")
        return PythonValue(None, text, nearest=json_text(text))

    def argument_follows(self, *, colon: bool) -> Steps[bool]:
        """True if the comma at ``pos`` ends an unquoted argument: another one follows, or nothing that could belong to it."""
        at = yield from self.source.run(1, BLANKS)
        char = yield from self.source.char(at)
        if not char or char in ")]}#*,'\"`<\\ \t\r\n":
            return True
        return (yield from self.argument_name_at(at, ":=" if colon else "="))


class _BareText:
    """Reads one unquoted text."""

    def __init__(self, text: PythonBare, place: Place, depth: int, *, colon: bool, fresh: bool) -> None:
        self.text = text
        self.source = text.source
        self.place = place
        self.depth = depth
        self.colon = colon
        self.prose_shows = fresh and place is POSITION
        self._closers: list[str] = []
        self._last = "" if fresh else ")"
        """The last word (its first characters), or the last other character."""
        self._blank = False
        self._count = 0

    def read(self) -> Steps[int]:
        """Read to the end of the text; return the offset behind its last character, without comments at its end."""
        source = self.source
        end = source.offset
        while True:
            char = yield from source.peek()
            if not char:
                if self.place.is_line and not self._closers:
                    return source.offset
                raise Truncated
            if char in " \t\r":
                self._run(_SPACE)
                self._blank = True
                continue
            if char == "#" and self._blank and (yield from self.source.char(1)) in (" ", "\t", "#", "\n", ""):
                yield from self.text.comment()
                continue
            if char == "\n":
                if self.place.is_line and not self._closers:
                    return end
                if not self._closers and (yield from self._line_ends()):
                    return end
                source.pos += 1
                self._blank = True
                continue
            if not self._closers and (yield from self._ends(char)):
                return end
            if _is_word(char):
                if self._blank and not self._closers and _is_word(self._last) and (yield from self._argument_follows()):
                    return end
                self._word(char)
            else:
                yield from self._other(char)
            self._blank = False
            end = source.offset

    def _run(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.source.buf, self.source.pos)
        assert found is not None
        self.source.pos = found.end()
        return found.group()

    def _argument_follows(self) -> Steps[bool]:
        """True if the word at ``pos``, behind another word, is the next argument's name."""
        if not self.place.in_call or not (yield from self.text.argument_name_at(0, ":=" if self.colon else "=")):
            return False
        self.text.note("missing_comma")
        return True

    def _word(self, char: str) -> None:
        """Read a word, or its part that has arrived; raises NoMatch if it shows that the text is prose."""
        if _is_word(self._last) and not self._blank:
            self._last = (self._last + self._run(_WORD_RUN))[:8]
            return
        if not self._closers:
            self._count += 1
            two_words = char.islower() and self._last[:1].isalpha() and self._last not in _BEFORE_WORD
            if self._count > _MAX_WORDS or (self.prose_shows and two_words):
                raise NoMatch
        self._last = self._run(_WORD_RUN)[:8]

    def _other(self, char: str) -> Steps[None]:
        """Read a bracket, a string, or any other character."""
        source = self.source
        if char in "'\"" and self._opens_string():
            yield from self.text.read_string([], char, KEY if self._closers else self.place)
            self._last = ")"
            return
        source.pos += 1
        self._last = char
        if char in _CLOSER_OF:
            self._closers.append(_CLOSER_OF[char])
            if self.depth + len(self._closers) > MAX_DEPTH:
                raise NoMatch
        elif char in self._closers:
            while self._closers.pop() != char:
                pass

    def _opens_string(self) -> bool:
        """True if a quote opens a string: behind a word it is an apostrophe or an inch sign, unless the word is a prefix.

        Behind a backslash it is literal.
        """
        if self._last == "\\" and not self._blank:
            return False
        return self._blank or not _is_word(self._last) or self._last.lower() in ("r", "b", "f", "u", "rb", "br", "rf", "fr")

    def _ends(self, char: str) -> Steps[bool]:
        """True if the text ends, outside of its own brackets, before ``char``."""
        place = self.place
        if char in ")]}":
            return True
        if char == "\\":
            return (yield from self.source.char(1)) in CLOSERS
        if char == ",":
            return place is not KEYWORD or (yield from self.text.argument_follows(colon=self.colon))
        if char in ":=" and place.is_key:
            return char == ":" or (yield from self.source.char(1)) != "="
        return char in "`~<[" and (yield from self.text.at_end())

    def _line_ends(self) -> Steps[bool]:
        """True if the text ends at the newline at ``pos`` because another argument follows; NoMatch if prose does."""
        text = self.text
        start = yield from self.source.run(0, BLANKS)
        char = yield from self.source.char(start)
        if not char or char in ")]},#`~" or char in _CONTINUES_VALUE or not (_is_word(self._last) or self._last in ")]}'\""):
            return False
        if self.place.in_call and (yield from text.argument_name_at(start, ":=" if self.colon else "=")):
            text.note("missing_comma")
            return True
        end = yield from self.source.run(start, NAME)
        if self.source.buf[self.source.pos + start : self.source.pos + end] in _CONTINUING_WORDS:
            return False
        raise NoMatch


def _is_word(text: str) -> bool:
    """True if a text begins like a word."""
    return text[:1].isalnum() or text[:1] == "_"


_CONSTRUCTORS = frozenset({"dict", "list", "tuple", "set"})
_ELLIPSES = frozenset({"...", "…"})
_ANNOTATION = re.compile(
    r"(?:typing\.)?(?:str|int|float|bool|dict|list|tuple|set|bytes|object|string|integer|number|boolean|array|double|None"
    r"|Any|Dict|List|Tuple|Set|Optional|Union|Literal|Sequence|Iterable|Callable)\b"
)


class PythonReader(PythonBare):
    """Reads arguments and values from ``source``."""

    def arguments(self) -> Steps[PythonArguments]:
        """Read from the opening parenthesis at ``pos`` to behind the closing one; raises NoMatch, Truncated.

        A fence, a marker or a bracket that belongs to the text around the call also ends the arguments, and is left to be read.
        """
        source = self.source
        source.pos += 1
        arguments = PythonArguments()
        while True:
            char = yield from self.space()
            if not char:
                raise Truncated
            if char == ")":
                source.pos += 1
                return arguments
            if char in ",]}" or (yield from self.at_end()):
                if not (arguments.positional or arguments.keywords):
                    raise NoMatch
                if char in "]}" and (yield from self._is_stray()):
                    self.note("stray_bracket")
                elif char == ",":
                    self.note("stray_character")
                else:
                    self.note("unclosed_bracket")
                    return arguments
                source.pos += 1
                continue
            yield from self._argument(arguments, char)
            char = yield from self.space()
            if char == ",":
                source.pos += 1
            elif char and char not in ")]}" and not (yield from self.at_end()):
                self.note("missing_comma")

    def value(self) -> Steps[PythonValue]:
        """Read the value that begins at ``pos``, and nothing behind it; unquoted text ends with its line or with the text."""
        if not (yield from self.source.peek()):
            raise Truncated
        return (yield from self._value(LINE))

    def _is_stray(self) -> Steps[bool]:
        """True if the arguments continue behind the bracket at ``pos``, which closes nothing."""
        after = yield from self.source.run(1, BLANKS)
        char = yield from self.source.char(after)
        if char == ",":
            after = yield from self.source.run(after + 1, BLANKS)
            return (yield from self.argument_name_at(after))
        return char == ")"

    def _argument(self, arguments: PythonArguments, char: str) -> Steps[None]:
        """Read one argument in any of its forms."""
        source = self.source
        name, separator = yield from self._name(char)
        if not separator:
            spread = char == "*"
            if spread:
                if (yield from self.source.char(1)) != "*":
                    raise NoMatch
                source.pos += 2
                yield from self.space()
            value = yield from self._value(POSITION)
            if spread:
                if value.fields is None:
                    arguments.spread.append(value)
                else:
                    arguments.keywords |= value.fields
                return
            separator = source.buf[source.pos : source.pos + 1]
            if separator not in (":", "=") or (value.json or "")[:1] != '"':
                if value.text in _ELLIPSES:
                    raise NoMatch
                arguments.positional.append(value)
                return
            name = as_key(value)
            source.pos += 1
        colon = separator == ":"
        if colon:
            self.note("foreign_separator")
        # a number sign directly behind the separator belongs to the value (a colour) and is not a comment
        while (yield from source.peek()) in (" ", "\t"):
            source.pos += 1
        if (yield from source.peek()) != "#" or (yield from self.source.char(1)) in (" ", "#", "\n"):
            yield from self.space()
        value = yield from self._value(KEYWORD, colon=colon)
        if value.text in _ELLIPSES or (colon and value.json is None and _ANNOTATION.match(value.text)):
            raise NoMatch  # a template, a signature
        arguments.keywords[name] = value

    def _name(self, char: str) -> Steps[tuple[str, str]]:
        """Read a name and its separator; return "" for both, with nothing read, if another kind of argument follows."""
        if not (char.isalpha() or char in "_\\"):
            return "", ""
        source = self.source
        size = yield from self.source.run(0, NAME)
        end = yield from self.source.run(size, BLANKS)
        separator = yield from self.source.char(end)
        following = (yield from self.source.char(end + 1)) if separator in (":", "=") else ""
        name = source.buf[source.pos : source.pos + size].replace("\\", "")
        is_value = separator == ":" and (following in ("/", "\\") or name == "lambda")  # an address, a path, a function
        if separator not in (":", "=") or following == "=" or is_value:
            return "", ""
        source.pos += end + 1
        return name, separator

    def _value(self, place: Place, *, colon: bool = False) -> Steps[PythonValue]:
        """Read one value and, except on a line of its own, the white space behind it."""
        source = self.source
        start = source.offset
        stack: list[OpenBracket] = []
        while True:
            value, begin = yield from self._first_part(stack, place, colon=colon)
            while value is not None:
                value, end = yield from self._complete(value, begin, stack, place, colon=colon)
                if not stack:
                    return value if value.text else replace(value, text=source.since(start)[: end - start])
                value, begin = yield from self._add_to_stack(stack, value, begin, end)

    def _first_part(self, stack: list[OpenBracket], place: Place, *, colon: bool) -> Steps[tuple[PythonValue | None, int]]:
        """Read a string, an unquoted text, or the end of an open bracket; return the value and its offset.

        Return None if a bracket was opened, or a comma stood in place of a value.
        """
        source = self.source
        char = (yield from self.space()) if stack else (yield from source.peek())
        if not char:
            raise Truncated
        if stack and (char in ",)]}" or (yield from self.at_end())):
            frame = stack[-1]
            if frame.key is not None:
                self.note("missing_value")
                frame.add(NULL)
            elif char == ",":
                self.note("stray_character")
            if char != ",":
                return self._close(stack, char)
            source.pos += 1
            return None, 0
        begin = source.offset
        bracket = yield from self._bracket(char)
        if bracket:
            source.pos += len(bracket)
            stack.append(OpenBracket(bracket, begin))
            if len(stack) > MAX_DEPTH:
                raise NoMatch
            return None, 0
        where = stack[-1].place if stack else place
        opener = yield from self.opener()
        if opener:
            return (yield from self._strings(opener, where)), begin
        return (yield from self.bare(begin, where, len(stack), colon=colon)), begin

    def _bracket(self, char: str) -> Steps[str]:
        """Return the bracket at ``pos``, or a constructor's name and its parenthesis; "" if there is none."""
        if char in "[({":
            return char
        if char in "dlts":
            size = yield from self.source.run(0, NAME)
            name = self.source.buf[self.source.pos : self.source.pos + size]
            if name in _CONSTRUCTORS and (yield from self.source.char(size)) == "(":
                return name + "("
        return ""

    def _strings(self, opener: str, place: Place) -> Steps[PythonValue]:
        """Read a string and those joined to it, by adjacency or a plus sign."""
        source = self.source
        sink = ['"']
        while opener:
            yield from self.read_string(sink, opener, place)
            if place is LINE:
                break
            if (yield from self.space()) == "+":
                source.pos += 1
                yield from self.space()
            opener = yield from self.opener()
        sink.append('"')
        return PythonValue("".join(sink))

    def _complete(
        self, value: PythonValue, begin: int, stack: list[OpenBracket], place: Place, *, colon: bool
    ) -> Steps[tuple[PythonValue, int]]:
        """Return the complete value that began at ``begin``, and its end.

        If what follows does not end a value, the value was only the beginning of an expression, which is read too.
        """
        source = self.source
        end = source.offset
        if not stack and place is LINE:
            return value, end
        where = stack[-1].place if stack else place
        char = yield from self.space()
        if not char:
            raise Truncated
        is_string = (value.json or "")[:1] == '"'
        if is_string and char == "," and where is KEYWORD:
            after = yield from self.source.run(1, BLANKS)
            following = yield from self.source.char(after)
            if following.isalpha() and not (yield from self.argument_follows(colon=colon)):
                rest = yield from self.bare(source.offset, where, 0, colon=colon)
                joined = str(json.loads(value.json or "")) + unescaped(rest.text)
                return PythonValue(json_text(joined)), source.offset
        elif not (yield from self._ends_value(char, where, is_string=is_string)):
            value = yield from self.bare(begin, where, len(stack), colon=colon)
        return value, end

    def _ends_value(self, char: str, place: Place, *, is_string: bool) -> Steps[bool]:
        """True if ``char``, which follows a value, ends it."""
        if char in ",)]}":
            return True
        if char in ":=" and (place.is_key or (place is POSITION and is_string)):
            return char == ":" or (yield from self.source.char(1)) != "="
        return (yield from self.at_end()) or (place.in_call and (yield from self.argument_name_at(0, ":=")))

    def _add_to_stack(
        self, stack: list[OpenBracket], value: PythonValue, begin: int, end: int
    ) -> Steps[tuple[PythonValue | None, int]]:
        """Add a complete value to the brackets around it; if these close, return their value and offset, else None."""
        source, frame = self.source, stack[-1]
        char = source.buf[source.pos]
        if char in ":=" and frame.place.is_key:
            frame.key = as_key(value)
        else:
            if frame.key is not None and len(stack) == 1 and not value.text:
                value = replace(value, text=source.since(begin)[: end - begin])
            elif frame.key is None and frame.fields:
                self.note("missing_value")
            frame.add(value)
            if char in ")]}" or (yield from self.at_end()):
                return self._close(stack, char)
            frame.comma = True
        source.pos += 1
        return None, 0

    def _close(self, stack: list[OpenBracket], char: str) -> tuple[PythonValue, int]:
        """Close the brackets that ``char`` closes: all if it belongs to the text around the value, one if it is a mistake."""
        place = next((place for place, frame in enumerate(reversed(stack)) if frame.closer == char), -1)
        count = place + 1 or (1 if char in "]}" else len(stack))
        if place != 0:
            self.note("unclosed_bracket")
        if place >= 0 or char in "]}":
            self.source.pos += 1
        while True:
            frame = stack.pop()
            value = frame.value()
            count -= 1
            if not count:
                return value, frame.begin
            stack[-1].add(value)
