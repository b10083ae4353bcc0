"""A fence that holds a program: statements that call offered tools, and others that only keep, name or print something.

    params = {"city": "Rome"}⏎answer = get_weather(params)⏎print(answer)

What is no call is passed over as long as running it changes nothing about the calls: imports, prints, and assignments, whose
literals stand for the names that they are given. What decides whether or how often a call is made (loops, conditions, functions),
a tool that is called inside of an expression, and an argument that only running the program would give, make the fence prose.
The calls themselves are read in ``barecalls``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from patchbay.formats.engine.source import CutOff, NotACall, Source, Steps
from patchbay.formats.values.pyreader import PythonReader
from patchbay.formats.values.pyvalues import PythonValue

_CONTROL = re.compile(
    r"(?:if|elif|else|for|while|try|except|finally|with|def|class|async|raise|del)\b|(?:match|case)[ \t]+[^\s=]|@"
)
_IMPORT = re.compile(r"(?:import|from)[ \t]+[\w., \t]+(?:#.*)?$")
_PRINT = re.compile(r"print[ \t]*\(")
_TARGET = re.compile(r"([^\W\d]\w*)(\[[^\]]{0,80}\]|)[ \t]*(?::[ \t]*[\w\[\]., ]{1,60})?([-+*/|]?)=(?!=)[ \t]*")
_DICT = re.compile(r"(?:\w+[ \t]*=[ \t]*)?[\[\s]*\{")
_CALLED = re.compile(r"([^\W\d][\w.]*)[ \t]*\(")
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*(?![ \t]*=)")
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")
_MARK = re.compile(r"\"\"\"|'''|```|~~~|[\"'\n#()\[\]{}\\]")
_MARK_ROOM = 2
_HEAD_ROOM = 160
_ROOM = 2000
"""How much of a program may come before its next call: until a call has come all of it is held back."""


class Programs:
    """Passes over the statements of fences that call nothing. ``offered``: the tool that a name means, None if it means none."""

    def __init__(self, source: Source, offered: Callable[[str], str | None]) -> None:
        self.source = source
        self.names: dict[str, PythonValue | None] = {}
        """What the names of the answer's programs stand for; None: for what running a program would give."""
        self._offered = offered
        self._values = PythonReader(source, _unnoted)
        self._passed = 0

    def begin(self) -> None:
        """A fence begins, or a call came. What was named is still known: the next fence goes on with it."""
        self._passed = 0

    def controls(self) -> Steps[bool]:
        """Whether the statement at ``pos`` decides about others; nothing is read."""
        return _CONTROL.match((yield from self._head())) is not None

    def target(self) -> Steps[str]:
        """The name that the statement at ``pos`` gives to its value, "" if none; nothing is read."""
        found = _TARGET.match((yield from self._head()))
        return found.group(1) if found else ""

    def knows(self, statement: str) -> bool:
        """Whether a statement with a call says all of it: a dict may hold names, where Python calls have them filled in."""
        if not self.names or not _DICT.match(statement):
            return True
        return self.names.keys().isdisjoint(_NAME.findall(_STRING.sub("", statement)))

    def passes(self) -> Steps[bool]:
        """Read a statement that calls no offered tool; False where it is not one that may be passed over. Raises NotACall."""
        source = self.source
        head = yield from self._head()
        target = _TARGET.match(head)
        if not (target or _PRINT.match(head) or _IMPORT.match(head)):
            return False
        begin = source.offset
        text = yield from self._text()
        if any(self._offered(name) for name in _CALLED.findall(text)):
            return False
        if target:
            name, item, operator = target.groups()
            is_plain = not item and not operator
            self.names[name] = (yield from self._literal(begin + target.end(), source.offset)) if is_plain else None
        return True

    def _literal(self, begin: int, end: int) -> Steps[PythonValue | None]:
        """The literal that is all of the text between two places, and to the latter; None if that is an expression."""
        source = self.source
        source.rewind_to(begin)
        try:
            value = yield from self._values.value()
        except (NotACall, CutOff):
            source.rewind_to(end)
            return None
        behind = source.offset
        source.rewind_to(end)
        rest = source.since(behind).lstrip() if behind < end else ""
        is_literal = value.json is not None or value.fields is not None
        return value if is_literal and (not rest or rest.startswith("#")) else None

    def _head(self) -> Steps[str]:
        """The line at ``pos``, or as much of it as decides what it is; nothing is read."""
        source = self.source
        while True:
            head = source.buf[source.pos : source.pos + _HEAD_ROOM]
            line = head.partition("\n")[0]
            if len(line) < len(head) or len(head) == _HEAD_ROOM or source.ended:
                return line
            yield

    def _text(self) -> Steps[str]:
        """Read a statement to the end of its last line or to a fence; raises NotACall where it is too long or no Python."""
        source = self.source
        begin, inside, depth = source.offset, "", 0
        while True:
            mark = yield from self._mark()
            if source.offset - begin > _ROOM - self._passed:
                raise NotACall
            if inside == "#" and mark not in ("", "\n"):
                source.pos += len(mark)
                continue
            if inside and inside != "#":
                if not mark or (mark == "\n" and len(inside) == 1):
                    raise NotACall
                closes = mark.startswith(inside)
                source.pos += len(inside) if closes else min(len(mark) + (mark == "\\"), len(source.buf) - source.pos)
                inside = "" if closes else inside
                continue
            if not mark or (mark == "\n" and not depth):
                break
            if mark in ("```", "~~~"):
                if depth:
                    raise NotACall
                break
            inside = mark if mark[0] in "\"'#" else ""
            depth += (mark in "([{") - (mark in ")]}")
            source.pos = min(source.pos + len(mark) + (mark == "\\"), len(source.buf))
        text = source.since(begin)
        self._passed += len(text)
        return text

    def _mark(self) -> Steps[str]:
        """Read up to the next character that counts, or run of three; "" at the end of the text."""
        source = self.source
        while True:
            found = _MARK.search(source.buf, source.pos)
            if found and (source.ended or found.end() + _MARK_ROOM <= len(source.buf)):
                source.pos = found.start()
                return found.group()
            source.pos = found.start() if found else max(source.pos, len(source.buf) - _MARK_ROOM)
            if source.ended:
                source.pos = len(source.buf)
                return ""
            yield


def _unnoted(_note: str) -> None:
    """What a literal was repaired in counts for nothing before a call holds it."""
