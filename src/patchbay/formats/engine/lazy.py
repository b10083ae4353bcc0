"""Attributes of an object that are computed on first access."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class cached_attribute(Generic[T]):  # noqa: N801 - a decorator, in the place of functools.cached_property
    """A method whose value replaces it on the instance, without the lock of functools.cached_property before Python 3.12."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    def __get__(self, owner: Any, _kind: type | None = None) -> T:
        """Compute the attribute; the instance's own value is found before this from now on."""
        value = owner.__dict__[self._name] = self._make(owner)
        return value
