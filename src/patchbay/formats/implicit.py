"""Where calls of offered tools count without markers: at the beginning of a line, or alone in a fence or in inline code.

A block of calls is read whole before any of it is emitted. After the first one models explain: they repeat the call, show a
variant of it, or go on with a conversation of their own. So further blocks count only as long as nothing between them says
that the answer is over, and a block without a new call is prose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache

from patchbay.formats.codecs.python import PythonCalls
from patchbay.formats.context import Context, FenceMarks, Reader, cached_attribute, pass_label
from patchbay.formats.emitter import BufferedCalls, call_key
from patchbay.formats.implicit_calls import ImplicitCalls
from patchbay.formats.scanner import LineStart
from patchbay.formats.source import LINE_END, NoMatch, Source, Steps, Truncated
from patchbay.formats.values.json_stream import FENCES
from patchbay.formats.values.python_reader import PythonReader
from patchbay.formats.values.python_values import PythonValue

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
_LINE = re.compile(r"[^\n]*")
_HEAD_ROOM = 160
_ROOM = 2000
"""How much of a program may come before its next call: until a call has come all of it is held back."""


class ProgramReader:
    """Passes over the statements of fences that call nothing. ``offered``: the tool that a name means, None if it means none."""

    def __init__(self, source: Source, offered: Callable[[str], str | None]) -> None:
        self.source = source
        self.names: dict[str, PythonValue | None] = {}
        """What the names of the answer's programs stand for; None: for what running a program would give."""
        self._offered = offered
        self._values = PythonReader(source, _ignore_note)
        self._passed = 0

    def begin(self) -> None:
        """A fence begins, or a call came. What was named is still known: the next fence goes on with it."""
        self._passed = 0

    def controls(self) -> Steps[bool]:
        """True if the statement at ``pos`` decides about others; nothing is read."""
        return _CONTROL.match((yield from self._head())) is not None

    def target(self) -> Steps[str]:
        """The name that the statement at ``pos`` gives to its value, "" if none; nothing is read."""
        found = _TARGET.match((yield from self._head()))
        return found.group(1) if found else ""

    def knows(self, statement: str) -> bool:
        """True if a statement with a call says all of it: a dict may hold names, where Python calls have them filled in."""
        if not self.names or not _DICT.match(statement):
            return True
        return self.names.keys().isdisjoint(_NAME.findall(_STRING.sub("", statement)))

    def passes(self) -> Steps[bool]:
        """Read a statement that calls no offered tool; False where it is not one that may be passed over. Raises NoMatch."""
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
        except (NoMatch, Truncated):
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
        size = yield from source.run(0, _LINE, _HEAD_ROOM)
        return source.buf[source.pos : source.pos + size]

    def _text(self) -> Steps[str]:
        """Read a statement to the end of its last line or to a fence; raises NoMatch where it is too long or no Python."""
        source = self.source
        begin, inside, depth = source.offset, "", 0
        while True:
            mark = yield from self._mark()
            if source.offset - begin > _ROOM - self._passed:
                raise NoMatch
            if inside == "#" and mark not in ("", "\n"):
                source.pos += len(mark)
                continue
            if inside and inside != "#":
                if not mark or (mark == "\n" and len(inside) == 1):
                    raise NoMatch
                closes = mark.startswith(inside)
                source.pos += len(inside) if closes else min(len(mark) + (mark == "\\"), len(source.buf) - source.pos)
                inside = "" if closes else inside
                continue
            if not mark or (mark == "\n" and not depth):
                break
            if mark in ("```", "~~~"):
                if depth:
                    raise NoMatch
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


def _ignore_note(_note: str) -> None:
    """What a literal was repaired in counts for nothing before a call holds it."""


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
    "##", "user", "assistant", "system", "Human", "User", "Assistant", "def", "class", "import", "from", "assert",
    "Explanation", "Instruction", "Response", "Question", '"""', "'''", "if __name__",
)  # fmt: skip
"""What the patterns above begin with: only a line that begins so is waited for."""
_LEAD_ENDS = re.compile(r"[=:\r\n]")
_LEADS = re.compile(r"[A-Za-z_' ]{1,40}:|[^\W\d]\w*(?:[ \t]*,[ \t]*[^\W\d]\w*)*[ \t]*=")
_EXAMPLE = re.compile(r"(?i)\b(?:example|format|schema|syntax|usage|template)")
_LEAD_ROOM = 80
_ANNOUNCES = re.compile(r"(?i)\b(?:example|usage)\b[^\n]{0,40}:\s*\Z")
"""Words that announce an example."""
_ANNOUNCE_ROOM = 80
_LEAD_FIRST = frozenset("rap0123456789_")
"""What the words begin with that may lead to a call on a text's first line."""
_OR = "or "
_CALL_BRACKETS = "()"
_NONE = "'[]'"


class ImplicitCallReader(Reader):
    """Reads blocks of calls of offered tools. ``starts``: what a line that is looked at begins with (None: anything)."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._emitted_keys: set[str] = set()
        self._over = False
        self._program = False
        self.leading = True
        self.led = False
        self._line = ""
        self._starts, self._first = _beginnings(context.rules.beginnings)
        self.starts: frozenset[str] | None = None

    @cached_attribute
    def _bare(self) -> ImplicitCalls:
        return ImplicitCalls(self.context, BufferedCalls())

    @cached_attribute
    def _programs(self) -> ProgramReader:
        return ProgramReader(self.source, self.rules.offered)

    def looks_at(self, char: str) -> bool:
        """True if to read a line that begins with ``char``: any once calls came, and the first one where words may lead."""
        if self._emitted_keys:
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
            if (self._emitted_keys or self.emitter.has_text) and (yield from self._ends_answer()):
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
        except Truncated:
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
        """The text ended inside a block: emit what is complete of it, and what was cut off."""
        source, bare = self.source, self._bare
        name = bare.cut()
        calls = len(bare.buffered.items)
        inside = calls > bare.before  # a list: calls of it are complete
        begin = begin if not bare.before else bare.began
        emitted = calls > 0 and self.accept()
        if name or (emitted and inside):
            self.emitter.cut(source.since(begin), name)
        elif emitted:
            source.rewind_to(begin)
        return emitted or bool(name)

    def _says_none(self) -> Steps[bool]:
        """True if the answer is an empty list: no call, and none of what follows is one."""
        source = self.source
        if (yield from source.peek()) not in ("[", '"', "'"):
            return False
        self._over = (yield from source.ahead(len(_NONE))).lstrip("\"'").startswith("[]")
        return self._over

    def accept(self) -> bool:
        """Emit the calls of a block, if there is anything new in them."""
        buffered = self._bare.buffered
        calls = buffered.calls
        if _ANNOUNCES.search(self.emitter.tail(_ANNOUNCE_ROOM)) or any(
            self._echoes_schema(name, arguments) for name, arguments in calls
        ):
            return False
        if all(call_key(name, arguments) in self._emitted_keys for name, arguments in calls):
            return False
        buffered.drop_repeated(self._emitted_keys)
        self.starts = None
        buffered.emit(self.calls)
        return True

    def fenced(self, marker_set: FenceMarks) -> Steps[bool]:
        """Read a fence from behind its run; False, with nothing emitted, if it holds anything but calls, or nothing new."""
        source, bare = self.source, self._bare
        if self._over or self.emitter.over:
            return False
        begin = source.offset
        pass_label(source)
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
                if not char or (char in FENCES and (yield from self.context.json.at_fence())):
                    break
                if not (yield from self._called(char)):
                    return False
        except Truncated:
            return self._cut(begin)
        except NoMatch:
            return False
        if not bare.buffered.calls or bare.buffered.holds_prose:
            return False
        if char:
            yield from marker_set.run(char)
            if (yield from marker_set.is_opener()):
                return False
        return self.accept()

    def _called(self, char: str) -> Steps[bool]:
        """Read a statement of a fence: a call, or what may stand beside calls in a program."""
        source, bare, program = self.source, self._bare, self._programs
        begin, before, target, lead = source.offset, len(bare.buffered.items), "", ""
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
        read = bare.buffered.items[before:]
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
                yield from source.read_to(LINE_END, len)
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
        """True if what follows calls on their line may: not what makes a link of a list, or a word about it."""
        source = self.source
        return (yield from source.peek()) not in ("(", ":") or (yield from source.ahead(len(_CALL_BRACKETS))) == _CALL_BRACKETS

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
            elif char == "o" and (yield from source.ahead(len(_OR))) == _OR:
                source.pos += len(_OR)
            else:
                return char if char and (char in self._first or char == "(") and char != "`" else ""

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
        """True if the line says that the answer is over."""
        source = self.source
        while True:
            line = source.buf[source.pos : source.pos + _OVER_ROOM]
            if not any(word.startswith(line) or line.startswith(word) for word in _OVER_WORDS):
                return False
            if len(line) == _OVER_ROOM or "\n" in line or source.ended:
                break
            yield
        ends = _OVER if self._emitted_keys else _TURNED
        return ends.match(source.buf, source.pos, source.pos + _OVER_ROOM) is not None


@lru_cache(maxsize=64)
def _beginnings(names: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """What a line with a call begins with where tools' names begin so, and the first characters of that."""
    starts = frozenset((*"[{`'\"#", "\\[")) | names
    return starts, frozenset(start[0] for start in starts)


OPENER = "["
_BEFORE = frozenset(("", " ", "\t", ":", ".", "!", "?"))
"""What the prose before a list ends in: behind a letter a bracket is an index, behind a quote or a bracket an example."""


class InlineLists(Reader):
    """Reads such lists of offered tools. ``lines``: the reader of what stands at the beginning of a line."""

    def __init__(self, context: Context, lines: LineStart | None) -> None:
        super().__init__(context)
        self._lines = lines if context.rules.has_tools else None
        self._buffered = BufferedCalls()
        self._python = PythonCalls(context, context.source, self._buffered, context.rules.offered)
        self._python.strict = True
        self._buffered.ended = self._forget_name

    def read(self, _marker: str) -> Steps[bool]:
        """Read a list, and emit its calls when it was read to its end."""
        emitter, lines = self.emitter, self._lines
        if lines is None:
            return False
        if emitter.blank or lines.led:
            return not emitter.quoted and lines.looks_at(OPENER) and (yield from lines.read())
        if emitter.over or emitter.last not in _BEFORE:
            return False
        begin = self.source.offset
        self._buffered.clear()
        self._forget_name()
        cut = False
        try:
            yield from self._python.several()
        except NoMatch:
            return False
        except Truncated:
            cut = True
            if not (self._python.called or self._buffered.calls):
                return False
        self._buffered.emit(self.calls)
        if cut:
            emitter.cut(self.source.since(begin), self._python.called)
        return True

    def _forget_name(self) -> None:
        self._python.called = ""
