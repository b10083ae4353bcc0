"""A function's parameters as JSON Schema, and a call's arguments checked against them.

Reading the signature lives here; what a type means in JSON is pydantic's business (``pydantic_model``). All
of it is done on first use and kept: making a tool of a function costs nothing until a model is told of it.

Which parameters a caller fills in itself (a tool's context) is the caller's rule: ``is_injected``.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from patchbay.errors import ConfigurationError, ToolArgumentsError
from patchbay.schema.arguments import UnreadableArgumentsError, read_arguments
from patchbay.schema.docstrings import Docstring, read_docstring

if typing.TYPE_CHECKING:
    from patchbay.schema.pydantic_model import ArgumentsModel

IsInjected = Callable[[str, Any], bool]
"""Told a parameter's name and annotation: whether it is not the model's to fill in."""


@dataclass(frozen=True)
class Parameter:
    """One parameter that the model fills in. ``annotation`` is resolved, or ``Any`` where it cannot be."""

    name: str
    annotation: Any
    default: Any
    kind: inspect._ParameterKind
    description: str = ""

    @property
    def accepts_none(self) -> bool:
        """Whether the annotation says Optional, in any spelling."""
        return _accepts_none(self.annotation)


class FunctionSchema:
    """What a function takes, as a model is told it and as its calls are checked.

    Optional parameters without a default accept null and may be left out. Arguments that the function does
    not have are dropped. A type that JSON cannot express, or a name that cannot be resolved, accepts
    anything.
    """

    def __init__(self, function: Callable[..., Any], *, is_injected: IsInjected = lambda _name, _annotation: False) -> None:
        self.function = function
        self._is_injected = is_injected
        # Local names in postponed annotations are only to be found now, while the defining function still
        # runs.
        self._locals = _local_names(_inner(function))

    @cached_property
    def signature(self) -> inspect.Signature:
        """The function's signature; raises ConfigurationError where Python knows none (some builtins)."""
        try:
            return inspect.signature(self.function)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{self.function!r} has no signature to build a schema from: pass parameters=, or wrap it."
            ) from error

    @cached_property
    def docstring(self) -> Docstring:
        """The function's docstring, read."""
        # A partial's or callable object's own __doc__ is that of its class when it has none.
        target = self.function if inspect.isroutine(self.function) else _inner(self.function)
        text = inspect.getdoc(target)
        if text is None and not inspect.isroutine(self.function) and not isinstance(self.function, functools.partial):
            text = inspect.getdoc(type(self.function))
        return read_docstring(text)

    @cached_property
    def injected(self) -> str | None:
        """The name of the parameter that the caller fills in, if there is one."""
        hints = self._hints
        for name in self.signature.parameters:
            if self._is_injected(name, hints.get(name, Any)):
                return name
        return None

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that the model fills in, in order."""
        documented = self.docstring.parameters
        return tuple(
            Parameter(name, self._hints.get(name, Any), parameter.default, parameter.kind, documented.get(name, ""))
            for name, parameter in self.signature.parameters.items()
            if name != self.injected
        )

    @cached_property
    def json_schema(self) -> dict[str, Any]:
        """The schema of the arguments: type object, ``$defs`` at its root."""
        return self._model.json_schema()

    def validate(self, tool_name: str, raw_arguments: str) -> dict[str, Any]:
        """Return the arguments by name, coerced, defaults filled in. Raises ToolArgumentsError."""
        return self._model.validate(tool_name, raw_arguments)

    def select(self, tool_name: str, raw_arguments: str) -> dict[str, Any]:
        """Return the arguments unchecked, unknown ones left out. Raises ToolArgumentsError where not JSON."""
        try:
            arguments = read_arguments(raw_arguments)
        except UnreadableArgumentsError as error:
            raise ToolArgumentsError(tool_name, raw_arguments=raw_arguments, details=(str(error),)) from None
        for parameter in self.parameters:
            if parameter.default is inspect.Parameter.empty and parameter.accepts_none:
                arguments.setdefault(parameter.name, None)
        if any(parameter.kind is parameter.kind.VAR_KEYWORD for parameter in self.parameters):
            return arguments
        known = {parameter.name for parameter in self.parameters}
        return {name: value for name, value in arguments.items() if name in known}

    @cached_property
    def _model(self) -> ArgumentsModel:
        from patchbay.schema.pydantic_model import ArgumentsModel

        return ArgumentsModel(self.parameters)

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        inner = _inner(self.function)
        annotations: Mapping[str, Any] = getattr(inner, "__annotations__", {})
        module = getattr(inner, "__globals__", {})
        closure = _closure(inner)
        names = {**closure, **self._locals}
        try:
            return typing.get_type_hints(inner, globalns=module, localns=names, include_extras=True)
        except Exception:  # noqa: BLE001  (an annotation may be any expression, and fail in any way)
            return {name: _resolve(annotation, module, names) for name, annotation in annotations.items()}


def _inner(function: Callable[..., Any]) -> Any:
    """Return what holds the annotations: behind partials, methods, decorators and callable objects."""
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
            # A callable object, or a C function that takes part in neither.
            call = getattr(type(target), "__call__", None)  # noqa: B004  (what is wanted is the attribute itself)
            if call is None or not isinstance(call, types.FunctionType):
                return target
            target = call


def _resolve(annotation: Any, module: dict[str, Any], names: dict[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, globalns=module, localns=names, include_extras=True)["it"]
    except Exception:  # noqa: BLE001  (see above)
        return Any


def _closure(function: Any) -> dict[str, Any]:
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    values: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # the cell is still empty: a name defined further down
            continue
    return values


def _local_names(function: Any) -> dict[str, Any]:
    """Return the names in string annotations that are local to the function which defines ``function``."""
    outer, local, _ = getattr(function, "__qualname__", "").rpartition(".<locals>.")
    annotations = getattr(function, "__annotations__", None)
    if not local or not annotations:
        return {}
    wanted: set[str] = set()
    for annotation in annotations.values():
        if isinstance(annotation, str):
            try:
                wanted.update(compile(annotation, "<annotation>", "eval").co_names)
            except (SyntaxError, ValueError):
                continue
    if not wanted:
        return {}
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001  (the only way to a local class)
    while frame is not None:
        if frame.f_code.co_qualname == outer:
            return {name: frame.f_locals[name] for name in wanted if name in frame.f_locals}
        frame = frame.f_back
    return {}


def _accepts_none(annotation: Any) -> bool:
    """Tell whether the annotation says Optional, in any spelling."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _accepts_none(typing.get_args(annotation)[0])
    if origin is typing.Union or origin is types.UnionType:
        return any(_accepts_none(member) for member in typing.get_args(annotation))
    return annotation is None or annotation is type(None)
