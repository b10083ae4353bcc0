"""Calls whose every tag has a token before it, as MiniMax M3 writes them: arguments are elements, and elements nest."""

from __future__ import annotations

from typing import Final

from patchbay.formats.engine.marks import marks
from patchbay.formats.engine.source import CutOff, NotACall, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.rows import Wrapper
from patchbay.formats.shapes.elements import Elements
from patchbay.formats.shapes.tags import Tags
from patchbay.formats.shapes.untyped import UntypedArguments

TOKEN: Final = "]<]minimax[>["  # noqa: S105 - a token of the model's vocabulary
_TOKEN = marks((TOKEN,))
_INVOKE = Tags(("invoke",), ())
_BLANKS = " \t\r\n"
_STRAY_ROOM = 64


class NestedCalls:
    """Reads one call from the token before its opening tag on."""

    def __init__(self, parts: Parts) -> None:
        self.source = parts.source
        self.calls = parts.calls
        self.rules = parts.rules
        self.note = parts.emitter.note

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:  # noqa: ARG002 - a tag stands for itself
        """Read one call; 1. Where no wrapper says that calls follow, it is one only if it is complete."""
        source = self.source
        if not (yield from _TOKEN.at(source)):
            raise NotACall
        source.pos += len(TOKEN)
        tag = yield from _INVOKE.at(source)
        name = self.rules.resolve(tag.name) if tag is not None and tag.name else None
        if tag is None or tag.closes or name is None:
            raise NotACall
        source.pos += tag.size
        self.calls.name = name
        bare = wrapper.keeps > 0
        arguments = UntypedArguments(self.calls, name, self.rules.types(name), self.note)
        try:
            closed = tag.empty or (yield from self._arguments(Elements(source, arguments, self.note, prefix=TOKEN, held=bare)))
        except CutOff:
            if bare:
                raise NotACall from None
            raise
        if bare and not (closed and self.rules.offered(name) is not None and arguments.complete):
            raise NotACall
        arguments.tell()
        return 1

    def _arguments(self, elements: Elements) -> Steps[bool]:
        """Read the elements of a call up to its end; whether it was closed."""
        source, keys = self.source, elements.arguments.keys
        while True:
            before = source.offset
            char = yield from source.peek()
            while char and char in _BLANKS:
                source.pos += 1
                char = yield from source.peek()
            if not char:
                raise CutOff  # another argument may have been about to come
            tag = yield from elements.tag()
            if tag is None:
                if not keys:
                    raise NotACall
                source.rewind_to(before)
                if not (yield from self._skipped()):
                    return False
            elif not tag.closes and not tag.name.startswith("invoke "):
                yield from elements.read(tag)
            elif tag.name == "invoke":
                source.pos += tag.size
                return True
            elif not tag.closes or tag.name == "tool_call":
                source.rewind_to(before)
                return False
            else:
                self.note("stray_tag")
                source.pos += tag.size

    def _skipped(self) -> Steps[bool]:
        """Read what stands between two tags and belongs to neither, if it is short: at least a character."""
        source = self.source
        while True:
            end, token = _TOKEN.next(source, source.pos + 1)
            if token and end - source.pos <= _STRAY_ROOM:
                source.pos = end
                self.note("stray_text")
                return True
            if source.ended or end - source.pos > _STRAY_ROOM:
                return False
            yield
