"""JSON Schemas as forms: the part of a schema that a grammar can enforce, and the keywords that are left to be checked.

A form may be narrower than its schema (keys come in the schema's order, numbers have no exponent, nothing is endless), but never
wider without saying so: each keyword is enforced, or listed in ``Compiled.checked``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from patchbay.constraints.forms import (
    ANY_OBJECT,
    MAX_TEXT,
    AnyForm,
    ArrayForm,
    ChoiceForm,
    ConstantForm,
    Form,
    Member,
    NumberForm,
    ObjectForm,
    TextForm,
)
from patchbay.constraints.patterns import DESCRIBED, FORMATS, read_pattern
from patchbay.types import PLAIN_TEXT

MAX_ITEMS: Final = 127
"""Maximum length of an array, where the schema has a greater one or none."""
_MAX_EXACT: Final = 1_000
"""The greatest ``minLength``, ``maxLength`` or ``minItems`` that is enforced: each of them costs a rule per element."""
_DEPTHS: Final = (4, 2, 1)
"""Times that a part of a schema may contain itself: the second and the third where the form would be too large."""
_MAX_LINKS: Final = 8
"""References and ``allOf`` that lead from one schema to another."""
_MAX_FORMS: Final = 4_000
"""Forms of one schema."""

# fmt: off
_ANNOTATIONS: Final = frozenset({
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "nullable", "discriminator",
    "xml", "externalDocs", "strict", "id", "$id", "$schema", "$comment", "$defs", "definitions", "$anchor", "$vocabulary",
    "propertyOrdering",
})
"""Keywords that allow and forbid nothing. ``nullable`` is OpenAPI's: validation ignores it."""
_TYPES: Final = ("object", "array", "string", "integer", "number", "boolean", "null")
_LENGTHS: Final = frozenset({"minLength", "maxLength"})
_NUMERIC: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_KEYWORDS: Final = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": _NUMERIC,
    "number": _NUMERIC,
    "object": frozenset({
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties", "maxProperties",
        "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties",
    }),
    "array": frozenset({
        "items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains",
        "additionalItems", "unevaluatedItems",
    }),
}
# fmt: on
_BOUNDS: Final = _NUMERIC - {"multipleOf"}
_OF_TYPES: Final = frozenset().union(*_KEYWORDS.values())
_UNENFORCED: Final = {
    "object": _KEYWORDS["object"] - {"properties", "required", "additionalProperties"},
    "array": _KEYWORDS["array"] - {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "additionalItems"},
}
_PLAIN: Final = _ANNOTATIONS | _OF_TYPES | {"type"}
_KNOWN: Final = _PLAIN | {"enum", "const", "anyOf", "oneOf"}
_LARGEST: Final = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_SMALLEST: Final = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_WRITTEN_FORM: Final = re.compile(
    r"YYYY-MM-DD|HH:MM(?::SS)?|MM[-/]DD|DD[-/.]MM|ISO[ -]?\d|RFC[ -]?\d|E\.164|BCP ?\d|country code|currency code|language code"
)
"""A description that says how a string is written: it is not taken from the conversation as it stands there."""
_text_form: Final = lru_cache(maxsize=256)(TextForm)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A schema as a form. ``checked``: the keywords that the form does not enforce, each with its place in the schema.

    ``refused`` says why there is no form; any object fits then.
    """

    form: Form
    checked: tuple[str, ...] = ()
    refused: str = ""

    @property
    def unenforced(self) -> tuple[str, ...]:
        """What is left to be checked, in words."""
        return (self.refused,) if self.refused else self.checked


def compile_schema(schema: Any) -> Compiled:
    """Compile the schema of a tool's arguments or of an answer. Never raises: what cannot be expressed is ``refused``."""
    for depth in _DEPTHS:
        compiler = _Compiler(schema, depth)
        try:
            form = compiler.compile(schema, "")
        except (_TooLargeError, RecursionError):
            continue
        except (TypeError, ValueError, AttributeError) as error:
            return Compiled(ANY_OBJECT, refused=f"the schema cannot be read: {error}")
        if form is None:
            return Compiled(ANY_OBJECT, refused="no value that can be written fits the schema")
        return Compiled(form, tuple(dict.fromkeys(compiler.checked)))
    return Compiled(ANY_OBJECT, refused="the schema is too large or nested too deeply")


class _TooLargeError(Exception):
    """There are too many forms in one schema."""


_write: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class _Compiler:
    """Compiles one schema; ``depth``: times that a part of it may contain itself."""

    def __init__(self, root: Any, depth: int) -> None:
        self._root = root
        self._depth = depth
        self._depths: dict[str, int] = {}
        self._forms = 0
        self.checked: list[str] = []

    def compile(self, schema: Any, path: str) -> Form | None:
        """Return the form of a schema; None if no value fits it, or if it contains itself too often."""
        self._forms += 1
        if self._forms > _MAX_FORMS:
            raise _TooLargeError
        if not isinstance(schema, (dict, Mapping)):  # (a dict is recognised at once)
            if schema is True:
                return AnyForm()
            if schema is False:
                return None
            raise TypeError(f"{path or 'the schema'} is no object")
        if schema.keys() <= _PLAIN:
            return self._typed(schema, path)
        if "$ref" in schema:
            return self._referred(schema, path)
        if "allOf" in schema:
            return self._all(schema, path)
        for keyword in schema:
            if keyword not in _KNOWN and (keyword, schema[keyword]) != ("contentMediaType", PLAIN_TEXT):  # (every text is one)
                self._check(keyword, path)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._choice(schema, keyword, path)
        if "const" in schema or "enum" in schema:
            return self._constants(schema, path)
        return self._typed(schema, path)

    def _check(self, keyword: str, path: str) -> None:
        self.checked.append(f"{path}/{keyword}" if path else keyword)

    def _check_all(self, keywords: frozenset[str], schema: Mapping[str, Any], path: str) -> None:
        if not keywords.isdisjoint(schema):
            self.checked += [f"{path}/{keyword}" if path else keyword for keyword in schema if keyword in keywords]

    def _referred(self, schema: Mapping[str, Any], path: str) -> Form | None:
        target = schema["$ref"]
        if self._depths.get(target, 0) >= self._depth:
            return None
        self._depths[target] = self._depths.get(target, 0) + 1
        try:
            rest = _without(schema, "$ref")
            found = self._find(target)
            return self.compile(self._merge(rest, _as_schema(found), path) if rest.keys() - _ANNOTATIONS else found, path)
        finally:
            self._depths[target] -= 1

    def _find(self, target: Any) -> Any:
        """Return the schema that a reference names."""
        if not isinstance(target, str) or not (target == "#" or target.startswith("#/")):
            raise ValueError(f"the reference {target!r} leads out of the schema")
        found = self._root
        for name in target.split("/")[1:]:
            key = unquote(name).replace("~1", "/").replace("~0", "~")
            if isinstance(found, Sequence) and not isinstance(found, str) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                raise ValueError(f"the reference {target!r} leads nowhere")
        return found

    def _all(self, schema: Mapping[str, Any], path: str) -> Form | None:
        """Return the form of the values that fit each schema in ``allOf``, and what stands beside it."""
        merged = _without(schema, "allOf")
        parts = schema["allOf"]
        if len(parts) == 1 and not merged.keys() - _ANNOTATIONS:
            return self.compile(parts[0], path)
        for part in parts:
            if part is False:
                return None
            if part is not True:
                merged = self._merge(merged, self._resolve(part, path), path)
        return self.compile(merged, path)

    def _resolve(self, part: Any, path: str) -> Mapping[str, Any]:
        """Return a schema without references and ``allOf`` at its top."""
        for _ in range(_MAX_LINKS):
            if not isinstance(part, Mapping):
                raise TypeError(f"a part of {path or 'the schema'} is no object")
            if "$ref" in part:
                part = self._merge(_without(part, "$ref"), _as_schema(self._find(part["$ref"])), path)
            elif "allOf" in part:
                merged = _without(part, "allOf")
                for inner in part["allOf"]:
                    merged = self._merge(merged, self._resolve(_as_schema(inner), path), path)
                part = merged
            else:
                return part
        raise _TooLargeError

    def _merge(self, one: Mapping[str, Any], other: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Merge two schemas that both hold; where two keywords cannot be merged the second is left to be checked."""
        merged = dict(one)
        for key, value in other.items():
            if key not in merged or key in _ANNOTATIONS or _same(merged[key], value):
                merged.setdefault(key, value)
            elif key == "properties":
                merged[key] = {
                    name: {"allOf": [side[name] for side in (merged[key], value) if name in side]}
                    for name in dict.fromkeys([*merged[key], *value])
                }
            elif key == "required":
                merged[key] = list(dict.fromkeys([*merged[key], *value]))
            elif key == "type":
                merged[key] = _common_types(_as_list(merged[key]), _as_list(value))
            elif key == "enum":
                merged[key] = [each for each in merged[key] if any(_same(each, allowed) for allowed in value)]
            elif key in _LARGEST:
                merged[key] = max(merged[key], value)
            elif key in _SMALLEST:
                merged[key] = min(merged[key], value)
            elif key in ("items", "additionalProperties"):
                merged[key] = {"allOf": [merged[key], value]}
            else:
                self._check(f"allOf/{key}", path)
        for side, beside in ((one, other), (other, one)):
            extra = side.get("additionalProperties", True)
            if extra is not True:  # it holds for the properties that the other schema names, too
                for name in (beside.get("properties") or {}).keys() - (side.get("properties") or {}).keys():
                    merged["properties"] = {**merged["properties"], name: {"allOf": [merged["properties"][name], extra]}}
            if "items" in side and "prefixItems" in beside and "prefixItems" not in side:
                self._check("allOf/items", path)
        return merged

    def _choice(self, schema: Mapping[str, Any], keyword: str, path: str) -> Form | None:
        options, rest = schema[keyword], _without(schema, keyword)
        is_bare = not rest.keys() - _ANNOTATIONS
        if keyword == "oneOf" and not _are_apart([self._resolve(_as_schema(option), path) for option in options]):
            self._check("oneOf", path)
        found: list[Form] = []
        for index, option in enumerate(options):
            merged = option if is_bare else self._merge(self._resolve(_as_schema(option), path), rest, path)
            form = self.compile(merged, f"{path}/{keyword}/{index}")
            if form is not None and form not in found:
                found.append(form)
        return _one_of(found)

    def _constants(self, schema: Mapping[str, Any], path: str) -> Form | None:
        values = schema.get("enum", [])
        if "const" in schema:
            values = [schema["const"]] if "enum" not in schema or any(_same(schema["const"], each) for each in values) else []
        types = _as_list(schema.get("type", list(_TYPES)))
        self._check_all(_OF_TYPES, schema, path)
        texts = dict.fromkeys([_write(value) for value in values if _has_type(value, types)])
        found = tuple(filter(_is_unicode, texts))
        return ConstantForm(found) if found else None

    def _typed(self, schema: Mapping[str, Any], path: str) -> Form | None:
        if "type" in schema:
            types = schema["type"]
            if isinstance(types, str):
                return self._of_type(types, schema, path)
        else:
            types = [name for name in _TYPES if name != "integer" and schema.keys() & _KEYWORDS.get(name, frozenset())]
            if not types:
                return AnyForm()
        found = [form for name in _as_list(types) if (form := self._of_type(name, schema, path)) is not None]
        return _one_of(found)

    def _of_type(self, name: str, schema: Mapping[str, Any], path: str) -> Form | None:
        if name == "string":
            return self._text(schema, path)
        if name in ("integer", "number"):
            return self._number(schema, path, integer=name == "integer")
        if name == "object":
            return self._object(schema, path)
        if name == "array":
            return self._array(schema, path)
        if name == "boolean":
            return ConstantForm(("true", "false"))
        if name == "null":
            return ConstantForm(("null",))
        raise ValueError(f"{path or 'the schema'} has an unknown type: {name!r}")

    def _text(self, schema: Mapping[str, Any], path: str) -> Form | None:
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        most = None if most is None else int(most)
        if most is not None and most < least:
            return None
        if ("pattern" in schema or "format" in schema) and (pattern := self._text_pattern(schema, path)) is not None:
            self._check_all(_LENGTHS, schema, path)
            return TextForm(pattern=pattern)
        if least > _MAX_EXACT:
            self._check("minLength", path)
            least = 0
        if most is not None and most > _MAX_EXACT:
            if most < MAX_TEXT:
                self._check("maxLength", path)
            most = None
        written = _WRITTEN_FORM.search(str(schema.get("description", "")))
        is_free = least <= 1 and most is None and written is None and "format" not in schema
        return _text_form(least, most, copied=is_free, described=DESCRIBED.get(written[0]) if written else None)

    def _text_pattern(self, schema: Mapping[str, Any], path: str) -> str | None:
        pattern = FORMATS.get(schema.get("format", ""))
        if "pattern" in schema:
            if pattern is None and read_pattern(schema["pattern"]) is not None:
                pattern = schema["pattern"]
            else:
                self._check("pattern", path)
        if pattern is None and schema.get("format") is not None:
            self._check("format", path)
        return pattern

    def _number(self, schema: Mapping[str, Any], path: str, *, integer: bool) -> Form | None:
        if "multipleOf" in schema and not (integer and schema["multipleOf"] == 1):
            self._check("multipleOf", path)
        least, most = _bound(schema, "minimum", "exclusiveMinimum", 1), _bound(schema, "maximum", "exclusiveMaximum", -1)
        if not integer:
            for keyword in schema.keys() & _BOUNDS:
                if keyword != "minimum" or schema[keyword] != 0:
                    self._check(keyword, path)
            return NumberForm(positive=least is not None and least >= 0)
        for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
            if isinstance(schema.get(keyword), bool):  # (draft 4)
                self._check(keyword, path)
        if least is not None and most is not None and least > most:
            return None
        return NumberForm(integer=True, least=least, most=most, positive=least is not None and least >= 0)

    def _object(self, schema: Mapping[str, Any], path: str) -> Form | None:
        self._check_all(_UNENFORCED["object"], schema, path)
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        extra = schema.get("additionalProperties", True)
        members: list[Member] = []
        for name in dict.fromkeys((*properties, *required)):
            form = self.compile(properties.get(name, extra), f"{path}/{name}") if _is_unicode(name) else None
            if form is not None:
                members.append(Member(name, form, name in required))
            elif name in required:
                return None
        if members or properties or extra is False or (extra is True and "properties" in schema):
            return ObjectForm(tuple(members))
        return ObjectForm(extra=self.compile(extra, f"{path}/additionalProperties"))

    def _array(self, schema: Mapping[str, Any], path: str) -> Form | None:
        items, prefix = schema.get("items", True), schema.get("prefixItems") or ()
        if isinstance(items, list):  # before 2020-12
            prefix, items = items, schema.get("additionalItems", True)
        elif "additionalItems" in schema:
            self._check("additionalItems", path)
        self._check_all(_UNENFORCED["array"], schema, path)
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        if schema.get("uniqueItems") and (most is None or most > 1):
            self._check("uniqueItems", path)
        first: list[Form] = []
        for index, part in enumerate(prefix):
            form = self.compile(part, f"{path}/prefixItems/{index}")
            if form is None:
                break
            first.append(form)
        rest = self.compile(items, f"{path}/items") if len(first) == len(prefix) else None
        if least > _MAX_EXACT:
            self._check("minItems", path)
            least = 0
        limit = len(first) if rest is None else max(MAX_ITEMS, least)
        limit = limit if most is None else min(limit, int(most))
        if limit < least:
            return None
        return ArrayForm(tuple(first[:limit]), rest, least, limit)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _as_schema(value: Any) -> Any:
    """Return a schema that is true or false as an object."""
    return {} if value is True else {"enum": []} if value is False else value


def _without(schema: Mapping[str, Any], keyword: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != keyword}


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, apart from numbers with and without a fraction of zero."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _is_unicode(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, which has no UTF-8."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _one_of(forms: Sequence[Form]) -> Form | None:
    if len(forms) < 2:
        return forms[0] if forms else None
    flat: list[Form] = []
    for form in forms:
        flat += form.options if isinstance(form, ChoiceForm) else (form,)
    flat = list(dict.fromkeys(flat))
    return flat[0] if len(flat) == 1 else ChoiceForm(tuple(flat))


def _common_types(one: list[Any], other: list[Any]) -> list[Any]:
    """Return the types in both; an integer is a number."""
    common = [name for name in one if name in other]
    if "integer" not in common and {"integer", "number"} <= {*one, *other}:
        common.append("integer")
    return common


def _are_apart(options: Sequence[Any]) -> bool:
    """Whether no value can fit two of the schemas, as far as their types, constants and required constants show."""
    kinds = [_as_list(option.get("type")) if isinstance(option, Mapping) and "type" in option else None for option in options]
    names = [name for kind in kinds for name in kind or ()]
    if None not in kinds and len(names) == len(set(names)) and not {"integer", "number"} <= set(names):
        return True
    return any(_tags_differ(options, name) for name in _tag_names(options))


def _tag_names(options: Sequence[Any]) -> list[str]:
    first = options[0] if options and isinstance(options[0], Mapping) else {}
    return list(first.get("required") or ())


def _tags_differ(options: Sequence[Any], name: str) -> bool:
    """Whether each schema requires another constant under a name."""
    tags: list[str] = []
    for option in options:
        if not isinstance(option, Mapping) or name not in (option.get("required") or ()):
            return False
        tag = (option.get("properties") or {}).get(name)
        if not isinstance(tag, Mapping) or not ("const" in tag or "enum" in tag):
            return False
        tags += [json.dumps(value) for value in ([tag["const"]] if "const" in tag else tag["enum"])]
    return len(tags) == len(set(tags))


def _has_type(value: Any, types: Sequence[Any]) -> bool:
    if isinstance(value, str):
        return "string" in types
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, int):
        return "integer" in types or "number" in types
    if isinstance(value, float):
        return "number" in types or ("integer" in types and value.is_integer())
    if value is None:
        return "null" in types
    return ("object" if isinstance(value, Mapping) else "array") in types


def _bound(schema: Mapping[str, Any], inclusive: str, exclusive: str, step: int) -> int | None:
    """Return the bound of an integer, inclusive; ``step`` leads from an exclusive bound into the range."""
    bounds: list[int] = []
    for name in (inclusive, exclusive):
        value = schema.get(name)
        if value is None or isinstance(value, bool):
            continue
        rounded = -(-value // 1) if step > 0 else value // 1  # towards the range
        is_excluded = name == exclusive and rounded == value
        bounds.append(int(rounded) + (step if is_excluded else 0))
    if not bounds:
        return None
    return max(bounds) if step > 0 else min(bounds)
