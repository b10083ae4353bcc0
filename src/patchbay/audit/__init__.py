"""The audit: every call that has settled, in a table that is only ever added to.

What lives here: the log (``log``), what is read of it (``entries``) and its table (``tables``). What does not: what there is to
say of a call (``patchbay.hooks.records``), and who shows it: ``patchbay audit`` and ``patchbay.server.audit``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.audit.entries import AuditDecision, AuditEntry, AuditPage, AuditQuery
    from patchbay.audit.log import AuditLog

__all__ = ["AuditDecision", "AuditEntry", "AuditLog", "AuditPage", "AuditQuery"]

__getattr__ = lazy_exports(
    __name__,
    {
        "AuditLog": "patchbay.audit.log",
        **dict.fromkeys(("AuditDecision", "AuditEntry", "AuditPage", "AuditQuery"), "patchbay.audit.entries"),
    },
)
