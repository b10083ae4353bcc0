"""Attributes of an object that are made when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class made_once(Generic[T]):  # noqa: N801 - a decorator, in the place of functools.cached_property
    """A method that becomes the attribute that it returns. Without a lock, which functools takes before Python 3.12."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    def __get__(self, owner: Any, _kind: type | None = None) -> T:
        """Make the attribute; from now on it is found before this."""
        value = owner.__dict__[self._name] = self._make(owner)
        return value
