"""HookManager: registers hooks, orders them, and opens the hooks of a turn."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from patchbay.errors import ConfigurationError
from patchbay.hooks.deadlines import HookThreads, HookWarnings, as_coroutine_function
from patchbay.hooks.pipeline import HookServices, TurnHooks
from patchbay.hooks.registered import IN_PROCESS, Chains, RegisteredHook
from patchbay.hooks.types import METHODS, NO_SCOPE, HookPolicy, HookScope, HookTimeouts, methods_of

_CALL_METHODS: Final = ("before_tool", "after_tool", "approve_tool")

_logger = logging.getLogger(__name__)


class HookManager(HookServices):
    """The hooks of a program or a server. Changes take effect with the next turn.

    ``timeouts`` are the defaults. One manager serves any number of concurrent turns in one event loop; ``mount`` and
    ``unmount`` may be called at any time.
    """

    def __init__(self, *, policy: HookPolicy | None = None, timeouts: HookTimeouts | None = None) -> None:
        super().__init__()
        self.timeouts = timeouts if timeouts is not None else HookTimeouts()
        self._chains = Chains((), policy)
        self._by_name: dict[str, RegisteredHook] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._retired: list[object] = []
        self._unscoped: TurnHooks | None = None

    @property
    def policy(self) -> HookPolicy:
        """Permissions of hooks; a new policy takes effect with the next turn."""
        return self._chains.policy

    @policy.setter
    def policy(self, policy: HookPolicy) -> None:
        """Permissions of hooks; a new policy takes effect with the next turn."""
        self._chains = Chains(self._chains.mounted, policy)

    @property
    def chains(self) -> Chains:
        """The current hooks, as an immutable snapshot."""
        return self._chains

    @property
    def mounted(self) -> tuple[RegisteredHook, ...]:
        """The hooks in order."""
        return self._chains.mounted

    @property
    def abandoned(self) -> Mapping[str, int]:
        """Number of timed-out threads of each hook that still run."""
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
    ) -> RegisteredHook:
        """Register ``hook``, replacing and closing one of the same name.

        With ``fail_closed`` a hook that raises, times out or answers something invalid denies: the call is denied, the turn
        ends, or the result is withheld; otherwise it is skipped. None takes the hook's own attribute of that name. ``methods``
        restricts what is called (None: all that it has). ``tools`` are patterns (``write_*``) of the tools whose calls
        ``before_tool``, ``after_tool`` and ``approve_tool`` see (none: all). Raises TypeError for an object that is not a hook,
        and ConfigurationError for an invalid name and for ``tools`` of a hook that sees no calls.
        """
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError(f"A hook's name must be a non-empty string, not {name!r}.")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ConfigurationError(f"The priority of the hook {name!r} must be an integer, not {priority!r}.")
        if fail_closed is None:
            fail_closed = getattr(hook, "fail_closed", False) is True
        if not isinstance(fail_closed, bool):
            raise ConfigurationError(f"fail_closed of the hook {name!r} must be True or False, not {fail_closed!r}.")
        _warn_of_misspelled_methods(hook, name)
        found = methods_of(hook)
        warnings = HookWarnings()
        threads = HookThreads(name, warnings)
        chosen = {
            each: as_coroutine_function(getattr(hook, each), threads) for each in found if methods is None or each in methods
        }
        if not chosen:
            raise ConfigurationError(f"The hook {name!r} is mounted for none of its methods ({', '.join(found)}).")
        timeouts = timeouts if timeouts is not None else self.timeouts
        if isinstance(tools, str) or not all(isinstance(each, str) and each for each in tools):
            raise ConfigurationError(f"tools of the hook {name!r} must be a list of names or patterns, not {tools!r}.")
        if tools and chosen.keys().isdisjoint(_CALL_METHODS):
            raise ConfigurationError(f"The hook {name!r} is for the calls of {', '.join(tools)}, and is asked about no calls.")
        mounted = RegisteredHook(
            name, hook, priority, group, timeouts, chosen,
            fail_closed=fail_closed, tools=tuple(tools), threads=threads, warnings=warnings,
        )  # fmt: skip
        old = self._by_name.get(name)
        self._by_name[name] = mounted
        self._order()
        if old is not None and old.hook is not hook:
            self._retire(old.hook)
        return mounted

    def unmount(self, name: str) -> bool:
        """Remove and close the hook of this name; return whether there was one."""
        old = self._by_name.pop(name, None)
        if old is None:
            return False
        self._order()
        self._retire(old.hook)
        return True

    def begin_turn(self, scope: HookScope | None = None, chains: Chains | None = None) -> TurnHooks | None:
        """Return the hooks of a new turn (``chains``, or those registered); None without hooks, recorders and people to ask."""
        if chains is None:
            chains = self._chains
        if not chains.mounted and not self.recorders and self.people is None:
            return None
        if scope is not None:
            return TurnHooks(chains, scope, self)
        if self._unscoped is None or self._unscoped.chains is not chains:
            self._unscoped = TurnHooks(chains, NO_SCOPE, self)
        return self._unscoped  # it has no state of a turn, so turns without a scope share it

    async def aclose(self) -> None:
        """Remove all hooks, and wait until they are closed."""
        for name in list(self._by_name):
            self.unmount(name)
        retired, self._retired = self._retired, []
        await asyncio.gather(*map(close_hook, retired))
        if self._closing:
            await asyncio.wait(self._closing)
        await self.events.aclose()

    def _order(self) -> None:
        self._chains = Chains(tuple(self._by_name.values()), self._chains.policy)
        self.events.observers = self._chains.on_runtime_event

    def _retire(self, hook: object) -> None:
        if any(each.hook is hook for each in self._by_name.values()):
            return  # it is registered under another name as well
        try:
            task = asyncio.get_running_loop().create_task(close_hook(hook))
        except RuntimeError:  # no loop: aclose() closes it
            self._retired.append(hook)
            return
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _warn_of_misspelled_methods(hook: object, name: str) -> None:
    missing = [method for method in METHODS if not callable(getattr(hook, method, None))]
    for each in dir(hook):
        if each.startswith("_") or each in METHODS:
            continue
        if meant := difflib.get_close_matches(each, missing, n=1, cutoff=0.85):
            _logger.warning("The hook %r has a method %r, which is never called: is %r meant?", name, each, meant[0])


async def close_hook(hook: object) -> None:
    """Call a hook's ``aclose`` or ``close``, if it has one."""
    for name in ("aclose", "close"):
        if callable(close := getattr(hook, name, None)):
            try:
                closing = close()
                if inspect.isawaitable(closing):
                    await closing
            except Exception:
                _logger.exception("The hook %r could not be closed", hook)
            return
