"""Tools as a TypeScript namespace: how Harmony and Functionary are told of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from patchbay.formats.writing.family import Listing
from patchbay.formats.writing.marks import Marks
from patchbay.types import ToolSpec

_DEEPEST = 6
"""Objects within objects beyond this are ``any``: no model reads them, and a schema may go on without end."""
_NAMES = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*")


def _namespace(specs: Sequence[ToolSpec], marks: Marks) -> str:
    types = []
    for spec in specs:
        shape = _object(spec.parameters, marks, 0)
        taken = f"_: {shape}" if spec.parameters.get("properties") else ""
        types.append(f"{_comment(spec.description, marks, '')}type {_key(spec.name, marks)} = ({taken}) => any;")
    return "namespace functions {\n\n" + "\n\n".join(types) + "\n\n} // namespace functions"


def _comment(text: Any, marks: Marks, indent: str) -> str:
    """The text's lines as comments: none of them can end its own."""
    lines = marks.defused(text).splitlines() if isinstance(text, str) else []
    return "".join(f"{indent}// {line}\n" for line in lines)


def _key(name: str, marks: Marks) -> str:
    return name if _IDENTIFIER.fullmatch(name) else marks.json(name)


def _object(schema: Mapping[str, Any], marks: Marks, depth: int) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties or depth >= _DEEPEST:
        return "any" if depth >= _DEEPEST else "object"
    required = schema.get("required")
    needed = set(filter(lambda name: isinstance(name, str), required)) if isinstance(required, list | tuple) else set()
    indent = "  " * depth
    lines = []
    for name, each in properties.items():
        described = each if isinstance(each, Mapping) else {}
        note = _comment(described.get("description"), marks, indent)
        default = f", // default: {marks.json(described['default'])}" if "default" in described else ","
        mark = "" if name in needed else "?"
        lines.append(f"{note}{indent}{_key(name, marks)}{mark}: {_type(described, marks, depth + 1)}{default}")
    return "{\n" + "\n".join(lines) + f"\n{'  ' * max(depth - 1, 0)}}}"


def _type(schema: Any, marks: Marks, depth: int) -> str:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return "any"
    choices = schema.get("enum")
    if isinstance(choices, list | tuple) and choices:
        return " | ".join(marks.json(choice) for choice in choices)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list | tuple) and schema[key]:
            return " | ".join(dict.fromkeys(_type(each, marks, depth + 1) for each in schema[key]))
    kinds = schema.get("type")
    if isinstance(kinds, list | tuple):
        return " | ".join(dict.fromkeys(_type({**schema, "type": kind}, marks, depth + 1) for kind in kinds)) or "any"
    if kinds == "object":
        return _object(schema, marks, depth)
    if kinds == "array":
        item = _type(schema.get("items"), marks, depth + 1)
        return f"({item})[]" if " | " in item else f"{item}[]"
    return _NAMES.get(kinds, "any") if isinstance(kinds, str) else "any"


def typescript(before: str = "", after: str = "") -> Listing:
    """The namespace, between two texts."""
    return Listing("The tools, as TypeScript:", lambda specs, marks: f"{before}{_namespace(specs, marks)}{after}")
