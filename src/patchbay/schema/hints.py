"""A function's annotations, resolved: behind partials, methods and decorators, postponed ones included.

What lives here: finding the names that an annotation uses, wherever the function was defined. What does not: what an annotation
means in JSON (``pydantic_model``, and ``annotations`` for what pydantic does not know).
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any


def annotated_part(function: Callable[..., Any]) -> Any:
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


def resolved_hints(function: Callable[..., Any], local_names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the annotations by parameter; one that cannot be resolved is left as the text it was written as."""
    part = annotated_part(function)
    module = getattr(part, "__globals__", {})
    names = {**_closure(part), **local_names}
    try:
        return typing.get_type_hints(part, globalns=module, localns=names, include_extras=True)
    except Exception:  # noqa: BLE001  (an annotation may be any expression, and fail in any way)
        names = {**_class_names(function), **names}
        return {name: _resolved(annotation, module, names) for name, annotation in _annotations(part).items()}


def local_names(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the names in postponed annotations that are local to the function which defines ``function``.

    They are to be found only while that one still runs, so ask when the tool is made.
    """
    part = annotated_part(function)
    outer = _outer_function(part)
    wanted = {name for annotation in _annotations(part).values() for name in _names_in(annotation)} if outer else ()
    if not wanted:
        return {}
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001  (the only way to a local class)
    while frame is not None:
        if frame.f_code.co_qualname == outer:
            return {name: frame.f_locals[name] for name in wanted if name in frame.f_locals}
        frame = frame.f_back
    return {}


def lost_name(function: Callable[..., Any], annotation: Any, local_names: Mapping[str, Any]) -> str:
    """Return what is wrong with a postponed annotation of a local function that uses a name which cannot be found; "" if nothing.

    Such a name was local to the function that defines this one, which has returned.
    """
    part = annotated_part(function)
    if not (outer := _outer_function(part)):
        return ""
    code = getattr(part, "__code__", None)
    type_parameters = [item.__name__ for item in getattr(part, "__type_params__", ())]
    known = {*local_names, *(code.co_freevars if code is not None else ()), *type_parameters, *vars(builtins)}
    known |= getattr(part, "__globals__", {}).keys() | _class_names(function).keys()
    if not (lost := [name for name in _names_in(annotation) if name not in known]):
        return ""
    return (
        f"its annotation {annotation!r} names {lost[0]!r}, which is local to {outer}() and cannot be found from here. "
        f"Use @tool inside of {outer}(), or define {lost[0]!r} at the top level of the module."
    )


def _outer_function(part: Any) -> str:
    """Return the qualified name of the function in which ``part`` is defined, "" for none."""
    return str(getattr(part, "__qualname__", "")).rpartition(".<locals>.")[0]


def _annotations(part: Any) -> Mapping[str, Any]:
    return getattr(part, "__annotations__", None) or {}


def _names_in(annotation: Any) -> list[str]:
    """Return the names that a postponed annotation uses, in order."""
    if not isinstance(annotation, str):
        return []
    try:
        tree = ast.parse(annotation, mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


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
        except ValueError:  # the cell is still empty: a name defined further down
            continue
    return values


def _class_names(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the classes defined inside the class of a method or callable object, which its annotations may name."""
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    owner = getattr(target, "__self__", None) if inspect.isroutine(target) else target
    classes = inspect.getmro(owner if isinstance(owner, type) else type(owner))
    inside = [item for item in reversed(classes) if item.__module__ != "builtins"]
    return {name: value for item in inside for name, value in vars(item).items() if isinstance(value, type)}
