"""What the servers that speak as OpenAI does refuse in what a client sends: tools, and parts of messages. Pure.

What lives here: what is wrong, in the words of an error. What does not: what is wrong at some moment alone (``family``), and what
one provider refuses (its file).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True)
class Problem:
    """Why something is refused. ``violation``: a client must not do it (else it could not know better)."""

    message: str
    code: str = "invalid_value"
    param: str | None = None
    violation: bool = True


def missing(place: str) -> Problem:
    """Return the refusal of something that lacks a member."""
    return Problem(f"Missing required parameter: '{place}'.", "missing_required_parameter", place)


def unknown(members: Iterable[str], known: frozenset[str], place: str) -> Problem | None:
    """Return the refusal of members that are not known."""
    if strange := sorted(set(members) - known):
        return Problem(f"Unknown parameter: '{place}.{strange[0]}'.", "unknown_parameter", f"{place}.{strange[0]}")
    return None


def in_tool(tool: Mapping[str, Any], *, nested: bool) -> Mapping[str, Any]:
    """Return where name, description and parameters of a tool stand; ``nested`` says which shape tools have."""
    inner = tool.get("function") if nested else tool
    return inner if isinstance(inner, Mapping) else {}


def in_tools(tools: Any, *, nested: bool) -> Problem | None:
    """Return what is wrong with tools: their shape, their names, two of one name."""
    if tools is None:
        return None
    if not isinstance(tools, list):
        return Problem("Invalid type for 'session.tools': expected an array.", "invalid_type", "session.tools")
    seen: set[str] = set()
    for number, tool in enumerate(tools):
        place = f"session.tools[{number}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            return missing(f"{place}.type")
        if nested != ("function" in tool):
            return missing(f"{place}.{'function' if nested else 'name'}")
        function = in_tool(tool, nested=nested)
        known = frozenset({"name", "description", "parameters"} | (set() if nested else {"type"}))
        if strange := unknown(function, known, f"{place}.function" if nested else place):
            return strange
        name = function.get("name")
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            wanted = "a string that matches the pattern '^[a-zA-Z0-9_-]{1,64}$'"
            return Problem(f"Invalid '{place}.name': expected {wanted}, not {name!r}.", param=f"{place}.name")
        if name in seen:
            return Problem(f"Invalid '{place}.name': there are two tools {name!r}.", param=f"{place}.name")
        seen.add(name)
        parameters = function.get("parameters", {"type": "object"})
        if not isinstance(parameters, dict) or parameters.get("type") != "object":
            text = f"Invalid schema for function {name!r}: schema must be a JSON Schema of 'type: \"object\"'."
            return Problem(text, "invalid_function_parameters", f"{place}.parameters")
    return None


def in_content(content: Any, kinds: Sequence[str]) -> Problem | None:
    """Return what is wrong with the content of a message, whose parts are of these kinds."""
    if not isinstance(content, list) or not content:
        return missing("item.content")
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else part
        if not isinstance(part, dict) or kind not in kinds or not isinstance(part.get("text"), str):
            known = ", ".join(map(repr, kinds))
            return Problem(f"Invalid value: {kind!r}. Supported are: {known}.", param=f"item.content[{number}].type")
    return None
