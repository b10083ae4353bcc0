"""Calls without markers: where they count, at the beginning of a line, or alone in a fence or in inline code.

A block of calls is read whole before any of it is emitted. After the first one models explain: they repeat the call, show a
variant of it, or continue with a conversation of their own. So further blocks count only as long as nothing between them says
that the answer is over, and a block without a new call is prose.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

from patchbay.formats.codecs.python import PythonCalls
from patchbay.formats.context import Context, FenceLexer, Reader, cached_attribute, skip_label
from patchbay.formats.emitter import BufferedCalls, call_key
from patchbay.formats.scanner import LineStart
from patchbay.formats.source import LINE_END, MalformedCall, NoMatch, Steps, Truncated, discard
from patchbay.formats.unmarked_calls import ImplicitCalls, ProgramCalls
from patchbay.formats.values.json_stream import FENCES

_NEXT_TURN = (
    r"#{2,}[ \t]*(?:Instruction|Response|Explanation|Question|Answer|Input|Output|User|Human|Assistant)\b|"
    r"(?:user|assistant|system|Human|User|Assistant)[ \t]*(?:\n|:)"
)
_STARTS_TURN = re.compile(_NEXT_TURN)
"""Beginnings of lines of an invented conversation."""
_ENDS_ANSWER = re.compile(
    _NEXT_TURN + r"|\"\"\"|'''|(?:def|class|import|from|assert)\b|if __name__|"
    r"(?:Explanation|Instruction|Response|Question)\b[^\n]{0,20}:"
)
"""Beginnings of lines that are not part of the answer once calls came: code, explanations, the next turn."""
_MAX_END_WORDS = 40
_END_WORDS = (
    "##", "user", "assistant", "system", "Human", "User", "Assistant", "def", "class", "import", "from", "assert",
    "Explanation", "Instruction", "Response", "Question", '"""', "'''", "if __name__",
)  # fmt: skip
"""Literal beginnings of the patterns above: only a line that begins like one of them is waited for."""
_LEAD_IN_END = re.compile(r"[:\r\n]")
_LEAD_IN = re.compile(r"[A-Za-z_' ]{1,40}:")
_EXAMPLE = re.compile(r"(?i)\b(?:example|format|schema|syntax|usage|template)")
_MAX_LEAD_IN = 80
_ANNOUNCES = re.compile(r"(?i)\b(?:example|usage)\b[^\n]{0,40}:\s*\Z")
"""Words that announce an example."""
_ANNOUNCE_LOOKBEHIND = 80
_EMPTY_LIST = "'[]'"


class ImplicitCallReader(Reader):
    """Reads blocks of calls of offered tools. ``call_starts``: see ``LineStart``."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._emitted_keys: set[str] = set()
        self._answer_ended = False
        self.in_lead_in = True
        self.after_lead_in = False
        self._line_text = ""
        self._tool_call_starts, self._first_chars = _call_starts(context.rules.beginnings)
        self.call_starts: frozenset[str] | None = None

    @cached_attribute
    def _item_reader(self) -> ImplicitCalls:
        return ImplicitCalls(self.context, BufferedCalls())

    @cached_attribute
    def _program(self) -> ProgramCalls:
        return ProgramCalls(self.context, self._item_reader.buffered)

    def may_begin_call(self, char: str) -> bool:
        """True if a call may begin with ``char``: with any once calls came, or on the first line, which may have a lead-in."""
        if self._emitted_keys:
            return True
        first, self.call_starts = self.call_starts is None, self._tool_call_starts
        if char in self._first_chars or (first and (self.after_lead_in or self.emitter.has_text)):
            return True
        if first:
            self.in_lead_in, self._line_text = True, ""
        return False

    def read(self) -> Steps[bool]:
        """Read a block at the beginning of a line, or behind a lead-in."""
        after_lead_in, self.after_lead_in = self.after_lead_in, False
        if self._answer_ended or self.emitter.turn_ended:
            return False
        if not after_lead_in:
            if (self._emitted_keys or self.emitter.has_text) and (yield from self._ends_answer()):
                self._answer_ended = True
                return False
            self.in_lead_in, self._line_text = not self.emitter.has_text, ""
        source = self.source
        begin = source.offset
        self._item_reader.reset()
        try:
            if source.buf[source.pos] == "`":
                found = yield from self._inline()
            elif not (after_lead_in or self.emitter.has_text) and (yield from self._is_empty_list()):
                return False
            else:
                found = yield from self._block()
        except (MalformedCall, Truncated):
            return self._cut(begin)
        return found and self.accept()

    def scan_lead_in(self, end: int) -> int:
        """Scan for a lead-in, ``Calls:``, which is emitted as prose."""
        source = self.source
        limit = min(end, source.pos + _MAX_LEAD_IN - len(self._line_text))
        found = _LEAD_IN_END.search(source.buf, source.pos, limit)
        stop = found.end() if found else end
        self._line_text += source.buf[source.pos : min(stop, limit)]
        self.in_lead_in = not found and len(self._line_text) < _MAX_LEAD_IN
        line = self._line_text.strip(" \t")
        self.after_lead_in = _LEAD_IN.fullmatch(line) is not None and not _EXAMPLE.search(line)
        return stop

    def _cut(self, begin: int) -> bool:
        """Handle a block that breaks off, or the end of the text in it: emit its complete calls, and the one that was cut off."""
        source, item_reader = self.source, self._item_reader
        name = item_reader.cut()
        calls = len(item_reader.buffered.items)
        inside_list = calls > item_reader.items_before  # with complete calls in it
        begin = begin if not item_reader.items_before else item_reader.item_start
        emitted = calls > 0 and self.accept()
        if name or (emitted and inside_list):
            self.emitter.cut(source.since(begin), name)
        elif emitted:
            source.rewind_to(begin)
        return emitted or bool(name)

    def _is_empty_list(self) -> Steps[bool]:
        """True if the answer is an empty list: it has no call, and nothing behind it is read as one."""
        source = self.source
        if (yield from source.peek()) not in ("[", '"', "'"):
            return False
        self._answer_ended = (yield from source.ahead(len(_EMPTY_LIST))).lstrip("\"'").startswith("[]")
        return self._answer_ended

    def accept(self) -> bool:
        """Emit the calls of a block, if one of them is new."""
        buffered = self._item_reader.buffered
        calls = buffered.calls
        if _ANNOUNCES.search(self.emitter.tail(_ANNOUNCE_LOOKBEHIND)) or any(
            self._echoes_schema(name, arguments) for name, arguments in calls
        ):
            return False
        if all(call_key(name, arguments) in self._emitted_keys for name, arguments in calls):
            return False
        self._emitted_keys.update(call_key(name, arguments) for name, arguments in calls)
        self.call_starts = None
        buffered.emit(self.calls)
        return True

    def fenced(self, lexer: FenceLexer) -> Steps[bool]:
        """Read a fence from behind its run; return False, with nothing emitted, if it holds more than calls, or no new call."""
        source, item_reader = self.source, self._item_reader
        if self._answer_ended or self.emitter.turn_ended:
            return False
        begin = source.offset
        skip_label(source)
        if (yield from source.peek()) == "(":  # not a label: a call on the fence's own line
            source.rewind_to(begin)
        item_reader.reset()
        body = source.offset
        try:
            char = yield from self._skip_separators()
            if (yield from self._is_empty_list()):
                return False
            while char and not (char in FENCES and (yield from self.context.json.at_fence())):
                is_word = char.isalpha() or char in "_#"
                if (is_word and self._program.variables) or not (yield from item_reader.item()):
                    if not is_word:
                        return False
                    source.rewind_to(body)
                    item_reader.reset()
                    yield from self._program.read()
                yield from self._skip_surplus_brackets()
                char = yield from self._skip_separators()
        except Truncated:
            return self._cut(begin)
        except (MalformedCall, NoMatch):
            return False
        if not item_reader.buffered.calls:
            return False
        if char:
            yield from lexer.run(char)
            if (yield from lexer.is_opener()):
                return False
        return self.accept()

    def _skip_separators(self) -> Steps[str]:
        """Read white space, separators and comments; return the next character."""
        source = self.source
        while True:
            char = yield from source.peek()
            if char and char in " \t\r\n,;":
                source.pos += 1
            elif char == "#":
                yield from source.read_to(LINE_END, discard)
            else:
                return char

    def _inline(self) -> Steps[bool]:
        """Read a block in inline code that fills its line."""
        source = self.source
        source.pos += 1
        if (yield from source.peek()) not in self._first_chars or source.buf[source.pos] == "`" or not (yield from self._block()):
            return False
        if (yield from source.peek()) != "`":
            return False
        source.pos += 1
        char = yield from source.peek()
        return not char or char in " \t\r\n;,."

    def _block(self) -> Steps[bool]:
        """Read consecutive calls, up to the end of the last one; return False if there is none."""
        source, item_reader = self.source, self._item_reader
        end = -1
        while True:
            if not (yield from item_reader.item()):
                break
            end = source.offset
            if not (yield from self._read_separator()):
                break
        if end < 0:
            return False
        source.rewind_to(end)
        yield from self._skip_surplus_brackets()
        return (yield from source.peek()) not in ("(", ":")  # a link, an explanation

    def _skip_surplus_brackets(self) -> Steps[None]:
        """Read surplus closing brackets at the end of a line."""
        source = self.source
        begin = source.offset
        while (char := (yield from source.peek())) and char in ")]}":
            source.pos += 1
        if char and char not in "\r\n":
            source.rewind_to(begin)

    def _read_separator(self) -> Steps[str]:
        """Read what may separate calls; return the next character, "" if no call begins with it."""
        source = self.source
        while True:
            char = yield from source.peek()
            if char and char in " \t\r\n,;+":
                source.pos += 1
            else:
                return char if char and (char in self._first_chars or char == "(") and char != "`" else ""

    def _echoes_schema(self, name: str, arguments: str) -> bool:
        """True if the arguments are a JSON Schema: then the "call" shows a tool's definition."""
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
            line = source.buf[source.pos : source.pos + _MAX_END_WORDS]
            if not any(word.startswith(line) or line.startswith(word) for word in _END_WORDS):
                return False
            if len(line) == _MAX_END_WORDS or "\n" in line or source.ended:
                break
            yield
        ends = _ENDS_ANSWER if self._emitted_keys else _STARTS_TURN
        return ends.match(source.buf, source.pos, source.pos + _MAX_END_WORDS) is not None


@lru_cache(maxsize=64)
def _call_starts(names: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the texts that lines with calls start with, and their first characters. ``names``: beginnings of tools' names."""
    starts = frozenset((*"[{`'\"#", "\\[")) | names
    return starts, frozenset(start[0] for start in starts)


OPENER = "["
_BEFORE = frozenset(("", " ", "\t", ":", ".", "!", "?"))
"""Characters before a list of calls: behind a letter a bracket is an index, behind a quote or a bracket an example."""


class InlineLists(Reader):
    """Reads lists of calls in the middle of a line. ``lines``: the reader for the beginning of a line."""

    def __init__(self, context: Context, lines: LineStart | None) -> None:
        super().__init__(context)
        self._lines = lines if context.rules.has_tools else None
        self._buffered = BufferedCalls()
        self._python = PythonCalls(context, context.source, self._buffered, context.rules.offered)
        self._python.strict = True
        self._buffered.ended = self._clear_name

    def read(self, _marker: str) -> Steps[bool]:
        """Read a list, and emit its calls once it is read to its end."""
        emitter, lines = self.emitter, self._lines
        if lines is None:
            return False
        if emitter.at_line_start or lines.after_lead_in:
            return not emitter.in_blockquote and lines.may_begin_call(OPENER) and (yield from lines.read())
        if emitter.turn_ended or emitter.last_char not in _BEFORE:
            return False
        begin = self.source.offset
        self._buffered.clear()
        self._clear_name()
        cut = False
        try:
            yield from self._python.read_list()
        except NoMatch:
            return False
        except Truncated:
            cut = True
            if not (self._python.name or self._buffered.calls):
                return False
        self._buffered.emit(self.calls)
        if cut:
            emitter.cut(self.source.since(begin), self._python.name)
        return True

    def _clear_name(self) -> None:
        self._python.name = ""
