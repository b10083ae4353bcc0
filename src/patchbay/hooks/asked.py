"""A call while hooks are asked about it: what would run if nobody said anything more.

What nobody looks at is not made. The executor imports this at its start: it imports nothing that a program without hooks has no
use for.
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
    from patchbay.hooks.scope import HookScope


class Trail:
    """What was decided about one call, for the record: ``decisions`` are who, at which point, and what.

    ``approvers`` are those whose approval it needs, by their names. ``facts`` are what its tool has found out about the call as
    it is now, None where nobody has asked for them. ``asks`` are the hooks that want a person to decide, each with its reason;
    ``edited`` says that an approver has changed the arguments.
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

    def note(self, who: str, point: str, what: str, reason: str = "") -> None:
        """Take note of a decision."""
        self.decisions.append((who, point, f"{what}: {reason}" if reason else what))


class Asked:
    """A call, the tool that it is for, and the arguments that its tool would be given (``arguments``: checked, of its types).

    ``plain`` are the same arguments as JSON knows them: those that hooks are shown, and change. ``trail`` is what was decided,
    None where nothing was. Whoever carries calls out extends this: an object more for each call would be one too many.
    """

    __slots__ = ("_plain", "arguments", "call", "context", "tool", "trail")

    call: ToolCall
    tool: Tool
    arguments: dict[str, Any]
    context: ToolContext | None
    trail: Trail | None
    _plain: dict[str, Any] | None

    @property
    def scope(self) -> HookScope:
        """Whose turn it is."""
        raise NotImplementedError

    @property
    def iteration(self) -> int:
        """The round of the turn."""
        raise NotImplementedError

    @property
    def seconds(self) -> float:
        """How long the tool has run."""
        raise NotImplementedError

    def paused(self) -> AbstractContextManager[None]:
        """Let the clocks stand still that run while the call waits for somebody to approve it."""
        return nullcontext()

    def owner_of(self, name: str) -> str:
        """Return the hook that has added the tool of this name, "" for one that no hook has. Raises UnknownToolError."""
        raise NotImplementedError

    def resolve(self, name: str, arguments: dict[str, Any]) -> tuple[Tool, dict[str, Any]]:
        """Return the tool of this name, and ``arguments`` (JSON) checked for it. Raises UnknownToolError, ToolArgumentsError."""
        raise NotImplementedError

    async def find_facts(self) -> dict[str, Any]:
        """Return what the tool finds out about the call (``Tool.facts``). Raises ToolDeniedError, and what the tool raises."""
        raise NotImplementedError

    @property
    def decided(self) -> Trail:
        """The trail, to write on."""
        if self.trail is None:
            self.trail = Trail()
        return self.trail

    @property
    def plain(self) -> dict[str, Any]:
        """The arguments as JSON; not to be changed."""
        if self._plain is None:
            self._plain = as_plain(self.arguments)
        return self._plain

    def touched(self) -> None:
        """Say that the call may be another now: nothing that was made of its arguments holds."""
        self._plain = None
        if self.trail is not None:
            self.trail.facts = None

    def change(self, changes: Mapping[str, Any]) -> tuple[str, ...]:
        """Take changes of ``tool`` (its name) and ``arguments`` (JSON); return what has become another.

        Raises UnknownToolError, and ToolArgumentsError for arguments that do not fit the tool.
        """
        name = changes.get("tool", self.tool.name)
        arguments = changes.get("arguments", self.plain)
        is_other = {"tool": name != self.tool.name, "arguments": not is_same_json(arguments, self.plain)}
        changed = tuple(what for what, is_changed in is_other.items() if is_changed)
        if changed:
            self.tool, self.arguments = self.resolve(name, arguments)
            self.touched()
        return changed

    @property
    def needs_person(self) -> bool:
        """Whether a hook wants a person to decide about the call."""
        return self.trail is not None and bool(self.trail.asks)

    def ask_person(self, who: str, point: str, reason: str) -> None:
        """Have a person decide about the call before it runs, because the hook ``who`` wants that."""
        self.decided.asks.append((who, reason))
        self.decided.note(who, point, "asked a person", reason)

    def digest(self) -> str:
        """What an approval of exactly this call is bound to."""
        from patchbay.hooks.digest import digest_of

        trail = self.decided
        trail.digest = digest_of(self.tool.name, self.plain, trail.facts or {})
        return trail.digest

    def member(self, name: str, point: str) -> Any:
        """Return what a hook is shown of the call. Raises KeyError."""
        if name == "tool":
            return self.tool.name
        if name == "arguments":
            return self.plain
        return _OTHERS[name](self, point)


def as_plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's arguments as JSON knows them, in containers of their own.

    Nothing in them is mended, as it is in what a model is shown: who approves a call sees what its tool is given. A number that
    JSON does not have (a model of the tool's own may take one) is its name: "Infinity".
    """
    try:
        read = read_exactly(write_exactly(arguments))
    except (TypeError, ValueError, RecursionError):  # keys that are no texts, cycles, what can be read only once
        try:
            read = json.loads(render_result(_copied(arguments)))
        except (ValueError, RecursionError):
            return {}
    return read if isinstance(read, dict) else {}


def _copied(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a copy, so that what can be read only once is left to the tool; the arguments themselves where there can be none."""
    try:
        return copy.deepcopy(arguments)
    except Exception:  # noqa: BLE001  (a value may refuse to be copied, in any way)
        return arguments


def is_same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same to JSON."""
    # To Python 1 and True are the same; to a tool they are not.
    return one is other or (one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


_OTHERS: Final[Mapping[str, Callable[[Asked, str], Any]]] = {
    "meta": lambda asked, point: asked.scope.meta(point, asked.iteration),
    "context": lambda asked, _point: asked.scope.context,
    "duration": lambda asked, _point: asked.seconds,
    "call_id": lambda asked, _point: asked.call.id,
    "digest": lambda asked, _point: asked.trail.digest if asked.trail is not None else "",
    "approvers": lambda asked, _point: asked.trail.approvers if asked.trail is not None else (),
    "asks": lambda asked, _point: asked.trail.asks if asked.trail is not None else (),
    "facts": lambda asked, _point: (asked.trail.facts if asked.trail is not None else None) or {},
    "source": lambda asked, _point: getattr(asked.tool, "source", None) or "",
    "endpoint": lambda asked, _point: getattr(asked.tool, "endpoint", None) or "",
    "annotations": lambda asked, _point: getattr(asked.tool, "annotations", None) or {},
    "parameters": lambda asked, _point: asked.tool.spec.parameters,
}
