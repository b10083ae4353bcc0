"""Granite before 4.0: a marker and a list, with no marker behind it; and reasoning between sentences."""

from __future__ import annotations

from patchbay.formats.families.common import THINK, TOOL_CALL, TURNS
from patchbay.formats.families.hermes import PIPED
from patchbay.formats.rows import Format, Frame, Thought, Wrapper

GRANITE3 = Format(
    "granite3",
    families=("Granite 3.0 to 3.3",),
    wrappers=(PIPED, TOOL_CALL),
    thoughts=(
        THINK,
        Thought(
            openers=("Here is my thought process:", "Here's my thought process:"),
            closers=("Here is my response:", "Here's my response:"),
            alone=False,
            paired=True,
        ),
    ),
    frames=(Frame(openers=("<response>",), closers=("</response>",)),),
    leaks=TURNS,
)
GRANITE_20B_FC = Format(
    "granite_20b_fc",
    families=("Granite 20B function calling",),
    wrappers=(Wrapper(openers=("<function_call>",), closers=("</function_call>",)),),
    leaks=TURNS,
)
