"""What observers are told of calls that wait: that each waits, and what became of that."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from patchbay.approvals.request import ApprovalRequest, State
from patchbay.hooks import HookManager, ToolRequest

REQUESTED: Final = "agent.approval.requested"
DECIDED: Final = "agent.approval.decided"


def tell_requested(managers: Iterable[HookManager], call: ToolRequest, request: ApprovalRequest) -> None:
    """Say that a call waits from now on. ``Deadline`` is in seconds since 1970."""
    observed = [each for each in managers if each.events.observers]
    if not observed:
        return
    payload = {
        "ID": request.id,
        "Tool": request.tool,
        "Arguments": json.loads(request.arguments),
        **({"Facts": dict(request.facts)} if request.facts else {}),
        "Who": list(request.who),
        "Rule": request.rule,
        **({"Why": request.why} if request.why else {}),
        "Deadline": request.deadline,
        "AtDeadline": request.at_deadline,
    }
    _tell(observed, REQUESTED, call, payload, "info")


def tell_decided(managers: Iterable[HookManager], call: ToolRequest, request: ApprovalRequest) -> None:
    """Say that it does not any more: ``Decision`` is the request's state."""
    runs = request.state is State.APPROVED or (request.state is State.EXPIRED and request.at_deadline == "allow")
    payload = {
        "ID": request.id,
        "Tool": request.tool,
        "Decision": str(request.state),
        "By": request.by,
        "Reason": request.reason,
        "ForSession": request.for_session,
    }
    _tell(managers, DECIDED, call, payload, "info" if runs else "warn")


def _tell(managers: Iterable[HookManager], kind: str, call: ToolRequest, payload: dict[str, Any], severity: str) -> None:
    for each in managers:
        each.events.tell(kind, call.meta, call.context, payload, severity=severity, attrs={"call_id": call.call_id})
