"""InternLM: a plug-in's call between action tokens, the blank between the first two as the model likes it."""

from __future__ import annotations

from patchbay.formats.families.common import THINK, TURNS
from patchbay.formats.rows import Format, Wrapper

INTERNLM2 = Format(
    "internlm2",
    families=("InternLM 2, 2.5, 3", "Intern-S1"),
    wrappers=(Wrapper(openers=("<|action_start|>",), closers=("<|action_end|>",), leads=("<|plugin|>", "<|interpreter|>")),),
    thoughts=(THINK,),
    leaks=(*TURNS, "<eoa>"),
)
