"""A function's parameters as a pydantic model, with annotations translated to those that pydantic supports."""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import enum
import inspect
import math
import re
import sys
import types
import typing
from dataclasses import replace
from typing import Annotated, Any, Final

import typing_extensions
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from patchbay.errors import ConfigurationError, ToolArgumentsError
from patchbay.schema.arguments import LEFT_OUT, Parameter, UnreadableArgumentsError, is_odd, read_arguments
from patchbay.schema.validation import pydantic_error_messages

if typing.TYPE_CHECKING:
    from collections.abc import Sequence

# Pydantic validates the items of an Iterable lazily, while the function iterates.
_ARRAYS = {abc.Collection, abc.Container, abc.Reversible, abc.Iterable}
_ITERATORS = {abc.Iterator, abc.Generator}
_QUALIFIERS = {typing.ClassVar, typing.Final}
_REQUIREDNESS = {typing.Required, typing.NotRequired}


def known(annotation: Any) -> Any:
    """Return ``annotation`` with each part that pydantic rejects replaced by an equivalent, at any depth."""
    return _known(annotation, {})


def _known(annotation: Any, seen: dict[Any, Any]) -> Any:
    origin = typing.get_origin(annotation)
    if origin is None:
        return _plain(annotation, seen)
    arguments = typing.get_args(annotation)
    if origin is abc.Callable:
        return annotation
    if origin is typing.Literal:
        return _literal(annotation)
    if origin is type:  # JSON cannot express a class
        return Any
    if origin in _QUALIFIERS:
        return _known(arguments[0], seen)
    if origin is typing.Annotated:
        inner = _known(arguments[0], seen)
        return annotation if inner is arguments[0] else typing.Annotated[(inner, *arguments[1:])]
    if origin in _ARRAYS or origin in _ITERATORS:
        return _array(origin, _known(arguments[0], seen) if arguments else Any)
    changed = tuple(_known(argument, seen) for argument in arguments)
    if all(new is old for new, old in zip(changed, arguments, strict=True)):
        return annotation
    if origin is typing.Union or origin is types.UnionType:
        return typing.Union[changed]  # noqa: UP007  (built at run time)
    return annotation.copy_with(changed) if hasattr(annotation, "copy_with") else origin[changed]


def _plain(annotation: Any, seen: dict[Any, Any]) -> Any:
    if isinstance(annotation, dataclasses.InitVar):
        return _known(annotation.type, seen)
    if annotation in (typing.LiteralString, typing_extensions.LiteralString):
        return str
    if annotation in (typing.Self, typing_extensions.Self, typing.ClassVar, typing.Final):
        return Any
    if isinstance(annotation, abc.Hashable) and (annotation in _ARRAYS or annotation in _ITERATORS):
        return _array(annotation, Any)
    if sys.version_info < (3, 12) and type(annotation).__module__ == "typing" and typing.is_typeddict(annotation):
        return _typed_dict(annotation, seen)
    return annotation


def _array(kind: Any, item: Any) -> Any:
    array = list.__class_getitem__(item)
    return typing.Annotated[array, AfterValidator(iter)] if kind in _ITERATORS else array


def _literal(annotation: Any) -> Any:
    """Return a Literal with the values of enum members; validated values become members again."""
    choices = typing.get_args(annotation)
    members = {choice.value: choice for choice in choices if isinstance(choice, enum.Enum)}
    if not members:
        return annotation
    values = tuple(choice.value if isinstance(choice, enum.Enum) else choice for choice in choices)
    return typing.Annotated[typing.Literal.__getitem__(values), AfterValidator(lambda value: members.get(value, value))]


def _typed_dict(original: Any, seen: dict[Any, Any]) -> Any:
    """Return an equivalent ``typing_extensions.TypedDict``: pydantic does not support the built-in one before Python 3.12."""
    if original in seen:
        return seen[original]
    make: Any = typing_extensions.TypedDict
    made = make(original.__name__, {})
    seen[original] = made  # before its fields, which may be recursive
    made.__annotations__ = {
        name: (typing.Required if required else typing.NotRequired)[_known(hint, seen)]
        for name, (hint, required) in members_of(original).items()
    }
    for attribute in ("__doc__", "__module__", "__qualname__", "__pydantic_config__"):
        if hasattr(original, attribute):
            setattr(made, attribute, getattr(original, attribute))
    return made


def members_of(typed_dict: Any) -> dict[str, tuple[Any, bool]]:
    """Return each key of a TypedDict with its annotation, and whether it is required."""
    members: dict[str, tuple[Any, bool]] = {}
    for name, hint in typing_extensions.get_type_hints(typed_dict, include_extras=True).items():
        origin: Any = typing.get_origin(hint)
        if origin in _REQUIREDNESS:
            members[name] = (typing.get_args(hint)[0], origin is typing.Required)
        else:
            members[name] = (hint, name in typed_dict.__required_keys__)
    return members


_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9.\-_]")
"""Characters that pydantic replaces by an underscore when it derives a definition's name from a title, as in ``Page[int]``."""


class _JsonSchema(GenerateJsonSchema):
    """Pydantic's schemas without titles, which cost tokens and repeat the names."""

    # A default that is not JSON is left out of the schema, which is intended.
    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def encode_default(self, dft: Any) -> Any:
        # Pydantic creates a TypeAdapter for each, which costs as much as the schema of its parameter.
        return dft if dft is None or type(dft) in (str, int, bool) else super().encode_default(dft)

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  (pydantic's signature)
        return False


_CONFIG: Final[ConfigDict] = {
    "extra": "ignore",
    "allow_inf_nan": False,
    "protected_namespaces": (),
    # A default is the function's own and may be any object.
    "validate_default": False,
}


class _Arguments(BaseModel):
    """Base of the models of functions without ``**kwargs``."""

    model_config = _CONFIG


class ArgumentsModel:
    """The parameters of one function: their JSON Schema, and the validation of a call's argument text."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._names = [parameter.name for parameter in parameters if parameter.kind is not parameter.kind.VAR_KEYWORD]
        self._model, self._schema = _build(parameters)
        self._validate_json = self._model.__pydantic_validator__.validate_json
        self._has_extra = self._model.model_config.get("extra") == "allow"
        self._may_be_left_out = [parameter.name for parameter in parameters if parameter.default is LEFT_OUT]

    def json_schema(self) -> dict[str, Any]:
        """Return the schema of the arguments object."""
        schema = dict(self._schema)
        schema.pop("title", None)
        for name, definition in schema.get("$defs", {}).items():
            if _NOT_IN_A_NAME.sub("_", definition.get("title", "")) == name:
                del definition["title"]
        for described in (schema, *schema.get("$defs", {}).values()):
            _drop_infinite_defaults(described)
        # In the usual order of hand-written schemas.
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
        """Reject what pydantic's JSON parser accepts for a parameter of any type: NaN, 1e999, deep nesting."""
        try:
            read_arguments(raw)
        except UnreadableArgumentsError as error:
            raise ToolArgumentsError(tool_name, raw_arguments=raw, details=(str(error),)) from None

    def _validate_slowly(self, tool_name: str, raw: str, error: ValidationError) -> BaseModel:
        """Raise ToolArgumentsError, unless only pydantic's stricter JSON parser failed ("", lone surrogates)."""
        try:
            arguments = read_arguments(raw)
            if error.errors(include_url=False)[0]["type"] in ("json_invalid", "string_unicode") or not arguments:
                model: BaseModel = self._model.__pydantic_validator__.validate_python(arguments)
                return model
            details = pydantic_error_messages(error, arguments)
        except UnreadableArgumentsError as unreadable:
            details = (str(unreadable),)
        except ValidationError as second:
            details = pydantic_error_messages(second, arguments)
        raise ToolArgumentsError(tool_name, raw_arguments=raw, details=details)


def _drop_infinite_defaults(schema: dict[str, Any]) -> None:
    """Remove defaults that are not finite numbers: JSON cannot express them."""
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
    except Exception:  # noqa: BLE001  (an annotation may run any code)
        # Only the parameters that JSON cannot express accept anything.
        return _model([_expressible(parameter) for parameter in parameters])


def _expressible(parameter: Parameter) -> Parameter:
    try:
        _model([parameter])
    except PydanticUserError as error:
        if error.code == "class-not-fully-defined":
            raise ConfigurationError(
                f"The annotation of parameter {parameter.name!r} cannot work: {str(error).partition(chr(10))[0]} "
                "Define the types of tools at the top level of a module."
            ) from None
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
    # Types that validate but have no JSON Schema fail only here.
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
    # The author's own Field takes precedence.
    described = Field(description=given.description or _words(given.metadata) or parameter.description or None)
    named = Field(alias=given.alias or parameter.name, validation_alias=given.validation_alias)
    return Annotated[annotation, described, named], default


def _is_bare(annotation: Any) -> bool:
    """Whether an annotation is a type without metadata, which needs no inspection. Nearly all are."""
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
    """Return the tuple in ``*args: *tuple[int, str]``, in either spelling; None for other annotations."""
    if typing.get_origin(annotation) is typing.Unpack:
        return typing.get_args(annotation)[0]
    if getattr(annotation, "__unpacked__", False):
        return tuple.__class_getitem__(typing.get_args(annotation))
    return None


def _words(metadata: Sequence[Any]) -> str | None:
    """Return the description in ``Annotated[str, "the city"]`` or ``Annotated[str, Doc("the city")]``."""
    for item in metadata:
        text = item if isinstance(item, str) else getattr(item, "documentation", None)
        if isinstance(text, str):
            return text
    return None
