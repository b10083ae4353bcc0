"""What OpenAI's chat and realtime APIs, and the servers that speak like them, take without strict mode.

They take most of 2020-12. What they refuse is a root that is no plain object, an array without ``items``, a pattern that looks
around, and the spellings of older drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchbay.schema.references import DICTS, LISTS, ONE, unresolved
from patchbay.schema.subsets.common import (
    Inexpressible,
    RefusedError,
    Schema,
    as_object,
    described,
    expressed,
    is_looked_around,
    note_on,
    types_of,
)


def openai(schema: Schema) -> Schema | Inexpressible:
    """Return the schema as OpenAI takes it; one that it takes already is returned itself."""
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
        # Whether more is allowed may be said with a bare true or false; elsewhere that is refused.
        if key in ("additionalProperties", "unevaluatedProperties") and isinstance(value, bool):
            return value
        return [_tidy(item) for item in value] if isinstance(value, list) else _tidy(value)
    if key in LISTS and isinstance(value, list):
        return [_tidy(item) for item in value]
    if key in DICTS and isinstance(value, Mapping):
        return {name: _tidy(item) for name, item in value.items()}
    return value
