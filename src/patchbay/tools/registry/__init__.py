"""Which tools exist, for which role, and who they are from; and what a reader sees of it in one moment.

What lives here: the registry, as data in memory. What does not: storing it (``patchbay.registrations``), the doors that tools
come in by (``patchbay.server``, ``patchbay.tools.manager``), and calling a tool (``patchbay.executor``). No I/O, no clock:
whoever watches whether a callback is alive says ``hide`` and ``show``.
"""

from __future__ import annotations

from patchbay.tools.registry.registration import MAX_TIMEOUT, Change, Failure, Key, Refusal, Registration, Snapshot
from patchbay.tools.registry.registration_table import BUILTIN, RESERVED
from patchbay.tools.registry.registry import DEFAULT_ROLE, ToolRegistry

__all__ = [
    "BUILTIN",
    "DEFAULT_ROLE",
    "MAX_TIMEOUT",
    "RESERVED",
    "Change",
    "Failure",
    "Key",
    "Refusal",
    "Registration",
    "Snapshot",
    "ToolRegistry",
]
