"""The audit: every finished tool call in an append-only table. ``patchbay audit`` and ``GET /api/audit`` read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.audit.entries import AuditDecision as AuditDecision
    from patchbay.audit.entries import AuditEntry as AuditEntry
    from patchbay.audit.entries import AuditPage as AuditPage
    from patchbay.audit.entries import AuditQuery as AuditQuery
    from patchbay.audit.log import AuditLog as AuditLog


__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "entries": "AuditDecision AuditEntry AuditPage AuditQuery",
        "log": "AuditLog",
    },
)
