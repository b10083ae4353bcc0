"""Lists of calls in whatever shapes a model mixes: ``['f(a=1)', g()]``, ``[{'f(a=1)'}]``, ``['f', {'a': 1}]``, ``[[f()], {…}]``.

What reads lists of one shape is ``callreader`` and ``pycalls``; this is what is left when neither fits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial

from patchbay.formats.engine.source import CutOff, NotACall, Source, Steps
from patchbay.formats.engine.telling import Staged
from patchbay.formats.parts import Parts
from patchbay.formats.shapes.callreader import CallReader
from patchbay.formats.shapes.pycalls import PythonCalls
from patchbay.formats.values.jsonreader import JsonReader
from patchbay.formats.values.pyreader import PythonReader
from patchbay.formats.values.pyvalues import PythonArguments, PythonValue, arguments_json

_BLANKS = " \t\r\n"
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_FOREIGN_CALL = re.compile(r"[^\W\d][\w.]*\([^()]*\)")
_MAX_DEPTH = 3


class MixedLists:
    """Reads such lists and tells their calls to ``staged``. ``objects`` reads a call that is an object."""

    def __init__(self, parts: Parts, staged: Staged, objects: Callable[[], Steps[int]]) -> None:
        self.source = parts.source
        self.rules = parts.rules
        self._parts = parts
        self._staged = staged
        self._objects = objects
        self._python = PythonCalls(parts, parts.source, staged, parts.rules.offered)
        self._values = PythonReader(parts.source, parts.emitter.note)

    def read(self) -> Steps[int]:
        """Read a list; how many calls it held, at least one. Raises NotACall, CutOff."""
        told = yield from self._list(depth=0)
        if not told:
            raise NotACall
        return told

    def string(self) -> Steps[int]:
        """Read a string that says nothing but calls, or a list of them; 1. Raises NotACall."""
        source = self.source
        begin = source.offset
        quote = source.buf[source.pos]
        source.pos += 1
        called = yield from self._called(begin + 1, quote)
        if called:
            return called
        source.rewind_to(begin)
        if (yield from self._in_quotes(quote)) is not None:
            raise NotACall
        return 1

    def _called(self, begin: int, quote: str) -> Steps[int]:
        """Read the rest of ``'f'(a=1)``: 1, or 0 where a call stands in the quotes; raises NotACall where neither does."""
        source = self.source
        word = yield from self._python.word()
        if not word or (yield from source.peek()) != quote:
            source.rewind_to(begin)
            if (yield from source.peek()) == "[":
                source.pos += 1
            yield from self._python.name()
            return 0
        name = self.rules.offered(word)
        source.pos += 1
        if name is None or (yield from self._python.space(" ")) != "(":
            raise NotACall
        yield from self._python.called_with(name)
        return 1

    def _list(self, *, depth: int) -> Steps[int]:
        source = self.source
        closer = _CLOSERS[source.buf[source.pos]]
        source.pos += 1
        told = 0
        name = ""
        arguments: PythonArguments | None = None
        while True:
            char = yield from self._python.space(_BLANKS)
            if not char and not told:
                raise CutOff
            if char == closer or not char or (told and char in "`~" and (yield from self._parts.json.at_fence())):
                source.pos += char == closer
                return told + self._pair(name, arguments)
            if char in ",;.+" and (told or name):
                source.pos += 1
                continue
            if char in ")]}" and arguments is not None:
                self._parts.emitter.note("stray_bracket")
                source.pos += 1
                told += self._pair(name, arguments)
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
                said = yield from self._said_arguments()
                if said is not None:
                    arguments = arguments or PythonArguments()
                    arguments.keywords |= said
                    continue
            read, found = yield from self._item(char, depth)
            told += read
            if found:
                told += self._pair(name, arguments)
                name, arguments = found, None

    def _item(self, char: str, depth: int) -> Steps[tuple[int, str]]:
        """Read one item: how many calls it was, and the tool's name if that is all it was."""
        source = self.source
        begin = source.offset
        if char in "[(":
            if depth == _MAX_DEPTH:
                raise NotACall
            return (yield from self._list(depth=depth + 1)), ""
        if char in "fr" and (yield from self._is_prefix()):
            source.pos += 1
            char = yield from source.peek()
        if char in "\"'`":
            said = yield from self._in_quotes(char)
            name = None if said is None else self.rules.offered(said)
            if said is not None and name is None:
                if self._staged.calls and _FOREIGN_CALL.fullmatch(said):
                    self._staged.passed_over(said)
                    return 0, ""
                raise NotACall
            if name is not None and (yield from self._python.space(" ")) == "(":  # 'f'(a=1)
                yield from self._python.called_with(name)
                name = None
            return name is None, name or ""
        if char == "{":
            before = len(self._staged.items)
            for read in (self._objects, partial(self._list, depth=depth + 1)):  # the second: {'f(a=1)'}
                try:
                    told = (yield from read()) if depth < _MAX_DEPTH else 0
                except NotACall:
                    told = 0
                if told:
                    return told, ""
                del self._staged.items[before:]
                source.rewind_to(begin)
            self._staged.passed_over(str((yield from self._values.value()).text))
            return 0, ""
        word = yield from self._python.word()
        name = self.rules.offered(word) if word else None
        if name is not None and (yield from self._python.space(" ")) in (",", "]"):
            return 0, name
        source.rewind_to(begin)
        return (yield from self._python.one()), ""

    def _is_prefix(self) -> Steps[bool]:
        """Whether the letter at ``pos`` is a string's prefix."""
        source = self.source
        while len(source.buf) - source.pos < 2 and not source.ended:
            yield
        return source.buf[source.pos + 1 : source.pos + 2] in ("'", '"')

    def _key(self) -> Steps[str]:
        """Read ``key=`` or ``'key':``, or ``'key=``; "" with nothing read if none stands here."""
        source = self.source
        begin = source.offset
        quote = yield from source.peek()
        if quote in ("'", '"'):
            source.pos += 1
        word = yield from self._python.word()
        if word and quote in ("'", '"') and (yield from source.peek()) == quote:
            source.pos += 1
            if (yield from self._python.space(" ")) == ":":
                source.pos += 1
                yield from self._python.space(" ")
                return word
        elif word and quote not in ("'", '"') and (yield from self._python.space(" ")) == "=":
            source.pos += 1
            return word
        source.rewind_to(begin)
        return ""

    def _said_arguments(self) -> Steps[dict[str, PythonValue] | None]:
        """Read a string that says ``key=value``, or several of them; None with nothing read if it says anything else."""
        source = self.source
        begin = source.offset
        source.pos += 1
        char = yield from source.peek()
        word = "" if char == "(" else (yield from self._python.word())
        if char == "(" or (word and (yield from source.peek()) == "="):
            source.rewind_to(begin)
            value = yield from self._values.value()
            text = json.loads(value.json) if value.json is not None else None
            if isinstance(text, str):
                said = self._keywords(text.strip())
                if word and (said is None or len(said) < 2):
                    said = {word: plain(text.partition("=")[2].strip())}
                if said:
                    return said
        source.rewind_to(begin)
        return None

    def _keywords(self, text: str) -> dict[str, PythonValue] | None:
        """What a string says that holds a call's arguments, ``(a=1, b=2)`` or ``a=1, b=2``; None if it holds anything else."""
        inner = _text(text if text.startswith("(") else f"({text})")
        inner.mark()
        reading = PythonReader(inner, self._parts.emitter.note).arguments()
        try:
            next(reading)
        except StopIteration as read:
            arguments: PythonArguments = read.value
        except (NotACall, CutOff):
            return None
        whole = inner.pos == len(inner.buf) and not arguments.positional and not arguments.spread
        return arguments.keywords if whole else None

    def _in_quotes(self, quote: str) -> Steps[str | None]:
        """Read a string: None if it was calls, which are told, else what it says."""
        source, before = self.source, len(self._staged.items)
        begin = source.offset
        source.pos += 1
        try:
            while True:
                yield from self._python.one()
                char = yield from self._python.space(_BLANKS)
                if char == quote:
                    source.pos += 1
                    return None
                if char and char in "]}":
                    return None  # its closing quote was left out
                if not char or char not in ",;":
                    break
                end = source.offset
                source.pos += 1
                if (yield from self._python.space(_BLANKS)) in ("'", '"', "]"):  # its closing quote was left out
                    source.rewind_to(end)
                    return None
        except NotACall:
            pass
        del self._staged.items[before:]
        source.rewind_to(begin)
        source.pos += 1
        word = yield from self._python.word()
        if word and (yield from source.peek()) == quote:
            source.pos += 1
            return word
        source.rewind_to(begin)
        value = yield from self._values.value()
        text = json.loads(value.json) if value.json is not None else None
        if not isinstance(text, str):
            raise NotACall
        return None if self._said(text) else text

    def _said(self, text: str) -> bool:
        """Whether what a string says is a call, or a list of them; told if so."""
        inner = _text(text.strip())
        before = len(self._staged.items)
        note = self._parts.emitter.note
        calls = PythonCalls(self._parts, inner, self._staged, self.rules.offered)
        objects = CallReader(inner, JsonReader(inner, note), self._staged, self.rules, note=note)
        objects.strict, objects.resolve = True, self.rules.offered
        read = {"[": calls.several, "{": objects.read}.get(inner.buf[:1], calls.one)
        try:
            for _ in read():
                pass
        except (NotACall, CutOff):
            del self._staged.items[before:]
            return False
        return True

    def _pair(self, name: str, arguments: PythonArguments | None) -> int:
        """Tell the call of a name and the arguments that stood behind it; how many calls that is."""
        if not name or arguments is None:
            return 0
        self._staged.start(name).append(arguments_json(arguments, self.rules.types(name)))
        self._staged.end()
        return 1


def plain(text: str) -> PythonValue:
    """A value after ``key=`` in a string."""
    if len(text) > 1 and text[0] in "\"'" and text[-1] == text[0]:
        return PythonValue(json.dumps(text[1:-1], ensure_ascii=False))
    return PythonValue(None, text)


def _text(text: str) -> Source:
    """A source that is all there."""
    source = Source()
    source.push(text)
    source.ended = True
    return source
