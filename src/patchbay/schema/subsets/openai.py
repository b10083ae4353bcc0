"""The subsets that OpenAI accepts, with and without strict mode."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from patchbay._json_schema import DICTS, LISTS, ONE, applicable, item_schema, types_of, unresolved
from patchbay.schema.arguments import UnreadableArgumentsError, read_arguments
from patchbay.schema.subsets.common import (
    NodeLimit,
    RefusedError,
    Schema,
    Unsupported,
    accepts_null,
    as_object,
    described,
    expressed,
    is_looked_around,
    kinds_of_values,
    names_in,
    note_on,
    resolved,
)

_MAX_PROPERTIES: Final = 5_000
_MAX_NESTING: Final = 10
_MAX_NODES: Final = 20_000
_MAX_ENUM_VALUES: Final = 1_000
_MAX_NAMES: Final = 120_000
_LARGE_ENUM: Final = 250
_MAX_LARGE_ENUM: Final = 15_000
_DEFINITION: Final = re.compile(r"#(?:/(?:\$defs|definitions)/[^/]+)?")
_FORMATS: Final = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_KEPT: Final = (
    "type", "description", "enum", "const", "pattern", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minItems", "maxItems",
)  # fmt: skip
_NOTED: Final = ("default", "minLength", "maxLength", "uniqueItems")


def openai_strict(schema: Schema) -> Schema | Unsupported:
    """Return the schema in the subset of strict mode."""
    return expressed(schema, lambda root: _StrictWriter(as_object(root)).whole())


def without_added_nulls(schema: Schema, raw_arguments: str) -> str:
    """Remove the nulls from arguments for ``openai_strict(schema)`` that stand for absent properties of ``schema``.

    Text that is not a JSON object is returned unchanged, for the validator.
    """
    if "null" not in raw_arguments:
        return raw_arguments
    try:
        arguments = read_arguments(raw_arguments)
    except UnreadableArgumentsError:
        return raw_arguments
    return json.dumps(arguments, ensure_ascii=False) if _drop_nulls(arguments, schema, schema) else raw_arguments


class _StrictWriter:
    """Converts one schema, and counts against the limits of strict mode."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._limit = NodeLimit(_MAX_NODES)
        self._properties = 0
        self._values = 0
        self._names = 0
        self._within: list[str] = []

    def whole(self) -> Schema:
        """Convert the root and its definitions."""
        made = self._node(self._root, "", 0)
        for key in ("$defs", "definitions"):
            if isinstance(self._root.get(key), Mapping):
                made[key] = {name: self._definition(key, name, sub) for name, sub in self._root[key].items()}
        if self._properties > _MAX_PROPERTIES:
            raise RefusedError(f"it has {self._properties} properties; strict mode takes {_MAX_PROPERTIES}")
        if self._values > _MAX_ENUM_VALUES:
            raise RefusedError(f"its enums have {self._values} values; strict mode takes {_MAX_ENUM_VALUES}")
        if self._names > _MAX_NAMES:
            raise RefusedError(f"its names and values have {self._names} characters; strict mode takes {_MAX_NAMES}")
        return made

    def _definition(self, key: str, name: str, schema: Any) -> dict[str, Any]:
        self._names += len(name)
        self._within = [f"#/{key}/{name}"]
        return self._node(schema, f"/{key}/{name}", 0)

    def _node(self, schema: Any, path: str, depth: int, alternatives: int = 0) -> dict[str, Any]:
        self._limit.count()
        if depth > _MAX_NESTING or alternatives > _MAX_NESTING:
            raise RefusedError(f"{path} is nested more than {_MAX_NESTING} levels deep")
        if not isinstance(schema, Mapping):
            raise RefusedError(f"{path or 'it'} may be anything, which strict mode cannot say")
        reference = schema.get("$ref")
        if isinstance(reference, str) and _DEFINITION.fullmatch(reference):
            if set(schema) == {"$ref"}:
                return dict(schema)
            if reference in self._within:
                return {"anyOf": [{"$ref": reference}], **{key: schema[key] for key in ("description",) if key in schema}}
            self._within.append(reference)
            try:
                return self._inline(schema, path, depth, alternatives)
            finally:
                self._within.pop()
        return self._inline(schema, path, depth, alternatives)

    def _inline(self, schema: Schema, path: str, depth: int, alternatives: int) -> dict[str, Any]:
        # A reference with other keywords beside it, or to something other than a definition, is expanded.
        node = resolved(schema, self._root)
        if isinstance(node.get("allOf"), list):
            node = self._together(node)
        made = {key: node[key] for key in _KEPT if key in node}
        notes = [words for key in _NOTED for words in note_on(node, key)]
        if "format" in node:
            if node["format"] in _FORMATS:
                made["format"] = node["format"]
            else:
                notes += note_on(node, "format")
        if is_looked_around(made):
            notes += note_on(made, "pattern")
            del made["pattern"]
        self._type_of_values(made, path)
        branches = [branch for key in ("anyOf", "oneOf") for branch in node.get(key) or ()]
        if branches:
            made["anyOf"] = [
                self._node(branch, f"{path}/anyOf/{index}", depth, alternatives + 1) for index, branch in enumerate(branches)
            ]
        if "array" in types_of(node) or "items" in node:
            made.setdefault("type", "array")
            made["items"] = self._items(node, path, depth)
        if "object" in types_of(node) or "properties" in node:
            made.setdefault("type", "object")
            self._close(node, made, path, depth)
        if not made.keys() & {"type", "anyOf"}:
            raise RefusedError(f"{path or 'it'} may be anything, which strict mode cannot say")
        described(made, notes)
        return made

    def _type_of_values(self, made: dict[str, Any], path: str) -> None:
        """Add the type of enum or const values, which strict mode requires, and count the values."""
        values = made["enum"] if isinstance(made.get("enum"), list) else [made["const"]] if "const" in made else []
        if not values:
            return
        if "type" not in made:
            kinds = kinds_of_values(values)
            if {"object", "array"} & set(kinds):
                raise RefusedError(f"{path} is one of values that are no single words, which strict mode cannot say")
            kinds = [kind for kind in kinds if kind != "integer" or "number" not in kinds]
            made["type"] = kinds[0] if len(kinds) == 1 else kinds
        size = sum(len(value) for value in values if isinstance(value, str))
        self._names += size
        self._values += len(values)
        if len(values) > _LARGE_ENUM and size > _MAX_LARGE_ENUM:
            raise RefusedError(f"{path} has an enum of {size} characters; strict mode takes {_MAX_LARGE_ENUM}")

    def _together(self, node: Schema) -> Schema:
        parts = [part for part in node["allOf"] if isinstance(part, Mapping)]
        rest = {key: value for key, value in node.items() if key != "allOf"}
        if len(parts) == 1:
            return {**resolved(parts[0], self._root), **rest}
        return as_object({**node, **{key: self._root[key] for key in ("$defs", "definitions") if key in self._root}})

    def _items(self, node: Schema, path: str, depth: int) -> dict[str, Any]:
        leading = node.get("prefixItems")
        items = node.get("items")
        if isinstance(items, list):
            leading, items = items, node.get("additionalItems")
        if not isinstance(leading, list):
            return self._node(items, f"{path}/items", depth + 1)
        choices: list[dict[str, Any]] = []
        for item in [*leading, *([items] if isinstance(items, Mapping) else [])]:
            one = self._node(item, f"{path}/items", depth + 1)
            if one not in choices:
                choices.append(one)
        return choices[0] if len(choices) == 1 else {"anyOf": choices}

    def _close(self, node: Schema, made: dict[str, Any], path: str, depth: int) -> None:
        properties = node.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        others = node.get("additionalProperties")
        if (
            others is True
            or isinstance(others, Mapping)
            or node.get("patternProperties")
            or (not properties and path and others is None)
        ):
            raise RefusedError(f"{path or 'it'} takes keys of any name, which strict mode cannot say")
        required = set(names_in(node.get("required")))
        members: dict[str, Any] = {}
        for name, sub in properties.items():
            member = self._node(sub, f"{path}/{name}", depth + 1)
            members[name] = member if name in required else _or_null(member, sub, self._root)
        self._properties += len(members)
        self._names += sum(map(len, members))
        made["properties"] = members
        made["required"] = list(members)
        made["additionalProperties"] = False


def _or_null(made: dict[str, Any], original: Any, root: Schema) -> dict[str, Any]:
    """Let an optional property be null, which stands for its absence."""
    if accepts_null(original, root):
        return made
    if isinstance(made.get("type"), str) and not made.keys() & {"enum", "const"}:
        return {**made, "type": [made["type"], "null"]}
    description = {"description": made.pop("description")} if "description" in made else {}
    if set(made) == {"anyOf"}:
        return {"anyOf": [*made["anyOf"], {"type": "null"}], **description}
    return {"anyOf": [made, {"type": "null"}], **description}


def _drop_nulls(value: Any, schema: Any, root: Schema) -> bool:
    """Remove the nulls that stand for absence, in place; return whether there were any."""
    dropped = False
    for part in applicable([schema], root, ("allOf", "anyOf", "oneOf")):
        if isinstance(value, list):
            for index, item in enumerate(value):
                dropped = _drop_nulls(item, item_schema(part, index), root) or dropped
        elif isinstance(value, dict):
            dropped = _drop_members(value, part, root) or dropped
    return dropped


def _drop_members(value: dict[str, Any], schema: Schema, root: Schema) -> bool:
    properties = schema.get("properties")
    required = set(names_in(schema.get("required")))
    dropped = False
    for name, sub in properties.items() if isinstance(properties, Mapping) else ():
        if name in value and value[name] is None and name not in required and not accepts_null(sub, root):
            del value[name]
            dropped = True
        elif name in value:
            dropped = _drop_nulls(value[name], sub, root) or dropped
    return dropped


def openai(schema: Schema) -> Schema | Unsupported:
    """Return the schema in OpenAI's subset; the same object if it is in the subset already."""
    return expressed(schema, _whole)


def _whole(root: Schema) -> Schema:
    tidy: Schema = _tidy(as_object(root))
    if tidy == root:
        return root
    if (reference := unresolved(tidy)) is not None:
        raise RefusedError(f"its schema refers to {reference!r}, which has another place in today's JSON Schema")
    return tidy


def _tidy(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return {} if schema is True else {"not": {}} if schema is False else schema
    node: dict[str, Any] = {key: _below(key, value) for key, value in schema.items()}
    if isinstance(node.get("items"), list):  # the tuples of older drafts
        node["prefixItems"] = node.pop("items")
        if "additionalItems" in node:
            node["items"] = node.pop("additionalItems")
    if "array" in types_of(node):
        node.setdefault("items", {})
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(node.get(exclusive), bool):  # a switch in draft 4, a number since
            is_exclusive = node.pop(exclusive)
            if is_exclusive and bound in node:
                node[exclusive] = node.pop(bound)
    if isinstance(node.get("required"), bool):  # draft 3
        del node["required"]
    if is_looked_around(node):
        described(node, note_on(node, "pattern"))
        del node["pattern"]
    return node


def _below(key: str, value: Any) -> Any:
    if key in ONE:
        # OpenAI accepts a bare true or false only here.
        if key in ("additionalProperties", "unevaluatedProperties") and isinstance(value, bool):
            return value
        return [_tidy(item) for item in value] if isinstance(value, list) else _tidy(value)
    if key in LISTS and isinstance(value, list):
        return [_tidy(item) for item in value]
    if key in DICTS and isinstance(value, Mapping):
        return {name: _tidy(item) for name, item in value.items()}
    return value
