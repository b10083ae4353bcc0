"""Layouts in which families list tools. Names, descriptions and schemas come from outside, and cannot end anything here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from patchbay.formats.render.styles import gemma_notation
from patchbay.formats.render.values import NumberText
from patchbay.formats.render.writer import Listing, ReservedText
from patchbay.types import ToolSpec

_EACH = "The tools, one JSON object per line (name, description, JSON Schema of the arguments):"
_LIST = "The tools, as a JSON list (name, description, JSON Schema of the arguments):"


def plain_tool(spec: ToolSpec) -> dict[str, Any]:
    """Return a tool as an object of name, description and parameters."""
    described = {"description": spec.description} if spec.description else {}
    return {"name": spec.name, **described, "parameters": spec.parameters}


def openai_tool(spec: ToolSpec) -> dict[str, Any]:
    """Return a tool as in OpenAI's ``tools``."""
    return {"type": "function", "function": plain_tool(spec)}


def json_lines(before: str = "<tools>\n", after: str = "\n</tools>", *, openai: bool = True, join: str = "\n") -> Listing:
    """Return a listing with one JSON object per tool."""

    def write(specs: Sequence[ToolSpec], markers: ReservedText) -> str:
        closed = ReservedText((*markers.texts, *_closers(after)))
        return before + join.join(closed.json(openai_tool(spec) if openai else plain_tool(spec)) for spec in specs) + after

    return Listing(_EACH, write)


def json_list(before: str = "", after: str = "", *, openai: bool = True, indent: int | None = None) -> Listing:
    """Return a listing with one JSON list of all tools."""

    def write(specs: Sequence[ToolSpec], markers: ReservedText) -> str:
        closed = ReservedText((*markers.texts, *_closers(after)))
        return before + closed.json([openai_tool(spec) if openai else plain_tool(spec) for spec in specs], indent=indent) + after

    return Listing(_LIST, write)


def _closers(after: str) -> tuple[str, ...]:
    """Return the tags that end the list, and a tool in it."""
    return tuple(mark.replace("</", "<").rstrip(">") for mark in after.split() if mark.startswith(("<", "[/")))


def _headed(specs: Sequence[ToolSpec], markers: ReservedText) -> str:
    return "\n\n".join(
        f"### {_title(spec.name)}\n{_described(spec, markers)}\nParameters: {markers.json(spec.parameters)}" for spec in specs
    )


def _described(spec: ToolSpec, markers: ReservedText) -> str:
    return f"Description: {markers.json(spec.description)}\n" if spec.description else ""


def _title(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").replace(".", "").isalnum() else json.dumps(name, ensure_ascii=False)


HEADED = Listing("The tools, each with its description and the JSON Schema of its arguments:", _headed)


def _xml(specs: Sequence[ToolSpec], _markers: ReservedText) -> str:
    return "<tools>\n" + "\n".join(map(_xml_tool, specs)) + "\n</tools>"


def _xml_tool(spec: ToolSpec) -> str:
    lines = ["<function>", f"<name>{_xml_text(spec.name)}</name>"]
    if spec.description:
        lines.append(f"<description>{_xml_text(spec.description)}</description>")
    lines.append("<parameters>")
    properties = spec.parameters.get("properties")
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        lines += ["<parameter>", f"<name>{_xml_text(name)}</name>"]
        for key, value in schema.items() if isinstance(schema, Mapping) else ():
            lines.append(f"<{_xml_name(key)}>{_xml_value(value)}</{_xml_name(key)}>")
        lines.append("</parameter>")
    for key, value in spec.parameters.items():
        if key not in ("type", "properties"):
            lines.append(f"<{_xml_name(key)}>{_xml_value(value)}</{_xml_name(key)}>")
    return "\n".join([*lines, "</parameters>", "</function>"])


def _xml_value(value: Any) -> str:
    return _xml_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=dict))


def _xml_text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _xml_name(key: str) -> str:
    return "".join(character if character.isalnum() or character in "_-." else "_" for character in key)


XML = Listing("The tools, each with its parameters:", _xml)


_MAX_DEPTH = 6
"""Maximum depth of objects; deeper ones are ``any``: no model reads them, and a schema may be infinite."""
_NAMES = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*")


def _namespace(specs: Sequence[ToolSpec], markers: ReservedText) -> str:
    types = []
    for spec in specs:
        shape = _object(spec.parameters, markers, 0)
        taken = f"_: {shape}" if spec.parameters.get("properties") else ""
        types.append(f"{_comment(spec.description, markers, '')}type {_key(spec.name, markers)} = ({taken}) => any;")
    return "namespace functions {\n\n" + "\n\n".join(types) + "\n\n} // namespace functions"


def _comment(text: Any, markers: ReservedText, indent: str) -> str:
    """Return the text's lines as comments, none of which can end its own."""
    lines = markers.escape(text).splitlines() if isinstance(text, str) else []
    return "".join(f"{indent}// {line}\n" for line in lines)


def _key(name: str, markers: ReservedText) -> str:
    return name if _IDENTIFIER.fullmatch(name) else markers.json(name)


def _object(schema: Mapping[str, Any], markers: ReservedText, depth: int) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties or depth >= _MAX_DEPTH:
        return "any" if depth >= _MAX_DEPTH else "object"
    required = schema.get("required")
    needed = set(filter(lambda name: isinstance(name, str), required)) if isinstance(required, list | tuple) else set()
    indent = "  " * depth
    lines = []
    for name, each in properties.items():
        described = each if isinstance(each, Mapping) else {}
        note = _comment(described.get("description"), markers, indent)
        default = f", // default: {markers.json(described['default'])}" if "default" in described else ","
        mark = "" if name in needed else "?"
        lines.append(f"{note}{indent}{_key(name, markers)}{mark}: {_type(described, markers, depth + 1)}{default}")
    return "{\n" + "\n".join(lines) + f"\n{'  ' * max(depth - 1, 0)}}}"


def _type(schema: Any, markers: ReservedText, depth: int) -> str:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return "any"
    choices = schema.get("enum")
    if isinstance(choices, list | tuple) and choices:
        return " | ".join(markers.json(choice) for choice in choices)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list | tuple) and schema[key]:
            return " | ".join(dict.fromkeys(_type(each, markers, depth + 1) for each in schema[key]))
    kinds = schema.get("type")
    if isinstance(kinds, list | tuple):
        return " | ".join(dict.fromkeys(_type({**schema, "type": kind}, markers, depth + 1) for kind in kinds)) or "any"
    if kinds == "object":
        return _object(schema, markers, depth)
    if kinds == "array":
        item = _type(schema.get("items"), markers, depth + 1)
        return f"({item})[]" if " | " in item else f"{item}[]"
    return _NAMES.get(kinds, "any") if isinstance(kinds, str) else "any"


def typescript(before: str = "") -> Listing:
    """Return a listing as a TypeScript namespace behind a text."""
    return Listing("The tools, as TypeScript:", lambda specs, markers: before + _namespace(specs, markers))


_MAX_SCHEMA_DEPTH = 12
"""Maximum depth of a schema in Gemma's notation; what lies deeper is left out."""


def gemma_list(mark: str, before: str, after: str) -> Listing:
    """Return a listing with one declaration per tool, in Gemma's notation, texts between two ``mark``."""
    notation = gemma_notation(mark)

    def write(specs: Sequence[ToolSpec], markers: ReservedText) -> str:
        return "\n".join(
            f"{before}declaration:{markers.escape(spec.name)}{notation.encode(_declared(spec, markers))}{after}" for spec in specs
        )

    return Listing("The tools, each with its description and the schema of its arguments:", write)


def _declared(spec: ToolSpec, markers: ReservedText) -> dict[str, Any]:
    described = {"description": markers.escape(spec.description)} if spec.description else {}
    return {**described, "parameters": _schema(spec.parameters, markers, 0)}


def _schema(value: Any, markers: ReservedText, depth: int, *, names: bool = False) -> Any:
    """Convert a schema to Gemma's training layout: types in capitals. ``names``: the keys are parameters, "type" included."""
    if isinstance(value, Mapping):
        if depth > _MAX_SCHEMA_DEPTH:
            return {}
        return {
            markers.escape(str(key)): _type_name(item, markers)
            if key == "type" and not names
            else _schema(item, markers, depth + 1, names=key == "properties" and not names)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_schema(item, markers, depth + 1) for item in value] if depth <= _MAX_SCHEMA_DEPTH else []
    if isinstance(value, str):
        return markers.escape(value)
    return value if value is None or isinstance(value, bool) else NumberText(json.dumps(value))


def _type_name(kinds: Any, markers: ReservedText) -> Any:
    if isinstance(kinds, list | tuple):
        return [markers.escape(str(kind).upper()) for kind in kinds]
    return markers.escape(str(kinds).upper())
