"""A name and pairs of ``<arg_key>`` and ``<arg_value>``: GLM, and the many after it.

Some checkpoints give all their tokens a suffix of their own: markers that end in a colon go on up to the next ``>``.
"""

from __future__ import annotations

from patchbay.formats.families.common import THINK, TOOL_CALL, TOOL_CALLS, TURNS
from patchbay.formats.rows import Format, Thought, Wrapper

_GLM_TURNS = (*TURNS, "<|assistant|>", "<|user|>", "<|observation|>")

GLM45 = Format("glm45", families=("GLM 4.5, 4.6",), wrappers=(TOOL_CALL,), thoughts=(THINK,), leaks=_GLM_TURNS, loose=False)
GLM47 = Format(
    "glm47", families=("GLM 4.7", "GLM 5 and later"), wrappers=(TOOL_CALL,), thoughts=(THINK,), leaks=_GLM_TURNS, loose=False
)
LING3 = Format(
    "ling3",
    families=("Ling 3", "Ring 3"),
    wrappers=(TOOL_CALL,),
    thoughts=(THINK,),
    leaks=(*TURNS, "<role>ASSISTANT</role>", "<|role_end|>"),
    loose=False,
)
SPARK25 = Format(
    "spark25", families=("Spark 2.5",), wrappers=(TOOL_CALL,), thoughts=(THINK,), leaks=(*TURNS, "<|Bot|>"), loose=False
)
IQUEST_Q1 = Format(
    "iquest_q1",
    families=("IQuest Q1",),
    wrappers=(Wrapper(openers=("<iquest_tool_call>",), closers=("</iquest_tool_call>",)), TOOL_CALL),
    thoughts=(THINK,),
    leaks=(*TURNS, "<|iquest_assistant|>", "<|iquest_end|>"),
    loose=False,
)
POOLSIDE_V1 = Format("poolside_v1", families=("Laguna",), wrappers=(TOOL_CALL,), thoughts=(THINK,), leaks=TURNS, loose=False)

_HUNYUAN_WRAPPERS = (
    TOOL_CALLS,
    TOOL_CALL,
    Wrapper(openers=("<tool_calls:",), closers=("</tool_calls:",)),
    Wrapper(openers=("<tool_call:",), closers=("</tool_call:",)),
)
_HUNYUAN_THOUGHT = Thought(openers=("<think>", "<think:"), closers=("</think>", "</think:"))
_HUNYUAN_TURNS = (*TURNS, "<｜hy_eos｜>", "<｜hy_eos:", "<｜hy_Assistant｜>", "<｜hy_Assistant:")

HUNYUAN_V3 = Format(
    "hunyuan_v3",
    families=("Hunyuan 3",),
    wrappers=_HUNYUAN_WRAPPERS,
    thoughts=(_HUNYUAN_THOUGHT,),
    leaks=_HUNYUAN_TURNS,
    loose=False,
)
HUNYUAN_V4 = Format(
    "hunyuan_v4",
    families=("Hunyuan 4",),
    wrappers=_HUNYUAN_WRAPPERS,
    thoughts=(_HUNYUAN_THOUGHT,),
    leaks=_HUNYUAN_TURNS,
    loose=False,
)
K2_HORIZON = Format(
    "k2_horizon",
    families=("K2 Horizon",),
    wrappers=(
        Wrapper(openers=("<ifm|tool_calls>",), closers=("</ifm|tool_calls>",)),
        Wrapper(openers=("<ifm|tool_call>",), closers=("</ifm|tool_call>",)),
    ),
    thoughts=(
        Thought(
            openers=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
            closers=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
        ),
    ),
    leaks=TURNS,
    loose=False,
)
