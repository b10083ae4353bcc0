"""What is no script is refused when it is given: one that is played wrong makes a test pass, or fail at some other place. Pure.

What lives here: the checks, and the words that say what is allowed. What does not: what can be given (``script``, ``fake``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

from patchbay.errors import ConfigurationError


def one_of(what: str, value: object, allowed: Any) -> None:
    """Raise ConfigurationError for a value that the Literal ``allowed`` does not have."""
    if value not in get_args(allowed):
        raise ConfigurationError(f"{_first(what)} is one of {_listed(get_args(allowed))}, not {value!r}.")


def some_of(what: str, values: object, allowed: Any) -> None:
    """Raise ConfigurationError for what is no collection of values that the Literal ``allowed`` has."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigurationError(f"{_first(what)} are a collection of {_listed(get_args(allowed))}, not {values!r}.")
    for value in values:
        one_of(f"each of {what}", value, allowed)


def listed(what: str, values: object, kinds: Sequence[type], advice: str = "") -> None:
    """Raise ConfigurationError for what is no sequence of things of these kinds. ``advice`` is what else is said then."""
    names = ", ".join(kind.__name__ for kind in kinds)
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigurationError(f"{_first(what)} are a sequence of {names}, not {values!r}.{advice}")
    for value in values:
        of_kind(f"each of {what}", value, kinds, advice)


def of_kind(what: str, value: object, kinds: Sequence[type], advice: str = "") -> None:
    """Raise ConfigurationError for what is of none of these kinds."""
    if not isinstance(value, tuple(kinds)):
        raise ConfigurationError(f"{_first(what)} is one of {', '.join(kind.__name__ for kind in kinds)}, not {value!r}.{advice}")


def at_least(what: str, value: object, least: float) -> None:
    """Raise ConfigurationError for what is no number, or less than ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
        raise ConfigurationError(f"{_first(what)} is a number of at least {least}, not {value!r}.")


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(repr, values))


def _first(what: str) -> str:
    """Return words as a sentence begins with them."""
    return what[:1].upper() + what[1:]
