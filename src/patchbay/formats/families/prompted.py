"""Calls in words that a prompt asks for: ``promptedcalls`` reads them."""

from __future__ import annotations

from patchbay.formats.families.common import THINK, TURNS
from patchbay.formats.rows import Format, Frame
from patchbay.formats.shapes.promptedcalls import NameOnLine, Words

_REACT = Words(markers=("Action:",), inputs=("Action Input:",), ends=("Observation:",))
_QWEN_AGENT = Words(
    markers=("✿FUNCTION✿:", "✿FUNCTION✿"), inputs=("✿ARGS✿:", "✿ARGS✿"), ends=("✿RESULT✿:", "✿RESULT✿"), loud=True
)


REACT = Format(
    "react",
    families=("any model that is prompted so: LangChain, LlamaIndex",),
    frames=(Frame(openers=("Final Answer:",), closers=()),),
    leaks=TURNS,
    regions=_REACT,
)
QWEN_AGENT = Format(
    "qwen_agent",
    families=("Qwen 1.5, 2 and others through Qwen-Agent",),
    thoughts=(THINK,),
    frames=(Frame(openers=("✿RETURN✿:", "✿RETURN✿"), closers=(), loud=True),),
    leaks=TURNS,
    regions=_QWEN_AGENT,
)
GLM4 = Format(
    "glm4_9b",
    families=("GLM-4-9B",),
    auto=False,
    leaks=(*TURNS, "<|assistant|>", "<|observation|>", "<|user|>"),
    opening=NameOnLine,
)
