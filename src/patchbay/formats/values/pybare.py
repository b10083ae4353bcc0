"""Values that stand without quotes or brackets: numbers, constants, arithmetic, names, calls, and words that should be quoted.

Such text is read to where it ends, its own brackets and strings respected; what it says is decided only then. Most of what is no
call at all shows here, and as early as it does: two words in a row where a value should be, a line's end in the middle of words.
"""

from __future__ import annotations

import re

from patchbay.formats.engine.source import CutOff, NotACall, Steps
from patchbay.formats.values import pynumbers
from patchbay.formats.values.literals import MAX_DEPTH
from patchbay.formats.values.pystrings import BLANKS, CLOSERS, NAME, Place, PythonStrings, json_text
from patchbay.formats.values.pyvalues import ITEM, KEY, PythonValue

KEYWORD = Place(in_call=True)
POSITION = Place(ends=KEY.ends, in_call=True)
LINE = Place(ends=KEY.ends, is_line=True)
_WORD = re.compile(r"\w+")
_SPACE = re.compile(r"[ \t\r]+")
_COMMENT = re.compile(r"[^\n]+")
_LISTED_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?)[,)\]}]")
"""The usual item of a list: read at one blow, like the longer way would."""
_CLOSER_OF = {"(": ")", "[": "]", "{": "}"}
_AFTER_BACKSLASH = frozenset("\n\r()[]{}")
_MAX_WORDS = 64
_KEPT_DEPTH = 16
_KEPT_LENGTH = 2000
_GOES_ON = frozenset("+-*/%|&<>=.?:\"'([{")
_JOINING = frozenset({"if", "else", "for", "and", "or", "in", "is", "not"})
_BEFORE_WORD = frozenset({"lambda", "not", "await", "new"})


class PythonBare(PythonStrings):
    """Reads unquoted values."""

    def at_end(self) -> Steps[bool]:
        """Whether a fence or a marker stands at ``pos``."""
        char = self.source.buf[self.source.pos]
        if char in "`~":
            return (yield from self.char(1)) == char == (yield from self.char(2))
        return char in "<[" and (yield from self.at_stop())

    def at_stop(self) -> Steps[bool]:
        """Whether a marker that ends the block around the call stands at ``pos``."""
        return self.stops is not None and bool((yield from self.stops.at(self.source)))

    def space(self) -> Steps[str]:
        """Read white space, comments, and backslashes before a line's end or a bracket (Markdown's); the next character or ""."""
        source = self.source
        while True:
            found = BLANKS.match(source.buf, source.pos)
            if found:
                source.pos = found.end()
            char = yield from source.peek()
            if char == "#":
                yield from self.comment()
            elif char == "\\" and (yield from self.char(1)) in _AFTER_BACKSLASH:
                source.pos += 1
            elif not char or char not in " \t\r\n":
                return char

    def comment(self) -> Steps[None]:
        """Read to the end of the line."""
        self.note("comment")
        while (yield from self.source.peek()) not in ("\n", ""):
            found = _COMMENT.match(self.source.buf, self.source.pos)
            assert found is not None
            self.source.pos = found.end()

    def bare(self, begin: int, place: Place, depth: int, *, colon: bool = False) -> Steps[PythonValue]:
        """Read a value that has begun at ``begin``, ``depth`` brackets deep; raises NotACall, CutOff.

        ``colon``: the arguments are written ``name: value``. Inside brackets, text that goes on behind a value is kept only
        where it is short: else nested brackets would be copied again and again.
        """
        source = self.source
        fresh = begin == source.offset
        if place is ITEM and fresh and (found := _LISTED_NUMBER.match(source.buf, source.pos)):
            source.pos = found.end(1)
            return PythonValue(found.group(1), found.group(1))
        end = yield from _Words(self, place, depth, colon=colon, fresh=fresh).read()
        if depth and not fresh and (depth > _KEPT_DEPTH or end - begin > _KEPT_LENGTH):
            return PythonValue(None)
        text = source.since(begin)[: end - begin].rstrip()
        if not text:
            if source.buf[source.pos : source.pos + 1] not in (",", ")"):
                raise NotACall
            self.note("missing_value")
            return PythonValue("null")
        return self._said(text)

    def _said(self, text: str) -> PythonValue:
        constant = pynumbers.constant(text)
        if constant is not None:
            if constant == text:
                self.note("foreign_constant")
            return PythonValue(constant, text)
        number = pynumbers.number(text)
        if number is not None:
            return PythonValue(number, text)
        number = pynumbers.computed(text.replace("\\*", "*"))
        if number is not None:
            self.note("arithmetic")
            return PythonValue(number, text, computed=True)
        self.note("unquoted_string")
        return PythonValue(None, text, nearest=json_text(text))

    def argument_follows(self, at: int, *, colon: bool) -> Steps[bool]:
        """Whether the comma before ``at`` ends an unquoted argument: another one follows, or nothing that could belong to it."""
        at = yield from self.run(at, BLANKS)
        char = yield from self.char(at)
        if not char or char in ")]}#*,'\"`<\\ \t\r\n":
            return True
        return (yield from self.named(at, ":=" if colon else "="))


class _Words:
    """One reading of unquoted text."""

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
        """Read to where the text ends; the place behind its last character, comments at its end left out."""
        source = self.source
        end = source.offset
        while True:
            char = yield from source.peek()
            if not char:
                if self.place.is_line and not self._closers:
                    return source.offset
                raise CutOff
            if char in " \t\r":
                self._run(_SPACE)
                self._blank = True
                continue
            if char == "#" and self._blank and (yield from self.text.char(1)) in (" ", "\t", "#", "\n", ""):
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
        """Whether the word at ``pos``, behind another word, is the next argument's name."""
        if not self.place.in_call or not (yield from self.text.named(0, ":=" if self.colon else "=")):
            return False
        self.text.note("missing_comma")
        return True

    def _word(self, char: str) -> None:
        """Read a word, or what is there of it; raises NotACall where it shows that the text is prose."""
        if _is_word(self._last) and not self._blank:
            self._last = (self._last + self._run(_WORD))[:8]
            return
        if not self._closers:
            self._count += 1
            two_words = char.islower() and self._last[:1].isalpha() and self._last not in _BEFORE_WORD
            if self._count > _MAX_WORDS or (self.prose_shows and two_words):
                raise NotACall
        self._last = self._run(_WORD)[:8]

    def _other(self, char: str) -> Steps[None]:
        """Read a bracket, a string, or any other character."""
        source = self.source
        if char in "'\"" and self._opens_string():
            yield from self.text.piece([], char, KEY if self._closers else self.place)
            self._last = ")"
            return
        source.pos += 1
        self._last = char
        if char in _CLOSER_OF:
            self._closers.append(_CLOSER_OF[char])
            if self.depth + len(self._closers) > MAX_DEPTH:
                raise NotACall
        elif char in self._closers:
            while self._closers.pop() != char:
                pass

    def _opens_string(self) -> bool:
        """Whether a quote opens a string: behind a word it is an apostrophe or a sign for inches, unless the word is a prefix.

        Behind a backslash it stands for itself.
        """
        if self._last == "\\" and not self._blank:
            return False
        return self._blank or not _is_word(self._last) or self._last.lower() in ("r", "b", "f", "u", "rb", "br", "rf", "fr")

    def _ends(self, char: str) -> Steps[bool]:
        """Whether the text is over, outside of its own brackets, before ``char``."""
        place = self.place
        if char in ")]}":
            return True
        if char == "\\":
            return (yield from self.text.char(1)) in CLOSERS
        if char == ",":
            return place is not KEYWORD or (yield from self.text.argument_follows(1, colon=self.colon))
        if char in ":=" and place.is_key:
            return char == ":" or (yield from self.text.char(1)) != "="
        return char in "`~<[" and (yield from self.text.at_end())

    def _line_ends(self) -> Steps[bool]:
        """Whether the text is over at the newline at ``pos`` because another argument follows; NotACall where prose does."""
        text = self.text
        start = yield from text.run(0, BLANKS)
        char = yield from text.char(start)
        if not char or char in ")]},#`~" or char in _GOES_ON or not (_is_word(self._last) or self._last in ")]}'\""):
            return False
        if self.place.in_call and (yield from text.named(start, ":=" if self.colon else "=")):
            text.note("missing_comma")
            return True
        end = yield from text.run(start, NAME)
        if self.source.buf[self.source.pos + start : self.source.pos + end] in _JOINING:
            return False
        raise NotACall


def _is_word(text: str) -> bool:
    """Whether a text begins as a word does."""
    return text[:1].isalnum() or text[:1] == "_"
