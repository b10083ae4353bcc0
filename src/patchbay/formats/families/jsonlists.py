"""A list of JSON objects, or one object a line, in a tag: Jamba, Hunyuan A13B, Apriel, MiniMax M1, Nemotron."""

from __future__ import annotations

from patchbay.formats.families.common import THINK, TOOL_CALL, TOOL_CALLS, TURNS
from patchbay.formats.rows import Format, Frame, Thought, Wrapper

_WRAPPERS = (TOOL_CALLS, TOOL_CALL)
"""Which of the two a model was trained on, it mixes up with the other."""

JAMBA = Format("jamba", families=("Jamba 1.5, 1.6",), wrappers=_WRAPPERS, thoughts=(THINK,), leaks=TURNS)
HUNYUAN_A13B = Format(
    "hunyuan_a13b",
    families=("Hunyuan A13B",),
    wrappers=_WRAPPERS,
    thoughts=(THINK,),
    frames=(Frame(openers=("<answer>",), closers=("</answer>",)),),
    leaks=TURNS,
)
APRIEL = Format(
    "apriel",
    families=("Apriel 1.5, 1.6",),
    wrappers=_WRAPPERS,
    thoughts=(
        # The prompt of 1.6 ends with the opening words, 1.5 writes them itself.
        Thought(openers=(), closers=("[BEGIN FINAL RESPONSE]",)),
        Thought(openers=("Here are my reasoning steps:",), closers=("[BEGIN FINAL RESPONSE]",), alone=False, paired=True),
        THINK,
    ),
    leaks=(*TURNS, "[END FINAL RESPONSE]", "<|begin_assistant|>"),
)
MINIMAX_M1 = Format("minimax_m1", families=("MiniMax M1",), wrappers=_WRAPPERS, thoughts=(THINK,), leaks=TURNS)
NEMOTRON_V2 = Format(
    "nemotron_v2",
    families=("Nemotron Nano v2", "Llama-Nemotron"),
    wrappers=(Wrapper(openers=("<TOOLCALL>",), closers=("</TOOLCALL>",)),),
    thoughts=(THINK,),
    leaks=(*TURNS, "<SPECIAL_12>"),
)
