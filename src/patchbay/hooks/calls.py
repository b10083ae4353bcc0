"""A tool call under review by hooks, and the log of decisions about it.

The executor imports this module at start: it imports nothing that a program without hooks does not need.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from patchbay.tools import Tool, render_result
from patchbay.tools.context import ToolContext
from patchbay.tools.results import read_exactly, write_exactly
from patchbay.types import ToolCall

if TYPE_CHECKING:
    from patchbay.hooks.types import HookScope


class DecisionLog:
    """Decisions about one call. ``decisions`` are (who, point, decision).

    ``approvers`` are the names of the hooks that must approve the call, ``asks`` the hooks that want a person to decide, each
    with its reason. ``facts`` are the tool's findings about the call in its present form (None: not looked up). ``edited``: an
    approver has changed the arguments.
    """

    __slots__ = ("approvers", "asks", "decisions", "digest", "edited", "facts", "responded_by")

    def __init__(self) -> None:
        self.approvers: tuple[str, ...] = ()
        self.asks: list[tuple[str, str]] = []
        self.edited = False
        self.digest = ""
        self.facts: dict[str, Any] | None = None
        self.responded_by = ""
        self.decisions: list[tuple[str, str, str]] = []

    def add(self, who: str, point: str, what: str, reason: str = "") -> None:
        """Append a decision."""
        self.decisions.append((who, point, f"{what}: {reason}" if reason else what))


class PendingCall:
    """A tool call under review: the tool, and its checked ``arguments``. ``decision_log`` is None until something is decided.

    An invocation of the executor extends this class, since an additional object for each call would cost too much. Members that
    no hook reads are not computed.
    """

    __slots__ = ("_json_arguments", "arguments", "call", "context", "decision_log", "tool")

    call: ToolCall
    tool: Tool
    arguments: dict[str, Any]
    context: ToolContext | None
    decision_log: DecisionLog | None
    _json_arguments: dict[str, Any] | None

    @property
    def scope(self) -> HookScope:
        """The turn's scope."""
        raise NotImplementedError

    @property
    def iteration(self) -> int:
        """The round of the turn."""
        raise NotImplementedError

    @property
    def seconds(self) -> float:
        """Seconds that the tool has run."""
        raise NotImplementedError

    def paused(self) -> AbstractContextManager[None]:
        """Pause the deadlines around the call while it waits for an approver."""
        return nullcontext()

    def owner_of(self, name: str) -> str:
        """Return the hook that added the tool of this name, "" if no hook did. Raises UnknownToolError."""
        raise NotImplementedError

    def resolve(self, name: str, arguments: dict[str, Any]) -> tuple[Tool, dict[str, Any]]:
        """Return a tool, and JSON arguments checked for it. Raises UnknownToolError, ToolArgumentsError."""
        raise NotImplementedError

    async def find_facts(self) -> dict[str, Any]:
        """Return what the tool finds out about the call (``Tool.facts``). Raises ToolDeniedError, and what the tool raises."""
        raise NotImplementedError

    @property
    def log(self) -> DecisionLog:
        """The decision log, created on first use."""
        if self.decision_log is None:
            self.decision_log = DecisionLog()
        return self.decision_log

    @property
    def json_arguments(self) -> dict[str, Any]:
        """The arguments as JSON data, as hooks see them; read-only."""
        if self._json_arguments is None:
            self._json_arguments = to_json_arguments(self.arguments)
        return self._json_arguments

    def invalidate(self) -> None:
        """Drop what was derived from the arguments, after they may have changed."""
        self._json_arguments = None
        if self.decision_log is not None:
            self.decision_log.facts = None

    def change(self, changes: Mapping[str, Any]) -> tuple[str, ...]:
        """Apply changes of ``tool`` (its name) and ``arguments`` (JSON); return which of the two have changed.

        Raises UnknownToolError, and ToolArgumentsError for arguments that do not fit the tool.
        """
        name = changes.get("tool", self.tool.name)
        arguments = changes.get("arguments", self.json_arguments)
        differs = {"tool": name != self.tool.name, "arguments": not is_same_json(arguments, self.json_arguments)}
        changed = tuple(what for what, is_changed in differs.items() if is_changed)
        if changed:
            self.tool, self.arguments = self.resolve(name, arguments)
            self.invalidate()
        return changed

    @property
    def needs_human(self) -> bool:
        """True if a hook wants a person to decide about the call."""
        return self.decision_log is not None and bool(self.decision_log.asks)

    def request_human(self, who: str, point: str, reason: str) -> None:
        """Require a person's decision before the call runs; ``who`` is the hook that wants it."""
        self.log.asks.append((who, reason))
        self.log.add(who, point, "asked a person", reason)

    def member(self, name: str, point: str) -> Any:
        """Return a member of the call's view. Raises KeyError."""
        if name == "tool":
            return self.tool.name
        if name == "arguments":
            return self.json_arguments
        return _MEMBERS[name](self, point)


def to_json_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's arguments as JSON data, in containers of their own.

    Nothing is repaired, unlike in what a model sees: an approver sees what the tool gets. A number that JSON lacks becomes its
    name: "Infinity".
    """
    try:
        read = read_exactly(write_exactly(arguments))
    except (TypeError, ValueError, RecursionError):  # keys that are not strings, cycles, iterators
        try:
            read = json.loads(render_result(_copied(arguments)))
        except (ValueError, RecursionError):
            return {}
    return read if isinstance(read, dict) else {}


def _copied(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a copy, so that an iterator is left to the tool; the arguments themselves where they cannot be copied."""
    try:
        return copy.deepcopy(arguments)
    except Exception:  # noqa: BLE001  (a value may refuse to be copied, in any way)
        return arguments


def is_same_json(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON: unlike in Python, 1 and true differ."""
    return one is other or (one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


_MEMBERS: Final[Mapping[str, Callable[[PendingCall, str], Any]]] = {
    "meta": lambda call, point: call.scope.meta(point, call.iteration),
    "context": lambda call, _point: call.scope.context,
    "duration": lambda call, _point: call.seconds,
    "call_id": lambda call, _point: call.call.id,
    "digest": lambda call, _point: call.decision_log.digest if call.decision_log is not None else "",
    "approvers": lambda call, _point: call.decision_log.approvers if call.decision_log is not None else (),
    "asks": lambda call, _point: call.decision_log.asks if call.decision_log is not None else (),
    "facts": lambda call, _point: (call.decision_log.facts if call.decision_log is not None else None) or {},
    "source": lambda call, _point: getattr(call.tool, "source", None) or "",
    "endpoint": lambda call, _point: getattr(call.tool, "endpoint", None) or "",
    "annotations": lambda call, _point: getattr(call.tool, "annotations", None) or {},
    "parameters": lambda call, _point: call.tool.spec.parameters,
}
