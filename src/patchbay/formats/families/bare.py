"""Calls as JSON that nothing marks: only the offered tools say what is one (``loose``). And text that never holds a call."""

from __future__ import annotations

from patchbay.formats.families.common import THINK, TURNS
from patchbay.formats.rows import Format

OPENAI_DICT = Format(
    "openai_dict", families=("models trained on the messages of the Chat Completions API",), thoughts=(THINK,), leaks=TURNS
)
JSON_ARRAY_REQUIRED = Format(
    "json_array_required",
    families=("any model whose server forces a call by a JSON schema: vLLM, SGLang",),
    thoughts=(THINK,),
    leaks=TURNS,
)
BARE_JSON = Format("bare_json", families=("any model, asked for one JSON object",), thoughts=(THINK,), leaks=TURNS)
BARE_JSON_LIST = Format("bare_json_list", families=("any model, asked for a JSON array",), thoughts=(THINK,), leaks=TURNS)
PLAIN_TEXT = Format(
    "plain_text", families=("any model that was offered no tools",), auto=False, thoughts=(THINK,), leaks=TURNS, loose=False
)
