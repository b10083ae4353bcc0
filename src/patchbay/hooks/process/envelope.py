"""A runtime event on the wire: ``params`` of ``hook.runtime_event`` (spec/hooks.md, section 9.1)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from patchbay.hooks.views import Event

_INBOUND: Final = (
    "channel", "account", "chat_id", "topic_id", "space_id", "space_type", "chat_type", "sender_id", "message_id",
)  # fmt: skip


def enveloped(event: Event) -> dict[str, Any]:
    """Return an event in the wire's words; ``scope`` and ``correlation`` are there also where they are empty."""
    meta = event.meta
    inbound = event.context.get("inbound")
    inbound = inbound if isinstance(inbound, Mapping) else {}
    source = {"component": event.kind.partition(".")[0], "name": meta.agent_id}
    scope: dict[str, Any] = {"agent_id": meta.agent_id, "session_key": meta.session_key, "turn_id": meta.turn_id}
    scope |= {name: inbound.get(name) for name in _INBOUND}
    correlation = {
        "trace_id": meta.trace_path,
        "parent_turn_id": meta.parent_turn_id,
        "reply_to_id": inbound.get("reply_to_message_id"),
    }
    attrs = {"agent_source": meta.source, "iteration": meta.iteration, **event.attrs}
    told: dict[str, Any] = {
        "id": event.id,
        "kind": event.kind,
        "time": rfc3339(event.time),
        "source": _filled(source),
        "scope": _filled(scope),
        "correlation": _filled(correlation),
        "severity": event.severity,
        "payload": event.payload,
        "attrs": _filled(attrs),
    }
    return {name: value for name, value in told.items() if value or name in ("scope", "correlation")}


def rfc3339(seconds: float) -> str:
    """Write a time since 1970, in nanoseconds as far as it has them."""
    whole = int(seconds)
    moment = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{int((seconds - whole) * 1e9):09d}Z"


def _filled(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value not in (None, "", 0)}
