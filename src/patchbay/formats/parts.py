"""What the readers of one text share: the source, the emitter, and which names are calls."""

from __future__ import annotations

from dataclasses import dataclass

from patchbay.formats.engine.emitter import Emitter
from patchbay.formats.engine.source import Source
from patchbay.formats.engine.telling import Telling
from patchbay.formats.values.jsonreader import JsonReader
from patchbay.formats.values.names import ToolRules, UnknownTools, make_rules

__all__ = ["Parts", "ToolRules", "UnknownTools", "make_rules"]


@dataclass(frozen=True)
class Parts:
    """What a format's reader is made from. ``tag`` is the contract's label, ``lenient`` lets blocks without it hold calls.

    ``named``: the text is known to be in the one format that is looked for. ``reasoning``: it is told as such.
    """

    source: Source
    emitter: Emitter
    rules: ToolRules
    calls: Telling
    json: JsonReader
    tag: str
    lenient: bool
    named: bool = False
    reasoning: bool = True
