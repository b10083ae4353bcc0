"""Calls written as Python: ``f(city="Rome")``, ``[f(...), g(...)]``.

A call is emitted when its closing bracket was read: its arguments are not JSON until then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from patchbay.formats.context import Context, Reader
from patchbay.formats.emitter import CallSink
from patchbay.formats.source import MalformedCall, NoMatch, Source, Steps, Truncated
from patchbay.formats.spec import Wrapper
from patchbay.formats.values.python_reader import PythonReader
from patchbay.formats.values.python_values import PythonValue, arguments_json, filled

NAME = re.compile(r"[^\W\d](?:[\w./:-]|\\_)*")
_BLANKS = " \t\r\n"
_MAX_NAME = 256


class PythonCalls(Reader):
    """Reads calls from ``source`` and emits them to ``sink``. ``resolve``: the tool that a name means, None if it means none."""

    def __init__(self, context: Context, source: Source, sink: CallSink, resolve: Callable[[str], str | None]) -> None:
        super().__init__(context)
        self.source = source
        self.sink = sink
        self.resolve = resolve
        self._begins = context.rules.begins_name if resolve == context.rules.offered else context.rules.begins_marked_name
        self.called = ""
        """The name of the call being read, as far as it is known: for a call that is cut off."""
        self.strict = False
        """A list is a list of calls and nothing else; otherwise what follows the calls in it is left to be prose."""
        self.names: Mapping[str, PythonValue | None] = {}
        """What names stand for where they are arguments; None: for nothing that is known."""
        self._json = context.json
        self._values = PythonReader(source, context.emitter.note)
        self._values.is_tool = context.rules.offered

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:  # noqa: ARG002 - a call in Python stands for itself
        """Read one call, or a list of calls; how many. Raises MalformedCall where an end marker of the block stands in a call."""
        self._values.stops = self._json.stops
        char = yield from self.source.peek()
        if char == "[":
            return (yield from self.several())
        self.called = ""
        try:
            return (yield from self.one())
        except Truncated:
            if self.called or wrapper.closers or not wrapper.separators:
                raise
            raise NoMatch from None  # a name alone may be all of the call: ``namedcalls``

    def name(self) -> Steps[str]:
        """Read a tool's name up to the bracket that follows it; raises NoMatch, Truncated."""
        source = self.source
        begin = source.offset
        while True:
            found = NAME.match(source.buf, source.pos)
            if found is None:
                if source.pos < len(source.buf) or source.ended:
                    raise NoMatch
            elif has_ended(source, found.end()):
                break
            elif len(found.group()) > _MAX_NAME or not self._begins(found.group()):
                raise NoMatch
            yield
        written = found.group()
        source.pos = found.end()
        if source.pos >= len(source.buf):
            if source.offset > begin and self._begins(written):
                raise Truncated
            raise NoMatch
        name = self.resolve(written)
        if name is None:
            raise NoMatch
        if (yield from self.source.space(" \t")) != "(":
            raise NoMatch
        return name

    def one(self) -> Steps[int]:
        """Read ``f(...)``; 1."""
        yield from self.called_with((yield from self.name()))
        return 1

    def called_with(self, name: str) -> Steps[None]:
        """Read the arguments of ``name`` in their brackets."""
        self.called = name
        self._values.keys = self.rules.types(name).keys or ()
        try:
            read = yield from self._values.arguments()
            if self.names:
                read = filled(read, self.names)
            arguments = arguments_json(read, self.rules.types(name))
        except NoMatch:
            if (yield from self._values.at_stop()):
                raise MalformedCall from None
            raise
        self.sink.start(name).append(arguments)
        self.sink.end()

    def several(self) -> Steps[int]:
        """Read ``[f(...), g(...)]``; how many calls it held, at least one."""
        source = self.source
        source.pos += 1
        emitted = 0
        while True:
            char = yield from self.source.space(_BLANKS)
            if char == "]" and emitted:
                source.pos += 1
                return emitted
            if char and char in ",;+\\" and emitted:
                source.pos += 1
            elif char and char in ")}" and emitted:
                self.note("stray_bracket")
                source.pos += 1
            elif not char:
                if emitted:
                    self.note("unclosed_bracket")
                    return emitted
                raise Truncated
            else:
                begin = source.offset
                try:
                    emitted += yield from self.one()
                    yield from self.picked()
                    continue
                except NoMatch:
                    source.rewind_to(begin)
                if self.strict:
                    self.sink.skip_text((yield from self._passed()))
                elif emitted:
                    return emitted
                else:
                    raise NoMatch

    def picked(self) -> Steps[None]:
        """Read what picks a part of a result, ``f(...)['id']``: it is no part of the call."""
        while (yield from self.source.space(" \t")) == "[":
            self.note("picked_result")
            yield from self._values.value()

    def _passed(self) -> Steps[str]:
        """Read an item of a list of calls that is none: dots, or a call of a tool that was not offered; its text."""
        source = self.source
        begin = source.offset
        while (yield from source.peek()) == ".":
            source.pos += 1
        if source.offset == begin:
            found = yield from self.word()
            if not found or (yield from self.source.space(" \t")) != "(":
                raise NoMatch
            yield from self._values.arguments()
        return source.since(begin)

    def word(self) -> Steps[str]:
        """Read a name, whatever it names."""
        source = self.source
        yield from source.peek()
        yield from source.peek()
        while True:
            found = NAME.match(source.buf, source.pos)
            if found is None or has_ended(source, found.end()) or len(found.group()) > _MAX_NAME:
                break
            yield
        if found is None:
            return ""
        source.pos = found.end()
        return found.group()


def has_ended(source: Source, end: int) -> bool:
    """True if a name that was read up to ``end`` is over: not at the text's end so far, nor before half an escaped underscore."""
    rest = len(source.buf) - end
    return source.ended or rest > 1 or (rest == 1 and source.buf[end] != "\\")
