"""``<function=f>`` and ``<parameter=k>``: Qwen3-Coder and the many after it, MiMo, Seed-OSS."""

from __future__ import annotations

from patchbay.formats.families.common import THINK, TOOL_CALL, TURNS
from patchbay.formats.families.tags import FUNCTION
from patchbay.formats.rows import Format, Thought, Wrapper

QWEN3_CODER = Format(
    "qwen3_coder",
    families=(
        "Qwen3-Coder, Qwen3-Next-Coder",
        "Qwen3.5 to 3.8",
        "Nemotron 3",
        "Step 3.5, 3.7, 5",
        "Granite 4.2",
        "MiniCPM-V",
        "Nanbeige 4",
        "KAT-Coder",
    ),
    wrappers=(TOOL_CALL, FUNCTION),
    thoughts=(THINK,),
    leaks=TURNS,
    loose=False,
)
MIMO = Format(
    "mimo",
    families=("MiMo V2",),
    wrappers=(TOOL_CALL, FUNCTION),
    thoughts=(THINK,),
    leaks=TURNS,
    loose=False,
)
SEED_OSS = Format(
    "seed_oss",
    families=("Seed-OSS",),
    wrappers=(Wrapper(openers=("<seed:tool_call>",), closers=("</seed:tool_call>",)), FUNCTION),
    thoughts=(Thought(openers=("<seed:think>",), closers=("</seed:think>",)),),
    leaks=(*TURNS, "<seed:bos>assistant", "<seed:bos>", "<seed:eos>"),
    loose=False,
)
MINICPM5 = Format(
    "minicpm5",
    families=("MiniCPM 5",),
    wrappers=(FUNCTION,),
    thoughts=(THINK,),
    leaks=TURNS,
    loose=False,
)
