"""Lazy re-exports: a name's module is imported when the name is first used.

This keeps ``import patchbay`` free of third-party packages (tests/test_import.py). An ``__init__`` lists its names once for the
interpreter (``lazy_exports``), and once under ``TYPE_CHECKING`` for type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_exports(package: str, names: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return ``__all__`` and ``__getattr__`` for ``package``.

    ``names`` has the names to export from each module of the package, separated by spaces; a module elsewhere has its full name.
    """
    modules = {
        name: module if module.startswith("patchbay.") else f"{package}.{module}"
        for module, listed in names.items()
        for name in listed.split()
    }

    def resolve(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        # The next access finds the name in the module itself and does not come here again.
        vars(import_module(package))[name] = value
        return value

    return sorted(modules), resolve
