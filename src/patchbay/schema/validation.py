"""Validation of arguments against a JSON Schema, with error messages for a model."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from patchbay._json_schema import children
from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.schema.arguments import MAX_DEPTH, UnreadableArgumentsError, deeper_than, excerpt, read_arguments
from patchbay.schema.coercion import Coercer
from patchbay.types import ToolSpec, read_specs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_LIMIT = 20
_PATTERN_BYTES = 50_000
"""Size of a pattern's program. Time is proportional to it and to the text: at most about a second for 100,000 characters."""

_SHOULD = re.compile(r"^[\w ]+? should ")


def pydantic_error_messages(error: Any, arguments: Any) -> tuple[str, ...]:
    """Return the lines for a ``pydantic.ValidationError``; ``arguments`` are what was validated."""
    return _bounded(_pydantic_line(item, arguments) for item in error.errors(include_url=False))


def schema_error_messages(errors: Iterable[Any]) -> tuple[str, ...]:
    """Return the lines for the errors of ``jsonschema_rs``."""
    return _bounded(f"{pointer(error.instance_path)} {_schema_message(error)}" for error in errors)


def pointer(path: Sequence[str | int]) -> str:
    """Return ``path`` as a JSON pointer, ``(root)`` where it is empty."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path) or "(root)"


def _bounded(lines: Iterable[str]) -> tuple[str, ...]:
    unique = list(dict.fromkeys(lines))
    if len(unique) > _LIMIT:
        unique[_LIMIT:] = [f"... and {len(unique) - _LIMIT} more"]
    return tuple(unique)


def _pydantic_line(item: dict[str, Any], arguments: Any) -> str:
    path = list(item["loc"])
    if item["type"] in ("missing", "missing_argument"):
        *path, name = path
        return f"{pointer(_real_path(path, arguments))} must have required property {name!r}"
    message = item["msg"]
    if item["type"] in ("value_error", "assertion_error"):
        message = f"is not accepted: {item['ctx']['error']}" if "ctx" in item else message
    elif item["type"] == "extra_forbidden":
        message = "is not a known property"
    elif item["type"] in ("model_type", "dataclass_type"):  # pydantic's words have the name of the class
        message = "must be an object"
    else:
        message = _SHOULD.sub("must ", message)
    return f"{pointer(_real_path(path, arguments))} {message}"


def _real_path(location: Sequence[str | int], arguments: Any) -> list[str | int]:
    """Remove the parts of a pydantic location that are not in the data: names of union branches."""
    path: list[str | int] = []
    here = arguments
    for part in location:
        in_list = isinstance(here, list) and isinstance(part, int) and part < len(here)
        if in_list or (isinstance(here, dict) and part in here):
            here = here[part]
            path.append(part)
    return path


def _schema_message(error: Any) -> str:
    kind = error.kind
    detail = kind.as_dict()
    match kind.name:
        case "type":
            return f"must be {' or '.join(sorted(detail['types'], key='null'.__eq__))}"
        case "required":
            return f"must have required property {detail['property']!r}"
        case "additionalProperties" | "unevaluatedProperties":
            return f"must NOT have additional properties: {', '.join(map(repr, detail['unexpected']))}"
        case "enum":
            return f"must be equal to one of the allowed values: {_values(detail['options'])}"
        case "const":
            return f"must be equal to {_values([detail['expected_value']])}"
        case "anyOf" | "oneOf":
            return _branches(error, detail)
        case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum":
            return f"must be {_COMPARISONS[kind.name]} {detail['limit']}"
        case "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties":
            bound = "fewer" if kind.name.startswith("min") else "more"
            return f"must NOT have {bound} than {detail['limit']} {_COUNTED[kind.name[3:]]}"
        case "pattern":
            return f"must match pattern {detail['pattern']!r}"
        case "format":
            return f"must match format {detail['format']!r}"
        case "multipleOf":
            return f"must be multiple of {detail['multiple_of']}"
        case "uniqueItems":
            return "must NOT have duplicate items"
        case "falseSchema":
            return "must NOT be given"
        case _:
            return f"does not fit {kind.name!r}: {excerpt(error.message)}"


def _branches(error: Any, detail: dict[str, Any]) -> str:
    """Describe what each branch of an anyOf or oneOf expects, so that the next call can satisfy one."""
    expected = [_branch(branch, len(error.instance_path)) for branch in detail["context"]]
    if error.kind.name == "oneOf" and any(not branch for branch in detail["context"]):
        return "must match exactly one schema in oneOf, but matches several"
    return " or ".join(dict.fromkeys(line for line in expected if line)) or f"must match a schema in {error.kind.name}"


def _branch(errors: Sequence[Any], depth: int) -> str:
    if not errors:
        return ""
    first = errors[0]
    below = first.instance_path[depth:] if len(first.instance_path) > depth else []
    message = _schema_message(first)
    return f"{pointer(below)} {message}" if below else message


def _values(values: Sequence[Any]) -> str:
    shown = [json.dumps(value, ensure_ascii=False, default=str) for value in values[:_LIMIT]]
    return ", ".join(shown) + (", ..." if len(values) > _LIMIT else "")


_COMPARISONS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_COUNTED = {"Length": "characters", "Items": "items", "Properties": "properties"}


@dataclass(frozen=True)
class ValidationResult:
    """``value`` has the arguments with coercions and defaults; None if they are not a JSON object.

    ``errors`` are lines like ``/a must be integer`` or ``(root) must have required property 'city'``; empty
    when valid.
    """

    valid: bool
    value: dict[str, Any] | None
    errors: tuple[str, ...] = ()


class SchemaValidator:
    """One schema, compiled on first use. ``name`` is its tool's, for messages.

    Patterns take linear time. Those that cannot (look-around, backreferences) and those that are too large are left to the tool
    itself to check; as names in ``patternProperties`` they make the schema unusable.
    """

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        self.name = name
        self._schema = schema

    def check(self) -> None:
        """Raise ConfigurationError, naming the tool, if the schema cannot be used."""
        compiled = self._compiled
        if isinstance(compiled, str):
            raise ConfigurationError(f"The schema of tool {self.name!r} cannot be used: {compiled}")

    def validate(self, raw_arguments: str, *, coerce_types: bool = False, use_defaults: bool = True) -> ValidationResult:
        """Read and validate a call's argument text; blank text is ``{}``."""
        try:
            value = read_arguments(raw_arguments)
        except UnreadableArgumentsError as error:
            return ValidationResult(valid=False, value=None, errors=(str(error),))
        compiled = self._compiled
        if isinstance(compiled, str):
            problem = f"(schema) the tool's own schema cannot be used: {compiled}"
            return ValidationResult(valid=False, value=value, errors=(problem,))
        if coerce_types or use_defaults:
            value = Coercer(self._schema, coerce_types, use_defaults).apply(value)
        errors = self.error_messages(value)
        return ValidationResult(valid=not errors, value=value, errors=errors)

    def error_messages(self, value: Any) -> tuple[str, ...]:
        """Return the errors of a JSON value, one line each; none if the schema cannot be used."""
        compiled = self._compiled
        try:
            if isinstance(compiled, str) or compiled.is_valid(value):
                return ()
            return schema_error_messages(compiled.iter_errors(value))
        except UnicodeEncodeError:
            return ("(root) must not have a property name with half of a surrogate pair in it",)

    @cached_property
    def _compiled(self) -> Any:
        """The compiled validator, or the reason why the schema cannot be compiled."""
        import jsonschema_rs

        if deeper_than(dict(self._schema), MAX_DEPTH):
            return f"it is nested more than {MAX_DEPTH} levels deep"
        schema = dict(self._schema)
        declared = schema.pop("$schema", None)
        validator_class = _draft(jsonschema_rs, declared)
        if validator_class is None:
            return f"its $schema {excerpt(repr(declared))} is not supported (4, 6, 7, 2019-09, 2020-12 are)"
        options = {
            "retriever": _refuse,
            "validate_formats": True,
            "pattern_options": jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES),
        }
        try:
            try:
                return validator_class(schema, **options)
            except jsonschema_rs.ValidationError:
                return validator_class(_without_unbounded_patterns(schema), **options)
        except Exception as error:  # noqa: BLE001  (third-party schema and compiler)
            return excerpt(str(error).partition("\n")[0])


class ToolValidator:
    """Validates calls against the schemas of ``tools`` (OpenAI's tool dicts, or ToolSpec).

    ``use_defaults`` fills in the schemas' defaults; ``coerce_types`` converts strings to the types of the schema ("5" to 5,
    "true" to true). Each schema is compiled on first use. Raises InvalidRequestError for invalid ``tools``, and for two of one
    name.
    """

    def __init__(self, tools: Any, *, coerce_types: bool = False, use_defaults: bool = True) -> None:
        self._coerce_types = coerce_types
        self._use_defaults = use_defaults
        self._validators: dict[str, SchemaValidator] = {}
        for spec in read_specs(tools):
            self._add(spec)

    def has_tool(self, name: str) -> bool:
        """Whether a tool of this name was given."""
        return name in self._validators

    def check(self) -> None:
        """Compile every schema. Raises ConfigurationError, naming the tool, if one cannot be used."""
        for validator in self._validators.values():
            validator.check()

    def validate(self, name: str, raw_arguments: str) -> ValidationResult:
        """Validate a call's argument text. An unknown name is invalid."""
        validator = self._validators.get(name)
        if validator is None:
            return ValidationResult(valid=False, value=None, errors=(f"(root) there is no tool {name!r}",))
        return validator.validate(raw_arguments, coerce_types=self._coerce_types, use_defaults=self._use_defaults)

    def _add(self, spec: ToolSpec) -> None:
        if spec.name in self._validators:
            raise InvalidRequestError(f"Two tools are named {spec.name!r}.", param="tools")
        self._validators[spec.name] = SchemaValidator(spec.name, spec.parameters)


def _draft(jsonschema_rs: Any, declared: Any) -> Any:
    """Return the validator class for a ``$schema`` URI in any common spelling; None if unknown."""
    if declared is None:
        return jsonschema_rs.Draft202012Validator
    if not isinstance(declared, str):
        return None
    uri = declared.rstrip("#").rstrip("/").removeprefix("https://").removeprefix("http://")
    # The unversioned URI means the latest draft.
    classes = {
        "json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
        "json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
        "json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
        "json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
        "json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
        "json-schema.org/schema": jsonschema_rs.Draft202012Validator,
    }
    return classes.get(uri)


def _without_unbounded_patterns(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a copy without each ``pattern`` that is valid, but not for the linear engine, and without what negates one."""
    import jsonschema_rs

    is_regex = jsonschema_rs.Draft202012Validator({"format": "regex"}, validate_formats=True).is_valid
    linear = jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES)
    backtracking = jsonschema_rs.FancyRegexOptions(size_limit=_PATTERN_BYTES)

    def compiles(pattern: str, options: Any) -> bool:
        try:
            jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=options)
        except jsonschema_rs.ValidationError:
            return False
        return True

    def may_take_long(pattern: Any) -> bool:
        if not isinstance(pattern, str) or compiles(pattern, linear):
            return False
        return is_regex(pattern) or compiles(pattern, backtracking)

    def remove_from(node: Any) -> bool:
        if not isinstance(node, dict):
            return False
        if removed := may_take_long(node.get("pattern")):
            del node["pattern"]
        for key in list(node):
            if any([remove_from(child) for child in children({key: node[key]})]):  # noqa: C419  (each of them)
                removed = True
                if key in ("not", "oneOf", "if"):
                    del node[key]
        return removed

    schema = copy.deepcopy(schema)
    remove_from(schema)
    return schema


def _refuse(uri: str) -> NoReturn:
    """Reject a remote reference: a schema must not open a connection or a file."""
    raise ValueError(f"remote references are never fetched ({uri})")
