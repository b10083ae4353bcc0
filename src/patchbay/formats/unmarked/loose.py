"""Where calls of offered tools count that nothing marks: at the beginning of a line, or alone in a fence or in inline code.

A block of calls is read whole before any of it is told. After the first one models explain: they repeat the call, show a variant
of it, or go on with a conversation of their own. So further blocks count only as long as nothing between them says that the
answer is over, a block that says nothing new is prose, and a call that nothing marks counts once.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

from patchbay.formats.engine.lazy import cached_attribute
from patchbay.formats.engine.repeats import call_key
from patchbay.formats.engine.source import CutOff, NotACall, Steps
from patchbay.formats.engine.telling import Staged
from patchbay.formats.fences.fencemarks import LABEL, FenceMarks
from patchbay.formats.parts import Parts
from patchbay.formats.unmarked.barecalls import BareCalls
from patchbay.formats.unmarked.programs import Programs
from patchbay.formats.values.jsonreader import FENCES

_NEXT_TURN = (
    r"#{2,}[ \t]*(?:Instruction|Response|Explanation|Question|Answer|Input|Output|User|Human|Assistant)\b|"
    r"(?:user|assistant|system|Human|User|Assistant)[ \t]*(?:\n|:)"
)
_TURNED = re.compile(_NEXT_TURN)
"""What begins a line of an invented conversation, whatever came before it."""
_OVER = re.compile(
    _NEXT_TURN + r"|\"\"\"|'''|(?:def|class|import|from|assert)\b|if __name__|"
    r"(?:Explanation|Instruction|Response|Question)\b[^\n]{0,20}:"
)
"""What begins a line that is no part of the answer any more once calls came: code, explanations, the next turn."""
_OVER_ROOM = 40
_OVER_WORDS = (
    *(
        "##",
        '"""',
        "'''",
        "user",
        "assistant",
        "system",
        "Human",
        "User",
        "Assistant",
        "def",
        "class",
        "import",
        "from",
        "assert",
    ),
    *("if __name__", "Explanation", "Instruction", "Response", "Question"),
)
"""What the patterns above begin with: only a line that begins so is waited for."""
_LEAD_ENDS = re.compile(r"[=:\r\n]")
_LEADS = re.compile(r"[A-Za-z_' ]{1,40}:|[^\W\d]\w*(?:[ \t]*,[ \t]*[^\W\d]\w*)*[ \t]*=")
_EXAMPLE = re.compile(r"(?i)\b(?:example|format|schema|syntax|usage|template)")
_LEAD_ROOM = 80
_SHOWS = re.compile(r"(?i)\b(?:example|usage)\b[^\n]{0,40}:\s*\Z")
"""What announces that something is only shown."""
_SHOW_ROOM = 80
_LEAD_FIRST = frozenset("rap0123456789_")
"""What the words begin with that may lead to a call on a text's first line."""
_OR = "or "
_CALLED = "()"
_NONE = "'[]'"


class LooseReader:
    """Reads blocks of calls of offered tools. ``starts``: what a line that is looked at begins with (None: anything)."""

    def __init__(self, parts: Parts) -> None:
        self.source = parts.source
        self.emitter = parts.emitter
        self.calls = parts.calls
        self.rules = parts.rules
        self._parts = parts
        self._told: set[str] = set()
        self._over = False
        self._program = False
        self.leading = True
        self.led = False
        self._line = ""
        self._starts, self._first = _beginnings(parts.rules.beginnings)
        self.starts: frozenset[str] | None = None

    @cached_attribute
    def _bare(self) -> BareCalls:
        return BareCalls(self._parts, Staged())

    @cached_attribute
    def _programs(self) -> Programs:
        return Programs(self.source, self.rules.offered)

    def looks_at(self, char: str) -> bool:
        """Whether a line that begins with ``char`` is read: any once calls were told, and the first one if words may lead it."""
        if self._told:
            return True
        first, self.starts = self.starts is None, self._starts
        if char in self._first or (first and (self.led or self.emitter.has_text or char in _LEAD_FIRST)):
            return True
        if first:
            self.leading, self._line = True, ""
        return False

    def read(self) -> Steps[bool]:
        """Read a block at the beginning of a line, or behind words that lead to it."""
        led, self.led = self.led, False
        if self._over or self.emitter.over:
            return False
        if not led:
            if (self._told or self.emitter.has_text) and (yield from self._ends_answer()):
                self._over = True
                return False
            self.leading, self._line = self._program or not self.emitter.has_text, ""
        source = self.source
        begin = source.offset
        self._bare.begin()
        try:
            if source.buf[source.pos] == "`":
                found = yield from self._inline()
            elif led or self.emitter.has_text:
                found = yield from self._block()
            elif (yield from self._says_none()):
                return False
            else:
                found = yield from self._led_block()
        except CutOff:
            return self._cut(begin)
        return found and self.accept()

    def _led_block(self) -> Steps[bool]:
        """Read a block that the first word of its line may lead to."""
        source = self.source
        begin = source.offset
        lead = yield from self._bare.first_lead()
        if (yield from self._block()):
            self._program = self._program or bool(lead)
            return True
        source.rewind_to(begin)
        return False

    def lead(self, end: int) -> int:
        """Follow the words of a line that may lead to a call, ``Calls:`` or ``x =``; they are prose."""
        source = self.source
        looked_at = min(end, source.pos + _LEAD_ROOM - len(self._line))
        found = _LEAD_ENDS.search(source.buf, source.pos, looked_at)
        stop = found.end() if found else end
        self._line += source.buf[source.pos : min(stop, looked_at)]
        self.leading = not found and len(self._line) < _LEAD_ROOM
        line = self._line.strip(" \t")
        self.led = _LEADS.fullmatch(line) is not None and not _EXAMPLE.search(line)
        if self.led and line[-1:] == "=":
            self._program = True
        return stop

    def _cut(self, begin: int) -> bool:
        """The text ended inside a block: tell what is complete of it, and what was cut off."""
        source, bare = self.source, self._bare
        name = bare.cut()
        calls = len(bare.staged.items)
        inside = calls > bare.before  # a list: calls of it are complete
        begin = begin if not bare.before else bare.began
        told = calls > 0 and self.accept()
        if name or (told and inside):
            self.emitter.cut(source.since(begin), name)
        elif told:
            source.rewind_to(begin)
        return told or bool(name)

    def _says_none(self) -> Steps[bool]:
        """Whether the answer is an empty list: no call, and none of what follows is one."""
        source = self.source
        if (yield from source.peek()) not in ("[", '"', "'"):
            return False
        while len(source.buf) - source.pos < len(_NONE) and not source.ended:
            yield
        self._over = source.buf[source.pos : source.pos + len(_NONE)].lstrip("\"'").startswith("[]")
        return self._over

    def accept(self) -> bool:
        """Tell the calls of a block, if there is anything new in them."""
        staged = self._bare.staged
        calls = staged.calls
        if _SHOWS.search(self.emitter.tail(_SHOW_ROOM)) or any(self._echoes_schema(name, arguments) for name, arguments in calls):
            return False
        if all(call_key(name, arguments) in self._told for name, arguments in calls):
            return False
        staged.drop_repeated(self._told)
        self.starts = None
        staged.tell(self.calls)
        return True

    def fenced(self, marks: FenceMarks) -> Steps[bool]:
        """Read a fence from behind its run; False, with nothing told, if it holds anything but calls, or nothing new."""
        source, bare = self.source, self._bare
        if self._over or self.emitter.over:
            return False
        begin = source.offset
        found = LABEL.match(source.buf, source.pos)
        assert found is not None
        source.pos = found.end()
        if (yield from source.peek()) == "(":  # no label: a call on the fence's own line
            source.rewind_to(begin)
        bare.begin()
        self._programs.begin()
        try:
            yield from self._statement()
            if (yield from self._says_none()):
                return False
            while True:
                char = yield from self._statement()
                if not char or (char in FENCES and (yield from self._parts.json.at_fence())):
                    break
                if not (yield from self._called(char)):
                    return False
        except CutOff:
            return self._cut(begin)
        except NotACall:
            return False
        if not bare.staged.calls or bare.staged.holds_prose:
            return False
        if char:
            yield from marks.run(char)
            if (yield from marks.is_opener()):
                return False
        return self.accept()

    def _called(self, char: str) -> Steps[bool]:
        """Read a statement of a fence: a call, or what may stand beside calls in a program."""
        source, bare, program = self.source, self._bare, self._programs
        begin, before, target, lead = source.offset, len(bare.staged.items), "", ""
        is_word = char.isalpha() or char in "_@"
        if is_word:
            if (yield from program.controls()):
                return False
            target = yield from program.target()
            lead = yield from bare.lead()
        printed = lead.startswith("print")
        source.pos += printed
        bare.names = program.names
        try:
            found = yield from bare.item()
        finally:
            bare.names = {}
        if not found:
            source.rewind_to(begin)
            return is_word and (yield from program.passes())
        read = bare.staged.items[before:]
        if not program.knows(source.since(begin)) or not all("".join(pieces).startswith("{") for name, pieces in read if name):
            return False
        if printed and (yield from source.peek()) == ")":
            source.pos += 1
        if target:
            program.names[target] = None
        program.begin()
        return True

    def _statement(self) -> Steps[str]:
        """Read what may stand between the calls of a fence: blanks, separators, comments; the character that follows."""
        source = self.source
        while True:
            char = yield from source.peek()
            if char and char in " \t\r\n,;":
                source.pos += 1
            elif char == "#":
                while (yield from source.peek()) not in ("", "\n"):
                    end = source.buf.find("\n", source.pos)
                    source.pos = end if end >= 0 else len(source.buf)
            else:
                return char

    def _inline(self) -> Steps[bool]:
        """Read a block in inline code that is all of its line."""
        source = self.source
        source.pos += 1
        if (yield from source.peek()) not in self._first or source.buf[source.pos] == "`" or not (yield from self._block()):
            return False
        if (yield from source.peek()) != "`":
            return False
        source.pos += 1
        char = yield from source.peek()
        return not char or char in " \t\r\n;,."

    def _block(self) -> Steps[bool]:
        """Read calls that follow each other, up to the end of the last one; False if there is none."""
        source, bare = self.source, self._bare
        end = -1
        while True:
            if not (yield from bare.item()):
                break
            end = source.offset
            if not (yield from self._separator()):
                break
        if end < 0:
            return False
        source.rewind_to(end)
        yield from self._surplus()
        return (yield from self._ends_line())

    def _ends_line(self) -> Steps[bool]:
        """Whether what follows calls on their line may: not what makes a link of a list, or a word about it."""
        source = self.source
        if (yield from source.peek()) not in ("(", ":"):
            return True
        while len(source.buf) - source.pos < len(_CALLED) and not source.ended:
            yield
        return source.buf.startswith(_CALLED, source.pos)

    def _surplus(self) -> Steps[None]:
        """Read brackets that close what was closed already, or was opened by the words that led here, up to a line's end."""
        source = self.source
        begin = source.offset
        while (char := (yield from source.peek())) and char in ")]}":
            source.pos += 1
        if char and char not in "\r\n":
            source.rewind_to(begin)

    def _separator(self) -> Steps[str]:
        """Read what may stand between calls; the character that follows, "" if it begins no call."""
        source = self.source
        while True:
            char = yield from source.peek()
            if char and char in " \t\r\n,;+":
                source.pos += 1
            elif char == "o" and (yield from self._is_or()):
                source.pos += len(_OR)
            else:
                return char if char and (char in self._first or char == "(") and char != "`" else ""

    def _is_or(self) -> Steps[bool]:
        source = self.source
        while len(source.buf) - source.pos < len(_OR) and not source.ended:
            yield
        return source.buf.startswith(_OR, source.pos)

    def _echoes_schema(self, name: str, arguments: str) -> bool:
        """A tool's own schema shown as an example has the shape of a call: its arguments are a JSON Schema."""
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return False
        if not isinstance(value, dict) or not {"type", "properties"} <= value.keys():
            return False
        keys = self.rules.types(name).keys
        return keys is None or not {"type", "properties"} <= set(keys)

    def _ends_answer(self) -> Steps[bool]:
        """Whether the line says that the answer is over."""
        source = self.source
        while True:
            line = source.buf[source.pos : source.pos + _OVER_ROOM]
            if not any(word.startswith(line) or line.startswith(word) for word in _OVER_WORDS):
                return False
            if len(line) == _OVER_ROOM or "\n" in line or source.ended:
                break
            yield
        ends = _OVER if self._told else _TURNED
        return ends.match(source.buf, source.pos, source.pos + _OVER_ROOM) is not None


@lru_cache(maxsize=64)
def _beginnings(names: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """What a line with a call begins with where tools' names begin so, and the first characters of that."""
    starts = frozenset((*"[{`'\"#", "\\[")) | names
    return starts, frozenset(start[0] for start in starts)
