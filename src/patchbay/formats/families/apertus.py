"""Apertus: a list of objects with the function's name as their only key."""

from __future__ import annotations

from patchbay.formats.families.common import TURNS
from patchbay.formats.rows import Format, Thought, Wrapper

APERTUS = Format(
    "apertus",
    families=("Apertus",),
    wrappers=(Wrapper(openers=("<|tools_prefix|>",), closers=("<|tools_suffix|>",), keyed=True),),
    thoughts=(Thought(openers=("<|inner_prefix|>",), closers=("<|inner_suffix|>",), loud=True),),
    leaks=(*TURNS, "<|assistant_start|>", "<|assistant_end|>"),
)
