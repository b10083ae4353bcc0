"""Calls in words that a prompt asks for: ``promptedcalls`` reads them."""

from __future__ import annotations

from collections.abc import Mapping

from patchbay.formats.engine.scanner import Region
from patchbay.formats.families.common import THINK, TURNS
from patchbay.formats.parts import Parts
from patchbay.formats.rows import Format, Frame
from patchbay.formats.shapes.promptedcalls import NameOnLine, PromptedCalls, Words

_REACT = Words(begins=("Action:",), inputs=("Action Input:",), ends=("Observation:",))
_QWEN_AGENT = Words(begins=("✿FUNCTION✿:", "✿FUNCTION✿"), inputs=("✿ARGS✿:", "✿ARGS✿"), ends=("✿RESULT✿:", "✿RESULT✿"), loud=True)


def _react(parts: Parts) -> Mapping[str, Region]:
    return PromptedCalls(parts, _REACT).regions()


def _qwen_agent(parts: Parts) -> Mapping[str, Region]:
    return PromptedCalls(parts, _QWEN_AGENT).regions()


REACT = Format(
    "react",
    families=("any model that is prompted so: LangChain, LlamaIndex",),
    frames=(Frame(openers=("Final Answer:",), closers=()),),
    leaks=TURNS,
    regions=_react,
)
QWEN_AGENT = Format(
    "qwen_agent",
    families=("Qwen 1.5, 2 and others through Qwen-Agent",),
    thoughts=(THINK,),
    frames=(Frame(openers=("✿RETURN✿:", "✿RETURN✿"), closers=(), loud=True),),
    leaks=TURNS,
    regions=_qwen_agent,
)
GLM4 = Format(
    "glm4_9b",
    families=("GLM-4-9B",),
    auto=False,
    leaks=(*TURNS, "<|assistant|>", "<|observation|>", "<|user|>"),
    opening=NameOnLine,
)
