"""Solar Open: a call's id, name and arguments, each behind a token of its own."""

from __future__ import annotations

from patchbay.formats.families.common import TURNS
from patchbay.formats.rows import Format, Frame, Thought, Wrapper

SOLAR_OPEN = Format(
    "solar_open",
    families=("Solar Open",),
    wrappers=(
        Wrapper(openers=("<|tool_calls|>",), closers=("<|calls|>",)),
        Wrapper(
            openers=("<|tool_call:begin|>",),
            closers=("<|tool_call:end|>",),
            separators=("<|tool_call:name|>", "<|tool_call:args|>"),
        ),
    ),
    # The token that ends reasoning ends every other message too.
    thoughts=(Thought(openers=("<|think|>",), closers=("<|end|>",), loud=True, alone=False),),
    frames=(Frame(openers=("<|content|>",), closers=(), loud=True),),
    leaks=(*TURNS, "<|begin|>assistant", "<|flush|>"),
)
