"""Approvals: a policy says which tool calls need a person's approval, and a service lets people decide about them.

service = ApprovalService(read_policy("approvals.toml"), "sqlite:///approvals.db")
service.mount(hooks)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.approvals.permissions import Permission as Permission
    from patchbay.approvals.policy import ApprovalPolicy as ApprovalPolicy
    from patchbay.approvals.policy import Rule as Rule
    from patchbay.approvals.policy import parse_policy as parse_policy
    from patchbay.approvals.policy import read_policy as read_policy
    from patchbay.approvals.request import ApprovalRequest as ApprovalRequest
    from patchbay.approvals.request import SessionGrant as SessionGrant
    from patchbay.approvals.request import State as State
    from patchbay.approvals.request import Verdict as Verdict
    from patchbay.approvals.service import ApprovalService as ApprovalService
    from patchbay.approvals.store import ApprovalStore as ApprovalStore
    from patchbay.approvals.terminal import TerminalApprover as TerminalApprover


__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "permissions": "Permission",
        "policy": "ApprovalPolicy Rule parse_policy read_policy",
        "request": "ApprovalRequest SessionGrant State Verdict",
        "service": "ApprovalService",
        "store": "ApprovalStore",
        "terminal": "TerminalApprover",
    },
)
