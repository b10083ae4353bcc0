"""DeepSeek V3, R1 and V3.1: a section of calls, the name between a token and the arguments.

Its tokens are written with full-width pipes and a low line of their own; templates and distilled models take the nearest ASCII.
"""

from __future__ import annotations

from itertools import product

from patchbay.formats.families.common import THINK, TURNS
from patchbay.formats.rows import Format, Frame, Wrapper

_PIPES = ("｜", "|")
_GAPS = ("▁", "_", " ", "\\_")


def token(*words: str) -> tuple[str, ...]:
    """The spellings of ``<｜tool▁call▁begin｜>``, given its words."""
    return tuple(f"<{pipe}{gap.join(words)}{pipe}>" for pipe, gap in product(_PIPES, _GAPS))


SECTION = Wrapper(openers=token("tool", "calls", "begin"), closers=token("tool", "calls", "end"))
CALL = Wrapper(openers=token("tool", "call", "begin"), closers=token("tool", "call", "end"), separators=token("tool", "sep"))
_ECHOES = Frame(
    openers=("<｜tool▁outputs▁begin｜>", "<｜tool▁output▁begin｜>"),
    closers=("<｜tool▁output▁end｜>", "<｜tool▁outputs▁end｜>"),
    loud=True,
)
"""Around what a model repeats of a tool's output."""

V3 = Format(
    "deepseek_v3_json",
    families=("DeepSeek V3", "DeepSeek R1 and its distillations", "Cogito"),
    wrappers=(SECTION, CALL),
    thoughts=(THINK,),
    frames=(_ECHOES,),
    leaks=TURNS,
)
V31 = Format(
    "deepseek_v31",
    families=("DeepSeek V3.1",),
    wrappers=(SECTION, CALL),
    thoughts=(THINK,),
    frames=(_ECHOES,),
    leaks=TURNS,
)
