"""Arguments as tags behind a call's name that stands elsewhere: ``<parameter name="city">Rome</parameter>``."""

from __future__ import annotations

from patchbay.formats.engine.marks import Marks
from patchbay.formats.engine.source import Steps
from patchbay.formats.parts import Parts
from patchbay.formats.shapes.structure import Structure
from patchbay.formats.shapes.untyped import UntypedArguments
from patchbay.formats.shapes.xmlbody import CALLS, TAGS, XmlBody


class Parameters:
    """Reads parameters up to what is none. ``ends``: all markers and special tokens, one of which may follow a value's closer."""

    def __init__(self, parts: Parts, ends: Marks) -> None:
        self.parts = parts
        self.structure = Structure(parts.source, ends)

    def fits(self) -> Steps[bool]:
        """Whether a tag of arguments stands at ``pos``."""
        tag = yield from TAGS.at(self.parts.source)
        return tag is not None and not (tag.cut or tag.closes) and tag.word not in CALLS

    def read(self, name: str) -> Steps[None]:
        """Read them and tell the call. Raises NotACall while it was not told, CutOff."""
        parts = self.parts
        arguments = UntypedArguments(parts.calls, name, parts.rules.types(name), parts.emitter.note)
        stops = parts.json.stops
        body = XmlBody(parts, self.structure, stops.literals if stops else frozenset(), arguments, lines=False, held=False)
        yield from body.read()
        if not body.told:
            arguments.tell()
