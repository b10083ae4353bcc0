"""Conversion of arguments to the types that a schema asks for."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patchbay._json_schema import applicable, item_schema, types_of
from patchbay.schema.arguments import UnreadableArgumentsError, json_type, read_arguments

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,1000})\Z")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,2})?\Z")


@dataclass(frozen=True)
class Coercer:
    """Converts arguments to the types of the schema ``root``, which local ``$ref`` are resolved in."""

    root: Mapping[str, Any]
    coerce_types: bool
    use_defaults: bool

    def apply(self, value: Any) -> Any:
        """Return ``value`` converted; containers are changed in place."""
        return self._convert(value, [self.root])

    def _convert(self, value: Any, schemas: list[Any]) -> Any:
        # All schemas that apply to a value are collected before its children are visited: each value is visited once, however
        # often a schema names the same part of it.
        parts = applicable(schemas, self.root)
        if self.coerce_types:
            for part in parts:
                value = self._coerce(value, part)
        if isinstance(value, dict):
            self._convert_properties(value, parts)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if below := [sub for part in parts if (sub := item_schema(part, index)) is not None]:
                    value[index] = self._convert(item, below)
        return value

    def _convert_properties(self, value: dict[str, Any], parts: list[Mapping[str, Any]]) -> None:
        wanted: dict[str, list[Any]] = {}
        for part in parts:
            properties = part.get("properties")
            named = properties if isinstance(properties, Mapping) else {}
            for name, sub in named.items():
                wanted.setdefault(name, []).append(sub)
            if isinstance(others := part.get("additionalProperties"), Mapping):
                for name in value.keys() - named.keys():
                    wanted.setdefault(name, []).append(others)
        for name, schemas in wanted.items():
            if name in value:
                value[name] = self._convert(value[name], schemas)
            elif self.use_defaults:
                default = next((part["default"] for part in applicable(schemas, self.root) if "default" in part), _NONE)
                if default is not _NONE:
                    # Not filled in itself: a recursive default would never end.
                    value[name] = copy.deepcopy(default)

    def _coerce(self, value: Any, schema: Mapping[str, Any]) -> Any:
        wanted = types_of(schema)
        branches = schema.get("anyOf") or schema.get("oneOf")
        if not wanted and isinstance(branches, list):
            wanted = [name for part in applicable(branches, self.root) for name in types_of(part)]
        if not wanted or _fits(value, wanted):
            return value
        for name in wanted:
            coerced = _COERCIONS[name](value) if name in _COERCIONS else _NONE
            if coerced is not _NONE:
                return coerced
        return value


def _fits(value: Any, wanted: list[str]) -> bool:
    actual = json_type(value)
    if actual in wanted or (actual == "integer" and "number" in wanted):
        return True
    return actual == "number" and "integer" in wanted and float(value).is_integer()


def _to_integer(value: Any) -> Any:
    if isinstance(value, str):
        text = value.strip()
        if _INTEGER.match(text):
            return int(text)
        if _NUMBER.match(text) and float(text).is_integer():
            return int(float(text))
    return _NONE


def _to_number(value: Any) -> Any:
    integer = _to_integer(value)
    if integer is not _NONE:
        return integer
    return float(value.strip()) if isinstance(value, str) and _NUMBER.match(value.strip()) else _NONE


def _to_boolean(value: Any) -> Any:
    return {"true": True, "false": False}.get(value.strip().lower(), _NONE) if isinstance(value, str) else _NONE


def _to_string(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, bool | int | float) else _NONE


def _to_null(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() in ("null", "none", "") else _NONE


def _to_array(value: Any) -> Any:
    return _parse_json_string(value, "[", list)


def _to_object(value: Any) -> Any:
    return _parse_json_string(value, "{", dict)


def _parse_json_string(value: Any, bracket: str, kind: type) -> Any:
    """Decode a value that a model wrote as a string of JSON, which is common."""
    if not isinstance(value, str) or not value.lstrip().startswith(bracket):
        return _NONE
    try:
        inner = read_arguments(f'{{"it":{value}}}')["it"]
    except (UnreadableArgumentsError, KeyError):
        return _NONE
    return inner if isinstance(inner, kind) else _NONE


_NONE = object()
_COERCIONS = {
    "integer": _to_integer,
    "number": _to_number,
    "boolean": _to_boolean,
    "null": _to_null,
    "string": _to_string,
    "array": _to_array,
    "object": _to_object,
}
