"""Arguments frozen: from the moment a call is let through, nobody but its tool can change what it runs with (law 9)."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import is_dataclass
from typing import Any

_UNCHANGING = frozenset({str, int, float, bool, type(None)})
_MARKS = ("__pydantic_validator__", "__attrs_attrs__", "__struct_fields__")
_CONTAINERS = (list, dict, tuple, set, frozenset, deque, bytearray)  # and what is derived from them


def frozen_copy(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return ``arguments`` with containers, pydantic models, dataclasses, and objects of attrs and msgspec of its own.

    All other objects are shared: they are immutable, or the function's own defaults, which may be compared by identity.
    """
    for value in arguments.values():
        if type(value) not in _UNCHANGING:
            break
    else:
        return dict(arguments)  # nearly all calls
    try:
        return {name: _copy(value) for name, value in arguments.items()}
    except RecursionError:
        return dict(arguments)


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is list:
        return [_copy(item) for item in value]
    if kind is dict:
        return {key: _copy(item) for key, item in value.items()}
    if kind is tuple:
        return tuple(_copy(item) for item in value)
    if isinstance(value, _CONTAINERS) or is_dataclass(kind) or any(hasattr(kind, mark) for mark in _MARKS):
        try:
            return copy.deepcopy(value)
        except Exception:  # noqa: BLE001  (what a model holds may refuse to be copied, in any way)
            return value
    return value
