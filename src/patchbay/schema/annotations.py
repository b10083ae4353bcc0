"""Annotations that pydantic does not know, said in ones that it does.

What lives here: ``typing.TypedDict`` before Python 3.12, classes of attrs and msgspec, the abstract collections that JSON writes
as arrays, enum members in a ``Literal``, and the words of ``typing`` that say nothing about a parameter's value (``Final``,
``ClassVar``, ``InitVar``).
Imported on first use, with pydantic.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import enum
import inspect
import sys
import types
import typing
from typing import Any

import typing_extensions
from pydantic import AfterValidator

# Of an Iterable, pydantic would look at each item only when the function takes it.
_ARRAYS = {abc.Collection, abc.Container, abc.Reversible, abc.Iterable}
_ITERATORS = {abc.Iterator, abc.Generator}
_QUALIFIERS = {typing.ClassVar, typing.Final}
_REQUIREDNESS = {typing.Required, typing.NotRequired}


def known(annotation: Any) -> Any:
    """Return ``annotation`` with every part that pydantic would refuse put in other words, wherever it stands inside."""
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
    if origin is type:  # a class is nothing that JSON could name
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
        return typing.Union[changed]  # noqa: UP007  (made of parts)
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
    if isinstance(annotation, type) and (hasattr(annotation, "__attrs_attrs__") or hasattr(annotation, "__struct_fields__")):
        return _constructed(annotation, seen)
    if sys.version_info < (3, 12) and type(annotation).__module__ == "typing" and typing.is_typeddict(annotation):
        return _typed_dict(annotation, seen)
    return annotation


def _array(kind: Any, item: Any) -> Any:
    array = list.__class_getitem__(item)
    return typing.Annotated[array, AfterValidator(iter)] if kind in _ITERATORS else array


def _literal(annotation: Any) -> Any:
    """Return a Literal of what JSON has for enum members, which become members again once they are checked."""
    choices = typing.get_args(annotation)
    members = {choice.value: choice for choice in choices if isinstance(choice, enum.Enum)}
    if not members:
        return annotation
    values = tuple(choice.value if isinstance(choice, enum.Enum) else choice for choice in choices)
    return typing.Annotated[typing.Literal.__getitem__(values), AfterValidator(lambda value: members.get(value, value))]


def _typed_dict(original: Any, seen: dict[Any, Any]) -> Any:
    """Return the same TypedDict as ``typing_extensions`` has it: the one of older Pythons does not tell pydantic enough."""
    if original in seen:
        return seen[original]
    make: Any = typing_extensions.TypedDict
    made = make(original.__name__, {})
    seen[original] = made  # before its fields: they may name it again
    members = members_of(original)
    made.__annotations__ = {name: _known(hint, seen) for name, (hint, _) in members.items()}
    made.__required_keys__ = frozenset(name for name, (_, required) in members.items() if required)
    made.__optional_keys__ = frozenset(members) - made.__required_keys__
    for attribute in ("__doc__", "__module__", "__qualname__", "__pydantic_config__"):
        if hasattr(original, attribute):
            setattr(made, attribute, getattr(original, attribute))
    return made


def _constructed(kind: Any, seen: dict[Any, Any]) -> Any:
    """Return a TypedDict of what the class is constructed from, which becomes an instance once it is checked."""
    if kind in seen:
        return seen[kind]
    seen[kind] = Any  # where it contains itself, whatever is given is taken
    hints = _hints_of(kind)
    members: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        hint = hints.get(name, hints.get(f"_{name}", Any))  # attrs leaves out the underscore
        requiredness: Any = typing_extensions.Required if parameter.default is parameter.empty else typing_extensions.NotRequired
        members[name] = requiredness[_known(hint, seen)]

    def construct(given: dict[str, Any]) -> Any:
        try:
            return kind(**given)
        except TypeError as error:  # of a validator of the class's own; pydantic tells only of ValueErrors
            raise ValueError(str(error)) from error

    make: Any = typing_extensions.TypedDict
    made = make(kind.__name__, members)
    made.__doc__ = kind.__doc__
    seen[kind] = typing.Annotated[made, AfterValidator(construct)]
    return seen[kind]


def _hints_of(kind: Any) -> dict[str, Any]:
    try:
        return typing_extensions.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001  (an annotation may be any expression, and fail in any way)
        return {}


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
