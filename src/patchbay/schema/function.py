"""The JSON Schema of a function, from its annotations and docstring."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from patchbay.errors import ConfigurationError, ToolArgumentsError
from patchbay.schema.arguments import LEFT_OUT, Parameter, UnreadableArgumentsError, read_arguments
from patchbay.schema.docstrings import Docstring, read_docstring

if typing.TYPE_CHECKING:
    from patchbay.schema.pydantic_model import ArgumentsModel


def annotated_part(function: Callable[..., Any]) -> Any:
    """Unwrap partials, methods, decorators and callable objects down to the function with the annotations."""
    target: Any = function
    while True:
        if isinstance(target, functools.partial):
            target = target.func
        elif isinstance(target, types.MethodType):
            target = target.__func__
        elif hasattr(target, "__wrapped__"):
            target = target.__wrapped__
        elif inspect.isroutine(target) or isinstance(target, type):
            return target
        else:
            # A callable object, or one implemented in C.
            call = getattr(type(target), "__call__", None)  # noqa: B004  (the attribute itself is needed)
            if call is None or not isinstance(call, types.FunctionType):
                return target
            target = call


def resolved_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations by parameter; one that cannot be resolved stays the text in the source."""
    part = annotated_part(function)
    module = getattr(part, "__globals__", {})
    names = {**_closure(part), **{each.__name__: each for each in getattr(part, "__type_params__", ())}}
    try:
        return typing.get_type_hints(part, globalns=module, localns=names, include_extras=True)
    except Exception:  # noqa: BLE001  (an annotation may be any expression, and fail in any way)
        names = {**_class_names(function), **names}
        annotations = getattr(part, "__annotations__", None) or {}
        return {name: _resolved(annotation, module, names) for name, annotation in annotations.items()}


def _resolved(annotation: Any, module: dict[str, Any], names: dict[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, globalns=module, localns=names, include_extras=True)["it"]
    except Exception:  # noqa: BLE001  (see above)
        return annotation if isinstance(annotation, str) else str(annotation)


def _closure(function: Any) -> dict[str, Any]:
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    values: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # an empty cell: the name is assigned later
            continue
    return values


def _class_names(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the classes nested in the class of a method or callable object: its annotations may use them."""
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    owner = getattr(target, "__self__", None) if inspect.isroutine(target) else target
    classes = inspect.getmro(owner if isinstance(owner, type) else type(owner))
    inside = [item for item in reversed(classes) if item.__module__ != "builtins"]
    return {name: value for item in inside for name, value in vars(item).items() if isinstance(value, type)}


IsInjected = Callable[[str, Any], bool]
"""Takes a parameter's name and annotation (its text where it cannot be resolved); True if the model does not fill it in."""

_INHERITED: Final = inspect.getdoc(object.__call__)
"""``inspect.getdoc`` of a ``__call__`` without a docstring of its own."""


class FunctionSchema:
    """The parameters of a function: their JSON Schema, and the validation of calls.

    Optional parameters without a default accept null and may be left out. Arguments that the function does not have are dropped,
    and so are those that a ``functools.partial`` has bound by name. A type that JSON cannot express, or a name that cannot be
    resolved, accepts anything. Raises ConfigurationError on first use for an annotation that cannot work.
    """

    def __init__(self, function: Callable[..., Any], *, is_injected: IsInjected = lambda _name, _annotation: False) -> None:
        self.function = function
        self._is_injected = is_injected

    def check_names(self, tool_name: str) -> None:
        """Raise ConfigurationError for an annotation that names a type which is local to the function around this one."""
        outer = str(getattr(annotated_part(self.function), "__qualname__", "")).rpartition(".<locals>.")[0]
        for name, annotation in resolved_hints(self.function).items() if outer else ():
            if name != "return" and isinstance(annotation, str) and not self._is_injected(name, annotation):
                raise ConfigurationError(
                    f"Parameter {name!r} of tool {tool_name!r} cannot be read: its annotation {annotation!r} names "
                    f"a type that is local to {outer}(), or not defined. Define the types of tools at the top level of a module."
                )

    @cached_property
    def signature(self) -> inspect.Signature:
        """The function's signature. Raises ConfigurationError for builtins without one."""
        try:
            return inspect.signature(self.function)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{self.function!r} has no signature to build a schema from: pass parameters=, or wrap it."
            ) from error

    @cached_property
    def docstring(self) -> Docstring:
        """The parsed docstring."""
        # Without a docstring of its own, a partial or callable object has the __doc__ of its class.
        target = self.function if inspect.isroutine(self.function) else annotated_part(self.function)
        text = inspect.getdoc(target)
        if text in (None, _INHERITED):
            caller: Any = self.function
            while isinstance(caller, functools.partial):
                caller = caller.func
            text = None if inspect.isroutine(caller) or isinstance(caller, type) else inspect.getdoc(type(caller))
        return read_docstring(text)

    @cached_property
    def injected(self) -> tuple[str, ...]:
        """The names of the parameters that the application fills in."""
        hints = self._hints
        return tuple(
            name
            for name, parameter in self.signature.parameters.items()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and self._is_injected(name, hints.get(name, Any))
        )

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that the model fills in, in order."""
        found: list[Parameter] = []
        for name, parameter in self.signature.parameters.items():
            if name in self.injected or name in self._bound:
                continue
            hint = self._hints.get(name, Any)
            annotation = Any if isinstance(hint, str) else hint
            if parameter.kind is parameter.VAR_KEYWORD and (members := _unpacked(annotation)) is not None:
                found += [Parameter(key, *member, inspect.Parameter.KEYWORD_ONLY) for key, member in members.items()]
                continue
            description = self.docstring.parameters.get(name, "")
            found.append(Parameter(name, annotation, parameter.default, parameter.kind, description))
        return tuple(found)

    @cached_property
    def json_schema(self) -> dict[str, Any]:
        """The schema of the arguments: type object, ``$defs`` at its root."""
        return self._model.json_schema()

    def validate(self, tool_name: str, raw_arguments: str) -> dict[str, Any]:
        """Return the arguments by name, coerced, defaults filled in. Raises ToolArgumentsError."""
        return self._without_bound(self._model.validate(tool_name, raw_arguments))

    def select(self, tool_name: str, raw_arguments: str) -> dict[str, Any]:
        """Return the known arguments without validation. Raises ToolArgumentsError for invalid JSON."""
        try:
            arguments = read_arguments(raw_arguments)
        except UnreadableArgumentsError as error:
            raise ToolArgumentsError(tool_name, raw_arguments=raw_arguments, details=(str(error),)) from None
        for parameter in self.parameters:
            if parameter.default is inspect.Parameter.empty and parameter.accepts_none:
                arguments.setdefault(parameter.name, None)
        if any(parameter.kind is parameter.kind.VAR_KEYWORD for parameter in self.parameters):
            return self._without_bound(arguments)
        known = {parameter.name for parameter in self.parameters}
        return {name: value for name, value in arguments.items() if name in known}

    @cached_property
    def _model(self) -> ArgumentsModel:
        from patchbay.schema.pydantic_model import ArgumentsModel

        return ArgumentsModel(self.parameters)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        hints = resolved_hints(self.function)
        # A decorator may set a signature that differs from the annotations.
        for name, parameter in self.signature.parameters.items():
            if name not in hints and parameter.annotation is not parameter.empty:
                hints[name] = parameter.annotation
        return hints

    @cached_property
    def _bound(self) -> frozenset[str]:
        return frozenset(self.function.keywords) if isinstance(self.function, functools.partial) else frozenset()

    def _without_bound(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Remove arguments that a model passed through ``**kwargs`` under a bound name."""
        for name in self._bound & arguments.keys():
            del arguments[name]
        return arguments


def _unpacked(annotation: Any) -> dict[str, tuple[Any, Any]] | None:
    """Return annotation and default of each key if ``**kwargs`` is annotated with ``Unpack`` of a TypedDict, else None."""
    if typing.get_origin(annotation) is not typing.Unpack:
        return None
    from patchbay.schema.pydantic_model import members_of

    (inner,) = typing.get_args(annotation)
    return {
        name: (hint, inspect.Parameter.empty if required else LEFT_OUT) for name, (hint, required) in members_of(inner).items()
    }
