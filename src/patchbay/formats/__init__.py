"""Parse model text into calls, and render calls as model text. No I/O, no clock.

Reading: ``parser`` is the entry point; ``catalog`` has one row of data per format. ``scanner`` finds markers in a growing text.
``wrappers``, ``reasoning``, ``channels``, ``fences`` and ``unmarked_blocks`` read what a marker opens, or calls without markers.
``codecs`` read one call in one notation, ``values`` its arguments. ``user_format`` has a user's own formats.

Writing: ``render`` has a writer per format, ``contract`` the instructions for a model. ``blocks`` has helpers for users' own
pipelines.
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
