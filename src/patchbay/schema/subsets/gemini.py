"""The subset that Gemini accepts in ``parameters``: OpenAPI schemas; one unknown keyword makes it reject the whole request.

References are expanded, alternatives become a lone ``anyOf``, null becomes ``nullable``, enums have strings only, and each node
has a type. The inner occurrence of a recursive schema becomes an object with a description only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from patchbay._json_schema import types_of
from patchbay.schema.arguments import json_type
from patchbay.schema.subsets.common import (
    NodeLimit,
    Schema,
    Unsupported,
    accepts_null,
    as_json,
    as_object,
    described,
    expressed,
    kinds_of_values,
    names_in,
    note_on,
    resolved,
)

_MAX_NODES: Final = 5_000
_KEPT: Final = {
    "string": ("minLength", "maxLength", "pattern"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "array": ("minItems", "maxItems"),
}
_FORMATS: Final = {"string": {"date-time"}, "number": {"float", "double"}, "integer": {"int32", "int64"}}
_SIMPLE: Final = ("string", "number", "boolean", "object")


def _anything() -> dict[str, Any]:
    return {"anyOf": [*({"type": kind} for kind in _SIMPLE), {"type": "array", "items": {"type": "string"}}]}


def gemini(schema: Schema) -> Schema | Unsupported:
    """Return the schema in Gemini's subset. It is empty without properties: then leave ``parameters`` out."""
    return expressed(schema, _whole)


def _whole(root: Schema) -> Schema:
    plain = as_object(root)
    if not plain["properties"]:
        return {}
    return _GeminiWriter(plain).node(plain, ())


class _GeminiWriter:
    """Converts one schema, with its references expanded."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._limit = NodeLimit(_MAX_NODES)

    def node(self, schema: Any, within: tuple[str, ...]) -> dict[str, Any]:
        """Convert one schema; ``within`` has the references that are being expanded."""
        self._limit.count()
        if not isinstance(schema, Mapping):
            return _anything()
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference in within:
                name = reference.rpartition("/")[2]
                return {"type": "object", "description": f"Again like {name}, in which this stands."}
            within = (*within, reference)
        node = _merged(resolved(schema, self._root), self._root, self._limit)
        nullable = accepts_null(node, self._root)
        made = self._without_null(node, within)
        if nullable:
            _first(made)["nullable"] = True
        return made

    def _without_null(self, node: Schema, within: tuple[str, ...]) -> dict[str, Any]:
        branches = [branch for key in ("anyOf", "oneOf") for branch in _list(node, key) if not _is_null(branch, self._root)]
        if branches and "properties" not in node:
            rest = {key: value for key, value in node.items() if key not in ("anyOf", "oneOf")}
            return self._alternatives(rest, branches, within)
        kinds = [kind for kind in types_of(node) or _implied_kinds(node) if kind != "null"]
        if kinds == ["number", "integer"] or kinds == ["integer", "number"]:
            kinds = ["number"]
        if not kinds and "null" in types_of(node):
            return {"type": "string", "description": "Always null."}
        if not kinds:
            return _around(_anything(), node)
        if len(kinds) > 1:
            inside = {key: value for key, value in node.items() if key not in ("description", "default")}
            return self._alternatives(node, [_only(kind, inside) for kind in kinds], within)
        return self._of_kind(kinds[0], node, within)

    def _alternatives(self, around: Schema, branches: list[Any], within: tuple[str, ...]) -> dict[str, Any]:
        made: list[dict[str, Any]] = []
        for branch in branches:
            one = self.node(branch, within)
            if one not in made:
                made.append(one)
        return _around(made[0] if len(made) == 1 else {"anyOf": made}, around)

    def _of_kind(self, kind: str, node: Schema, within: tuple[str, ...]) -> dict[str, Any]:
        made: dict[str, Any] = {"type": kind}
        if isinstance(node.get("description"), str):
            made["description"] = node["description"]
        notes = self._value(kind, node, made)
        if kind == "array":
            made["items"] = self._items(node, within)
            notes += note_on(node, "uniqueItems")
        elif kind == "object":
            notes += self._members(node, made, within)
        described(made, notes + note_on(node, "default"))
        return made

    def _value(self, kind: str, node: Schema, made: dict[str, Any]) -> list[str]:
        """Copy the bounds of a single value into ``made``; return notes about those that Gemini does not support."""
        for key in _KEPT.get(kind, ()):
            if key in node:
                made[key] = node[key]
        notes: list[str] = []
        values = [value for value in _values(node) if value is not None]
        if values and kind == "string" and all(isinstance(value, str) and value for value in values):
            made["enum"] = values
        elif values:
            notes.append(f"one of: {', '.join(map(as_json, values))}")
        if "format" in node:
            if node["format"] in _FORMATS.get(kind, ()):
                made["format"] = node["format"]
            elif kind == "string":
                notes += note_on(node, "format")
        if kind in ("integer", "number"):
            for key in ("exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
                if not isinstance(node.get(key), bool):
                    notes += note_on(node, key)
        return notes

    def _items(self, node: Schema, within: tuple[str, ...]) -> dict[str, Any]:
        items = node.get("items")
        leading = items if isinstance(items, list) else _list(node, "prefixItems")
        if leading:
            rest = [items] if isinstance(items, Mapping) else []
            return self._alternatives({}, [*leading, *rest], within)
        return self.node(items, within)

    def _members(self, node: Schema, made: dict[str, Any], within: tuple[str, ...]) -> list[str]:
        properties = node.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            others = node.get("additionalProperties")
            return [f"each value: {as_json(self.node(others, within))}"] if isinstance(others, Mapping) and others else []
        made["properties"] = {name: self.node(sub, within) for name, sub in properties.items() if sub is not False}
        required = [name for name in names_in(node.get("required")) if name in made["properties"]]
        if required:
            made["required"] = required
        return []


def _around(made: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """Add the description and default of ``schema`` to the first of its alternatives."""
    whole: dict[str, Any] = {"description": schema["description"]} if isinstance(schema.get("description"), str) else {}
    described(whole, note_on(schema, "default"))
    if text := whole.get("description"):
        first = _first(made)
        first["description"] = f"{text} {first['description']}" if "description" in first else text
    return made


def _first(made: dict[str, Any]) -> dict[str, Any]:
    """Return the first innermost alternative, or the schema itself: Gemini allows no keyword beside ``anyOf``."""
    while "anyOf" in made:
        made = made["anyOf"][0]
    return made


def _merged(node: Schema, root: Schema, limit: NodeLimit) -> Schema:
    """Return ``node`` with its ``allOf`` merged into it; the outer keywords take precedence."""
    parts = _list(node, "allOf")
    if not parts:
        return node
    limit.count()
    merged: dict[str, Any] = {}
    for part in [*parts, {key: value for key, value in node.items() if key != "allOf"}]:
        if not isinstance(part, Mapping):
            continue
        part = _merged(resolved(part, root), root, limit)  # noqa: PLW2901  (the same part, expanded)
        properties = {**merged.get("properties", {}), **(part.get("properties") or {})}
        required = [*names_in(merged.get("required")), *names_in(part.get("required"))]
        merged = {**merged, **part}
        if properties:
            merged["properties"] = properties
        if required:
            merged["required"] = list(dict.fromkeys(required))
    return merged


def _only(kind: str, node: Schema) -> Schema:
    """Return ``node`` restricted to values of one type."""
    only = {**node, "type": kind}
    if values := _values(node):
        only.pop("const", None)
        only["enum"] = [
            value for value in values if json_type(value) == kind or (kind == "number" and json_type(value) == "integer")
        ]
    return only


def _list(node: Schema, key: str) -> list[Any]:
    value = node.get(key)
    return value if isinstance(value, list) else []


def _values(node: Schema) -> list[Any]:
    return [node["const"]] if "const" in node else _list(node, "enum")


def _is_null(branch: Any, root: Schema) -> bool:
    if not isinstance(branch, Mapping):
        return False
    node = resolved(branch, root)
    return types_of(node) == ["null"] or (bool(_values(node)) and all(value is None for value in _values(node)))


def _implied_kinds(node: Schema) -> list[str]:
    """Return the types that other keywords imply in a schema without ``type``."""
    if values := _values(node):
        return kinds_of_values(value for value in values if value is not None)
    if "properties" in node or "additionalProperties" in node:
        return ["object"]
    if "items" in node or "prefixItems" in node:
        return ["array"]
    return ["string"] if "pattern" in node or "format" in node else []
