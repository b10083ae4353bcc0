"""``Ok`` and ``Err``: a handler's outcome as a value, for those who would rather not raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from patchbay.plugins.errors import PluginError

T = TypeVar("T")
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Ok(Generic[T]):
    """It went well, and this is what came of it."""

    value: T


@dataclass(frozen=True, slots=True)
class Err(Generic[E]):
    """It failed: ``error`` is a text for the model, an exception (told as if it had been raised), or any other value."""

    error: E


Result: TypeAlias = Ok[T] | Err[E]
"""Either of them, for annotations: ``Result[dict, str]``."""


def unwrap(result: Ok[T] | Err[E]) -> T:
    """Return the value of an Ok. Raises the error of an Err: itself if it is an exception, else as a PluginError."""
    if isinstance(result, Ok):
        return result.value
    if not isinstance(result, Err):
        raise TypeError(f"unwrap() takes an Ok or an Err, not {type(result).__name__}.")
    if isinstance(result.error, BaseException):
        raise result.error
    raise PluginError(str(result.error))


def unwrap_or(result: Ok[T] | Err[E], default: T) -> T:
    """Return the value of an Ok, and ``default`` for an Err."""
    return result.value if isinstance(result, Ok) else default
