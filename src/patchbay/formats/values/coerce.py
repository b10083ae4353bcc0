"""Convert untyped text to the JSON value that a schema wants, for formats that write arguments without types.

Types are tried in one order for every format; a text that fits none stays text, and no text fails. JSON stays as it was written.
Of a schema only what decides how a text is read counts: types, enums, constants, combinations, local references. Validation is
left to ``patchbay.schema``. Objects and arrays are read strictly, as JSON or as Python writes them, in one pass without
recursion.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from patchbay._json_schema import applicable, item_schema
from patchbay.formats.values.json_strict import JSON_INTEGER, JSON_NUMBER, PYTHON_WORDS, json_string

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
"""Type names in schemas, in lower case: Gemini's schemas use capitals, hand-written ones Python's names."""
_COMBINED = ("anyOf", "oneOf", "allOf")


class Expected:
    """Expectations of some schemas for one value. ``root``: the schema that local references point into.

    Those for parts of the value are computed on first use, once per set of schemas: a schema that refers to itself becomes a
    cycle here, not an endless tree.
    """

    __slots__ = ("_made", "_members", "_others", "_parts", "_root", "names_types", "types")

    def __init__(self, schemas: Iterable[Any], root: Any, made: dict[tuple[int, ...], Expected] | None = None) -> None:
        self._root = root
        self._made: dict[tuple[int, ...], Expected] = {} if made is None else made
        self._parts = applicable(schemas, root, _COMBINED)
        self._members: dict[str, Expected] | None = None
        self._others: Expected | None = None
        named = frozenset(name for part in self._parts for name in _types(part))
        self.types = named or TEXT
        """JSON Schema's type names; "string" if the schemas name none."""
        self.names_types = bool(named)

    @property
    def says_nothing(self) -> bool:
        """True if no schema is known for the value, and so for any part of it."""
        return not self._parts

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the properties in the schemas, in their order."""
        return tuple(self._named())

    @property
    def required(self) -> tuple[str, ...]:
        """Required properties."""
        return tuple(
            key
            for part in self._parts
            if isinstance(part.get("required"), list)
            for key in part["required"]
            if isinstance(key, str)
        )

    def member(self, key: str) -> Expected:
        """Return the expectations for an object's member ``key``."""
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
        """Return the expectations for an array's element ``index``."""
        return self._of([item_schema(part, index) for part in self._parts])

    def _of(self, schemas: list[Any]) -> Expected:
        known = [schema for schema in schemas if isinstance(schema, Mapping)]
        if not known:
            return ANYTHING
        place = tuple(map(id, known))
        found = self._made.get(place)
        if found is None:
            found = self._made[place] = Expected(known, self._root, self._made)
        return found


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that one schema names itself."""
    named = schema.get("type")
    found = {_TYPES.get(name.lower()) for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)}
    values = schema.get("enum")
    if isinstance(values, list):
        found.update(map(_type_of, values))
    if "const" in schema:
        found.add(_type_of(schema["const"]))
    if schema.get("nullable") is True:  # OpenAPI 3.0
        found.add("null")
    if found <= {None, "null"}:  # keywords that only objects or arrays have
        if isinstance(schema.get("properties"), Mapping):
            found.add("object")
        if isinstance(schema.get("items"), Mapping):
            found.add("array")
    return {name for name in found if name is not None}


def _type_of(value: Any) -> str | None:
    if value is None:
        return "null"
    for kind, name in _TYPE_OF:
        if isinstance(value, kind):
            return name
    return None


_TYPE_OF: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),  # before int: a bool is one
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (Mapping, "object"),
    (list, "array"),
)

ANYTHING: Final = Expected((), None)
"""Expectations without a schema: a text stays a text."""


MAX_DEPTH: Final = 128
"""Maximum nesting of a literal; the validator (``patchbay.schema``) rejects deeper arguments too."""
MAX_DIGITS: Final = 4300
"""Maximum digits of an integer: Python's own parsers, which receive the arguments, reject more."""

Retype = Callable[[str, Expected, int], str | None]
"""Takes a string's text, what is expected there and how deeply it may be nested; returns JSON, or None if it stays a string."""

_TOKEN = re.compile(
    r"""[ \t\r\n]*+(?:(?P<opens>[\[{(])|(?P<closes>[\]})])|(?P<comma>,)|(?P<colon>:)|(?P<quote>["'])"""
    r"""|(?P<constant>(?:true|True|false|False|null|None)\b)|(?P<number>[-+.0-9][-+.\w]*+))"""
)
_FOREIGN_NUMBER = re.compile(r"[-+.0-9eE_]{1,64}")
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]*+'), "'": re.compile(r"""[^'"\\\x00-\x1f]*+""")}
_ESCAPE = re.compile(
    r"""\\(?:(?P<json>["\\/bfnrt]|u[0-9a-fA-F]{4})|(?P<hex>x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8})|(?P<octal>[0-7]{1,3})"""
    r"""|(?P<bell>[av])|(?P<itself>['_])|(?P<line>\n))"""
)
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_COLON = re.compile(r"[ \t\r\n]*+:")
_LARGEST_EXACT = 2**53


def number_json(text: str, *, json_only: bool = False) -> str | None:
    """Return JSON for a number, None for anything else: JSON unchanged, other numbers as Python reads them (``+5``, ``007``).

    ``json_only`` accepts JSON only. NaN, infinity and numbers that overflow to it are rejected.
    """
    if JSON_NUMBER.fullmatch(text):
        whole = JSON_INTEGER.fullmatch(text)
        readable = len(text) <= MAX_DIGITS if whole else math.isfinite(float(text))
        return text if readable else None
    if json_only or not _FOREIGN_NUMBER.fullmatch(text):
        return None
    for read in (int, float):
        try:
            return _json_number(read(text))
        except ValueError:
            continue
    return None


def integer_json(text: str, *, json_only: bool = False) -> str | None:
    """Return JSON for an integral number, written without fraction; None for anything else.

    ``json_only`` as in ``number_json``.
    """
    number = number_json(text, json_only=json_only)
    if number is None or JSON_INTEGER.fullmatch(number):
        return number
    written = _json_number(float(number))
    return written if written is not None and JSON_INTEGER.fullmatch(written) else None


def _json_number(value: float) -> str | None:
    if not math.isfinite(value):
        return None
    return str(int(value)) if isinstance(value, int) or (value.is_integer() and abs(value) <= _LARGEST_EXACT) else repr(value)


@dataclass(slots=True)
class _Open:
    """An open container: its closer, what is expected of it and of its next value, the number of commas so far."""

    closer: str
    expected: Expected
    member: Expected
    commas: int = 0

    @property
    def below(self) -> Expected:
        """Expectations for the next value."""
        return self.member if self.closer == "}" else self.expected.element(self.commas)


def container_json(text: str, expected: Expected, retype: Retype | None = None, *, depth_left: int = MAX_DEPTH) -> str | None:
    """Return JSON for a text that is an object or array; None for any other.

    ``retype``, if given, is called for each string in it where ``expected`` wants none. Each token is converted to JSON; whether
    their order is valid is left to the JSON parser.
    """
    out: list[str] = []
    stack: list[_Open] = []
    pos, before = 0, ""
    while stack or not out:
        found = _TOKEN.match(text, pos)
        kind = (found.lastgroup or "") if found else ""
        if found is None or not (stack or kind == "opens"):
            return None
        piece: str | None = found[kind]
        out.append(text[pos : found.start(kind)])
        pos = found.end()
        if kind == "opens":
            inside = stack[-1].below if stack else expected
            stack.append(_Open(_CLOSERS[found[kind]], inside, inside))
            if len(stack) > depth_left:
                return None
            piece = "{" if piece == "{" else "["
        elif kind == "closes":
            top = stack.pop()
            if piece != top.closer or (piece == ")" and not top.commas and before != "opens"):
                return None  # the closer of another container, or parentheses around one value, which are not a tuple
            if before == "comma":
                out[-2] = ""  # a trailing comma
            piece = "}" if piece == "}" else "]"
        elif kind == "comma":
            if before in ("opens", "comma"):
                return None
            stack[-1].commas += 1
        elif kind != "colon":
            top = stack[-1]
            if before not in ("opens", "comma", "colon"):
                return None
            piece, pos = _string_json(text, pos - 1) if kind == "quote" else (_word_json(found), pos)
            if piece is not None and top.closer == "}" and _COLON.match(text, pos):
                piece = piece if kind == "quote" else f'"{piece}"'
                top.member = top.expected if top.expected.says_nothing else top.expected.member(json.loads(piece))
            elif piece is not None and kind == "quote" and retype is not None and "string" not in top.below.types:
                piece = retype(json.loads(piece), top.below, depth_left - len(stack)) or piece
        if piece is None:
            return None
        out.append(piece)
        before = kind
    written = "".join(out)
    try:
        json.loads(written)
    except ValueError:
        return None
    return None if text[pos:].strip() else written


def _word_json(found: re.Match[str]) -> str | None:
    """Return JSON for a constant or a number; None for anything else."""
    return number_json(found["number"]) if found["number"] else PYTHON_WORDS.get(found["constant"], found["constant"])


def _string_json(text: str, pos: int) -> tuple[str | None, int]:
    """Return JSON for the string whose opening quote is at ``pos`` (None if it does not end), and its end."""
    quote = text[pos]
    plain = _PLAIN[quote]
    pieces = ['"']
    pos += 1
    while True:
        found = plain.match(text, pos)
        if found:
            pieces.append(found.group())
            pos = found.end()
        char = text[pos : pos + 1]
        if char in ("", quote):
            pieces.append('"')
            return "".join(pieces) if char else None, pos + 1
        if char == "\\":
            piece, pos = _escape_json(text, pos)
            pieces.append(piece)
        else:
            pieces.append(json_string(char)[1:-1])
            pos += 1


def _escape_json(text: str, pos: int) -> tuple[str, int]:
    """Return JSON for the escape at ``pos``, and its end. An invalid escape is a backslash, as in Python."""
    found = _ESCAPE.match(text, pos)
    if found is None:
        return "\\\\", pos + 1
    kind, end = found.lastgroup, found.end()
    if kind == "json":
        return found.group(), end
    if kind == "line":
        return "", end
    if kind == "itself":
        return found["itself"], end
    if kind == "bell":
        return "\\u0007" if found["bell"] == "a" else "\\u000b", end
    code = int(found["octal"], 8) if kind == "octal" else int(found["hex"][1:], 16)
    if code > 0x10FFFF:
        return "\\\\", pos + 1
    return json_string(chr(code))[1:-1], end


_MAX_LAYERS = 3
"""Maximum layers of strings in strings; reading each is one pass over the text."""
_BRACKET_TYPES = {"{": "object", "[": "array", "(": "array"}
_WORDS = {"true": "true", "false": "false", "True": "true", "False": "false"}
_BOOLEANS = {"true": "true", "1": "true", "false": "false", "0": "false"}


def coerce(text: str, schema: Any, root: Any) -> str:
    """Return JSON for a text whose ``schema`` is a part of the schema ``root``. Never raises."""
    return typed(text, Expected((schema,), root))


def typed(text: str, expected: Expected) -> str:
    """``coerce`` for known expectations: convert to the first expected type that fits, else to a string."""
    value = _read(text, expected, MAX_DEPTH, 0) if expected.types != {"string"} else None
    return json_string(text) if value is None else value


def decoded_to(json_text: str, expected: Expected) -> str:
    """Return the value inside a JSON string if it is of an expected type other than string, else ``json_text`` unchanged.

    The inside of the value is not converted: its types are the model's own.
    """
    text = _string_value(json_text.strip()) if "string" not in expected.types else None
    if text is None:
        return json_text
    bare = text.strip()
    kind = _BRACKET_TYPES.get(bare[:1])
    if kind in expected.types:
        return container_json(bare, ANYTHING) or json_text
    if "boolean" in expected.types and bare in _WORDS:
        return _WORDS[bare]
    for name, number in (("integer", integer_json), ("number", number_json)):
        if name in expected.types and (value := number(bare, json_only=True)) is not None:
            return value
    return json_text


def _read(text: str, expected: Expected, depth_left: int, layer: int) -> str | None:
    """Convert to the first expected type but string; return None if none fits.

    ``depth_left``: how deeply the value may be nested. ``layer``: in how many strings it stands.
    """
    types, bare = expected.types, text.strip()
    # If text is allowed too, only valid JSON is taken for another type: 02134 may be a code, (1, 2) a remark.
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
    return _read_container(bare, expected, depth_left, layer)


def _read_container(bare: str, expected: Expected, depth_left: int, layer: int) -> str | None:
    """Convert an object or array, or the value in a JSON string that stands where no string should."""
    types = expected.types
    kind = _BRACKET_TYPES.get(bare[:1])
    if "string" in types:
        wanted = kind in types and bare[0] != "("
    else:
        # An object in place of an array is wrong, but kept: validation can report it.
        wanted = kind is not None and not types.isdisjoint(_BRACKET_TYPES.values())
        if layer < _MAX_LAYERS and (inner := _string_value(bare)) is not None:
            return _read(inner, expected, depth_left, layer + 1)
    if not wanted:
        return None

    def retype(text: str, part: Expected, left: int) -> str | None:
        return _read(text, part, left, layer + 1) if layer < _MAX_LAYERS else None

    return container_json(bare, expected, retype, depth_left=depth_left)


def _string_value(bare: str) -> str | None:
    """Return the text of a JSON string; None for any other text."""
    if not bare.startswith('"'):
        return None
    try:
        value = json.loads(bare)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
