"""The hooks of each point, in the order in which they are asked. Mounting them is ``manager``'s, asking them ``turn``'s."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from patchbay.hooks.complaints import Complaints
from patchbay.hooks.policy import HookPolicy, HookTimeouts
from patchbay.hooks.threads import Threads

IN_PROCESS = 0
PROCESS = 1
"""The groups, in the order in which they are asked: code of this program, then other processes."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """One hook in its place. ``asked`` are its methods, each giving a coroutine. Order: group, priority, name.

    ``tools`` are patterns of the names of tools whose calls it is asked about; without any it is asked about all, and about its
    own tools always. ``native`` is a program's own callback: it is given the objects themselves, and what it raises is the
    call's failure. With ``fail_closed`` an interceptor that fails has said no; without, it is passed over.
    ``threads`` are those of a hook whose methods are not async, ``complaints`` what the log is told of it.
    """

    name: str
    hook: object
    priority: int
    group: int
    timeouts: HookTimeouts
    asked: Mapping[str, Callable[..., Any]]
    native: bool = False
    fail_closed: bool = False
    tools: tuple[str, ...] = ()
    threads: Threads = field(default_factory=lambda: Threads(""), compare=False, repr=False)
    complaints: Complaints = field(default_factory=Complaints, compare=False, repr=False)

    def complain(self, words: str, *about: Any, kind: str = "") -> None:
        """Have the log told what is wrong with it; see ``Complaints.say``."""
        self.complaints.say(f"The hook %r {words}", self.name, *about, kind=kind)

    def ignores(self, tool: str) -> bool:
        """Return whether it is not asked about calls of this tool."""
        return bool(self.tools) and not any(fnmatchcase(tool, pattern) for pattern in self.tools)

    @property
    def place(self) -> tuple[int, int, str]:
        """What the order goes by: lower is asked first."""
        return self.group, self.priority, self.name


Link: TypeAlias = tuple[Mounted, Callable[..., Any]]
"""A hook, and its method for one point."""


class Chains:
    """The hooks of each point, in order: one state of a manager's, as one turn sees it. It never changes."""

    __slots__ = (
        "after_llm", "after_tool", "approve_tool", "before_llm", "before_tool", "mounted", "of_tools", "on_runtime_event",
        "policy",
    )  # fmt: skip

    def __init__(self, mounted: Sequence[Mounted] = (), policy: HookPolicy | None = None) -> None:
        self.mounted = tuple(sorted(mounted, key=lambda each: each.place))
        self.policy = policy if policy is not None else HookPolicy()
        self.before_llm = self._links("before_llm")
        self.after_llm = self._links("after_llm")
        self.before_tool = self._links("before_tool")
        self.after_tool = self._links("after_tool")
        self.approve_tool = self._links("approve_tool")
        self.on_runtime_event = self._links("on_runtime_event")
        self.of_tools = bool(self.before_tool or self.after_tool or self.approve_tool)

    def _links(self, method: str) -> tuple[Link, ...]:
        return tuple((each, each.asked[method]) for each in self.mounted if method in each.asked)

    def with_natives(self, natives: Sequence[Mounted]) -> Chains:
        """These hooks and a program's own callbacks, in one order."""
        return Chains((*self.mounted, *natives), self.policy) if natives else self


NO_CHAINS = Chains()
"""Where nothing is mounted."""


def native(name: str, **asked: Callable[..., Any]) -> Mounted:
    """Return a program's own callback as one link of the chain, by the points that it is asked at."""
    return Mounted(name, asked, 0, IN_PROCESS, HookTimeouts(), asked, native=True)
