"""Gemma 4 and FunctionGemma: ``call:f{city:<|"|>Rome<|"|>}``, a notation of their own that ``gemmacalls`` reads."""

from __future__ import annotations

from patchbay.formats.families.common import TURNS
from patchbay.formats.rows import Format, Frame, Thought, Wrapper
from patchbay.formats.shapes.openingcalls import GemmaAtStart

_ENDS = ("<channel|>",)

GEMMA4 = Format(
    "gemma4",
    families=("Gemma 4",),
    wrappers=(Wrapper(openers=("<|tool_call>",), closers=("<tool_call|>",)),),
    thoughts=(
        Thought(
            openers=("<|channel><|channel>thought\n", "<|channel>thought\n", "<|channel>thought", "<|channel>"),
            closers=_ENDS,
            loud=True,
        ),
    ),
    opening=GemmaAtStart,
    leaks=(*TURNS, "<turn|>", "<|turn>model\n", "<|turn>", "<|tool_response>", "<tool_response|>", "<tool_call|>"),
)
FUNCTIONGEMMA = Format(
    "functiongemma",
    families=("FunctionGemma",),
    wrappers=(Wrapper(openers=("<start_function_call>",), closers=("<end_function_call>",)),),
    frames=(Frame(openers=("<start_function_response>",), closers=("<end_function_response>",), loud=True),),
    leaks=TURNS,
)
