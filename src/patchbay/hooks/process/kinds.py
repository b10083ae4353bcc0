"""The kinds of runtime events, by name, and the short names that configurations have for them (spec/hooks.md, section 9.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from patchbay.errors import ConfigurationError

_AGENT: Final = (
    "turn.start", "turn.end", "llm.request", "llm.delta", "llm.response", "llm.retry", "context.compress", "session.summarize",
    "tool.exec_start", "tool.exec_end", "tool.exec_skipped", "steering.injected", "follow_up.queued", "interrupt.received",
    "subturn.spawn", "subturn.end", "subturn.result_delivered", "subturn.orphan", "error",
)  # fmt: skip
_OTHERS: Final = (
    "agent.user_output", "agent.approval.requested", "agent.approval.decided",  # ours: the seed's host has no such events
    "channel.lifecycle.initialized", "channel.lifecycle.started", "channel.lifecycle.start_failed", "channel.lifecycle.stopped",
    "channel.webhook.registered", "channel.webhook.unregistered", "channel.message.outbound_queued",
    "channel.message.outbound_sent", "channel.message.outbound_failed", "channel.rate_limited", "bus.publish.failed",
    "bus.close.started", "bus.close.drained", "bus.close.completed", "gateway.start", "gateway.ready", "gateway.shutdown",
    "gateway.reload.started", "gateway.reload.completed", "gateway.reload.failed", "mcp.server.connecting",
    "mcp.server.connected", "mcp.server.failed", "mcp.tool.discovered", "mcp.tool.call.start", "mcp.tool.call.end",
)  # fmt: skip

KINDS: Final = frozenset({*(f"agent.{name}" for name in _AGENT), *_OTHERS})
"""All kinds that may be named. Not all of them happen here: a configuration made for another host may name them."""

ALIASES: Final = {name.replace(".", "_"): f"agent.{name}" for name in _AGENT}
"""The short names: ``turn_start`` is ``agent.turn.start``."""

ALL: Final = frozenset({"*", "all", ""})
"""Any of these among the names means all kinds."""


def observed(names: Sequence[str], where: str) -> frozenset[str] | None:
    """Return the kinds that are meant, None for all of them. Raises ConfigurationError for a name that is none.

    What stands behind a name that means all is not looked at, as in the seed's host.
    """
    kinds = set()
    for name in names:
        if name in ALL:
            return None
        kind = ALIASES.get(name, name)
        if kind not in KINDS:
            raise ConfigurationError(f'{where} names the event "{name}", which there is not: "*" is all of them.')
        kinds.add(kind)
    return frozenset(kinds)
