"""Modules whose documented names moved to ``patchbay.server``: importable for one more release, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any, Final

_FACE: Final = "patchbay.server"

_MOVED: Final = {  # module: {old name: new name}
    "approvals": {"make_approvals_router": "make_approvals_router"},
    "audit": {"make_audit_router": "make_audit_router"},
    "events": {"make_events_router": "make_events_router"},
    "media": {"MediaDoor": "MediaApp"},
    "oversight": {"Oversight": "Governance", "OversightSettings": "GovernanceSettings"},
    "tools": {name: name for name in ("CallbackError", "CallbackTool", "ToolsApp", "ToolsSettings", "create_tools_app")},
    "tools.chat": {},
    "tools.chat.settings": {"ChatSettings": "ChatSettings"},
    "tools.settings": {"ToolsSettings": "ToolsSettings"},
}


class _MovedModule(ModuleType):
    """Resolves the old names of a module that is gone."""

    def __getattr__(self, name: str) -> Any:
        new = _MOVED[self.__name__.removeprefix(f"{_FACE}.")].get(name)
        if new is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        warnings.warn(
            f"{self.__name__}.{name} is {_FACE}.{new} now; the old name ends with the next release.", DeprecationWarning, 2
        )
        return getattr(import_module(_FACE), new)


def register() -> None:
    """Make the old modules importable."""
    for name in _MOVED:
        module = sys.modules.setdefault(f"{_FACE}.{name}", _MovedModule(f"{_FACE}.{name}"))
        module.__path__ = []  # some of these modules had modules of their own
