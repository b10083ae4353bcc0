"""Two tools, a question that needs both, and the scripted model's answer."""

from __future__ import annotations

from typing import Any

SPECS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("multiply", "Multiply two integers.", {"a": {"type": "integer"}, "b": {"type": "integer"}}),
    ("measure", "Measure the length of a text.", {"text": {"type": "string"}}),
)
"""Name, description and properties, all of them required."""

QUESTION = "Please multiply 12 by 3, and measure the length of `patchbay`."
CALLS = [("multiply", {"a": 12, "b": 3}), ("measure", {"text": "patchbay"})]
ANSWER = "(scripted model) The tools say: product 36; length 8."


def run_tool(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The result of a call."""
    if name == "multiply":
        return {"product": arguments["a"] * arguments["b"]}
    return {"length": len(arguments["text"])}
