"""Step 3: DeepSeek's section of calls, and in it calls as tags."""

from __future__ import annotations

from dataclasses import replace

from patchbay.formats.families.common import THINK, TURNS
from patchbay.formats.families.deepseek import CALL, SECTION, token
from patchbay.formats.families.tags import opening
from patchbay.formats.rows import Format

_SEPARATORS = token("tool", "sep")

STEP3 = Format(
    "step3",
    families=("Step 3",),
    wrappers=(
        SECTION,
        replace(CALL, leads=tuple(f"function{separator}" for separator in _SEPARATORS)),
        opening("<steptml:invoke", closers=("</steptml:invoke>",)),
    ),
    thoughts=(THINK,),
    leaks=TURNS,
    loose=False,
)
