"""openPangu: a list between two of the vocabulary's unused tokens."""

from __future__ import annotations

from patchbay.formats.families.common import TURNS
from patchbay.formats.rows import Format, Thought, Wrapper

PANGU = Format(
    "pangu",
    families=("openPangu",),
    wrappers=(Wrapper(openers=("[unused11]",), closers=("[unused12]",)),),
    thoughts=(Thought(openers=("[unused16]",), closers=("[unused17]",), loud=True),),
    leaks=(*TURNS, "[unused9]", "[unused10]"),
)
