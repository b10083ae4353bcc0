"""Custom tools of the Responses API, whose calls are plain texts with a grammar of their own; Codex' patch tool is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from patchbay.frontends import OpenAIResponses
from patchbay.models.wire import encode
from patchbay.types import ToolSpec, read_specs

PATCHES: Final = Path(__file__).with_name("apply_patch.lark").read_text(encoding="utf-8")


def custom_tool(syntax: str, definition: str) -> ToolSpec:
    """The tool ``patch``, as the exchange gets it."""
    return read_specs(tools_of(with_grammar(syntax, definition)))[0]


def with_grammar(syntax: str, definition: str) -> dict[str, Any]:
    """The tool ``patch``, as the Responses API has it."""
    return {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": syntax, "definition": definition}}


def tools_of(*tools: Any) -> Any:
    """The tools of a request to the Responses API, as chat completions have them."""
    body = OpenAIResponses().decode(encode({"model": "m", "input": "?", "tools": tools}), "").body
    return json.loads(encode(body))["tools"]
