"""Records and audits of the tests of this folder."""

from __future__ import annotations

import time
from typing import Any

from patchbay.audit import AuditEntry, AuditLog, AuditPage, AuditQuery
from patchbay.hooks import CallRecord, Meta

CONTEXT = {"inbound": {"channel": "telegram", "sender_id": "ann"}}
NUMBERED = ("id", "writer", "number")


def record(call_id: str = "c1", **members: Any) -> CallRecord:
    """Return the record of a call that went well."""
    meta = {name: members.pop(name) for name in ("agent_id", "turn_id", "parent_turn_id", "session_key") if name in members}
    known: dict[str, Any] = {
        "time": time.time(),
        "meta": Meta(**{"agent_id": "helper", "turn_id": "t1", "session_key": "s1", "iteration": 2, **meta}),
        "context": CONTEXT,
        "call_id": call_id,
        "tool": "fs_read",
        "source": "",
        "digest": "sha256:0",
        "decisions": (),
        "responded_by": "",
        "is_error": False,
        "code": "",
        "result_chars": 3,
        "seconds": 0.5,
    }
    return CallRecord(**{**known, **members})


def denied(call_id: str, **members: Any) -> CallRecord:
    return record(call_id, is_error=True, code="tool_denied", seconds=0.0, **members)


async def store_records(url: Any, *records: CallRecord, **options: Any) -> None:
    async with AuditLog(url, **options) as log:
        for each in records:
            log(each)
        await log.flush()


async def find(url: Any, **query: Any) -> AuditPage:
    async with AuditLog(url) as log:
        return await log.query(AuditQuery(**query))


def ids(page: AuditPage) -> list[str]:
    return [each.call_id for each in page.entries]


def members(entry: AuditEntry) -> dict[str, Any]:
    """Return the members that neither the database nor the writer numbers."""
    return {name: value for name, value in entry.as_json().items() if name not in NUMBERED}
