"""Local ``$ref`` in a JSON Schema: followed, and written out where a reader knows none.

What lives here: references, nothing of what else a schema says. Nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

# The keywords whose value is a schema, a list of schemas, or a dict of schemas; under all others stands data.
ONE = frozenset({
    "items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties", "propertyNames",
    "not", "if", "then", "else", "contentSchema",
})  # fmt: skip
LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
DICTS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})


def follow(root: Any, reference: str) -> Any:
    """Return the schema that a local reference names; None for one that leads nowhere, or out of ``root``."""
    if not reference.startswith("#"):
        return None
    here = root
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(here, Mapping):
            here = here.get(key)
        elif isinstance(here, list) and key.isdigit() and int(key) < len(here):
            here = here[int(key)]
        else:
            return None
    return here


def children(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas that stand directly in ``schema``."""
    for key, value in schema.items():
        if key in ONE:
            yield from value if isinstance(value, list) else (value,)
        elif key in LISTS and isinstance(value, list):
            yield from value
        elif key in DICTS and isinstance(value, Mapping):
            yield from value.values()


def unresolved(root: Mapping[str, Any]) -> str | None:
    """Return a reference in ``root`` that leads nowhere or away from it, None if there is none."""
    waiting: list[Any] = [root]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, Mapping):
            continue
        reference = schema.get("$ref")
        if isinstance(reference, str) and not isinstance(follow(root, reference), Mapping | bool):
            return reference
        waiting.extend(children(schema))
    return None
