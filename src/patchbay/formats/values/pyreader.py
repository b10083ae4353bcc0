"""One pass over Python as models write it: the arguments of a call, and values, to JSON.

``PythonReader`` reads by the character, like ``jsonreader``, with a stack of its own for what is nested: no depth of brackets can
exhaust the interpreter's. What is a Python literal becomes JSON; what is not (a name, a call, words without quotes) is kept as it
is written, for the schema to type (``arguments_json``). Where text can be no arguments it raises ``NotACall`` with ``pos`` at the
place where that showed; where the text ends too early, ``CutOff``. The source must be marked at or before the place where reading
begins: values are taken from the text kept.

Strings are read in ``pystrings``, unquoted values in ``pybare``, and what the values mean for a call is said in ``pyvalues``.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from patchbay.formats.engine.source import CutOff, NotACall, Steps
from patchbay.formats.values.literals import MAX_DEPTH
from patchbay.formats.values.pybare import KEYWORD, LINE, POSITION, PythonBare
from patchbay.formats.values.pystrings import BLANKS, NAME, Place, json_text
from patchbay.formats.values.pyvalues import NULL, Frame, PythonArguments, PythonValue, arguments_json, as_key, plain

__all__ = ["PythonArguments", "PythonReader", "PythonValue", "arguments_json"]

_CONSTRUCTORS = frozenset({"dict", "list", "tuple", "set"})
_ELLIPSES = frozenset({"...", "…"})
_ANNOTATION = re.compile(
    r"(?:typing\.)?(?:str|int|float|bool|dict|list|tuple|set|bytes|object|string|integer|number|boolean|array|double|None"
    r"|Any|Dict|List|Tuple|Set|Optional|Union|Literal|Sequence|Iterable|Callable)\b"
)


class PythonReader(PythonBare):
    """Reads arguments and values from ``source``."""

    def arguments(self) -> Steps[PythonArguments]:
        """Read from the opening parenthesis at ``pos`` to behind the closing one; raises NotACall, CutOff.

        A fence, a marker or a bracket of what is around the call ends the arguments as well, and is left to be read.
        """
        source = self.source
        source.pos += 1
        arguments = PythonArguments()
        while True:
            char = yield from self.space()
            if not char:
                raise CutOff
            if char == ")":
                source.pos += 1
                return arguments
            if char in ",]}" or (yield from self.at_end()):
                if not (arguments.positional or arguments.keywords):
                    raise NotACall
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
            raise CutOff
        return (yield from self._value(LINE))

    def _is_stray(self) -> Steps[bool]:
        """Whether the arguments go on behind the bracket at ``pos``, which closes nothing."""
        after = yield from self.run(1, BLANKS)
        char = yield from self.char(after)
        if char == ",":
            after = yield from self.run(after + 1, BLANKS)
            return (yield from self.named(after))
        return char == ")"

    def _argument(self, arguments: PythonArguments, char: str) -> Steps[None]:
        """Read one argument in any of its forms."""
        source = self.source
        name, separator = yield from self._name(char)
        if not separator:
            spread = char == "*"
            if spread:
                if (yield from self.char(1)) != "*":
                    raise NotACall
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
                    raise NotACall
                arguments.positional.append(value)
                return
            name = as_key(value)
            source.pos += 1
        colon = separator == ":"
        if colon:
            self.note("foreign_separator")
        # a number sign directly behind the separator is the value's own (a colour), no comment
        while (yield from source.peek()) in (" ", "\t"):
            source.pos += 1
        if (yield from source.peek()) != "#" or (yield from self.char(1)) in (" ", "#", "\n"):
            yield from self.space()
        value = yield from self._value(KEYWORD, colon=colon)
        if value.text in _ELLIPSES or (colon and value.json is None and _ANNOTATION.match(value.text)):
            raise NotACall  # a template, a signature
        arguments.keywords[name] = value

    def _name(self, char: str) -> Steps[tuple[str, str]]:
        """Read a name and its separator; the separator is "" and nothing is read where another kind of argument stands."""
        if not (char.isalpha() or char in "_\\"):
            return "", ""
        source = self.source
        size = yield from self.run(0, NAME)
        end = yield from self.run(size, BLANKS)
        separator = yield from self.char(end)
        following = (yield from self.char(end + 1)) if separator in (":", "=") else ""
        name = source.buf[source.pos : source.pos + size].replace("\\", "")
        is_value = separator == ":" and (following in ("/", "\\") or name == "lambda")  # an address, a path, a function
        if separator == ":" and following == "=":
            end += 1
            separator = "="
        elif separator not in (":", "=") or following == "=" or is_value:
            return "", ""
        source.pos += end + 1
        return name, separator

    def _value(self, place: Place, *, colon: bool = False) -> Steps[PythonValue]:
        """Read one value and, except on a line of its own, the white space behind it."""
        source = self.source
        start = source.offset
        stack: list[Frame] = []
        while True:
            value, begin = yield from self._first_part(stack, place, colon=colon)
            while value is not None:
                value, end = yield from self._whole(value, begin, stack, place, colon=colon)
                if not stack:
                    return value if value.text else replace(value, text=source.since(start)[: end - start])
                value, begin = yield from self._put(stack, value, begin, end)

    def _first_part(self, stack: list[Frame], place: Place, *, colon: bool) -> Steps[tuple[PythonValue | None, int]]:
        """Read up to the end of a string, of unquoted text, or of the last value in brackets: that and where it began.

        None where a bracket was opened, or a comma stood in a value's place.
        """
        source = self.source
        char = (yield from self.space()) if stack else (yield from source.peek())
        if not char:
            raise CutOff
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
            stack.append(Frame(bracket, begin))
            if len(stack) > MAX_DEPTH:
                raise NotACall
            return None, 0
        where = stack[-1].place if stack else place
        opener = yield from self.opener()
        if opener:
            return (yield from self._strings(opener, where)), begin
        return (yield from self.bare(begin, where, len(stack), colon=colon)), begin

    def _bracket(self, char: str) -> Steps[str]:
        """The bracket at ``pos``, or a constructor's name and its parenthesis; "" where there is none."""
        if char in "[({":
            return char
        if char in "dlts":
            size = yield from self.run(0, NAME)
            name = self.source.buf[self.source.pos : self.source.pos + size]
            if name in _CONSTRUCTORS and (yield from self.char(size)) == "(":
                return name + "("
        return ""

    def _strings(self, opener: str, place: Place) -> Steps[PythonValue]:
        """Read a string and those that are joined to it, by standing next to it or by a plus sign."""
        source = self.source
        sink = ['"']
        while opener:
            yield from self.piece(sink, opener, place)
            if place is LINE:
                break
            if (yield from self.space()) == "+":
                source.pos += 1
                yield from self.space()
            opener = yield from self.opener()
        sink.append('"')
        return PythonValue("".join(sink))

    def _whole(
        self, value: PythonValue, begin: int, stack: list[Frame], place: Place, *, colon: bool
    ) -> Steps[tuple[PythonValue, int]]:
        """The value that began at ``begin`` with all that belongs to it, and the place behind it.

        What does not end a value goes on with it: then it was the beginning of an expression.
        """
        source = self.source
        end = source.offset
        if not stack and place is LINE:
            return value, end
        where = stack[-1].place if stack else place
        char = yield from self.space()
        if not char:
            raise CutOff
        is_string = (value.json or "")[:1] == '"'
        if is_string and char == "," and where is KEYWORD:
            after = yield from self.run(1, BLANKS)
            following = yield from self.char(after)
            if following.isalpha() and not (yield from self.argument_follows(1, colon=colon)):
                rest = yield from self.bare(source.offset, where, 0, colon=colon)
                joined = str(json.loads(value.json or "")) + plain(rest.text)
                return PythonValue(json_text(joined)), source.offset
        elif not (yield from self._is_over(char, where, is_string=is_string)):
            value = yield from self.bare(begin, where, len(stack), colon=colon)
        return value, end

    def _is_over(self, char: str, place: Place, *, is_string: bool) -> Steps[bool]:
        """Whether ``char``, which is next behind a value, ends it."""
        if char in ",)]}":
            return True
        if char in ":=" and (place.is_key or (place is POSITION and is_string)):
            return char == ":" or (yield from self.char(1)) != "="
        return (yield from self.at_end()) or (place.in_call and (yield from self.named(0, ":=")))

    def _put(self, stack: list[Frame], value: PythonValue, begin: int, end: int) -> Steps[tuple[PythonValue | None, int]]:
        """Put a complete value into the brackets around it; what these hold and where they began if they close, else None."""
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

    def _close(self, stack: list[Frame], char: str) -> tuple[PythonValue, int]:
        """Close the brackets that ``char`` closes: all if it belongs to what is around the value, one if it is mistaken."""
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
