"""What a tool may ask of the run around it, and how the wishes of several calls become one.

What lives here: the wishes as data, and their merge. What does not: carrying them out (``patchbay.agents``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

_MISSING: Final = object()


@dataclass
class ToolActions:
    """What a call asks of its run besides its result.

    ``transfer_to_agent`` names the agent that goes on, ``escalate`` ends the enclosing loop, ``state_delta`` are changes of the
    session's state (None deletes a key). ``state_read`` is what the call had read under keys that it then wrote.
    """

    transfer_to_agent: str | None = None
    escalate: bool | None = None
    state_delta: dict[str, Any] = field(default_factory=dict)
    state_read: Mapping[str, Any] = field(default_factory=dict, repr=False)

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

    The last ``transfer_to_agent`` stands; ``escalate`` does where any call asked for it. A key that two calls changed has the
    value of the later one, unless that one had read it first and changed what it found: then its change is made again on top of
    the earlier one's (numbers add up, what was appended to a list is appended, members of dicts and sets are put in and taken
    out). Five calls that each do ``state["n"] += 1`` at the same time make five.
    """
    merged = ToolActions()
    for execution in executions:
        if (actions := execution.actions) is None:
            continue
        merged.transfer_to_agent = actions.transfer_to_agent or merged.transfer_to_agent
        merged.escalate = actions.escalate or merged.escalate
        for key, value in actions.state_delta.items():
            theirs = merged.state_delta.get(key)
            before = actions.state_read.get(key)
            if theirs is not None and before is not None and value is not None:
                value = _again(before, value, theirs)  # noqa: PLW2901  (the same change, on top of the other one)
            merged.state_delta[key] = value
    return merged


def _again(before: Any, mine: Any, theirs: Any) -> Any:
    """Return ``theirs`` with the change that made ``mine`` of ``before``; ``mine`` where it is no change of that kind."""
    if _are(_is_number, before, mine, theirs):
        return theirs + (mine - before)
    if _are(_is_list, before, mine, theirs) and mine[: len(before)] == before:
        return [*theirs, *mine[len(before) :]] if theirs[: len(before)] == before else mine
    if _are(_is_set, before, mine, theirs):
        return (theirs - (before - mine)) | (mine - before)
    if _are(_is_dict, before, mine, theirs):
        return _members_again(before, mine, theirs)
    return mine


def _members_again(before: dict[Any, Any], mine: dict[Any, Any], theirs: dict[Any, Any]) -> dict[Any, Any]:
    result = {key: value for key, value in theirs.items() if key in mine or key not in before}
    for key, value in mine.items():
        old, other = before.get(key, _MISSING), theirs.get(key, _MISSING)
        if old is not _MISSING and value == old:
            continue  # untouched here: whatever the other call made of it, also of its absence, stands
        result[key] = value if old is _MISSING or other is _MISSING else _again(old, value, other)
    return result


def _are(kind: Any, *values: Any) -> bool:
    return all(map(kind, values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_set(value: Any) -> bool:
    return isinstance(value, set)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)
