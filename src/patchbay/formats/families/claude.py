"""Claude's tags, from before it had native calls; many models that were trained on its answers write them now and then."""

from __future__ import annotations

from patchbay.formats.families.common import THINK, TURNS
from patchbay.formats.families.tags import INVOKE, opening
from patchbay.formats.rows import Format, Thought, Wrapper

_SPACE = "antml:"

CLAUDE_XML = Format(
    "claude_xml",
    families=("Claude's legacy API", "models trained on Claude's answers"),
    wrappers=(
        Wrapper(
            openers=("<function_calls>", f"<{_SPACE}function_calls>"),
            closers=("</function_calls>", f"</{_SPACE}function_calls>"),
        ),
        INVOKE,
        opening(f"<{_SPACE}invoke", closers=(f"</{_SPACE}invoke>",)),
    ),
    thoughts=(Thought(openers=(f"<{_SPACE}thinking>", "<thinking>"), closers=(f"</{_SPACE}thinking>", "</thinking>")), THINK),
    leaks=TURNS,
    loose=False,
)
