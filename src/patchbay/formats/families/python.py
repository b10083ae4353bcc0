"""Calls written as Python, in markers or (``loose``) in none."""

from __future__ import annotations

from patchbay.formats.families.common import THINK, TURNS
from patchbay.formats.rows import Format, Frame, Wrapper
from patchbay.formats.shapes.openingcalls import NexusAtStart

PYTHONIC = Format(
    "pythonic",
    families=("Llama 3.2", "Llama 4", "ToolACE", "watt-tool", "Gemma 3, with vLLM's template"),
    leaks=TURNS,
    inline=True,
)
TOOL_CODE = Format("tool_code", families=("Gemma 2, 3", "Gemini"), leaks=TURNS)
LLAMA4_PYTHONIC = Format(
    "llama4_pythonic",
    families=("Llama 4",),
    wrappers=(Wrapper(openers=("<|python_start|>",), closers=("<|python_end|>",)),),
    leaks=TURNS,
    inline=True,
)
LFM2 = Format(
    "lfm2",
    families=("LFM2, 2.5",),
    wrappers=(Wrapper(openers=("<|tool_call_start|>",), closers=("<|tool_call_end|>",)),),
    thoughts=(THINK,),
    frames=(Frame(openers=("<|tool_response_start|>",), closers=("<|tool_response_end|>",), loud=True),),
    leaks=TURNS,
)
OLMO3 = Format(
    "olmo3",
    families=("OLMo 3",),
    wrappers=(Wrapper(openers=("<function_calls>",), closers=("</function_calls>",)),),
    thoughts=(THINK,),
    leaks=TURNS,
)
GORILLA = Format("gorilla", families=("Gorilla OpenFunctions v2",), wrappers=(Wrapper(openers=("<<function>>",)),), leaks=TURNS)
NEXUSRAVEN = Format(
    "nexusraven",
    families=("NexusRaven V2",),
    opening=NexusAtStart,
    leaks=(*TURNS, "<bot_end>"),
)
CHATGLM3 = Format("chatglm3", families=("ChatGLM 3",), leaks=(*TURNS, "<|assistant|>", "<|observation|>", "<|user|>"))
