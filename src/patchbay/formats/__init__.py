"""Text to calls and calls to text: one engine, one file per way of writing. No I/O and no clock in here.

``parser`` is the door, and a row of ``table`` what it knows of a format. ``engine`` finds markers in a growing text; ``regions``,
``channels``, ``fences`` and ``unmarked`` read what they open, or what stands there without any; ``shapes`` and ``values`` read a
call and what is in it. ``outside`` makes rows of what a checkpoint or a user declares. ``writing`` goes the other way:
``contract`` is what a model is told and how its history is shown to it. ``blocks`` are the pieces for pipelines of one's own.
"""

from patchbay.formats.blocks import FencedBlock, extract_fenced_blocks, extract_reasoning, parse_json
from patchbay.formats.contract import ContractContext, render_contract, render_tool_choice
from patchbay.formats.events import (
    CallArguments,
    CallCut,
    CallEnd,
    CallStart,
    Event,
    ReasoningDelta,
    TextDelta,
    TextWasReasoning,
)
from patchbay.formats.parser import StreamParser, parse
from patchbay.formats.rows import Format
from patchbay.formats.table import FORMATS

__all__ = [
    "FORMATS",
    "CallArguments",
    "CallCut",
    "CallEnd",
    "CallStart",
    "ContractContext",
    "Event",
    "FencedBlock",
    "Format",
    "ReasoningDelta",
    "StreamParser",
    "TextDelta",
    "TextWasReasoning",
    "extract_fenced_blocks",
    "extract_reasoning",
    "parse",
    "parse_json",
    "render_contract",
    "render_tool_choice",
]
