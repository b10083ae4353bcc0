"""MiniMax M2: tags with named parameters; M3: a token before each tag, and elements in elements."""

from __future__ import annotations

from patchbay.formats.families.common import THINK, TOOL_CALL, TURNS
from patchbay.formats.families.tags import INVOKE, opening
from patchbay.formats.rows import Format, Thought, Wrapper
from patchbay.formats.shapes.nestedcalls import TOKEN

_TURNS = (*TURNS, "]~b]ai", "]~b]", "[e~[")

M2 = Format(
    "minimax_m2",
    families=("MiniMax M2, M2.1, M2.5",),
    wrappers=(Wrapper(openers=("<minimax:tool_call>",), closers=("</minimax:tool_call>",)), INVOKE),
    thoughts=(THINK,),
    leaks=_TURNS,
    loose=False,
)
M3 = Format(
    "minimax_m3",
    families=("MiniMax M3",),
    wrappers=(
        Wrapper(openers=(f"{TOKEN}<tool_call>",), closers=(f"{TOKEN}</tool_call>",)),
        opening(f"{TOKEN}<invoke", closers=(f"{TOKEN}</invoke>",)),
        # where the server removed the token
        TOOL_CALL,
        INVOKE,
    ),
    thoughts=(Thought(openers=("<mm:think>",), closers=("</mm:think>",)), THINK),
    leaks=_TURNS,
    loose=False,
)
