"""Calls written as Python: ``f(city="Rome")``, ``[f(...), g(...)]``.

A call is emitted once its closing parenthesis was read: its arguments are not JSON before.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from patchbay.formats.context import Context, Reader
from patchbay.formats.emitter import CallSink
from patchbay.formats.source import MalformedCall, NoMatch, Source, Steps, Truncated
from patchbay.formats.spec import Wrapper
from patchbay.formats.values.python_reader import PythonReader
from patchbay.formats.values.python_values import arguments_json

TOOL_NAME = re.compile(r"[^\W\d](?:[\w./:-]|\\_)*")
_BLANKS = " \t\r\n"
_MAX_NAME = 256


class PythonCalls(Reader):
    """Reads calls from ``source`` and emits them to ``sink``.

    ``resolve``: returns the tool that a name means, None for other names.
    """

    def __init__(self, context: Context, source: Source, sink: CallSink, resolve: Callable[[str], str | None]) -> None:
        super().__init__(context)
        self.source = source
        self.sink = sink
        self.resolve = resolve
        self._begins_name = context.rules.begins_name if resolve == context.rules.offered else context.rules.begins_marked_name
        self.name = ""
        """Name of the call being read, as far as known: for a call that is cut off."""
        self.strict = False
        """Lists hold nothing but calls; otherwise what follows the calls in a list is left to be prose."""
        self._json = context.json
        self._values = PythonReader(source, context.emitter.note)

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:  # noqa: ARG002 - a call in Python stands for itself
        """Read one call, or a list of calls; return how many.

        Raises MalformedCall if the block's end marker stands inside a call.
        """
        self._values.stops = self._json.stops
        char = yield from self.source.peek()
        if char == "[":
            return (yield from self.read_list())
        self.name = ""
        try:
            return (yield from self.read_call())
        except Truncated:
            if self.name or wrapper.closers or not wrapper.separators:
                raise
            raise NoMatch from None  # a name alone may be a whole call: ``NamedCalls``

    def read_name(self) -> Steps[str]:
        """Read a tool's name, up to the parenthesis behind it; raises NoMatch, Truncated."""
        source = self.source
        begin = source.offset
        while True:
            found = TOOL_NAME.match(source.buf, source.pos)
            if found is None:
                if source.pos < len(source.buf) or source.ended:
                    raise NoMatch
            elif has_ended(source, found.end()):
                break
            elif len(found.group()) > _MAX_NAME or not self._begins_name(found.group()):
                raise NoMatch
            yield
        written = found.group()
        source.pos = found.end()
        if source.pos >= len(source.buf):
            if source.offset > begin and self._begins_name(written):
                raise Truncated
            raise NoMatch
        name = self.resolve(written)
        if name is None:
            raise NoMatch
        if (yield from self.source.space(" \t")) != "(":
            raise NoMatch
        return name

    def read_call(self) -> Steps[int]:
        """Read ``f(...)`` and return 1."""
        yield from self.read_arguments((yield from self.read_name()))
        return 1

    def read_arguments(self, name: str) -> Steps[None]:
        """Read the arguments of ``name`` in their parentheses."""
        self.name = name
        self._values.keys = self.rules.types(name).keys or ()
        try:
            read = yield from self._values.arguments()
            arguments = arguments_json(read, self.rules.types(name))
        except NoMatch:
            if (yield from self._values.at_stop()):
                raise MalformedCall from None
            raise
        self.sink.start(name).append(arguments)
        self.sink.end()

    def read_list(self) -> Steps[int]:
        """Read ``[f(...), g(...)]``; return the number of calls in it, at least one."""
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
                    emitted += yield from self.read_call()
                except NoMatch:
                    if self.strict or not emitted:
                        raise
                    source.rewind_to(begin)
                    return emitted


def has_ended(source: Source, end: int) -> bool:
    """True if a name read up to ``end`` is complete: more text follows, and not half of an escaped underscore."""
    rest = len(source.buf) - end
    return source.ended or rest > 1 or (rest == 1 and source.buf[end] != "\\")
