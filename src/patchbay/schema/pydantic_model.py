"""A function's parameters as one pydantic model: its JSON Schema and its validator.

Imported on first use, since pydantic is heavy.

The model's fields have names of their own (``p0``, ``p1``, ...) and the parameters' names as aliases, since
parameters may be called what a model's fields may not (``copy``, ``schema``, ``model_x``, ``_x``).
"""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from dataclasses import replace
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from patchbay.errors import ConfigurationError, ToolArgumentsError
from patchbay.schema.annotations import known
from patchbay.schema.arguments import UnreadableArgumentsError, is_odd, read_arguments
from patchbay.schema.complaints import pydantic_complaints
from patchbay.schema.function import LEFT_OUT, Parameter

if typing.TYPE_CHECKING:
    from collections.abc import Sequence

_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9.\-_]")
"""What pydantic puts an underscore for where it makes a definition's name of a title, as in ``Page[int]``."""
_INEXPRESSIBLE = (PydanticUserError, PydanticUndefinedAnnotation)


class _JsonSchema(GenerateJsonSchema):
    """Pydantic's schemas without titles, which cost tokens and say nothing that the names do not."""

    # A default that is not JSON is left out of the schema; that is what is wanted, and no news.
    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def encode_default(self, dft: Any) -> Any:
        # Pydantic makes a TypeAdapter of each, which costs as much as the schema of its parameter.
        return dft if dft is None or type(dft) in (str, int, bool) else super().encode_default(dft)

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  (pydantic's signature)
        return False


_CONFIG: Final[ConfigDict] = {
    "extra": "ignore",
    "allow_inf_nan": False,
    "protected_namespaces": (),
    # A default is the function's own business, and may be anything.
    "validate_default": False,
}


class _Arguments(BaseModel):
    """What the models of all functions without ``**kwargs`` are made from."""

    model_config = _CONFIG


class ArgumentsModel:
    """All of one function's parameters: what they look like in JSON, and what a call's text makes of them."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._names = [parameter.name for parameter in parameters if parameter.kind is not parameter.kind.VAR_KEYWORD]
        self._model, self._schema = _build(parameters)
        self._validate_json = self._model.__pydantic_validator__.validate_json
        self._has_extra = self._model.model_config.get("extra") == "allow"
        self._may_be_left_out = [parameter.name for parameter in parameters if parameter.default is LEFT_OUT]

    def json_schema(self) -> dict[str, Any]:
        """Return the schema of the arguments as a whole."""
        schema = dict(self._schema)
        schema.pop("title", None)
        for name, definition in schema.get("$defs", {}).items():
            if _NOT_IN_A_NAME.sub("_", definition.get("title", "")) == name:
                del definition["title"]
        for described in (schema, *schema.get("$defs", {}).values()):
            _drop_infinite_defaults(described)
        # The order that people write: what it is, what is in it, what must be.
        ordered: dict[str, Any] = {key: schema.pop(key) for key in ("type", "properties", "required") if key in schema}
        return {**ordered, **schema}

    def validate(self, tool_name: str, raw_arguments: str) -> dict[str, Any]:
        """Return the arguments by parameter name, coerced, defaults filled in. Raises ToolArgumentsError."""
        if is_odd(raw_arguments):
            self._refuse_unreadable(tool_name, raw_arguments)
        try:
            model = self._validate_json(raw_arguments)
        except ValidationError as error:
            model = self._validate_slowly(tool_name, raw_arguments, error)
        arguments = dict(zip(self._names, model.__dict__.values(), strict=True))
        for name in self._may_be_left_out:
            if arguments[name] is LEFT_OUT:
                del arguments[name]
        if self._has_extra:
            arguments.update(model.__pydantic_extra__ or {})
        return arguments

    def _refuse_unreadable(self, tool_name: str, raw: str) -> None:
        """Refuse what pydantic's reader would let through to a parameter that accepts anything: NaN, 1e999, deep nesting."""
        try:
            read_arguments(raw)
        except UnreadableArgumentsError as error:
            raise ToolArgumentsError(tool_name, raw_arguments=raw, details=(str(error),)) from None

    def _validate_slowly(self, tool_name: str, raw: str, error: ValidationError) -> BaseModel:
        """Say what is wrong, unless it is that pydantic reads JSON more strictly ("", lone surrogates)."""
        try:
            arguments = read_arguments(raw)
            if error.errors(include_url=False)[0]["type"] in ("json_invalid", "string_unicode") or not arguments:
                model: BaseModel = self._model.__pydantic_validator__.validate_python(arguments)
                return model
            details = pydantic_complaints(error, arguments)
        except UnreadableArgumentsError as unreadable:
            details = (str(unreadable),)
        except ValidationError as second:
            details = pydantic_complaints(second, arguments)
        raise ToolArgumentsError(tool_name, raw_arguments=raw, details=details)


def _drop_infinite_defaults(schema: dict[str, Any]) -> None:
    """Leave out the defaults of properties that JSON has no number for: they are the function's business alone."""
    for described in schema.get("properties", {}).values():
        if not _is_json(described.get("default")):
            del described["default"]


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    if isinstance(value, list):
        return all(map(_is_json, value))
    return not isinstance(value, float) or math.isfinite(value)


def _build(parameters: Sequence[Parameter]) -> tuple[type[BaseModel], dict[str, Any]]:
    try:
        return _model(parameters)
    except Exception:  # noqa: BLE001  (an annotation may bring any code along)
        # Find the parameters that cannot be told in JSON; only those accept anything.
        return _model([_expressible(parameter) for parameter in parameters])


def _expressible(parameter: Parameter) -> Parameter:
    try:
        _model([parameter])
    except _INEXPRESSIBLE:
        return replace(parameter, annotation=Any if not parameter.accepts_none else Any | None)
    except Exception as error:
        raise ConfigurationError(f"The annotation of parameter {parameter.name!r} cannot work: {error}") from error
    return parameter


def _model(parameters: Sequence[Parameter]) -> tuple[type[BaseModel], dict[str, Any]]:
    fields: dict[str, Any] = {}
    base: type[BaseModel] = _Arguments
    for parameter in parameters:
        if parameter.kind is parameter.kind.VAR_KEYWORD:
            each = known(parameter.annotation)
            base = _with_others(Annotated[each, Field(description=parameter.description)] if parameter.description else each)
        else:
            fields[f"p{len(fields)}"] = _field(parameter)
    model: type[BaseModel] = create_model("Arguments", __base__=base, **fields)
    # Types that validate but have no place in JSON show only here.
    return model, model.model_json_schema(schema_generator=_JsonSchema)


def _with_others(annotation: Any) -> type[BaseModel]:
    """Return the base of a model for functions with ``**kwargs``, each of which is as the annotation says."""
    namespace = {"__annotations__": {"__pydantic_extra__": dict.__class_getitem__((str, annotation))}}
    config: ConfigDict = {**_CONFIG, "extra": "allow"}
    return types.new_class("_Arguments", (BaseModel,), {}, lambda body: body.update(namespace, model_config=config))


def _field(parameter: Parameter) -> tuple[Any, Any]:
    """Return annotation and default of the parameter's field, in the form that ``create_model`` takes."""
    annotation, default = parameter.annotation, parameter.default
    unpacked = _unpacked_tuple(annotation)
    annotation = known(annotation if unpacked is None else unpacked)
    if unpacked is not None:
        default = Field(default=()) if Ellipsis in typing.get_args(annotation) else ...
    elif parameter.kind is parameter.kind.VAR_POSITIONAL:
        annotation, default = list.__class_getitem__(annotation), Field(default_factory=list)
    elif default is inspect.Parameter.empty:
        default = _own_default(annotation, None if parameter.accepts_none else ...)
    if _is_bare(annotation) and not isinstance(default, FieldInfo):
        return Annotated[annotation, Field(alias=parameter.name, description=parameter.description or None)], default
    given = FieldInfo.from_annotated_attribute(annotation, default)
    # What the author wrote in a Field of their own comes first.
    described = Field(description=given.description or _words(given.metadata) or parameter.description or None)
    named = Field(alias=given.alias or parameter.name, validation_alias=given.validation_alias)
    return Annotated[annotation, described, named], default


def _is_bare(annotation: Any) -> bool:
    """Whether an annotation is a type alone, with nothing of the author's beside it: nearly all are, and need no inspection."""
    return isinstance(annotation, type) or typing.get_origin(annotation) in _BARE


_BARE: Final = frozenset({dict, list, tuple, typing.Literal, typing.Union, types.UnionType})


def _own_default(annotation: Any, otherwise: Any) -> Any:
    """Return the default in ``Annotated[int, Field(default=4)]``, for a parameter that has no other."""
    if typing.get_origin(annotation) is not Annotated:
        return otherwise
    given = FieldInfo.from_annotation(annotation)
    if given.is_required():
        return otherwise
    return Field(default_factory=given.default_factory) if given.default_factory is not None else given.default


def _unpacked_tuple(annotation: Any) -> Any:
    """Return the tuple in ``*args: *tuple[int, str]``, in either of its spellings; None for all else."""
    if typing.get_origin(annotation) is typing.Unpack:
        return typing.get_args(annotation)[0]
    if getattr(annotation, "__unpacked__", False):
        return tuple.__class_getitem__(typing.get_args(annotation))
    return None


def _words(metadata: Sequence[Any]) -> str | None:
    """Return the text in ``Annotated[str, "the city"]``, or in the ``Doc`` that stands there."""
    for item in metadata:
        text = item if isinstance(item, str) else getattr(item, "documentation", None)
        if isinstance(text, str):
            return text
    return None
