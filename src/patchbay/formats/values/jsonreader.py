"""One pass over JSON as models write it: valid JSON comes out as it went in, the rest comes out as valid JSON.

``JsonReader`` reads one value at a time from a Source, by the character, in memory for the value's nesting only, and appends the
text it makes to a list. Its values cannot fail: whatever stands where a value should be is read as the nearest JSON, and each
such place is noted. Only the end of the text stops it (``CutOff``). A fence or a marker outside a string ends the value and
closes what is open: that is how a block says it is over. While ``guarded``, which is until a call is committed, a fence line
inside a string or comment raises ``NotACall`` instead, so that no text is ever read twice by readers that gave up.

What a value means (a call, a list of calls) is not known here: see ``callreader``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from patchbay.formats.engine.marks import Marks
from patchbay.formats.engine.source import BrokenOff, CutOff, NotACall, Source, Steps
from patchbay.formats.values.jsonstrings import QUOTES, StringReader
from patchbay.formats.values.names import ToolTypes
from patchbay.formats.values.nesting import COLON, KEY, Nesting
from patchbay.formats.values.pynumbers import computed

_SPACE = re.compile(r"[ \t\r\n]+")
_QUOTED_SPACE = re.compile(r"[ \t\r\n>]+")
_BARE = re.compile(r"[^\s,:{}\[\]\"'`~<]+")
_BARE_VALUE = re.compile(r"[^,{}\[\]\"\n`~<]+")
_IN_TUPLE = re.compile(r"[^\s,:{}()\[\]\"'`~<]+")
_IN_TUPLE_VALUE = re.compile(r"[^,{}()\[\]\"\n`~<]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_CONSTANTS = frozenset({"true", "false", "null"})
_FOREIGN = {
    "True": "true",
    "False": "false",
    "None": "null",
    "undefined": "null",
    "NaN": "null",
    "Infinity": "null",
    "-Infinity": "null",
}
_OPERATOR = re.compile(r"[ \t]*(?:[*%]|/(?![/*])|[-+][ \t])")
_BEFORE_OPERATOR = frozenset(" \t*%/")
_INDEX = re.compile(r"[\[\]]+")
FENCES = frozenset("`~")
_ENDS = FENCES | frozenset("<[")


class JsonReader(StringReader):
    """Reads values from ``source``. ``ends``: markers that end a value like a fence does, where they stand outside its strings.

    ``quoted`` says that the text is a blockquote: ``>`` counts as white space.
    """

    def __init__(self, source: Source, note: Callable[[str], None], ends: Marks | None = None) -> None:
        super().__init__(source, note)
        self.quoted = False
        self._ends = ends

    def space(self, sink: list[str] | None = None, *, comments: bool = True) -> Steps[str]:
        """Read white space and comments; the next character, or "" at the end. White space goes to ``sink``, comments do not."""
        source = self.source
        pattern = _QUOTED_SPACE if self.quoted else _SPACE
        while True:
            found = pattern.match(source.buf, source.pos)
            if found:
                if sink is not None:
                    sink.append(found.group().replace(">", "") if self.quoted else found.group())
                source.pos = found.end()
            char = yield from source.peek()
            if char == "/" and comments:
                if not (yield from self._comment()):
                    return char
            elif not char or (char not in " \t\r\n" and not (self.quoted and char == ">")):
                return char

    def _comment(self) -> Steps[bool]:
        source = self.source
        while len(source.buf) - source.pos < 2 and not source.ended:
            yield
        opener = source.buf[source.pos : source.pos + 2]
        if opener not in ("//", "/*"):
            return False
        self.note("comment")
        closer = "\n" if opener == "//" else "*/"
        start = source.offset
        source.pos += 2
        while True:
            end = source.find(closer, source.pos)
            if self.guarded and 0 <= source.find("```", source.pos) < (end if end >= 0 else len(source.buf)):
                source.rewind_to(start)
                raise NotACall
            if end >= 0:
                break
            if source.ended:
                source.pos = len(source.buf)
                return True
            source.pos = max(source.pos, len(source.buf) - 2)  # closer and fence may be split over chunks
            yield
        source.pos = end + (len(closer) if closer == "*/" else 0)
        return True

    def value(self, sink: list[str], types: ToolTypes | None = None) -> Steps[None]:
        """Read one value, appending its JSON text to ``sink``; raises CutOff at the end of the text.

        Where the block around it has an end that is known (``stops``, ``fenced``), raises BrokenOff for what cannot be put right
        without inventing something: a string, a key or a value that is missing or breaks off, a word where a member should be.

        ``types``: the value is the arguments of such a tool, and members whose schema wants a list or an object may be strings
        that hold one.
        """
        source = self.source
        nesting = Nesting(sink, self.note)
        member = ""
        word = False
        tuples: set[int] = set()  # the depths whose open bracket is a parenthesis
        while not nesting.complete:
            char = yield from self.space(nesting.gap)
            if not char:
                raise CutOff
            word = word and nesting.due == COLON
            if word and self.bounded and char not in ":=":
                raise BrokenOff
            if self._may_end(char) and (yield from self.at_end()):
                if self.bounded and nesting.lacks_value:
                    raise BrokenOff
                nesting.end()
            elif char in "}])":
                source.pos += nesting.close("]" if char == ")" else char)
            elif nesting.takes(char):
                source.pos += 1
            elif nesting.due == KEY:
                nesting.bring_out()
                word = char not in QUOTES
                if types is not None and nesting.depth == 1:
                    member = yield from self._member_key(sink)
                else:
                    yield from self.key(sink)
                nesting.due = COLON
            elif char in "{[(":
                source.pos += 1
                nesting.open("[" if char == "(" else char)
                tuples.discard(nesting.depth)
                if char == "(":
                    self.note("tuple")
                    tuples.add(nesting.depth)
            else:
                nesting.bring_out()
                if char not in QUOTES:
                    yield from self._word(sink, in_tuple=nesting.depth in tuples)
                elif types is not None and nesting.depth == 1 and member in types.unquoted:
                    yield from self._member_string(sink, member, types)
                else:
                    yield from self.string(sink)
                nesting.value_read()

    def _member_key(self, sink: list[str]) -> Steps[str]:
        """Read a key; what it says."""
        written: list[str] = []
        yield from self.key(written, told=False)
        text = "".join(written)
        sink.append(text)
        return str(json.loads(text))

    def _member_string(self, sink: list[str], member: str, types: ToolTypes) -> Steps[None]:
        """Read a string that may stand for the list or object in it."""
        written: list[str] = []
        yield from self.string(written, told=False)
        text = "".join(written)
        value = types.decoded(member, text)
        if value != text:
            self.note("json_in_string")
        sink.append(value)

    @property
    def bounded(self) -> bool:
        """The end of the block around the value is known."""
        return self.fenced or self.stops is not None

    def breaks_off(self) -> Steps[bool]:
        """Read the value at ``pos``; whether it is no JSON up to the end of its block."""
        try:
            yield from self.value([])
        except BrokenOff:
            return True
        except CutOff:
            pass
        return False

    def skip_to_end(self) -> Steps[None]:
        """Read up to the next marker, or to the end of the text."""
        source, ends = self.source, self._ends
        while ends is not None:
            source.pos, marker = ends.next(source, source.pos)
            if marker or source.ended:
                return
            yield

    def _may_end(self, char: str) -> bool:
        return char in _ENDS or (self.stops is not None and char in self.stops.first)

    def at_end(self) -> Steps[bool]:
        """Whether a fence or a marker stands at ``pos``: the value is over, whatever is still open."""
        if self.source.buf[self.source.pos] in FENCES:
            return (yield from self.at_fence())
        if self._ends is not None and (yield from self._ends.at(self.source)):
            return True
        return (yield from self._at_stop())

    def at_fence(self) -> Steps[bool]:
        """Whether three fence characters stand at ``pos``."""
        source = self.source
        while len(source.buf) - source.pos < 3 and not source.ended:
            yield
        return source.buf[source.pos : source.pos + 3] in ("```", "~~~")

    def key(self, sink: list[str], *, told: bool = True) -> Steps[None]:
        """Read a key: a string in any quotes, or a bare word. ``told`` as in ``string``."""
        char = yield from self.space()
        if char in QUOTES:
            yield from self.string(sink, told=told)
            return
        word = yield from self._run(_BARE)
        if not word:
            word = self.source.buf[self.source.pos]
            self.source.pos += 1
        self.note("unquoted_key")
        sink.append(json.dumps(word))

    def _run(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Read what matches, and angle brackets that begin no marker."""
        source = self.source
        parts: list[str] = []
        while True:
            found = pattern.match(source.buf, source.pos)
            end = self._before_stop(found.end()) if found else source.pos
            parts.append(source.buf[source.pos : end])
            source.pos = end
            if end < len(source.buf):
                if not (source.buf[end] == "<" or (found and end < found.end())) or (yield from self.at_end()):
                    return "".join(parts)
                parts.append(source.buf[source.pos])
                source.pos += 1
            elif source.ended:
                return "".join(parts)
            else:
                yield

    def _word(self, sink: list[str], *, in_tuple: bool) -> Steps[None]:
        """Read a number, a constant, or bare text, which becomes a string."""
        word = yield from self._run(_IN_TUPLE if in_tuple else _BARE)
        self._expect_more()
        operand = False
        if word in _CONSTANTS or _NUMBER.fullmatch(word):
            following = self.source.buf[self.source.pos]
            operand = following in _BEFORE_OPERATOR and word not in _CONSTANTS and (yield from self._is_operand())
            if not operand:
                sink.append(word)
                return
        if not operand and word in _FOREIGN:
            self.note("foreign_constant")
            sink.append(_FOREIGN[word])
            return
        number = None if operand else _as_number(word)
        if number is not None:
            self.note("foreign_number")
            sink.append(number)
            return
        rest = yield from self._run(_IN_TUPLE_VALUE if in_tuple else _BARE_VALUE)
        self._expect_more()
        parts, brackets = [word, rest], 0
        while (brackets := brackets + parts[-1].count("(") - parts[-1].count(")")) > 0 and not in_tuple:
            bracket = yield from self._run(_INDEX)
            if not bracket:
                break
            parts.append(bracket + (yield from self._run(_BARE_VALUE)))
            self._expect_more()
        text = "".join(parts).strip()
        if not text:
            text = self.source.buf[self.source.pos : self.source.pos + 1]
            self.source.pos += 1
        number = computed(text) if operand or "*" in text else None
        self.note("unquoted_string" if number is None else "arithmetic")
        sink.append(json.dumps(text) if number is None else number)

    def _is_operand(self) -> Steps[bool]:
        """Whether an operator follows the number before ``pos``."""
        source = self.source
        while True:
            at = source.pos
            while at < len(source.buf) and source.buf[at] in " \t":
                at += 1
            if len(source.buf) - at > 1 or source.ended:
                return _OPERATOR.match(source.buf, source.pos) is not None
            yield

    def _expect_more(self) -> None:
        """Raise CutOff where the text ends: a number may have had more digits to come, and a word more letters."""
        if self.source.ended and self.source.pos >= len(self.source.buf):
            raise CutOff


def _as_number(word: str) -> str | None:
    """JSON for a number that Python or JavaScript would read (+5, .5, 5., 1_000, 0x1f), or None."""
    if not word or word[0] not in "+-.0123456789" or len(word) > 64:
        return None
    for read in (int, float):
        try:
            value = read(word)
        except ValueError:
            continue
        text = json.dumps(value)
        return text if text[-1].isdigit() else None
    try:
        return json.dumps(int(word, 16)) if word.lower().lstrip("+-").startswith("0x") else None
    except ValueError:
        return None
