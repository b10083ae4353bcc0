"""The registry of tools by role and source, in memory; readers get immutable snapshots.

No I/O and no clock: the monitor of callbacks calls ``hide`` and ``show``. ``patchbay.registrations`` stores it.
"""

from __future__ import annotations

from patchbay.tools.registry.registration import MAX_TIMEOUT, Change, Failure, Key, Refusal, Registration, Snapshot
from patchbay.tools.registry.registration_table import BUILTIN, MCP_SOURCES, RESERVED
from patchbay.tools.registry.registry import DEFAULT_ROLE, ToolRegistry

__all__ = [
    "BUILTIN",
    "DEFAULT_ROLE",
    "MAX_TIMEOUT",
    "MCP_SOURCES",
    "RESERVED",
    "Change",
    "Failure",
    "Key",
    "Refusal",
    "Registration",
    "Snapshot",
    "ToolRegistry",
]
