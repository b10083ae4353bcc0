"""A function's parameters, and a strict and bounded parser of a call's arguments.

Python's JSON parser keeps every digit of an integer. What it accepts beyond JSON (NaN, Infinity), numbers beyond a float's range
(1e400), and nesting that would exhaust the stack of later code are rejected.
"""

from __future__ import annotations

import json
import re
import types
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import inspect

MAX_DEPTH: Final = 128
"""How deeply arguments and schemas may be nested."""

_EXCERPT = 200
_ODD = re.compile(r"NaN|Infinity|[eE]\+?[0-9]{3}|[0-9]{300}")


class UnreadableArgumentsError(ValueError):
    """The text is not one JSON object. ``str(error)`` is a line for ``ToolArgumentsError.details``."""


def read_arguments(raw: str) -> dict[str, Any]:
    """Read ``raw`` as one JSON object; blank text and ``null`` are ``{}``.

    Raises UnreadableArgumentsError.
    """
    if not raw or raw.isspace():
        return {}
    try:
        value = _DECODER.decode(raw)
    except RecursionError:
        raise UnreadableArgumentsError(_too_deep()) from None
    except json.JSONDecodeError as error:
        place = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise UnreadableArgumentsError(
            f"(root) must be one JSON object, but this is not valid JSON ({place}): {excerpt(raw)}"
        ) from None
    except ValueError as error:
        # A number: NaN, 1e400, or more digits than Python reads.
        raise UnreadableArgumentsError(f"(root) must be valid JSON: {str(error).partition(';')[0]}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnreadableArgumentsError(f"(root) must be object, not {json_type(value)}: {excerpt(raw)}")
    # Counting brackets is one pass in C; the exact check is for texts with many of them.
    if raw.count("{") + raw.count("[") > MAX_DEPTH and deeper_than(value, MAX_DEPTH):
        raise UnreadableArgumentsError(_too_deep())
    return value


def is_odd(raw: str) -> bool:
    """True if ``raw`` may hold something that only ``read_arguments`` rejects; a quick scan with false positives."""
    return _ODD.search(raw) is not None or raw.count("{") + raw.count("[") > MAX_DEPTH


def excerpt(text: str) -> str:
    """Return the beginning of ``text`` as one line, for a message."""
    head = text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}... ({len(text)} characters)"
    return " ".join(head.split())


def json_type(value: Any) -> str:
    """Return JSON Schema's name for the type of ``value``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "object" if isinstance(value, dict) else "array"


def deeper_than(value: dict[Any, Any] | list[Any], limit: int) -> bool:
    """True if containers are nested more than ``limit`` levels deep in ``value``. Not recursive."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _too_deep() -> str:
    return f"(root) must not be nested more than {MAX_DEPTH} levels deep"


def finite_float(text: str) -> float:
    """Read a number of JSON; raises ValueError for one that is too large for a float, such as 1e999."""
    value = float(text)
    if value in (_INFINITY, -_INFINITY):
        raise ValueError(f"the number {excerpt(text)} is out of range")
    return value


def refuse_constant(text: str) -> float:
    """Raise ValueError: NaN and Infinity are not JSON."""
    raise ValueError(f"{text} is not a JSON number")


_INFINITY = float("inf")
_DECODER = json.JSONDecoder(parse_float=finite_float, parse_constant=refuse_constant)


LEFT_OUT: Final = object()
"""The default of a parameter that is not passed to the function if the model leaves it out."""


@dataclass(frozen=True)
class Parameter:
    """A parameter that the model fills in. ``annotation`` is resolved, or ``Any`` if that fails."""

    name: str
    annotation: Any
    default: Any
    kind: inspect._ParameterKind
    description: str = ""

    @property
    def accepts_none(self) -> bool:
        """Whether the annotation allows None, in any spelling."""
        return _accepts_none(self.annotation)


def _accepts_none(annotation: Any) -> bool:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _accepts_none(typing.get_args(annotation)[0])
    if origin is typing.Union or origin is types.UnionType:
        return any(_accepts_none(member) for member in typing.get_args(annotation))
    if origin is typing.Literal:
        return None in typing.get_args(annotation)
    if hasattr(annotation, "__value__"):  # ``type Maybe = int | None``
        return _accepts_none(annotation.__value__)
    return annotation is None or annotation is type(None)
