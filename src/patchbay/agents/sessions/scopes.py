"""Whose a key of the state is, by its prefix.

``app:`` keys belong to all sessions of an application, ``user:`` keys to all of a user's, ``temp:`` keys to the run that wrote
them and are never kept, all other keys to the session.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

APP: Final = "app:"
USER: Final = "user:"
TEMP: Final = "temp:"


def kept(delta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that outlive their run."""
    return {key: value for key, value in delta.items() if not str(key).startswith(TEMP)}


def temporary(delta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that are the run's own."""
    return {key: value for key, value in delta.items() if str(key).startswith(TEMP)}


def apply(delta: Mapping[str, Any], state: MutableMapping[str, Any]) -> None:
    """Make the changes; None deletes a key."""
    for key, value in delta.items():
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
