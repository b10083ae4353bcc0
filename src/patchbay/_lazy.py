"""Lazy re-exports: a name's module is imported when the name is first used.

Each ``__init__`` lists its names, once for the interpreter and once under ``TYPE_CHECKING`` for type checkers. This keeps
``import patchbay`` free of third-party packages (tests/test_import.py).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make a module ``__getattr__`` for ``package``; ``homes`` maps each public name to its module."""

    def resolve(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home), name)
        # The next access finds the name in the module itself and does not come here again.
        vars(import_module(package))[name] = value
        return value

    return resolve
