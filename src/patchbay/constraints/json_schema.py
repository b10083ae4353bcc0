"""Schemas of whole replies, for servers that take a JSON Schema and no grammar (Ollama, LM Studio): one call as a JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from patchbay.constraints.calls import OfferedTool
from patchbay.constraints.forms import ArrayForm, ChoiceForm, ConstantForm, Form, NumberForm, ObjectForm, TextForm


def call_schema(tools: Sequence[OfferedTool]) -> dict[str, Any]:
    """Return the schema of one call as the object of ``name`` and ``arguments`` that all formats read."""
    calls = [
        _object(
            {"name": {"type": "string", "enum": [tool.spec.name]}, "arguments": form_schema(tool.arguments)},
            ["name", "arguments"],
        )
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def form_schema(form: Form) -> dict[str, Any]:
    """Return a form as a schema without references and without keywords that servers are known to drop."""
    if isinstance(form, TextForm):
        bounds: dict[str, Any] = {"minLength": form.least or None, "maxLength": form.most, "pattern": form.pattern}
        return {"type": "string"} | {key: value for key, value in bounds.items() if value is not None}
    if isinstance(form, NumberForm):
        bounds = {"minimum": form.least if form.least is not None or not form.positive else 0, "maximum": form.most}
        kind = "integer" if form.integer else "number"
        return {"type": kind} | {key: value for key, value in bounds.items() if value is not None}
    if isinstance(form, ConstantForm):
        return {"enum": [json.loads(raw) for raw in form.values]}
    if isinstance(form, ObjectForm):
        if form.extra is not None and not form.members:
            return {"type": "object", "additionalProperties": form_schema(form.extra)}
        required = [member.name for member in form.members if member.required]
        return _object({member.name: form_schema(member.form) for member in form.members}, required)
    if isinstance(form, ArrayForm):
        given = {
            "prefixItems": [form_schema(item) for item in form.first] or None,
            "items": None if form.items is None else form_schema(form.items),  # (llama.cpp refuses ``false``; maxItems says it)
            "minItems": form.least or None,
            "maxItems": form.most,
        }
        return {"type": "array"} | {key: value for key, value in given.items() if value is not None}
    if isinstance(form, ChoiceForm):
        return {"anyOf": [form_schema(option) for option in form.options]}
    return {}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
