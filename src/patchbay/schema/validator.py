"""Arguments checked against JSON Schemas that others wrote: a client's, a plugin's, a server's.

Every draft from 4 to 2020-12 is checked as its ``$schema`` says (2020-12 where it says nothing). Nothing is
ever fetched. A schema that cannot be used (a remote or dangling ``$ref``, a broken keyword) never means
"anything goes": ``check`` raises, and ``validate`` refuses every call with the reason.

Schemas of Python functions are checked by pydantic instead (``patchbay.schema.function``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.schema.arguments import (
    MAX_DEPTH,
    UnreadableArgumentsError,
    deeper_than,
    excerpt,
    read_arguments,
)
from patchbay.schema.coercion import Bend
from patchbay.schema.complaints import schema_complaints
from patchbay.types import ToolSpec, read_specs

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class ValidationResult:
    """``value`` is the arguments read, with coercions and defaults; None where they are not a JSON object.

    ``errors`` are lines like ``/a must be integer`` or ``(root) must have required property 'city'``; empty
    when valid.
    """

    valid: bool
    value: dict[str, Any] | None
    errors: tuple[str, ...] = ()


class SchemaValidator:
    """One schema, compiled on first use. ``name`` is its tool's, for messages."""

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        self.name = name
        self._schema = schema

    def check(self) -> None:
        """Raise ConfigurationError, naming the tool, if the schema cannot be used."""
        compiled = self._compiled
        if isinstance(compiled, str):
            raise ConfigurationError(f"The schema of tool {self.name!r} cannot be used: {compiled}")

    def validate(self, raw_arguments: str, *, coerce_types: bool = False, use_defaults: bool = True) -> ValidationResult:
        """Read and check a call's argument text; blank text is ``{}``."""
        try:
            value = read_arguments(raw_arguments)
        except UnreadableArgumentsError as error:
            return ValidationResult(valid=False, value=None, errors=(str(error),))
        compiled = self._compiled
        if isinstance(compiled, str):
            return ValidationResult(
                valid=False,
                value=value,
                errors=(f"(schema) the tool's own schema cannot be used: {compiled}",),
            )
        if coerce_types or use_defaults:
            value = Bend(self._schema, coerce_types, use_defaults).apply(value)
        errors = self.complaints(value)
        return ValidationResult(valid=not errors, value=value, errors=errors)

    def complaints(self, value: Any) -> tuple[str, ...]:
        """What is wrong with a JSON value, in lines; nothing where the schema cannot be used."""
        compiled = self._compiled
        try:
            return () if isinstance(compiled, str) or compiled.is_valid(value) else schema_complaints(compiled.iter_errors(value))
        except UnicodeEncodeError:
            return ("(root) must not have a property name with half of a surrogate pair in it",)

    @cached_property
    def _compiled(self) -> Any:
        """The validator, or the reason why there can be none."""
        import jsonschema_rs

        if deeper_than(dict(self._schema), MAX_DEPTH):
            return f"it is nested more than {MAX_DEPTH} levels deep"
        schema = dict(self._schema)
        declared = schema.pop("$schema", None)
        validator_class = _draft(jsonschema_rs, declared)
        if validator_class is None:
            return f"its $schema {excerpt(repr(declared))} is not supported (4, 6, 7, 2019-09, 2020-12 are)"
        try:
            return validator_class(schema, retriever=_refuse, validate_formats=True)
        except Exception as error:  # noqa: BLE001  (the schema is foreign, and so is the compiler)
            return excerpt(str(error).partition("\n")[0])


class ToolValidator:
    """Checks calls against the schemas of ``tools`` (OpenAI's tool dicts, or ToolSpec).

    ``use_defaults`` fills in the schemas' defaults; ``coerce_types`` turns what the schema calls for back
    from a string ("5" to 5, "true" to true). Each schema is compiled on its first use. Raises
    InvalidRequestError where ``tools`` are not tools, or two have one name.
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
        """Compile every schema. Raises ConfigurationError, naming the tool, where one cannot be used."""
        for validator in self._validators.values():
            validator.check()

    def validate(self, name: str, raw_arguments: str) -> ValidationResult:
        """Check a call's argument text. An unknown name is not valid."""
        validator = self._validators.get(name)
        if validator is None:
            return ValidationResult(valid=False, value=None, errors=(f"(root) there is no tool {name!r}",))
        return validator.validate(raw_arguments, coerce_types=self._coerce_types, use_defaults=self._use_defaults)

    def _add(self, spec: ToolSpec) -> None:
        if spec.name in self._validators:
            raise InvalidRequestError(f"Two tools are named {spec.name!r}.", param="tools")
        self._validators[spec.name] = SchemaValidator(spec.name, spec.parameters)


def _draft(jsonschema_rs: Any, declared: Any) -> Any:
    """Return the validator class for a ``$schema``, whose URI is spelled variously; None if unknown."""
    if declared is None:
        return jsonschema_rs.Draft202012Validator
    if not isinstance(declared, str):
        return None
    uri = declared.rstrip("#").rstrip("/").removeprefix("https://").removeprefix("http://")
    # The unversioned URI means "the latest".
    classes = {
        "json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
        "json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
        "json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
        "json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
        "json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
        "json-schema.org/schema": jsonschema_rs.Draft202012Validator,
    }
    return classes.get(uri)


def _refuse(uri: str) -> NoReturn:
    """Stand where ``uri`` would be fetched: a schema must not open a connection or a file."""
    raise ValueError(f"remote references are never fetched ({uri})")
