"""Reader for Python arguments and values in a stream: it matches brackets and quotes, and ``ast`` reads what they enclose.

A call counts once its parenthesis has closed. What models get wrong is handled here: a quote that was not escaped, a bracket that
was not closed, a comma left out, words without quotes. It raises ``NoMatch`` if the text cannot be arguments, ``Truncated`` if it
ends too early, and ``MalformedCall`` if a broken string reaches the end of its block. The source must be marked at or before the
start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from patchbay.formats.source import MalformedCall, MarkerSet, NoMatch, Source, Steps, Truncated
from patchbay.formats.values.coerce import MAX_DEPTH
from patchbay.formats.values.python_values import (
    MAX_NAME,
    PythonArguments,
    PythonPart,
    PythonValue,
    string_text,
    unescaped,
    value_of_code,
)

BLANKS = re.compile(r"[ \t\r\n]*")
NAME = re.compile(r"[\w.$\\-]*")
_PLAIN = re.compile(r"[^'\"\\()\[\]{},=:#\n`~<]+")
_IN_STRING = {"'": re.compile(r"[^'\\]+"), '"': re.compile(r'[^"\\]+')}
_WORD = re.compile(r"[^\W\d][\w.$-]*")
_LAST_WORD = re.compile(r"(.*\S)\s+([^\W\d][\w.\\-]*)\s*", re.DOTALL)
_ASSIGNED = re.compile(r"(\)[\])]?[ \t]*,\s*[^\W\d][\w.]*\()?([^\W\d]\w*)=\Z")
_BRACKETS = re.compile(r"[)\]} \t]*")
_ANNOTATION = re.compile(
    r"(?:typing\.)?(?:str|int|float|bool|dict|list|tuple|set|bytes|object|string|integer|number|boolean|array|double|None"
    r"|Any|Dict|List|Tuple|Set|Optional|Union|Literal|Sequence|Iterable|Callable)\b"
)
_CLOSER_OF = {"(": ")", "[": "]", "{": "}"}
_ELLIPSES = frozenset({"...", "…"})
_CLOSERS = frozenset(")]}")
_BEHIND_STRING = _CLOSERS | {","}
_ENDS_STRING = _BEHIND_STRING | frozenset("+`<")
_OPERATORS = frozenset("+-*/%|&<>=.,:")
_MAX_WORDS = 64
_MAX_LENGTH = 2**20
"""Maximum length of an argument in characters: all arguments are held back until the parenthesis closes."""


class PythonReader:
    """Reads from ``source``; ``note`` is called for each repair.

    ``stops``: markers that end the block around the call. A string may hold one only if it then ends without a repair.
    ``keys``: parameters of the call being read, if known.
    """

    def __init__(self, source: Source, note: Callable[[str], None]) -> None:
        self.source = source
        self.note = note
        self.stops: MarkerSet | None = None
        self.keys: Collection[str] = ()
        self._limit = 0

    def arguments(self) -> Steps[PythonArguments]:
        """Read from the opening parenthesis at ``pos`` to behind the closing one.

        A fence, a marker or a bracket that belongs to the text around the call also ends the arguments, and is left to be read.
        """
        self.source.pos += 1
        parts: list[PythonPart] = []
        name = ""
        while True:
            part = PythonPart()
            if name:
                part.begin_value(name, "=")
            end = yield from self._read(part, in_call=True)
            if not part.is_blank or part.name is not None:
                parts.append(part)
            elif end == ",":
                if not parts:
                    raise NoMatch
                self.note("stray_character")
            name = part.next_name
            if end == ",":
                continue
            if end != ")":
                if not parts or (part.is_blank and part.name is not None):
                    raise NoMatch
                self.note("unclosed_bracket")
            return self._arguments(parts)

    def value(self) -> Steps[PythonValue]:
        """Read the bracket or string at ``pos``, and nothing behind it."""
        char = yield from self.source.peek()
        if char not in _CLOSER_OF and char not in ("'", '"'):
            raise NoMatch if char else Truncated
        part = PythonPart()
        yield from self._read(part, in_call=False)
        return part.value()

    def at_stop(self) -> Steps[bool]:
        """True if a marker that ends the block around the call stands at ``pos``."""
        return self.stops is not None and bool((yield from self.stops.at(self.source)))

    def _arguments(self, parts: list[PythonPart]) -> PythonArguments:
        arguments = PythonArguments()
        joined: list[PythonPart] = []
        for part in parts:
            if part.name is None and joined and joined[-1].name is not None and part.is_words:
                joined[-1].add_words(part)
            else:
                joined.append(part)
        for part in joined:
            value = self._checked(part)
            if part.name is not None:
                arguments.keywords[part.name] = value
            elif value.text.startswith("*"):
                spread = value_of_code("".join(part.code).strip().removeprefix("**"), value.text)
                if spread.fields is None:
                    raise NoMatch
                arguments.keywords |= spread.fields
            else:
                arguments.positional.append(value)
        return arguments

    def _checked(self, part: PythonPart) -> PythonValue:
        """Return a part's value. Raises NoMatch for a template, a signature, or prose."""
        if part.is_blank:
            self.note("missing_value")
            return PythonValue("null")
        value = part.value()
        text = value.text
        if text in _ELLIPSES or (part.separator == ":" and value.json is None and _ANNOTATION.match(text)):
            raise NoMatch
        if value.json is None and value.fields is None and not text.startswith("*"):
            words = text.split()
            is_prose = part.name is None and len(words) > 1 and words[0][:1].islower() and words[1][:1].islower()
            if len(words) > _MAX_WORDS or is_prose:
                raise NoMatch
            self.note("unquoted_string")
        elif value.json in ("true", "false", "null") and value.json == text:
            self.note("foreign_constant")
        return value

    def _read(self, part: PythonPart, *, in_call: bool) -> Steps[str]:
        """Read one argument and the comma or parenthesis behind it, which is returned; "" if something else ends it.

        Without ``in_call``: one bracket or string.
        """
        source = self.source
        self._limit = source.offset + _MAX_LENGTH
        while in_call or part.is_blank or part.closers:
            found = _PLAIN.match(source.buf, source.pos)
            if found:
                part.add(found.group())
                source.pos = found.end()
            self._check_length()
            if source.pos >= len(source.buf):
                if source.ended:
                    raise Truncated
                yield
                continue
            char = source.buf[source.pos]
            if char in "`~<[" and (yield from self._at_end(char)):
                self._close_all(part)
                return ""
            if char in "'\"":
                yield from self._quote(part, char)
            elif char == "\\":
                yield from self._backslash(part)
            elif char == "#":
                yield from self._number_sign(part)
            elif char in _CLOSER_OF:
                self._open(part, char)
            elif char in ")]}":
                if not part.closers and char != ")":
                    if not (yield from self._is_stray()):
                        return ""
                    self.note("stray_bracket")
                    source.pos += 1
                    continue
                source.pos += 1
                if self._closes_call(part, char):
                    return char
            elif part.closers or char in "`~<":
                part.add(char, " " if char == "\n" else None)
                source.pos += 1
            elif char == ",":
                source.pos += 1
                return char
            elif char == "\n":
                yield from self._newline(part)
            else:
                yield from self._separator(part, char)
                if part.next_name:
                    return ","
        return ""

    def _check_length(self) -> None:
        """Raise MalformedCall at a place that the text alone decides if the argument is too long."""
        if self.source.offset > self._limit:
            self.source.rewind_to(self._limit)
            raise MalformedCall

    def _at_end(self, char: str) -> Steps[bool]:
        """True if a fence or a marker that ends the block stands at ``pos``."""
        if char in "`~":
            return (yield from self.source.char(1)) == char == (yield from self.source.char(2))
        return (yield from self.at_stop())

    def _is_stray(self) -> Steps[bool]:
        """True if the arguments continue behind the bracket at ``pos``, which closes nothing."""
        at = yield from self.source.run(1, BLANKS)
        char = yield from self.source.char(at)
        if char != ",":
            return char == ")"
        return (yield from self._argument_at((yield from self.source.run(at + 1, BLANKS))))

    def _open(self, part: PythonPart, char: str) -> None:
        self.source.pos += 1
        part.add(char)
        part.closers.append(_CLOSER_OF[char])
        if len(part.closers) > MAX_DEPTH:
            raise NoMatch

    def _closes_call(self, part: PythonPart, char: str) -> bool:
        """Close the brackets that ``char`` closes: those left open inside, or one if it is a mistake. True: it is the call's."""
        if char not in part.closers:
            if char == ")":
                self._close_all(part)
                return True
            self.note("unclosed_bracket")
            part.add(part.closers.pop())
            return False
        while (closer := part.closers.pop()) != char:
            self.note("unclosed_bracket")
            part.add(closer)
        part.add(char)
        return False

    def _close_all(self, part: PythonPart) -> None:
        while part.closers:
            self.note("unclosed_bracket")
            part.add(part.closers.pop())

    def _number_sign(self, part: PythonPart) -> Steps[None]:
        """Read a comment to the end of its line, or a number sign in a value."""
        source = self.source
        in_value = not part.is_blank or (part.name is not None and not part.closers)
        begins_word = (yield from source.char(1)) not in (" ", "\t", "#", "\n", "")
        if in_value and (begins_word or part.last not in " \t\n,[{("):
            part.add("#")
            source.pos += 1
            return
        self.note("comment")
        while True:
            end = source.buf.find("\n", source.pos)
            source.pos = end if end >= 0 else len(source.buf)
            if end >= 0 or source.ended:
                return
            yield

    def _newline(self, part: PythonPart) -> Steps[None]:
        """Read a line break; words behind words are prose, unless they are the next argument's name."""
        source = self.source
        part.add("\n", " ")
        at = yield from source.run(1, BLANKS)
        char = yield from source.char(at)
        before = part.tail.rstrip()[-1:]
        is_prose = before and before not in _OPERATORS and (char.isalnum() or char == "_")
        if is_prose and not (yield from self._prefixed_string_at(at)) and not (yield from self._argument_at(at)):
            raise NoMatch
        source.pos += 1

    def _prefixed_string_at(self, at: int) -> Steps[bool]:
        """True if a string with a prefix begins ``at`` places behind ``pos``."""
        for length in (1, 2):
            if not (char := (yield from self.source.char(at + length - 1))) or char not in "rbfuRBFU":
                return False
            if (yield from self.source.char(at + length)) in ("'", '"'):
                return True
        return False

    def _argument_at(self, at: int) -> Steps[bool]:
        """True if an argument's name and its separator stand ``at`` places behind ``pos``."""
        source = self.source
        first = yield from source.char(at)
        if not (first.isalpha() or first in ("_", "\\")):
            return False
        end = yield from source.run(at, NAME)
        end = yield from source.run(end, BLANKS)
        return (yield from source.char(end)) == "=" != (yield from source.char(end + 1))

    def _separator(self, part: PythonPart, char: str) -> Steps[None]:
        """Read an equals sign or a colon: behind a name, in a value, or behind the next name if a comma was left out."""
        source = self.source
        following = yield from source.char(1)
        source.pos += 1
        if char == "=" and (following == "=" or part.last in "<>!="):
            part.add(char)
            return
        word = part.only_string if part.only_string is not None else part.tail.strip().replace("\\", "")
        is_name = part.only_string is not None or _WORD.fullmatch(word) is not None
        if part.name is None and is_name and not (char == ":" and (following in ("/", "\\") or word == "lambda")):
            if char == ":":
                self.note("foreign_separator")
            part.begin_value(unescaped(word), char)
            yield from source.space(" \t")
        elif char == "=" and (words := _LAST_WORD.fullmatch(part.tail)):
            self.note("missing_comma")
            part.next_name = unescaped(words[2])
            part.code = ["".join(part.code).rstrip().removesuffix(words[2])]
            part.text = [part.source_text.removesuffix(words[2])]
        else:
            part.add(char)

    def _backslash(self, part: PythonPart) -> Steps[None]:
        """Read a backslash: before a quote (one that opens a string), or as Markdown writes it before brackets and asterisks."""
        source = self.source
        count = 1
        while (char := (yield from source.char(count))) == "\\" and count < 3:
            count += 1
        if char in ("'", '"'):
            source.pos += count + 1
            if part.last.isalnum():
                part.add(char)
            else:
                yield from self._string(part, "\\" * count + char)
        elif char and char in "_*[](){}\n":
            source.pos += 1
            if char in "_*":
                source.pos += 1
                part.add(char)
        else:
            source.pos += 1
            part.add("\\")

    def _quote(self, part: PythonPart, quote: str) -> Steps[None]:
        """Read a string, or a quote that is an apostrophe or an inch sign because it stands behind a word."""
        source = self.source
        prefix = part.take_prefix() if part.last.isalpha() else ""
        source.pos += 1
        if part.last.isalnum() and not prefix:
            part.add(quote)
            return
        is_triple = (yield from source.char(0)) == quote and (yield from source.char(1)) == quote
        mark = quote * 3 if is_triple else quote
        source.pos += len(mark) - 1
        yield from self._string(part, mark, raw="r" in prefix.lower())

    def _string(self, part: PythonPart, mark: str, *, raw: bool = False) -> Steps[None]:
        """Read a string behind its opening mark, which also closes it."""
        begin = self.source.offset
        try:
            body, repaired = yield from self._inside(part, mark)
        except (MalformedCall, Truncated):
            self._raise_at_stop(begin)
            raise
        if repaired:
            self._raise_at_stop(begin)
        part.add_string(mark + body + mark, body if raw else string_text(body))

    def _raise_at_stop(self, begin: int) -> None:
        """Raise MalformedCall if one of ``stops`` was read since ``begin``."""
        if self.stops is not None and (found := self.stops.find(self.source.since(begin))) is not None:
            self.source.rewind_to(begin + found)
            raise MalformedCall

    def _inside(self, part: PythonPart, mark: str) -> Steps[tuple[str, bool]]:
        """Read a string up to its closing ``mark``; return its inside, and whether it has quotes that were not escaped.

        Such a quote behind a parameter's name and an equals sign shows that the string was never closed: MalformedCall.
        """
        source, quote = self.source, mark[-1]
        inside = _IN_STRING[quote]
        pieces: list[str] = []
        tail = ""
        repaired = False
        while True:
            found = inside.match(source.buf, source.pos)
            if found:
                pieces.append(found.group())
                tail = (tail + found.group())[-MAX_NAME:]
                source.pos = found.end()
            self._check_length()
            if source.pos >= len(source.buf):
                if source.ended:
                    raise Truncated
                yield
                continue
            char = source.buf[source.pos]
            if char == mark[0] and (yield from source.ahead(len(mark))) == mark:
                closes = len(mark) > 1 or (yield from self._closes(part, quote, repaired=repaired))
                if closes:
                    source.pos += len(mark)
                    return "".join(pieces), repaired
                assigned = None if part.closers else _ASSIGNED.search(tail)
                if assigned and (assigned[1] or assigned[2] in self.keys):
                    raise MalformedCall
                repaired = True
                self.note("unescaped_quote")
            if char == "\\" and not (yield from source.char(1)):
                raise Truncated
            size = 2 if char == "\\" else 1
            pieces.append(source.buf[source.pos : source.pos + size])
            tail = (tail + pieces[-1])[-MAX_NAME:]
            source.pos += size

    def _closes(self, part: PythonPart, quote: str, *, repaired: bool) -> Steps[bool]:
        """True if the quote at ``pos`` ends its string, by what follows: before a word it is an apostrophe or was not escaped.

        ``repaired``: another such quote in the string did not end it.
        """
        source = self.source
        after = yield from source.run(1, BLANKS)
        char = yield from source.char(after)
        blank = after > 1
        if not char or char in _ENDS_STRING:
            return not (repaired and char in _CLOSERS and (yield from self._in_quoted_code(after, quote)))
        if char in ":=":
            return part.closers[-1:] == ["}"] or (not part.closers and part.name is None)
        following = yield from source.char(after + 1)
        if char in "'\"#":
            return blank
        if char == "(":
            return not blank
        if char in "%*":
            return blank and following in (" ", "(")
        if char == "\\":
            return following in _CLOSERS
        if char == ".":
            return not blank and following.isalpha()
        if not blank:
            return False
        if (yield from self._prefixed_string_at(after)):
            return True
        return not part.closers and (yield from self._argument_at(after))

    def _in_quoted_code(self, at: int, quote: str) -> Steps[bool]:
        """True if the brackets from ``at`` on belong to code that the string quotes: ``'python -c "f(g('a'))"')``.

        Then the other quote follows them, and this string ends behind it.
        """
        end = yield from self.source.run(at, _BRACKETS)
        other = yield from self.source.char(end)
        if other not in ("'", '"') or other == quote or (yield from self.source.char(end + 1)) != quote:
            return False
        after = yield from self.source.run(end + 2, BLANKS)
        return (yield from self.source.char(after)) in _BEHIND_STRING
