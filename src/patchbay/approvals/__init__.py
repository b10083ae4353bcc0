"""Approvals: which calls need somebody's yes, who is asked, and what is done with the answer.

What lives here: the policy and its file, the desk where calls wait, and what is kept of them. What does not: hooks
(``patchbay.hooks``, of which the desk is one), HTTP (``patchbay.server.approvals``), commands (``patchbay.cli.approvals``).

    desk = ApprovalDesk(read_policy("approvals.toml"), "sqlite:///approvals.db")
    desk.mount(hooks)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.approvals.desk import ApprovalDesk
    from patchbay.approvals.policy import ApprovalPolicy, Rule
    from patchbay.approvals.policy_file import parse_policy, read_policy
    from patchbay.approvals.request import ApprovalRequest, SessionGrant, State, Verdict
    from patchbay.approvals.store import ApprovalStore
    from patchbay.approvals.terminal import TerminalApprover

__all__ = [
    "ApprovalDesk",
    "ApprovalPolicy",
    "ApprovalRequest",
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
    "desk": ("ApprovalDesk",),
    "policy": ("ApprovalPolicy", "Rule"),
    "policy_file": ("parse_policy", "read_policy"),
    "request": ("ApprovalRequest", "SessionGrant", "State", "Verdict"),
    "store": ("ApprovalStore",),
    "terminal": ("TerminalApprover",),
}

__getattr__ = lazy_exports(__name__, {name: f"patchbay.approvals.{home}" for home, names in _HOMES.items() for name in names})
