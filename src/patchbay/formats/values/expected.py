"""What a JSON Schema expects of one value: which types it allows, and what it expects of the value's parts.

Only what decides how an untyped text is read: types, enums, constants, combinations, local references. Whether a value is valid
is none of it, that is ``patchbay.schema``'s work. Any value may stand where a schema should: foreign schemas are often wrong, and
what is not understood says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

TEXT: Final = frozenset({"string"})
LIST: Final = frozenset({"array"})
NUMBERS: Final = frozenset({"integer", "number"})

_TYPES = {
    **dict.fromkeys(("null", "none"), "null"),
    **dict.fromkeys(("integer", "int", "long"), "integer"),
    **dict.fromkeys(("number", "float", "double"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("object", "dict"), "object"),
    **dict.fromkeys(("array", "list", "tuple"), "array"),
    **dict.fromkeys(("string", "str"), "string"),
}
"""Type names as they are written, in lower case: Gemini's schemas shout, and hand-written ones use Python's names."""
_COMBINED = ("anyOf", "oneOf", "allOf")


class Expected:
    """What some schemas expect of one value. ``root`` is where local references point.

    What is expected of the value's parts is found when it is first asked for, once for each set of schemas: a schema that refers
    to itself is a circle here and no endless tree.
    """

    __slots__ = ("_made", "_members", "_others", "_parts", "_root", "names_types", "types")

    def __init__(self, schemas: Iterable[Any], root: Any, made: dict[tuple[int, ...], Expected] | None = None) -> None:
        self._root = root
        self._made: dict[tuple[int, ...], Expected] = {} if made is None else made
        self._parts = _parts(schemas, root)
        self._members: dict[str, Expected] | None = None
        self._others: Expected | None = None
        named = frozenset(name for part in self._parts for name in _types(part))
        self.types = named or TEXT
        """JSON Schema's names; a text where the schemas name none."""
        self.names_types = bool(named)

    @property
    def says_nothing(self) -> bool:
        """No schema is known for the value, so none for any part of it."""
        return not self._parts

    @property
    def keys(self) -> tuple[str, ...]:
        """The properties that the schemas name, in their order."""
        return tuple(self._named())

    @property
    def required(self) -> tuple[str, ...]:
        """The properties that must be there."""
        return tuple(
            key
            for part in self._parts
            if isinstance(part.get("required"), list)
            for key in part["required"]
            if isinstance(key, str)
        )

    def member(self, key: str) -> Expected:
        """What is expected of an object's member ``key``."""
        return self._named().get(key) or self._unnamed()

    def _named(self) -> dict[str, Expected]:
        if self._members is None:
            found: dict[str, list[Any]] = {}
            for part in self._parts:
                properties = part.get("properties")
                for key, schema in properties.items() if isinstance(properties, Mapping) else ():
                    if isinstance(key, str):
                        found.setdefault(key, []).append(schema)
            self._members = {key: self._of(schemas) for key, schemas in found.items()}
        return self._members

    def _unnamed(self) -> Expected:
        if self._others is None:
            self._others = self._of([part["additionalProperties"] for part in self._parts if "additionalProperties" in part])
        return self._others

    def element(self, index: int) -> Expected:
        """What is expected of an array's element ``index``."""
        found = []
        for part in self._parts:
            items = part.get("items")
            # Before 2020-12 the leading elements' schemas were a list in "items", and "additionalItems" was for the rest.
            leading = items if isinstance(items, list) else part.get("prefixItems")
            rest = part.get("additionalItems") if isinstance(items, list) else items
            found.append(leading[index] if isinstance(leading, list) and index < len(leading) else rest)
        return self._of(found)

    def _of(self, schemas: list[Any]) -> Expected:
        known = [schema for schema in schemas if isinstance(schema, Mapping)]
        if not known:
            return ANYTHING
        place = tuple(map(id, known))
        found = self._made.get(place)
        if found is None:
            found = self._made[place] = Expected(known, self._root, self._made)
        return found


def _parts(schemas: Iterable[Any], root: Any) -> list[Mapping[str, Any]]:
    """The schemas and all that they refer to or are combined of, each once."""
    parts: dict[int, Mapping[str, Any]] = {}
    waiting = list(schemas)[::-1]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, Mapping) or id(schema) in parts:
            continue
        parts[id(schema)] = schema
        reference = schema.get("$ref")
        if isinstance(reference, str):
            waiting.append(_follow(root, reference))
        for word in reversed(_COMBINED):
            branches = schema.get(word)
            if isinstance(branches, list):
                waiting.extend(reversed(branches))
    return list(parts.values())


def _follow(root: Any, reference: str) -> Any:
    """The schema that a local reference names; None for any other."""
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


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The types that one schema names itself."""
    named = schema.get("type")
    found = {_TYPES.get(name.lower()) for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)}
    values = schema.get("enum")
    if isinstance(values, list):
        found.update(map(_type_of, values))
    if "const" in schema:
        found.add(_type_of(schema["const"]))
    if schema.get("nullable") is True:  # OpenAPI 3.0
        found.add("null")
    if found <= {None, "null"}:  # what only an object or array can have
        if isinstance(schema.get("properties"), Mapping):
            found.add("object")
        if isinstance(schema.get("items"), Mapping):
            found.add("array")
    return {name for name in found if name is not None}


def _type_of(value: Any) -> str | None:
    if value is None:
        return "null"
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    return None


_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),  # before int: a bool is one
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (Mapping, "object"),
    (list, "array"),
)

ANYTHING: Final = Expected((), None)
"""Where no schema is known: a text is a text."""
