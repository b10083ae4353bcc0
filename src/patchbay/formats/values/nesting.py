"""Where a reader stands inside a JSON value: what is open, what is due next, and how a wrong token is put right.

Nothing is read here. ``Nesting`` is told each token's first character and writes brackets, commas and colons so that the text in
``sink`` is valid JSON in the end, and the same text where it already was.
"""

from __future__ import annotations

from collections.abc import Callable

VALUE = "value"
FIRST = "first value"
KEY = "key"
COLON = "colon"
COMMA = "comma"
"""What may be due."""


class Nesting:
    """The open brackets of one value. ``gap`` is the white space that the next token brings out."""

    def __init__(self, sink: list[str], note: Callable[[str], None]) -> None:
        self.sink = sink
        self.note = note
        self.gap: list[str] = []
        self.due = VALUE
        self.complete = False
        self._closers: list[str] = []
        self._comma = False

    @property
    def depth(self) -> int:
        """How many brackets are open."""
        return len(self._closers)

    @property
    def in_object(self) -> bool:
        """Whether the innermost open bracket is an object's."""
        return self._closers[-1:] == ["}"]

    @property
    def lacks_value(self) -> bool:
        """Whether a value is due that cannot be left out."""
        return not self._comma and self.due in (VALUE, COLON)

    def bring_out(self) -> None:
        """A token follows: write the comma and the white space that stand before it."""
        if self._comma:
            self.sink.append(",")
            self._comma = False
        self.sink.extend(self.gap)
        self.gap.clear()

    def open(self, char: str) -> None:
        """An object or array begins."""
        self.bring_out()
        self.sink.append(char)
        self._closers.append("}" if char == "{" else "]")
        self.due = KEY if char == "{" else FIRST

    def value_read(self) -> None:
        """A value is complete."""
        self.due = COMMA
        self.complete = not self._closers

    def takes(self, char: str) -> bool:
        """Handle what stands between values; True where the character is used up, False where a key or a value begins with it."""
        if self.due == COMMA:
            return self._between(char)
        if self.due == COLON and char == ",":
            self._fill()  # a key without a value
            self.due = COMMA
            return self._between(char)
        if self.due == COLON:
            if char != ":":
                self.note("missing_colon")
            self.bring_out()
            self.sink.append(":")
            self.due = VALUE
            return char == ":"
        if char in ",:" or (self.due == KEY and char in "{["):
            self.note("stray_character")
            return True
        return False

    def _between(self, char: str) -> bool:
        inside_array = self._closers[-1] == "]"
        if char == ";" or (char == ":" and inside_array):
            self.note("stray_character")
            return True
        if char == ",":
            self.sink.extend(self.gap)
            self.gap.clear()
        else:
            self.note("missing_comma")
        self._comma = True
        self.due = VALUE if inside_array else KEY
        return char == ","

    def close(self, char: str) -> bool:
        """A closing bracket; False where it is none of this value's and is left to be read by others."""
        if not self._closers:
            self._fill()
            self.complete = True
            return False
        self._fill()
        if self._comma:
            self.note("trailing_comma")
            self._comma = False
        if char not in self._closers:
            self.note("stray_bracket")
            self.due = COMMA if self.due in (VALUE, COLON) else self.due
            return True
        if char != self._closers[-1]:
            self.note("unclosed_bracket")
            while self._closers[-1] != char:
                self.sink.append(self._closers.pop())
        self.sink.extend(self.gap)
        self.gap.clear()
        self.sink.append(self._closers.pop())
        self.value_read()
        return True

    def end(self) -> None:
        """The block around the value is over: what is due is null, what is open is closed."""
        self.note("unclosed_bracket" if self._closers else "missing_value")
        self._fill(quiet=True)
        self.sink.extend(reversed(self._closers))
        self.complete = True

    def _fill(self, *, quiet: bool = False) -> None:
        """Write null where a value is due and cannot be left out."""
        if not self.lacks_value:
            return
        if not quiet:
            self.note("missing_value")
        self.sink.append("null" if self.due == VALUE else ":null")
