"""JSON Schemas as forms: the part of a schema that a grammar can enforce, and the keywords that are left to be checked.

A form may be narrower than its schema (keys come in the schema's order, numbers have no exponent, nothing is endless), but never
wider without saying so: each keyword is enforced, or listed in ``Compiled.checked``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from patchbay.constraints.patterns import FORMATS, read_pattern


@dataclass(frozen=True, slots=True)
class TextForm:
    """A string. ``pattern``: a regular expression that it matches. ``copied``: it may be copied from the conversation."""

    least: int = 0
    most: int | None = None
    pattern: str | None = None
    copied: bool = False


@dataclass(frozen=True, slots=True)
class NumberForm:
    """A number; the bounds, both inclusive, are those of an integer. ``positive``: it is not below zero."""

    integer: bool = False
    least: int | None = None
    most: int | None = None
    positive: bool = False
    copied: bool = False


@dataclass(frozen=True, slots=True)
class ConstantForm:
    """One of several values, given as JSON texts."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object."""

    name: str
    form: Form
    required: bool


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """An object: its members in this order. ``extra``: the form of all values, where no member is named."""

    members: tuple[Member, ...] = ()
    extra: Form | None = None


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """An array. ``items`` is the form of those after ``first``, None if there are none."""

    first: tuple[Form, ...] = ()
    items: Form | None = None
    least: int = 0
    most: int = 0


@dataclass(frozen=True, slots=True)
class ChoiceForm:
    """A value of one of several forms."""

    options: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class AnyForm:
    """Any JSON value, nested at most ``depth`` levels deep."""

    depth: int = 3


Form: TypeAlias = TextForm | NumberForm | ConstantForm | ObjectForm | ArrayForm | ChoiceForm | AnyForm

ANY_OBJECT: Final = ObjectForm(extra=AnyForm())

MAX_TEXT: Final = 65_535
"""Maximum length of a string in characters, where the schema has a greater one or none."""
MAX_ITEMS: Final = 127
"""Maximum length of an array, where the schema has a greater one or none."""
_MAX_EXACT: Final = 1_000
"""The greatest ``minLength``, ``maxLength`` or ``minItems`` that is enforced: each of them costs a rule per element."""
_MAX_DEPTH: Final = 4
"""Times that a schema may contain itself."""
_MAX_FORMS: Final = 4_000
"""Forms of one schema."""

_ANNOTATIONS: Final = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "contentMediaType",
        "contentEncoding",
        "discriminator",
        "xml",
        "externalDocs",
        "strict",
        "id",
        "$id",
        "$schema",
        "$comment",
        "$defs",
        "definitions",
        "$anchor",
        "$vocabulary",
        "propertyOrdering",
    ]
)
_TYPES: Final = ("object", "array", "string", "integer", "number", "boolean", "null")
_KEYWORDS: Final = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "object": frozenset(
        [
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "propertyNames",
            "minProperties",
            "maxProperties",
            "dependentRequired",
            "dependentSchemas",
            "dependencies",
            "unevaluatedProperties",
        ]
    ),
    "array": frozenset(
        [
            "items",
            "prefixItems",
            "minItems",
            "maxItems",
            "uniqueItems",
            "contains",
            "minContains",
            "maxContains",
            "additionalItems",
            "unevaluatedItems",
        ]
    ),
}
_OF_TYPES: Final = frozenset().union(*_KEYWORDS.values())
_WRITTEN_FORM: Final = re.compile(
    r"YYYY|HH:MM|MM[-/]DD|DD[-/.]MM|ISO[ -]?\d|RFC[ -]?\d|E\.164|\bUTC\b|\bBCP\b|[A-Z]{3}[ -]code|country code|currency code"
)
"""A description that says how a string is written: it is not taken from the conversation as it stands there."""


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
    compiler = _Compiler(schema)
    try:
        form = compiler.compile(schema, "")
    except (_TooLargeError, RecursionError):
        return Compiled(ANY_OBJECT, refused="the schema is too large or nested too deeply")
    except (TypeError, ValueError, AttributeError, re.error) as error:
        return Compiled(ANY_OBJECT, refused=f"the schema cannot be read: {error}")
    if form is None:
        return Compiled(ANY_OBJECT, refused="no value that can be written fits the schema")
    return Compiled(form, tuple(dict.fromkeys(compiler.checked)))


class _TooLargeError(Exception):
    """There are too many forms in one schema."""


class _Compiler:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._depths: dict[str, int] = {}
        self._forms = 0
        self.checked: list[str] = []

    def compile(self, schema: Any, path: str) -> Form | None:
        """Return the form of a schema; None if no value fits it, or if it contains itself too often."""
        self._forms += 1
        if self._forms > _MAX_FORMS:
            raise _TooLargeError
        if schema is True:
            return AnyForm()
        if schema is False:
            return None
        if not isinstance(schema, Mapping):
            raise TypeError(f"{path or 'the schema'} is no object")
        if "$ref" in schema:
            return self._referred(schema, path)
        if "allOf" in schema:
            merged = {key: value for key, value in schema.items() if key != "allOf"}
            for part in schema["allOf"]:
                merged = self._merge(merged, self._resolve(part), path)
            return self.compile(merged, path)
        for keyword in schema.keys() - _ANNOTATIONS - _OF_TYPES - {"type", "enum", "const", "anyOf", "oneOf", "nullable"}:
            self._check(keyword, path)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._choice(schema, keyword, path)
        if "const" in schema or "enum" in schema:
            return self._constants(schema, path)
        return self._typed(schema, path)

    def _check(self, keyword: str, path: str) -> None:
        self.checked.append(f"{path}/{keyword}" if path else keyword)

    def _referred(self, schema: Mapping[str, Any], path: str) -> Form | None:
        target = schema["$ref"]
        if self._depths.get(target, 0) >= _MAX_DEPTH:
            return None
        self._depths[target] = self._depths.get(target, 0) + 1
        try:
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            found = self._find(target)
            return self.compile(self._merge(rest, found, path) if rest.keys() - _ANNOTATIONS else found, path)
        finally:
            self._depths[target] -= 1

    def _find(self, target: Any) -> Any:
        """Return the schema that a reference names."""
        if not isinstance(target, str) or not (target == "#" or target.startswith("#/")):
            raise ValueError(f"the reference {target!r} leads out of the schema")
        found = self._root
        for name in target.split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Sequence) and not isinstance(found, str) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                raise ValueError(f"the reference {target!r} leads nowhere")
        return found

    def _resolve(self, part: Any) -> Mapping[str, Any]:
        """Return a part of ``allOf`` without references and ``allOf`` of its own."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(part, Mapping):
                raise TypeError("a part of allOf is no object")
            if "$ref" in part:
                part = {**self._find(part["$ref"]), **{key: value for key, value in part.items() if key != "$ref"}}
            elif "allOf" in part:
                merged = {key: value for key, value in part.items() if key != "allOf"}
                for inner in part["allOf"]:
                    merged = self._merge(merged, self._resolve(inner), "")
                part = merged
            else:
                return part
        raise _TooLargeError

    def _merge(self, one: Mapping[str, Any], other: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Merge two schemas that both hold; where two keywords cannot be merged the second is left to be checked."""
        merged = dict(one)
        for key, value in other.items():
            if key not in merged or key in _ANNOTATIONS or merged[key] == value:
                merged.setdefault(key, value)
            elif key == "properties":
                both = dict(merged[key])
                for name, schema in value.items():
                    both[name] = {"allOf": [both[name], schema]} if name in both else schema
                merged[key] = both
            elif key == "required":
                merged[key] = [*merged[key], *(name for name in value if name not in merged[key])]
            elif key == "type":
                merged[key] = _common_types(_as_list(merged[key]), _as_list(value))
            elif key == "enum":
                merged[key] = [each for each in merged[key] if each in value]
            elif key in ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"):
                merged[key] = max(merged[key], value)
            elif key in ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"):
                merged[key] = min(merged[key], value)
            elif key == "items":
                merged[key] = {"allOf": [merged[key], value]}
            elif key == "additionalProperties":
                merged[key] = False if False in (merged[key], value) else {"allOf": [_as_schema(merged[key]), _as_schema(value)]}
            else:
                self._check(f"allOf/{key}", path)
        return merged

    def _choice(self, schema: Mapping[str, Any], keyword: str, path: str) -> Form | None:
        options = schema[keyword]
        rest = {key: value for key, value in schema.items() if key != keyword}
        if keyword == "oneOf" and not _are_apart(options):
            self._check("oneOf", path)
        found: list[Form] = []
        for index, option in enumerate(options):
            bare = not rest.keys() - _ANNOTATIONS
            merged = option if bare or isinstance(option, bool) else self._merge(self._resolve(option), rest, path)
            form = self.compile(merged, f"{path}/{keyword}/{index}")
            if form is not None and form not in found:
                found.append(form)
        return _one_of(found)

    def _constants(self, schema: Mapping[str, Any], path: str) -> Form | None:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if "const" in schema and "enum" in schema and schema["const"] not in schema["enum"]:
            return None
        types = _as_list(schema.get("type", list(_TYPES)))
        for keyword in schema.keys() & _OF_TYPES:
            self._check(keyword, path)
        texts = (json.dumps(value, ensure_ascii=False) for value in values if _has_type(value, types))
        found = tuple(dict.fromkeys(texts))
        return ConstantForm(found) if found else None

    def _typed(self, schema: Mapping[str, Any], path: str) -> Form | None:
        given = schema.get("type")
        types = _as_list(given) if given is not None else [name for name in _TYPES if schema.keys() & _KEYWORDS.get(name, set())]
        if not types:
            return AnyForm()
        if schema.get("nullable") is True and "null" not in types:
            types = [*types, "null"]
        if given is None and "integer" in types:  # one of bounds alone: any number
            types.remove("integer")
        found = [form for name in types if (form := self._of_type(name, schema, path)) is not None]
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
        if most is not None and most < least:
            return None
        pattern = FORMATS.get(schema.get("format", ""))
        if pattern is not None and "pattern" in schema:
            self._check("pattern", path)
        elif "pattern" in schema:
            pattern = schema["pattern"]
            if read_pattern(pattern) is None:
                self._check("pattern", path)
                pattern = None
        if pattern is None and schema.get("format") is not None:
            self._check("format", path)
        if pattern is not None:
            for keyword in ("minLength", "maxLength"):
                if keyword in schema:
                    self._check(keyword, path)
            return TextForm(pattern=pattern)
        if least > _MAX_EXACT:
            self._check("minLength", path)
            least = 0
        if most is not None and most > _MAX_EXACT:
            if most < MAX_TEXT:
                self._check("maxLength", path)
            most = None
        copied = not _WRITTEN_FORM.search(str(schema.get("description", ""))) and "format" not in schema
        return TextForm(least, most, copied=copied)

    def _number(self, schema: Mapping[str, Any], path: str, *, integer: bool) -> Form | None:
        if "multipleOf" in schema and not (integer and schema["multipleOf"] == 1):
            self._check("multipleOf", path)
        least, most = _bound(schema, "minimum", "exclusiveMinimum", 1), _bound(schema, "maximum", "exclusiveMaximum", -1)
        if not integer:
            for keyword in schema.keys() & (_KEYWORDS["number"] - {"multipleOf"}):
                if (keyword, schema[keyword]) != ("minimum", 0):
                    self._check(keyword, path)
            return NumberForm(positive=least is not None and least >= 0, copied=True)
        if least is not None and most is not None and least > most:
            return None
        return NumberForm(integer=True, least=least, most=most, positive=least is not None and least >= 0, copied=True)

    def _object(self, schema: Mapping[str, Any], path: str) -> Form | None:
        for keyword in (_KEYWORDS["object"] & schema.keys()) - {"properties", "required", "additionalProperties"}:
            self._check(keyword, path)
        properties, required = schema.get("properties") or {}, list(schema.get("required") or ())
        extra = schema.get("additionalProperties", True)
        members: list[Member] = []
        for name in [*properties, *(name for name in required if name not in properties)]:
            form = self.compile(properties.get(name, extra), f"{path}/{name}")
            if form is not None:
                members.append(Member(name, form, name in required))
            elif name in required:
                return None
        if members or properties or extra is False:
            return ObjectForm(tuple(members))
        return ObjectForm(extra=self.compile(extra, f"{path}/additionalProperties"))

    def _array(self, schema: Mapping[str, Any], path: str) -> Form | None:
        for keyword in (_KEYWORDS["array"] & schema.keys()) - {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}:
            self._check(keyword, path)
        items, prefix = schema.get("items", True), schema.get("prefixItems") or ()
        if isinstance(items, list):  # before 2020-12
            prefix, items = items, schema.get("additionalItems", True)
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
    return {} if value is True else value


def _one_of(forms: Sequence[Form]) -> Form | None:
    if not forms:
        return None
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
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, int):
        return "integer" in types or "number" in types
    if isinstance(value, float):
        return "number" in types or ("integer" in types and value.is_integer())
    if isinstance(value, str):
        return "string" in types
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


def copied_nowhere(form: Form) -> Form:
    """Return the form with no part that may be drawn from the conversation."""
    if isinstance(form, TextForm | NumberForm):
        return replace(form, copied=False)
    if isinstance(form, ObjectForm):
        members = tuple(replace(member, form=copied_nowhere(member.form)) for member in form.members)
        return ObjectForm(members, None if form.extra is None else copied_nowhere(form.extra))
    if isinstance(form, ArrayForm):
        items = None if form.items is None else copied_nowhere(form.items)
        return replace(form, first=tuple(map(copied_nowhere, form.first)), items=items)
    return ChoiceForm(tuple(map(copied_nowhere, form.options))) if isinstance(form, ChoiceForm) else form
