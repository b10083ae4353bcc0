"""``[TOOL_CALLS]``: a JSON array behind it (tokenizers v1 to v3), or a name and its arguments (v11 and later)."""

from __future__ import annotations

from patchbay.formats.families.common import THINK, TURNS
from patchbay.formats.rows import Format, Thought, Wrapper, first_part

CALLS = Wrapper(openers=("[TOOL_CALLS]",), separators=("[CALL_ID]", "[ARGS]"), name=first_part)
_LEAKS = (*TURNS, "[/TOOL_CALLS]")
_THOUGHTS = (Thought(openers=("[THINK]",), closers=("[/THINK]",), loud=True), THINK)

JSON = Format(
    "mistral_json",
    families=("Mistral 7B v0.3", "Mixtral", "Mistral Nemo", "Ministral 8B"),
    wrappers=(CALLS,),
    thoughts=_THOUGHTS,
    leaks=_LEAKS,
)
ARGS = Format(
    "mistral_args",
    families=("Mistral Small 3.1, 3.2", "Devstral", "Magistral", "Ministral 3", "Mistral Large 3"),
    wrappers=(CALLS,),
    thoughts=_THOUGHTS,
    leaks=_LEAKS,
)
