"""What a tool may ask of the run around it, and how the wishes of several calls become one.

What lives here: the wishes as data, and their merge. What does not: carrying them out (``patchbay.agents``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass
class ToolActions:
    """What a call asks of its run besides its result.

    ``transfer_to_agent`` names the agent that goes on, ``escalate`` ends the enclosing loop, ``state_delta`` are changes of the
    session's state (None deletes a key). ``state_found`` is what was there, under those keys of it where a value was changed and
    not assigned anew (``State.found``).
    """

    transfer_to_agent: str | None = None
    escalate: bool | None = None
    state_delta: dict[str, Any] = field(default_factory=dict)
    state_found: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self.transfer_to_agent or self.escalate or self.state_delta)


class Acted(Protocol):
    """What has actions: an execution. ``actions`` is None where the call failed."""

    @property
    def actions(self) -> ToolActions | None:
        """What the call asks for."""
        ...


def merge_actions(executions: Iterable[Acted]) -> ToolActions:
    """Put the actions of calls together, in the order given; calls that failed ask for nothing.

    The last ``transfer_to_agent`` stands; ``escalate`` does where any call asked for it. Of two calls that *assigned* a key the
    later one has its way. What was *changed* is changed on top of what the earlier calls made of it: a number that a call added
    to or took from, a list that it appended to, the members of a dict or set that it put in or took out. Five calls that each do
    ``state["n"] += 1`` at the same time make five. What all of them together only changed is in ``state_found``.
    """
    merged = ToolActions()
    only_changed: dict[str, Any] = {}
    for execution in executions:
        if (actions := execution.actions) is None:
            continue
        merged.transfer_to_agent = actions.transfer_to_agent or merged.transfer_to_agent
        merged.escalate = actions.escalate or merged.escalate
        for key, value in actions.state_delta.items():
            theirs, found = merged.state_delta.get(key), actions.state_found.get(key)
            if found is None:
                only_changed.pop(key, None)
            elif key not in merged.state_delta:
                only_changed[key] = found
            changed_twice = theirs is not None and found is not None and value is not None
            merged.state_delta[key] = on_top(theirs, found, value) if changed_twice else value
    merged.state_found = only_changed
    return merged


def on_top(theirs: Any, found: Any, mine: Any) -> Any:
    """Return ``theirs`` with the change that made ``mine`` of ``found``; ``mine`` where there is no such change."""
    try:
        return _changed(theirs, found, mine)
    except Exception:  # noqa: BLE001  (what is in a container compares as it likes)
        return mine


def _changed(theirs: Any, found: Any, mine: Any) -> Any:
    values = (theirs, found, mine)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return theirs + (mine - found)
    if all(isinstance(value, list) for value in values):
        grown = mine[: len(found)] == found == theirs[: len(found)]
        return [*theirs, *mine[len(found) :]] if grown else mine
    if all(isinstance(value, set) for value in values):
        return (theirs - (found - mine)) | (mine - found)
    if all(isinstance(value, dict) for value in values):
        kept = {key: value for key, value in theirs.items() if key in mine or key not in found}
        return kept | {key: value for key, value in mine.items() if key not in found or value != found[key]}
    return mine
