"""Shared by the subsets: the unsupported reason, an object at the root, and descriptions of dropped keywords."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from patchbay._json_schema import follow, types_of, unresolved
from patchbay.schema.arguments import MAX_DEPTH, deeper_than, json_type

Schema: TypeAlias = Mapping[str, Any]

_MAX_REFERENCES = 50
_MAX_BRANCHES = 100
_ONLY_INSIDE = (
    "anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else", "$schema", "$id", "$ref", "discriminator",
)  # fmt: skip


@dataclass(frozen=True)
class Unsupported:
    """Why a schema cannot be expressed in a provider's subset, for the operator."""

    reason: str


class RefusedError(Exception):
    """A part of the schema cannot be expressed; never leaves this package."""


def expressed(schema: Any, convert: Callable[[Schema], Schema]) -> Schema | Unsupported:
    """Convert a schema that is usable, or return why it is not or cannot be converted."""
    if not isinstance(schema, Mapping):
        return Unsupported("its schema is not an object")
    if deeper_than(dict(schema), MAX_DEPTH):
        return Unsupported(f"its schema is nested more than {MAX_DEPTH} levels deep")
    if (reference := unresolved(schema)) is not None:
        return Unsupported(f"its schema refers to {reference!r}, which is not in it")
    try:
        return convert(schema)
    except RefusedError as refusal:
        return Unsupported(str(refusal))
    except RecursionError:  # a long chain of shallow definitions
        return Unsupported("its schema is nested too deeply once its references are written out")


class NodeLimit:
    """Limit on the schemas that one conversion visits: nested references can expand a short text to billions."""

    def __init__(self, schemas: int) -> None:
        self._left = schemas

    def count(self) -> None:
        """Count one. Raises RefusedError beyond the limit."""
        self._left -= 1
        if self._left < 0:
            raise RefusedError("its schema is too large once its references are written out")


def as_object(root: Schema, limit: NodeLimit | None = None) -> dict[str, Any]:
    """Return ``root`` as a plain object schema with properties: no provider accepts alternatives at the root.

    The properties of all branches are merged; required are those that every alternative requires. Raises RefusedError if the
    arguments cannot be an object.
    """
    limit = limit or NodeLimit(_MAX_BRANCHES)
    limit.count()
    node = dict(resolved(root, root))
    kinds = types_of(node)
    if kinds and "object" not in kinds:
        raise RefusedError(f"its arguments are {' or '.join(kinds)}, not an object")
    given = node.get("properties")
    properties: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {}
    required = list(names_in(node.get("required")))
    for part in _schemas(node.get("allOf")):
        inner = as_object({**part, **_definitions(root)}, limit)
        _add(properties, inner["properties"], "allOf")
        required += inner.get("required", ())
    choices: list[list[str]] = []
    for key in ("anyOf", "oneOf"):
        parts = [part for part in _schemas(node.get(key)) if _may_be_object(part, root)]
        branches = [as_object({**part, **_definitions(root)}, limit) for part in parts]
        for branch in branches:
            _add(properties, branch["properties"], "anyOf")
        if branches:
            needs = [list(branch.get("required", ())) for branch in branches]
            required += [name for name in needs[0] if all(name in need for need in needs)]
            choices = [need for need in needs if need] if len(needs) > 1 and any(need != needs[0] for need in needs) else choices
    folded = any(key in node for key in ("anyOf", "oneOf", "allOf"))
    for key in _ONLY_INSIDE:
        node.pop(key, None)
    if folded:
        node.pop("additionalProperties", None)
        node.pop("unevaluatedProperties", None)
    node["type"], node["properties"] = "object", properties
    required = [name for name in dict.fromkeys(required) if name in properties]
    if required:
        node["required"] = required
    else:
        node.pop("required", None)
    if choices:
        described(node, [f"give either {' or '.join(', '.join(need) for need in choices)}"])
    return node


def resolved(schema: Schema, root: Schema) -> Schema:
    """Return ``schema`` with its own ``$ref`` replaced by the target; keywords beside the reference are kept."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target = follow(root, reference)
        target = target if isinstance(target, Mapping) else {}
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    raise RefusedError("its schema refers to itself without an end")


def names_in(value: Any) -> Iterable[str]:
    """Return the strings in a list such as ``required``, which is not a list in old drafts."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list | tuple) else []


def accepts_null(schema: Any, root: Schema, seen: set[int] | None = None) -> bool:
    """Whether a schema explicitly allows null. An unrestricted schema does not."""
    seen = set() if seen is None else seen
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return False
    seen.add(id(schema))
    schema = resolved(schema, root)
    if "null" in types_of(schema):  # validation ignores "nullable", which is not JSON Schema
        return True
    if "const" in schema:
        return schema["const"] is None
    if isinstance(schema.get("enum"), list):
        return None in schema["enum"]
    return any(accepts_null(branch, root, seen) for key in ("anyOf", "oneOf") for branch in _schemas(schema.get(key)))


def kinds_of_values(values: Iterable[Any]) -> list[str]:
    """Return the JSON types of an enum's values, each once."""
    return list(dict.fromkeys(json_type(value) for value in values))


def is_looked_around(schema: Schema) -> bool:
    """Whether ``pattern`` has lookahead or lookbehind, which OpenAI does not support."""
    return isinstance(schema.get("pattern"), str) and _LOOKS_AROUND.search(schema["pattern"]) is not None


# An unescaped parenthesis that opens a lookaround.
_LOOKS_AROUND = re.compile(r"(?<!\\)(?:\\\\)*\(\?<?[=!]")


def described(node: dict[str, Any], notes: Iterable[str]) -> None:
    """Append notes about dropped keywords to the description, in place."""
    if words := "; ".join(notes):
        text = node.get("description")
        note = f"{words[0].upper()}{words[1:]}."
        node["description"] = f"{text.rstrip()} ({words})" if isinstance(text, str) and text.strip() else note


def as_json(value: Any) -> str:
    """Return a schema's value as JSON, for a description."""
    return json.dumps(value, ensure_ascii=False, default=str)


def note_on(schema: Schema, keyword: str) -> list[str]:
    """Return the note about a dropped keyword; empty if it is absent or has no effect."""
    value = schema.get(keyword)
    if value is None or value is False:
        return []
    return [_WORDS[keyword].format(value if isinstance(value, str) else as_json(value))]


_WORDS = {
    "default": "default: {}",
    "enum": "one of: {}",
    "format": "format: {}",
    "pattern": "pattern: {}",
    "multipleOf": "a multiple of {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "uniqueItems": "no item twice",
    "minProperties": "at least {} members",
    "maxProperties": "at most {} members",
}


def _schemas(value: Any) -> list[Schema]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _may_be_object(schema: Schema, root: Schema) -> bool:
    kinds = types_of(resolved(schema, root))
    return not kinds or "object" in kinds


def _definitions(root: Schema) -> dict[str, Any]:
    return {key: root[key] for key in ("$defs", "definitions") if key in root}


def _add(properties: dict[str, Any], more: Mapping[str, Any], how: str) -> None:
    for name, schema in more.items():
        if name not in properties or properties[name] == schema:
            properties[name] = schema
        else:
            properties[name] = {how: [properties[name], schema]}
