"""One JSON object in a tag: Hermes, and the many that were trained after it or with a tag of their own."""

from __future__ import annotations

from patchbay.formats.families.common import THINK, TOOL_CALL, TOOL_CALLS, TURNS
from patchbay.formats.rows import Format, Frame, Thought, Wrapper

PIPED = Wrapper(openers=("<|tool_call|>",), closers=("<|/tool_call|>",))
"""Granite 3.0 leaves the closer out, Phi-4-mini writes it, and others mix its markers with the plain ones."""
GLAIVE = Wrapper(openers=("<functioncall>", "<function>"), closers=("</functioncall>", "</function>"))
"""What Glaive's training data writes, and models that had some of it."""
SERVED_HISTORY = Wrapper(openers=("[Calling tool: ",), tail="]")
"""How some servers write earlier calls into the prompt; models go on in the same way."""

HERMES = Format(
    "hermes",
    families=(
        "Hermes 2 Pro, 3, 4",
        "Qwen2.5",
        "Qwen3",
        "QwQ",
        "Granite 4.0, 4.1",
        "EXAONE 4",
        "SmolLM3",
        "MiMo-VL",
        "Reka Edge",
        "Bielik",
        "Arch-Function",
        "Ling 2, Ring 2",
        "Trinity",
        "Llama-3-Groq-tool-use",
    ),
    wrappers=(TOOL_CALL, TOOL_CALLS, PIPED, GLAIVE, SERVED_HISTORY),
    thoughts=(THINK,),
    leaks=TURNS,
)
LONGCAT = Format(
    "longcat",
    families=("LongCat",),
    wrappers=(Wrapper(openers=("<longcat_tool_call>",), closers=("</longcat_tool_call>",)),),
    thoughts=(Thought(openers=("<longcat_think>",), closers=("</longcat_think>",)),),
    leaks=TURNS,
)
ERNIE45 = Format(
    "ernie45",
    families=("ERNIE 4.5", "ERNIE X1"),
    wrappers=(TOOL_CALL,),
    thoughts=(THINK,),
    frames=(Frame(openers=("<response>",), closers=("</response>",)),),
    leaks=TURNS,
)
DOTS = Format(
    "dots",
    families=("dots",),
    wrappers=(Wrapper(openers=("<dots_function_call>",), closers=("</dots_function_call>",)),),
    thoughts=(THINK,),
    leaks=(*TURNS, "<|endofresponse|>"),
)
XLAM = Format(
    "xlam",
    families=("xLAM-1, xLAM-2", "Hammer"),
    wrappers=(TOOL_CALL, Wrapper(openers=("[TOOL_CALLS]",))),
    thoughts=(THINK,),
    leaks=TURNS,
)
