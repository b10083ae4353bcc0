"""Whose turn it is that hooks are asked about, as the door that began it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from patchbay.hooks.views import Meta


@dataclass(frozen=True, slots=True)
class HookScope:
    """What is around a turn. ``turn_id`` names it, ``parent_turn_id`` the turn that a sub-agent works for.

    ``context`` has what is known of who asks, in members ``inbound``, ``route`` and ``scope`` (each a mapping). ``model`` is the
    model's name where the request does not say it.
    """

    agent_id: str = ""
    turn_id: str = ""
    parent_turn_id: str = ""
    session_key: str = ""
    model: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)

    def meta(self, trace_path: str, iteration: int) -> Meta:
        """Where in this turn a hook is asked."""
        return Meta(self.agent_id, self.turn_id, self.parent_turn_id, self.session_key, iteration, trace_path)


NO_SCOPE = HookScope()
"""Whose turn it is where nobody said."""
