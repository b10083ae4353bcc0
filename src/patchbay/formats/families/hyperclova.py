"""HyperCLOVA X SEED Think: a message to a tool, and one to itself, named in ChatML's role."""

from __future__ import annotations

from patchbay.formats.families.common import TURNS
from patchbay.formats.rows import Format, Thought, Wrapper

_TO_TOOL = "-> tool/function_call\n"
_ENDS = ("<|im_end|>\n<|im_start|>assistant", "<|im_end|>")

HYPERCLOVA = Format(
    "hyperclova",
    families=("HyperCLOVA X SEED Think",),
    wrappers=(Wrapper(openers=(f"<|im_start|>assistant {_TO_TOOL}", _TO_TOOL)),),
    thoughts=(
        Thought(openers=("<|im_start|>assistant/think\n",), closers=_ENDS, loud=True, alone=False),
        # the prompt ends with the role, the rest of the line is the model's
        Thought(openers=("/think\n",), closers=_ENDS, alone=False, paired=True),
    ),
    leaks=TURNS,
)
