"""Definitions of tools for texts."""

from __future__ import annotations

from typing import Any


def tool(name: str, /, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An element of OpenAI's ``tools``; the keyword arguments are the schemas of its parameters."""
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}
