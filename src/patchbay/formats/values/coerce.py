"""Text to the value that a schema wants: for formats that write arguments without types (XML parameters, key/value tags).

The ladder of types is tried in one order for every format; what fits none of them stays the text it is, and no text fails. A
value that is JSON already comes out as it was written. Which types a schema allows is found in ``expected``, objects and arrays
are read in ``literals``; whether the arguments that come out are valid is for ``patchbay.schema`` to say.
"""

from __future__ import annotations

import json
from typing import Any

from patchbay.formats.values.expected import ANYTHING, Expected
from patchbay.formats.values.literals import MAX_DEPTH, container_json, integer_json, json_string, number_json

__all__ = ["coerce", "decoded", "decoded_to", "json_string", "typed"]

_MOST_LAYERS = 3
"""How often a string in a string is read: each reading is one pass over the text."""
_KINDS = {"{": "object", "[": "array", "(": "array"}
_WORDS = {"true": "true", "false": "false", "True": "true", "False": "false"}
_BOOLEANS = {"true": "true", "1": "true", "false": "false", "0": "false"}


def coerce(text: str, schema: Any, root: Any) -> str:
    """JSON for a text whose ``schema`` is a part of the schema ``root``. Never raises."""
    return typed(text, Expected((schema,), root))


def decoded(json_text: str, schema: Any, root: Any) -> str:
    """The object or array in a JSON string, where ``schema``, a part of ``root``, wants one and no string; else ``json_text``."""
    return decoded_to(json_text, Expected((schema,), root))


def typed(text: str, expected: Expected) -> str:
    """``coerce`` for what is known already: the first of the expected types that the text can be read as, else a string."""
    value = _read(text, expected, MAX_DEPTH, 0) if expected.types != {"string"} else None
    return json_string(text) if value is None else value


def decoded_to(json_text: str, expected: Expected) -> str:
    """``decoded`` for what is known already. What stands inside is not looked at: its types are the model's own."""
    text = _string_value(json_text.strip()) if "string" not in expected.types else None
    if text is None:
        return json_text
    bare = text.strip()
    kind = _KINDS.get(bare[:1])
    if kind in expected.types:
        return container_json(bare, ANYTHING, _keep) or json_text
    if "boolean" in expected.types and bare in _WORDS:
        return _WORDS[bare]
    for name, number in (("integer", integer_json), ("number", number_json)):
        if name in expected.types and (value := number(bare, json_only=True)) is not None:
            return value
    return json_text


def _keep(_text: str, _part: Expected, _room: int) -> None:
    return None


def _read(text: str, expected: Expected, room: int, layer: int) -> str | None:
    """The ladder without its last rung; None where the text fits none of the types.

    ``room``: how deep the value may be nested. ``layer``: how many strings it stands in.
    """
    types, bare = expected.types, text.strip()
    # Beside text, only what is JSON as it stands is taken for something else: 02134 may be a code, (1, 2) a remark.
    texts = "string" in types
    word = bare.lower() if len(bare) <= len("false") else ""
    if "null" in types and (word == "null" or (bare == "None" and not texts)):
        return "null"
    if "integer" in types and (number := integer_json(bare, json_only=texts)) is not None:
        return number
    if "number" in types and (number := number_json(bare, json_only=texts)) is not None:
        return number
    if "boolean" in types and word in _BOOLEANS:
        return _BOOLEANS[word]
    return _read_container(bare, expected, room, layer)


def _read_container(bare: str, expected: Expected, room: int, layer: int) -> str | None:
    """An object or array, or the value in a JSON string that stands where no string should."""
    types = expected.types
    kind = _KINDS.get(bare[:1])
    if "string" in types:
        wanted = kind in types and bare[0] != "("
    else:
        # An object in an array's place is wrong, but it is what was written: whoever checks it can say so.
        wanted = kind is not None and not types.isdisjoint(_KINDS.values())
        if layer < _MOST_LAYERS and (inner := _string_value(bare)) is not None:
            return _read(inner, expected, room, layer + 1)
    if not wanted:
        return None

    def retype(text: str, part: Expected, left: int) -> str | None:
        return _read(text, part, left, layer + 1) if layer < _MOST_LAYERS else None

    return container_json(bare, expected, retype, room=room)


def _string_value(bare: str) -> str | None:
    """What a JSON string says; None for any other text."""
    if not bare.startswith('"'):
        return None
    try:
        value = json.loads(bare)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
