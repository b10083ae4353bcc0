"""What a fake of Gemini Live takes as a message and as a setup. Pure.

What lives here: the spelling of members, and what is wrong with a setup. What does not: the rest of the talk (``gemini``).
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
_SETUP = frozenset(
    {"model", "generationConfig", "systemInstruction", "tools", "realtimeInputConfig", "sessionResumption", "labels"}
    | {"contextWindowCompression", "inputAudioTranscription", "outputAudioTranscription", "proactivity", "explicitVadSignal"}
    | {"historyConfig", "avatarConfig", "safetySettings", "translationConfig"}
)


def camel(value: Any, *, depth: int = 3) -> Any:
    """Return a message with its members in the spelling of JSON, as far down as members are the API's own."""
    if isinstance(value, list):
        return [camel(each, depth=depth) for each in value]
    if not isinstance(value, dict) or not depth:
        return value
    return {
        re.sub(r"_([a-z])", lambda found: found[1].upper(), key): each if key in _FREE else camel(each, depth=depth - 1)
        for key, each in value.items()
    }


_FREE = frozenset({"response", "args", "parameters", "parametersJsonSchema", "parameters_json_schema"})
"""Members that hold what is not the API's: nothing in them has another spelling."""


def declared(setup: Message) -> list[Message]:
    """Return the functions that a setup declares."""
    tools = [tool for tool in setup.get("tools") or () if isinstance(tool, dict)]
    return [each for tool in tools for each in tool.get("functionDeclarations") or tool.get("function_declarations") or ()]


def setup_problem(setup: Message) -> str:
    """Return what is wrong with a setup, "" for nothing."""
    if not setup.get("model"):
        return "setup without a model"
    if unknown := sorted(set(setup) - _SETUP):
        return f"Unknown name {unknown[0]!r} at 'setup'"
    if any(not isinstance(tool, dict) or "type" in tool or "name" in tool for tool in setup.get("tools") or ()):
        return "setup.tools are not functionDeclarations"
    seen: set[str] = set()
    for number, each in enumerate(declared(setup)):
        name = each.get("name")
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            return f"setup.tools[0].function_declarations[{number}].name: Invalid function name {name!r}"
        if name in seen:
            return f"Duplicate function declaration found: {name}"
        seen.add(name)
        if "parameters" in each and (bad := _foreign(each["parameters"])):
            return f"Unknown name {bad!r} at 'setup.tools[0].function_declarations[{number}].parameters'"
    return ""


_SCHEMA = frozenset(
    {"type", "format", "title", "description", "nullable", "enum", "maxItems", "minItems", "properties", "required", "items"}
    | {"minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example", "anyOf", "propertyOrdering", "default"}
    | {"minimum", "maximum", "additionalProperties", "$ref", "$defs", "ref", "defs"}
)


def _foreign(schema: Any) -> str:
    """Return a member of a schema that ``parameters`` does not know ("" for none): with those, the whole session fails."""
    if not isinstance(schema, dict):
        return repr(schema)
    for key, value in schema.items():
        if key not in _SCHEMA:
            return str(key)
        inner: list[Any] = []
        if key == "properties" and isinstance(value, dict):
            inner = list(value.values())
        elif key == "items":
            inner = [value]
        elif key == "anyOf":
            inner = list(value)
        elif key == "type" and not isinstance(value, str):
            return "type"
        for each in inner:
            if bad := _foreign(each):
                return bad
    return ""
