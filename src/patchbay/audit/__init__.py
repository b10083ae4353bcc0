"""The audit: every finished tool call in an append-only table. ``patchbay audit`` and ``GET /api/audit`` read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.audit.entries import AuditDecision, AuditEntry, AuditPage, AuditQuery
    from patchbay.audit.log import AuditLog

__all__ = ["AuditDecision", "AuditEntry", "AuditLog", "AuditPage", "AuditQuery"]

__getattr__ = lazy_exports(__name__, {name: f"patchbay.audit.{'log' if name == 'AuditLog' else 'entries'}" for name in __all__})
