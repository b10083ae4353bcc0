"""Text to calls and calls to text. No I/O and no clock in here.

``parser`` is the entry point, and a row of ``catalog`` what it knows of a format. ``scanner`` finds markers in a growing text;
``envelopes``, ``reasoning``, ``channels``, ``fences`` and ``implicit`` read what they open, or what stands there without any;
``codecs`` and ``values`` read a call and what is in it. ``checkpoint`` has formats that a checkpoint or a user declares.
``render`` writes: ``contract`` has the instructions for a model, and how its history is shown to it. ``blocks`` are pieces
for pipelines of one's own.
"""

from patchbay.formats.blocks import FencedBlock, extract_fenced_blocks, extract_reasoning, parse_json
from patchbay.formats.catalog import FORMATS
from patchbay.formats.contract import ContractContext, render_contract, render_tool_choice
from patchbay.formats.events import CallArguments, CallCut, CallEnd, CallStart, Event, ReasoningDelta, TextDelta, TextWasReasoning
from patchbay.formats.parser import StreamParser, parse
from patchbay.formats.spec import Format

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
