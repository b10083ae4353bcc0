"""Approvals: a policy says which tool calls need a person's approval, and a service lets people decide about them.

service = ApprovalService(read_policy("approvals.toml"), "sqlite:///approvals.db")
service.mount(hooks)
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.approvals.policy import ApprovalPolicy, Rule, parse_policy, read_policy
    from patchbay.approvals.request import ApprovalRequest, SessionGrant, State, Verdict
    from patchbay.approvals.service import ApprovalService
    from patchbay.approvals.store import ApprovalStore
    from patchbay.approvals.terminal import TerminalApprover

__all__ = [
    "ApprovalPolicy",
    "ApprovalRequest",
    "ApprovalService",
    "ApprovalStore",
    "Rule",
    "SessionGrant",
    "State",
    "TerminalApprover",
    "Verdict",
    "parse_policy",
    "read_policy",
]

_HOMES = {
    "policy": ("ApprovalPolicy", "Rule", "parse_policy", "read_policy"),
    "request": ("ApprovalRequest", "SessionGrant", "State", "Verdict"),
    "service": ("ApprovalService",),
    "store": ("ApprovalStore",),
    "terminal": ("TerminalApprover",),
}

_resolve = lazy_exports(__name__, {name: f"patchbay.approvals.{home}" for home, names in _HOMES.items() for name in names})


def __getattr__(name: str) -> Any:
    if name == "ApprovalDesk":
        warnings.warn("ApprovalDesk is ApprovalService now; the old name ends with the next release.", DeprecationWarning, 2)
        name = "ApprovalService"
    return _resolve(name)
