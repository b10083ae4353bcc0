"""The ways in which families list tools. Names, descriptions and schemas come from outside: they can end nothing here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from patchbay.formats.writing.family import Listing
from patchbay.formats.writing.marks import Marks
from patchbay.types import ToolSpec

_EACH = "The tools, one JSON object per line (name, description, JSON Schema of the arguments):"
_LIST = "The tools, as a JSON list (name, description, JSON Schema of the arguments):"


def plain_tool(spec: ToolSpec) -> dict[str, Any]:
    """A tool as an object of name, description and parameters."""
    described = {"description": spec.description} if spec.description else {}
    return {"name": spec.name, **described, "parameters": spec.parameters}


def openai_tool(spec: ToolSpec) -> dict[str, Any]:
    """A tool as OpenAI's ``tools`` have it."""
    return {"type": "function", "function": plain_tool(spec)}


def json_lines(before: str = "<tools>\n", after: str = "\n</tools>", *, openai: bool = True, join: str = "\n") -> Listing:
    """One JSON object for each tool."""

    def write(specs: Sequence[ToolSpec], marks: Marks) -> str:
        closed = Marks((*marks.texts, *_closers(after)))
        return before + join.join(closed.json(openai_tool(spec) if openai else plain_tool(spec)) for spec in specs) + after

    return Listing(_EACH, write)


def json_list(before: str = "", after: str = "", *, openai: bool = True, indent: int | None = None) -> Listing:
    """One JSON list of all tools."""

    def write(specs: Sequence[ToolSpec], marks: Marks) -> str:
        closed = Marks((*marks.texts, *_closers(after)))
        return before + closed.json([openai_tool(spec) if openai else plain_tool(spec) for spec in specs], indent=indent) + after

    return Listing(_LIST, write)


def _closers(after: str) -> tuple[str, ...]:
    """What ends the list, and a tool in it, where that is a tag."""
    return tuple(mark.replace("</", "<").rstrip(">") for mark in after.split() if mark.startswith(("<", "[/")))


def _headed(specs: Sequence[ToolSpec], marks: Marks) -> str:
    return "\n\n".join(
        f"### {_title(spec.name)}\n{_described(spec, marks)}\nParameters: {marks.json(spec.parameters)}" for spec in specs
    )


def _described(spec: ToolSpec, marks: Marks) -> str:
    return f"Description: {marks.json(spec.description)}\n" if spec.description else ""


def _title(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").replace(".", "").isalnum() else json.dumps(name, ensure_ascii=False)


HEADED = Listing("The tools, each with its description and the JSON Schema of its arguments:", _headed)


def _xml(specs: Sequence[ToolSpec], _marks: Marks) -> str:
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
