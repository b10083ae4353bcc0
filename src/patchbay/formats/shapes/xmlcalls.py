"""Calls as tags with named parameters: ``<function=f><parameter=k>v</parameter></function>`` and its many sisters.

    <function=f> <parameter=k> v </parameter> </function>             Qwen3-Coder, MiMo, Seed-OSS; JSON inside: Functionary
    <function name="f"> <param name="k"> v </param> </function>       MiniCPM5
    <invoke name="f"> <parameter name="k"> v </parameter> </invoke>   Claude, MiniMax M2; with a prefix DeepSeek, Step, Muse
    <invoke> <tool_name> f </tool_name> <parameters> <k> v </k> ...   Claude in 2023

Any spelling may stand in any wrapper. This is the call's beginning and what makes it one; what stands in it is ``xmlbody``'s.
"""

from __future__ import annotations

from patchbay.formats.engine.marks import Marks
from patchbay.formats.engine.source import CutOff, NotACall, Steps
from patchbay.formats.parts import Parts
from patchbay.formats.rows import Wrapper
from patchbay.formats.shapes.structure import Structure
from patchbay.formats.shapes.untyped import UntypedArguments
from patchbay.formats.shapes.xmlbody import CALLS, TAGS, XmlBody

_NAME_ROOM = 256
_NAME_END = "</tool_name>"


class XmlCalls:
    """Reads one call from its opening tag on.

    ``closers``: the markers that end wrappers. ``ends``: all markers and special tokens, any of which may follow a value.
    """

    def __init__(self, parts: Parts, closers: tuple[str, ...], ends: Marks) -> None:
        self.parts = parts
        self.source = parts.source
        self.calls = parts.calls
        self.rules = parts.rules
        self.structure = Structure(parts.source, ends)
        self._closers = frozenset(closers)

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:  # noqa: ARG002 - a tag stands for itself
        """Read one call; 1.

        Where no wrapper says that calls follow, a tag alone may be a word about it: a ``function`` is a call from the first tag
        in it on, an ``invoke``, which many models were shown, only when it is complete.
        """
        if (yield from self.source.peek()) != "<":
            raise NotACall
        bare = wrapper.keeps > 0
        tag = yield from TAGS.at(self.source)
        if tag is not None and tag.cut and not bare:
            raise CutOff
        if tag is None or tag.closes or tag.word not in CALLS:
            raise NotACall
        self.source.pos += tag.size
        name = self.rules.resolve(tag.name if tag.name is not None else (yield from self._name()))
        if name is None:
            raise NotACall
        arguments = UntypedArguments(self.calls, name, self.rules.types(name), self.parts.emitter.note)
        held = bare and tag.word == "invoke"
        body = XmlBody(self.parts, self.structure, self._closers, arguments, lines=tag.word == "function", held=held)
        try:
            closed = tag.empty or (yield from body.read())
        except CutOff:
            if held or (bare and not body.begun):
                raise NotACall from None
            self.calls.name = name
            raise
        if body.told:
            return 1
        if bare and not (closed or (body.begun and not held)):
            raise NotACall
        if held and not (arguments.complete and self.rules.offered(name) is not None):
            raise NotACall
        arguments.tell()
        return 1

    def _name(self) -> Steps[str]:
        """Read the name from a tag of its own."""
        source = self.source
        if (yield from self.structure.space()) != "<":
            raise NotACall
        tag = yield from TAGS.at(source)
        if tag is not None and tag.cut:
            raise CutOff
        if tag is None or tag.closes or tag.word != "tool_name":
            raise NotACall
        source.pos += tag.size
        while True:
            end = source.buf.find(_NAME_END, source.pos, source.pos + _NAME_ROOM)
            if end >= 0:
                name = source.buf[source.pos : end]
                source.pos = end + len(_NAME_END)
                return name.strip()
            if len(source.buf) - source.pos >= _NAME_ROOM:
                raise NotACall
            if source.ended:
                raise CutOff
            yield
