"""Which hooks there are, in which order they are asked, and what each may do. How they are asked in a turn is ``turn``'s."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from patchbay.errors import ConfigurationError
from patchbay.hooks.chains import IN_PROCESS, NO_CHAINS, PROCESS, Chains, Mounted, native
from patchbay.hooks.complaints import Complaints
from patchbay.hooks.events import Dispatcher
from patchbay.hooks.policy import HookPolicy, HookTimeouts
from patchbay.hooks.protocols import called_for
from patchbay.hooks.records import Recorder
from patchbay.hooks.scope import NO_SCOPE, HookScope
from patchbay.hooks.threads import Threads, asking
from patchbay.hooks.turn import TurnHooks

__all__ = ["IN_PROCESS", "NO_CHAINS", "PROCESS", "Chains", "HookManager", "Mounted", "native"]

_OF_CALLS: Final = ("before_tool", "after_tool", "approve_tool")

_logger = logging.getLogger(__name__)


class HookManager:
    """The hooks of a program or a server. What is mounted is asked from the next turn on.

    ``timeouts`` are those of hooks that have none of their own. One manager serves any number of turns at a time, in one event
    loop; ``mount`` and ``unmount`` may be called at any time.
    """

    def __init__(self, *, policy: HookPolicy | None = None, timeouts: HookTimeouts | None = None) -> None:
        self.timeouts = timeouts if timeouts is not None else HookTimeouts()
        self._chains = Chains((), policy)
        self._by_name: dict[str, Mounted] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._retired: list[object] = []
        self._unscoped: TurnHooks | None = None
        self.events = Dispatcher()
        self.complaints = Complaints()
        self.people: Mounted | None = None
        """The approver by which a person is asked where a hook wants that, mounted or not."""
        self.recorders: list[Recorder] = []
        """Each is told of every call the moment it has settled, hooks or no hooks; what one of them raises is logged."""

    @property
    def policy(self) -> HookPolicy:
        """What hooks may do; setting another one holds from the next turn on."""
        return self._chains.policy

    @policy.setter
    def policy(self, policy: HookPolicy) -> None:
        self._chains = Chains(self._chains.mounted, policy)

    @property
    def chains(self) -> Chains:
        """The hooks as they are now; it does not change any more."""
        return self._chains

    @property
    def mounted(self) -> tuple[Mounted, ...]:
        """The hooks, in the order in which they are asked."""
        return self._chains.mounted

    @property
    def abandoned(self) -> Mapping[str, int]:
        """How many threads of each hook were left running because it took too long, and have not ended yet."""
        return {each.name: each.threads.abandoned for each in self.mounted if each.threads.abandoned}

    def mount(
        self,
        name: str,
        hook: object,
        *,
        priority: int = 0,
        timeouts: HookTimeouts | None = None,
        fail_closed: bool | None = None,
        group: int = IN_PROCESS,
        methods: Sequence[str] | None = None,
        tools: Sequence[str] = (),
    ) -> Mounted:
        """Ask ``hook`` from the next turn on, in the place of one of the same name, which is closed.

        With ``fail_closed`` a hook that raises, takes too long, or answers what cannot be an answer has said no: the call is
        denied, the turn ends, the result is withheld. Without, it is passed over. None is what the hook says of itself, by an
        attribute of that name. ``methods`` are those that are asked, of those that it has (None: all).
        ``tools`` are patterns (``write_*``) of the names of those tools whose calls ``before_tool``, ``after_tool`` and
        ``approve_tool`` are asked about (none: all). Raises TypeError for what is no hook, ConfigurationError for a name that is
        none, and for ``tools`` of a hook that is asked about no calls.
        """
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError(f"A hook's name must be a non-empty string, not {name!r}.")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ConfigurationError(f"The priority of the hook {name!r} must be a whole number, not {priority!r}.")
        if fail_closed is None:
            fail_closed = getattr(hook, "fail_closed", False) is True
        if not isinstance(fail_closed, bool):
            raise ConfigurationError(f"fail_closed of the hook {name!r} must be True or False, not {fail_closed!r}.")
        found = called_for(hook, name)
        complaints = Complaints()
        threads = Threads(name, complaints)
        asked = {each: asking(getattr(hook, each), threads) for each in found if methods is None or each in methods}
        if not asked:
            raise ConfigurationError(f"The hook {name!r} is mounted for none of its methods ({', '.join(found)}).")
        timeouts = timeouts if timeouts is not None else self.timeouts
        if isinstance(tools, str) or not all(isinstance(each, str) and each for each in tools):
            raise ConfigurationError(f"tools of the hook {name!r} must be a list of names or patterns, not {tools!r}.")
        if tools and asked.keys().isdisjoint(_OF_CALLS):
            raise ConfigurationError(f"The hook {name!r} is for the calls of {', '.join(tools)}, and is asked about no calls.")
        mounted = Mounted(
            name, hook, priority, group, timeouts, asked,
            fail_closed=fail_closed, tools=tuple(tools), threads=threads, complaints=complaints,
        )  # fmt: skip
        old = self._by_name.get(name)
        self._by_name[name] = mounted
        self._order()
        if old is not None and old.hook is not hook:
            self._retire(old.hook)
        return mounted

    def unmount(self, name: str) -> bool:
        """Ask the hook of this name no more, and close it; return whether there was one."""
        old = self._by_name.pop(name, None)
        if old is None:
            return False
        self._order()
        self._retire(old.hook)
        return True

    def begin(self, scope: HookScope | None = None, chains: Chains | None = None) -> TurnHooks | None:
        """Return the hooks of a turn that begins now (``chains``, or what is mounted); None where nobody is asked or told."""
        if chains is None:
            chains = self._chains
        if not chains.mounted and not self.recorders:
            return None
        if scope is not None:
            return TurnHooks(chains, scope, self)
        if self._unscoped is None or self._unscoped.chains is not chains:
            self._unscoped = TurnHooks(chains, NO_SCOPE, self)
        return self._unscoped  # it holds nothing of a turn, so those that nobody knows can share it

    async def aclose(self) -> None:
        """Unmount all hooks, and wait until they are closed."""
        for name in list(self._by_name):
            self.unmount(name)
        retired, self._retired = self._retired, []
        await asyncio.gather(*map(_close, retired))
        if self._closing:
            await asyncio.wait(self._closing)
        await self.events.aclose()

    def _order(self) -> None:
        self._chains = Chains(tuple(self._by_name.values()), self._chains.policy)
        self.events.observers = self._chains.on_runtime_event

    def _retire(self, hook: object) -> None:
        if any(each.hook is hook for each in self._by_name.values()):
            return  # it is mounted by another name as well
        try:
            task = asyncio.get_running_loop().create_task(_close(hook))
        except RuntimeError:  # no loop: aclose() does it
            self._retired.append(hook)
            return
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(hook: object) -> None:
    """Close a hook that can be."""
    for name in ("aclose", "close"):
        if callable(close := getattr(hook, name, None)):
            try:
                closing = close()
                if inspect.isawaitable(closing):
                    await closing
            except Exception:
                _logger.exception("The hook %r could not be closed", hook)
            return
