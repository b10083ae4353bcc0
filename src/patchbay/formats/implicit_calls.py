"""Codecs for calls of offered tools without markers: JSON, Python, glued names, mixed lists, strings that hold calls.

They are buffered: ``implicit`` decides whether they count.

    functions.f:0{…}   f[ARGS]{…}   f{…}              markers that were stripped by the server
    f⏎```python⏎tool_call(city="Rome")⏎```            ChatGLM 3
    ['f(a=1)', g()]   [{'f(a=1)'}]   ['f', {'a': 1}]  lists that models mix
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial

from patchbay.formats.codecs.json import CallReader, emit_call_text
from patchbay.formats.codecs.python import TOOL_NAME, PythonCalls, has_ended
from patchbay.formats.context import Context, Reader
from patchbay.formats.emitter import BufferedCalls, CallSink
from patchbay.formats.source import BrokenValue, MalformedCall, NoMatch, Steps, Truncated, marker_set, whole_text
from patchbay.formats.values.json_stream import JsonReader
from patchbay.formats.values.python_reader import PythonReader
from patchbay.formats.values.python_text import NAME
from patchbay.formats.values.python_values import PythonArguments, PythonValue, arguments_json

_INDEX = re.compile(r":\d{0,9}$")
_SEPARATORS = marker_set(("[ARGS]", "<|tool_call_argument_begin|>"))
_MAX_NAME = 256
_FENCE = marker_set(("```",))
_LABELS = frozenset({"", "py", "python"})
_CHATGLM_FUNCTION = "tool_call"


class GluedCalls(Reader):
    """Reads one call of an offered tool with its arguments directly behind its name, and emits it to ``sink``."""

    def __init__(self, context: Context, sink: CallSink) -> None:
        super().__init__(context)
        self.sink = sink
        self.name = ""
        """Name of the call being read, as far as known: for a call that is cut off."""
        self._json = context.json
        self._values = PythonReader(context.source, context.emitter.note)

    def read(self) -> Steps[int]:
        """Read a call and return 1. Raises NoMatch, Truncated."""
        name = self.rules.offered((yield from self._name()))
        if name is None:
            raise NoMatch
        begin = self.source.offset
        if (yield from self._below(name)):
            return 1
        self.source.rewind_to(begin)
        marked = yield from self._separators()
        if (yield from self.source.peek()) != "{":
            raise NoMatch
        if not (marked or (yield from self._is_json())):
            raise NoMatch
        self.name = name
        written: list[str] = []
        self._json.guarded = True
        try:
            yield from self._json.value(written)
        finally:
            self._json.guarded = False
        emit_call_text(self.sink, self.rules, name, "".join(written))
        return 1

    def _name(self) -> Steps[str]:
        """Read a name and the index behind it; return the name."""
        source = self.source
        while True:
            found = TOOL_NAME.match(source.buf, source.pos)
            if found is None:
                raise NoMatch
            name = _INDEX.sub("", found.group())
            if found.end() < len(source.buf) and has_ended(source, found.end()):
                break
            if source.ended or len(name) > _MAX_NAME or not self.rules.begins_name(name):
                raise NoMatch
            yield
        source.pos = found.end()
        return name

    def _below(self, name: str) -> Steps[bool]:
        """Read the fence below a name, and emit the call in it; return False if there is no such fence."""
        source = self.source
        if not (yield from self._new_line()) or not (yield from _FENCE.at(source)):
            return False
        source.pos += len("```")
        if (yield from source.read_run(NAME)) not in _LABELS or not (yield from self._new_line()):
            return False
        word = yield from source.read_run(NAME)
        char = yield from source.peek()
        if not word or (
            (word != _CHATGLM_FUNCTION or char not in ("(", "")) and (char or not _CHATGLM_FUNCTION.startswith(word))
        ):
            return False
        self.name = name
        if not char:
            raise Truncated
        arguments = arguments_json((yield from self._values.arguments()), self.rules.types(name))
        end = source.offset
        if (yield from source.space()) in ("", "<"):  # the end of the text or a special token replaces the closing fence
            source.rewind_to(end)
        elif (yield from _FENCE.at(source)):
            source.pos += len("```")
        else:
            raise NoMatch
        self.sink.start(name).append(arguments)
        self.sink.end()
        return True

    def _new_line(self) -> Steps[bool]:
        """Read white space; return whether it has a line break."""
        begin = self.source.offset
        yield from self.source.space()
        return "\n" in self.source.since(begin)

    def _separators(self) -> Steps[bool]:
        """Read the markers between name and arguments; return whether there were any."""
        source = self.source
        begin = source.offset
        while True:
            while (char := (yield from source.peek())) and char in " \t\n" and source.offset > begin:
                source.pos += 1
            separator = yield from _SEPARATORS.at(source)
            if not separator:
                return source.offset > begin
            source.pos += len(separator)

    def _is_json(self) -> Steps[bool]:
        """True if the bracket at ``pos`` opens an object as JSON writes it: nothing else says that this is a call."""
        source = self.source
        begin = source.offset
        source.pos += 1
        char = yield from self._json.space(comments=False)
        source.rewind_to(begin)
        if not char:
            raise Truncated
        return char in '"}'


_BLANKS = " \t\r\n"
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_FOREIGN_CALL = re.compile(r"[^\W\d][\w.]*\([^()]*\)")
_MAX_DEPTH = 3


class MixedLists(Reader):
    """Reads mixed lists and emits their calls to ``buffered``. ``objects`` reads a call that is a JSON object."""

    def __init__(self, context: Context, buffered: BufferedCalls, objects: Callable[[], Steps[int]]) -> None:
        super().__init__(context)
        self._buffered = buffered
        self._objects = objects
        self._python = PythonCalls(context, context.source, buffered, context.rules.offered)
        self._values = PythonReader(context.source, context.emitter.note)

    def read(self) -> Steps[int]:
        """Read a list; return the number of calls in it, at least one. Raises NoMatch, Truncated."""
        emitted = yield from self._list(depth=0)
        if not emitted:
            raise NoMatch
        return emitted

    def string(self) -> Steps[int]:
        """Read a string whose text is a call or a list of calls, and return 1. Raises NoMatch."""
        source = self.source
        begin = source.offset
        quote = source.buf[source.pos]
        source.pos += 1
        called = yield from self._quoted_name(begin + 1, quote)
        if called:
            return called
        source.rewind_to(begin)
        if (yield from self._string_or_calls(quote)) is not None:
            raise NoMatch
        return 1

    def _quoted_name(self, begin: int, quote: str) -> Steps[int]:
        """Read the rest of ``'f'(a=1)`` and return 1, or return 0 if a call stands in the quotes; raises NoMatch otherwise."""
        source = self.source
        word = yield from self._python.read_any_name()
        if not word or (yield from source.peek()) != quote:
            source.rewind_to(begin)
            if (yield from source.peek()) == "[":
                source.pos += 1
            yield from self._python.read_name()
            return 0
        name = self.rules.offered(word)
        source.pos += 1
        if name is None or (yield from self.source.space(" ")) != "(":
            raise NoMatch
        yield from self._python.read_arguments(name)
        return 1

    def _list(self, *, depth: int) -> Steps[int]:
        source = self.source
        closer = _CLOSERS[source.buf[source.pos]]
        source.pos += 1
        emitted = 0
        name = ""
        arguments: PythonArguments | None = None
        while True:
            char = yield from self.source.space(_BLANKS)
            if not char and not emitted:
                raise Truncated
            if char == closer or not char or (emitted and char in "`~" and (yield from self.context.json.at_fence())):
                source.pos += char == closer
                return emitted + self._emit_pair(name, arguments)
            if char in ",;.+" and (emitted or name):
                source.pos += 1
                continue
            if char in ")]}" and arguments is not None:
                self.context.emitter.note("stray_bracket")
                source.pos += 1
                emitted += self._emit_pair(name, arguments)
                name, arguments = "", None
                continue
            if name and char == "{" and arguments is None:
                arguments = PythonArguments(keywords=(yield from self._values.value()).fields or {})
                continue
            key = (yield from self._key()) if name else ""
            if key:
                arguments = arguments or PythonArguments()
                arguments.keywords[key] = yield from self._values.value()
                continue
            if name and char in "\"'":
                inside = yield from self._quoted_arguments()
                if inside is not None:
                    arguments = arguments or PythonArguments()
                    arguments.keywords |= inside
                    continue
            read, found = yield from self._item(char, depth)
            emitted += read
            if found:
                emitted += self._emit_pair(name, arguments)
                name, arguments = found, None

    def _item(self, char: str, depth: int) -> Steps[tuple[int, str]]:
        """Read one item; return the number of calls in it, and the tool's name if the item is only a name."""
        source = self.source
        begin = source.offset
        if char in "[(":
            if depth == _MAX_DEPTH:
                raise NoMatch
            return (yield from self._list(depth=depth + 1)), ""
        if char in "fr" and (yield from source.char(1)) in ("'", '"'):  # a string's prefix
            source.pos += 1
            char = yield from source.peek()
        if char in "\"'`":
            inside = yield from self._string_or_calls(char)
            name = None if inside is None else self.rules.offered(inside)
            if inside is not None and name is None:
                if self._buffered.calls and _FOREIGN_CALL.fullmatch(inside):
                    self._buffered.skip_text(inside)
                    return 0, ""
                raise NoMatch
            if name is not None and (yield from self.source.space(" ")) == "(":  # 'f'(a=1)
                yield from self._python.read_arguments(name)
                name = None
            return name is None, name or ""
        if char == "{":
            before = len(self._buffered.items)
            for read in (self._objects, partial(self._list, depth=depth + 1)):  # the second: {'f(a=1)'}
                try:
                    emitted = (yield from read()) if depth < _MAX_DEPTH else 0
                except NoMatch:
                    emitted = 0
                if emitted:
                    return emitted, ""
                del self._buffered.items[before:]
                source.rewind_to(begin)
            self._buffered.skip_text(str((yield from self._values.value()).text))
            return 0, ""
        word = yield from self._python.read_any_name()
        name = self.rules.offered(word) if word else None
        if name is not None and (yield from self.source.space(" ")) in (",", "]"):
            return 0, name
        source.rewind_to(begin)
        return (yield from self._python.read_call()), ""

    def _key(self) -> Steps[str]:
        """Read ``key=``, ``'key':`` or ``'key=``; return "" with nothing read for anything else."""
        source = self.source
        begin = source.offset
        quote = yield from source.peek()
        if quote in ("'", '"'):
            source.pos += 1
        word = yield from self._python.read_any_name()
        if word and quote in ("'", '"') and (yield from source.peek()) == quote:
            source.pos += 1
            if (yield from self.source.space(" ")) == ":":
                source.pos += 1
                yield from self.source.space(" ")
                return word
        elif word and quote not in ("'", '"') and (yield from self.source.space(" ")) == "=":
            source.pos += 1
            return word
        source.rewind_to(begin)
        return ""

    def _quoted_arguments(self) -> Steps[dict[str, PythonValue] | None]:
        """Read a string that holds one or several ``key=value``; return None with nothing read for any other string."""
        source = self.source
        begin = source.offset
        source.pos += 1
        char = yield from source.peek()
        word = "" if char == "(" else (yield from self._python.read_any_name())
        if char == "(" or (word and (yield from source.peek()) == "="):
            source.rewind_to(begin)
            value = yield from self._values.value()
            text = json.loads(value.json) if value.json is not None else None
            if isinstance(text, str):
                inside = self._keywords(text.strip())
                if word and (inside is None or len(inside) < 2):
                    inside = {word: plain(text.partition("=")[2].strip())}
                if inside:
                    return inside
        source.rewind_to(begin)
        return None

    def _keywords(self, text: str) -> dict[str, PythonValue] | None:
        """Parse a string that holds a call's arguments, ``(a=1, b=2)`` or ``a=1, b=2``; return None for any other string."""
        inner = whole_text(text if text.startswith("(") else f"({text})")
        inner.mark()
        reading = PythonReader(inner, self.context.emitter.note).arguments()
        try:
            next(reading)
        except StopIteration as read:
            arguments: PythonArguments = read.value
        except (NoMatch, Truncated):
            return None
        whole = inner.pos == len(inner.buf) and not arguments.positional and not arguments.spread
        return arguments.keywords if whole else None

    def _string_or_calls(self, quote: str) -> Steps[str | None]:
        """Read a string; return its text, or None if it held calls, which are emitted."""
        source, before = self.source, len(self._buffered.items)
        begin = source.offset
        source.pos += 1
        try:
            while True:
                yield from self._python.read_call()
                char = yield from self.source.space(_BLANKS)
                if char == quote:
                    source.pos += 1
                    return None
                if char and char in "]}":
                    return None  # its closing quote was left out
                if not char or char not in ",;":
                    break
                end = source.offset
                source.pos += 1
                if (yield from self.source.space(_BLANKS)) in ("'", '"', "]"):  # its closing quote was left out
                    source.rewind_to(end)
                    return None
        except NoMatch:
            pass
        del self._buffered.items[before:]
        source.rewind_to(begin)
        source.pos += 1
        word = yield from self._python.read_any_name()
        if word and (yield from source.peek()) == quote:
            source.pos += 1
            return word
        source.rewind_to(begin)
        value = yield from self._values.value()
        text = json.loads(value.json) if value.json is not None else None
        if not isinstance(text, str):
            raise NoMatch
        return None if self._calls_in(text) else text

    def _calls_in(self, text: str) -> bool:
        """Emit the call or list of calls in a string's text; return False if it holds anything else."""
        inner = whole_text(text.strip())
        before = len(self._buffered.items)
        note = self.context.emitter.note
        calls = PythonCalls(self.context, inner, self._buffered, self.rules.offered)
        objects = CallReader(inner, JsonReader(inner, note), self._buffered, self.rules, note=note)
        objects.strict, objects.resolve = True, self.rules.offered
        read = {"[": calls.read_list, "{": objects.read}.get(inner.buf[:1], calls.read_call)
        try:
            for _ in read():
                pass
        except (NoMatch, MalformedCall, Truncated):
            del self._buffered.items[before:]
            return False
        return True

    def _emit_pair(self, name: str, arguments: PythonArguments | None) -> int:
        """Emit the call of a name and the arguments behind it; return the number of calls, 0 or 1."""
        if not name or arguments is None:
            return 0
        self._buffered.start(name).append(arguments_json(arguments, self.rules.types(name)))
        self._buffered.end()
        return 1


def plain(text: str) -> PythonValue:
    """Return the value for a text after ``key=`` in a string."""
    if len(text) > 1 and text[0] in "\"'" and text[-1] == text[0]:
        return PythonValue(json.dumps(text[1:-1], ensure_ascii=False))
    return PythonValue(None, text)


_LEAD_IN = re.compile(
    r"(?:return|await|print[ \t]*(?=\()|[^\W\d]\w*(?:[ \t]*,[ \t]*[^\W\d]\w*)*[ \t]*=(?!=)"
    r"|[A-Za-z_' ]{1,40}:|[0-9]{1,2}[.)])[ \t]*"
)
_LEAD_IN_LINE = re.compile(r"[\w ,]{0,64}(?:=(?!=)|:)?[ \t]*(?=[^\s\w,=:])")
_MAX_LEAD_IN = 80
_FIRST_WORDS = ("return ", "await ", "print(")
_NUMBER = re.compile(r"[0-9]{1,2}[.)]?")
_STATEMENT_ENDS = frozenset("\r\n;,#`)+o")


class ImplicitCalls:
    """Reads one unmarked call, or one list of calls, in any notation, into ``buffered``."""

    def __init__(self, context: Context, buffered: BufferedCalls) -> None:
        self.source = context.source
        self.buffered = buffered
        self._json = context.json
        resolve = context.rules.resolve if context.rules.any_name else context.rules.offered
        self._objects = CallReader(context.source, context.json, buffered, context.rules, note=context.emitter.note)
        self._objects.resolve = resolve
        self.python = PythonCalls(context, context.source, buffered, context.rules.offered)
        self.python.strict = True
        self._glued = GluedCalls(context, buffered)
        self._mixed = MixedLists(context, buffered, self._object)
        buffered.ended = self._forget_name
        self.item_start = self.items_before = 0
        """Offset of the last item, and the number of buffered items before it."""

    def reset(self) -> None:
        """Discard the buffered calls."""
        self.buffered.clear()
        self.items_before = 0
        self._forget_name()

    def _forget_name(self) -> None:
        self._objects.name = self.python.name = self._glued.name = ""

    def cut(self) -> str:
        """Remove a call that the end of the text cut off; return its name, "" if it is not known."""
        return self.buffered.cut() or self._objects.name or self.python.name or self._glued.name

    def item(self) -> Steps[bool]:
        """Read one call or list of calls with the first codec that fits; return False, with nothing read, if none does.

        Raises MalformedCall, behind the value, if it is JSON that can only be repaired by inventing something.
        """
        source, buffered = self.source, self.buffered
        begin, before = source.offset, len(buffered.items)
        self.item_start, self.items_before = begin, before
        char = yield from source.peek()
        escaped = char == "\\"  # Markdown's, before a bracket
        if escaped:
            source.pos += 1
            char = yield from source.peek()
        codecs: tuple[Callable[[], Steps[int]], ...]
        if char == "{":
            codecs = (self._object,)
        elif char == "[":
            codecs = (self._object, self.python.read_list, *(() if self.python.variables else (self._mixed.read,)))
        elif char in ('"', "'"):
            codecs = (self._mixed.string,)
        elif char == "(":
            codecs = () if self.python.variables else (self._mixed.read,)
        else:
            codecs = (self._statement, *(() if self.python.variables else (self._glued.read,)))
        broken = ""
        for codec in codecs:
            try:
                if (yield from codec()):
                    return True
            except NoMatch as error:
                broken = broken or (self._objects.name if isinstance(error, BrokenValue) else "")
                buffered.cut()
                self._forget_name()
            del buffered.items[before:]
            source.rewind_to(begin + escaped)
        if broken:
            try:
                yield from self._json.value([])
            except MalformedCall:
                self._objects.name = broken
                raise
        source.rewind_to(begin)
        return False

    def _object(self) -> Steps[int]:
        self._objects.strict = True
        self._json.guarded = True
        try:
            return (yield from self._objects.read())
        finally:
            self._json.guarded = False

    def _statement(self) -> Steps[int]:
        """Read ``f(...)`` that fills its statement."""
        emitted = yield from self.python.read_call()
        yield from self.python.skip_subscript()
        char = yield from self.source.space(" \t")
        if char and char not in _STATEMENT_ENDS:
            raise NoMatch
        return emitted

    def lead_in(self) -> Steps[str]:
        """Read a lead-in before a call in a program, or a number: ``return``, ``x =``, ``print(``. "" if there is none."""
        source = self.source
        while True:
            rest = source.buf[source.pos : source.pos + _MAX_LEAD_IN]
            line = rest.partition("\n")[0]
            if len(line) < len(rest) or len(rest) == _MAX_LEAD_IN or source.ended or _LEAD_IN_LINE.match(line):
                break
            yield
        found = _LEAD_IN.match(line)
        if found is None or (found.end() == len(line) and found.group()[-1:] != ":"):
            return ""
        source.pos += found.end()
        return found.group()

    def first_lead_in(self) -> Steps[str]:
        """Read a lead-in that its first word identifies; wait only while the text may be one. "" if there is none."""
        source = self.source
        while True:
            rest = source.buf[source.pos : source.pos + 8]
            found = next((lead_in for lead_in in _FIRST_WORDS if rest.startswith(lead_in)), "")
            number = _NUMBER.match(rest)
            if number is not None and number.group()[-1] in ".)":
                found = number.group()
            if found:
                source.pos += len(found)
                yield from self.source.space(" \t")
                return found
            may_grow = number.end() == len(rest) if number else any(lead_in.startswith(rest) for lead_in in _FIRST_WORDS)
            if not may_grow or source.ended:
                return ""
            yield
