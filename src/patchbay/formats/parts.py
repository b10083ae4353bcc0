"""What the readers of one text share: the source, the emitter, and which names are calls."""

from __future__ import annotations

from dataclasses import dataclass

from patchbay.formats.engine.emitter import Emitter
from patchbay.formats.engine.lazy import cached_attribute
from patchbay.formats.engine.marks import Marks
from patchbay.formats.engine.source import Source
from patchbay.formats.engine.telling import Telling
from patchbay.formats.fences.fencemarks import FenceMarks
from patchbay.formats.values.jsonreader import JsonReader
from patchbay.formats.values.names import ToolRules, UnknownTools, make_rules

__all__ = ["Parts", "ToolRules", "UnknownTools", "make_rules"]


@dataclass(eq=False)
class Parts:
    """What a format's reader is made from. ``tag`` is the contract's label, ``lenient`` lets blocks without it hold calls.

    ``ends``: the markers that end a value. ``named``: the text is known to be in the one format that is looked for.
    ``reasoning``: it is told as such. ``drops``: calls of tools that were not offered are read and not told.
    """

    source: Source
    emitter: Emitter
    rules: ToolRules
    ends: Marks
    tag: str
    lenient: bool
    named: bool = False
    reasoning: bool = True
    drops: bool = False

    @cached_attribute
    def calls(self) -> Telling:
        """Where calls are told."""
        offered = self.rules.offered
        return Telling(self.emitter, (lambda name: offered(name) is None) if self.drops else None)

    @cached_attribute
    def json(self) -> JsonReader:
        """The reader of JSON."""
        return JsonReader(self.source, self.emitter.note, self.ends)

    @cached_attribute
    def fences(self) -> FenceMarks:
        """The reader of fences' runs and labels."""
        return FenceMarks(self.source, self.tag)
