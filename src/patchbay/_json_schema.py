"""Reading of JSON Schemas of any draft: subschemas, references, and the schemas that apply to a value together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

# Keywords whose value is a schema, a list of schemas, or a dict of schemas. All other keywords hold data.
ONE = frozenset({
    "items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties", "propertyNames",
    "not", "if", "then", "else", "contentSchema",
})  # fmt: skip
LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
DICTS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})


def follow(root: Any, reference: str) -> Any:
    """Return the target of a local ``$ref``; None for a dangling or remote reference."""
    if not reference.startswith("#"):
        return None
    here = root
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(here, Mapping):
            here = here.get(key)
        elif isinstance(here, list) and key.isascii() and key.isdigit() and len(key) < 10 and int(key) < len(here):
            here = here[int(key)]
        else:
            return None
    return here


def children(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the direct subschemas of ``schema``."""
    for key, value in schema.items():
        if key in ONE:
            yield from value if isinstance(value, list) else (value,)
        elif key in LISTS and isinstance(value, list):
            yield from value
        elif key in DICTS and isinstance(value, Mapping):
            yield from value.values()


def unresolved(root: Mapping[str, Any]) -> str | None:
    """Return the first dangling or remote reference in ``root``, None if there is none."""
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


def applicable(schemas: Iterable[Any], root: Any, keywords: Sequence[str] = ("allOf",)) -> list[Mapping[str, Any]]:
    """Return the schemas with those that they refer to by ``$ref``, then those in their ``keywords``, each once."""
    parts: dict[int, Mapping[str, Any]] = {}
    waiting = list(schemas)[::-1]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, Mapping) or id(schema) in parts:
            continue
        parts[id(schema)] = schema
        for keyword in reversed(keywords):
            if isinstance(branches := schema.get(keyword), list | tuple):
                waiting.extend(reversed(branches))
        if isinstance(reference := schema.get("$ref"), str):
            waiting.append(follow(root, reference))
    return list(parts.values())


def item_schema(schema: Mapping[str, Any], index: int) -> Any:
    """Return the schema for the item at ``index`` of an array, None if there is none."""
    items = schema.get("items")
    # Before draft 2020-12, "items" held the list of the leading items' schemas, and "additionalItems" the schema of the rest.
    leading = items if isinstance(items, list) else schema.get("prefixItems")
    rest = schema.get("additionalItems") if isinstance(items, list) else items
    if isinstance(leading, list) and index < len(leading):
        return leading[index]
    return rest if isinstance(rest, Mapping) else None


def types_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the type names of a schema; empty without ``type``."""
    wanted = schema.get("type")
    if isinstance(wanted, str):
        return [wanted]
    return [name for name in wanted if isinstance(name, str)] if isinstance(wanted, list) else []
