"""The executor: a set of tools, and the settings by which their calls run."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from patchbay.errors import ConfigurationError
from patchbay.executor.batch import Batch
from patchbay.executor.callbacks import Callback, Callbacks, as_callbacks, call_and_await
from patchbay.executor.limits import Budget
from patchbay.executor.results import ToolExecution
from patchbay.executor.run import ExecutorSettings, RunOptions, RunState, find_tool
from patchbay.tools import Tool, ToolSearch, Validation
from patchbay.tools.context import NO_SCOPE, AgentScope, Progress
from patchbay.tools.function import collect_with_toolsets
from patchbay.tools.tool import checked_count, checked_timeout
from patchbay.types import IncompleteCall, Message, ToolCall

if TYPE_CHECKING:
    from patchbay.hooks import Chains, HookManager, HookScope, RegisteredHook, TurnHooks
    from patchbay.media import MediaStore


CANCEL_GRACE = 5.0
"""Seconds to wait for a cancelled tool before it is abandoned."""

MAX_REPEATS = 3
"""The number of times that a call may give the same result before it is refused."""

MAX_RESULT_CHARS = 50_000
"""The most characters of a result for the model."""

SMALLEST_RESULT = 1_000
"""The minimum of ``max_result_chars``: in less, the note on the omitted part would be most of the text."""


class Run(RunState):
    """One run of an executor's tools, from a user's message to the answer; made by ``Executor.begin_run``."""

    def start_batch(
        self, calls: Sequence[ToolCall | IncompleteCall], *, messages: Sequence[Message] = (), iteration: int = 1
    ) -> Batch:
        """Start all of ``calls`` now, and return them as a Batch; the caller must ``stop()`` it when it is done with it.

        ``messages`` and ``iteration`` are for the tools' contexts. Needs a running event loop.
        """
        return Batch(self, calls, messages, iteration)


class Executor(ExecutorSettings):
    """Runs calls of ``tools`` (functions and Tools, mixed; Toolsets too, whose tools ``with_toolsets`` adds).

    ``validation`` is how arguments are checked (None: they need only be a JSON object), ``tool_timeout`` the limit in seconds of
    tools that have none of their own, ``max_parallel`` the number of concurrent calls of one run. A cancelled tool is abandoned
    after ``cancel_grace`` seconds. A call that gave the same result ``max_repeats`` times is refused (None: never). The model
    gets at most ``max_result_chars`` characters of a result, its head and its tail (None: all of it).

    ``hooks`` are the registered ones (``patchbay.hooks``); ``before`` and ``after`` are callbacks, or lists of them
    (``patchbay.executor.callbacks``); ``links`` are further hooks. ``on_progress(call, progress)`` gets the progress of running
    tools, and must not block. ``media`` stores the files of results (None: ``patchbay.media.shared_store``).
    ``search`` says when a model is offered a search in place of all tools (None: never).

    Raises TypeError for anything that is not a tool, ConfigurationError for invalid limits.
    """

    def __init__(
        self,
        tools: Iterable[Any],
        *,
        validation: Validation | None = Validation(),  # noqa: B008  (frozen)
        tool_timeout: float | None = None,
        max_parallel: int = 32,
        cancel_grace: float = CANCEL_GRACE,
        max_repeats: int | None = MAX_REPEATS,
        max_result_chars: int | None = MAX_RESULT_CHARS,
        before: Callbacks = None,
        after: Callbacks = None,
        hooks: HookManager | None = None,
        links: Sequence[RegisteredHook] = (),
        on_progress: Callable[[ToolCall, Progress], object] | None = None,
        media: MediaStore | None = None,
        search: ToolSearch | None = None,
    ) -> None:
        if isinstance(max_parallel, bool) or not isinstance(max_parallel, int) or max_parallel < 1:
            raise ConfigurationError(f"max_parallel must be a whole number of at least 1, not {max_parallel!r}.")
        is_number = isinstance(cancel_grace, int | float) and not isinstance(cancel_grace, bool)
        if not is_number or not math.isfinite(cancel_grace) or cancel_grace < 0:
            raise ConfigurationError(f"cancel_grace must be a number of seconds of at least 0, not {cancel_grace!r}.")
        if checked_count(max_result_chars, "max_result_chars") is not None and (max_result_chars or 0) < SMALLEST_RESULT:
            raise ConfigurationError(f"max_result_chars must be at least {SMALLEST_RESULT}, or None; not {max_result_chars!r}.")
        if on_progress is not None and not callable(on_progress):
            raise ConfigurationError(f"on_progress must be callable, not {type(on_progress).__name__}.")
        self.tools, self.toolsets = collect_with_toolsets(tools)
        self._search = search
        self.catalog = search.catalog(self.tools) if search is not None else None
        self._extended: Self | None = None
        self.validation = validation
        self.tool_timeout = checked_timeout(tool_timeout, "tool_timeout")
        self.max_parallel = max_parallel
        self.cancel_grace = cancel_grace
        self.max_repeats = checked_count(max_repeats, "max_repeats")
        self.max_result_chars = max_result_chars
        self.before = as_callbacks(before, "before")
        self._links = (*_after_hooks(as_callbacks(after, "after")), *links)
        self._merged: tuple[Chains, Chains] | None = None
        self._unhooked: HookManager | None = None
        self.hooks = hooks
        self.on_progress = on_progress
        self.media = media

    async def with_toolsets(self) -> Self:
        """Return an executor that has also the tools that its toolsets have now, for one turn; this one without toolsets.

        Of two tools of one name the first one is taken. The same executor is returned as long as the tools are the same.
        """
        if not self.toolsets:
            return self
        tools = dict(self.tools)
        for toolset in self.toolsets:
            for tool in await toolset.get_tools():
                tools.setdefault(tool.name, tool)
        if self._extended is None or self._extended.tools != tools:
            extended = copy.copy(self)
            extended.tools, extended.toolsets = tools, []
            extended.catalog = self._search.catalog(tools) if self._search is not None else None
            self._extended = extended
        return self._extended

    def begin_run(self, **options: Unpack[RunOptions]) -> Run:
        """Begin a run. Starts the budget's clock, so it needs a running event loop."""
        given, scope = options.get("hooks"), options.get("scope")
        manager = given if given is not None else self.hooks
        if self._links:
            return Run(self, options, self.turn_hooks(scope, manager))
        return Run(self, options, manager.begin_turn(scope) if manager is not None else None)

    def turn_hooks(self, scope: HookScope | None, hooks: HookManager | None) -> TurnHooks | None:
        """Return the hooks of a turn that begins now; None if there are none."""
        manager = hooks if hooks is not None else self._unhooked
        if manager is None:
            from patchbay.hooks import HookManager

            manager = self._unhooked = HookManager()  # always empty: the callbacks are a chain of their own
        mounted = manager.chains
        if self._merged is None or self._merged[0] is not mounted:
            self._merged = mounted, mounted.with_natives(self._links)
        return manager.begin_turn(scope, self._merged[1])

    def start_batch(
        self,
        calls: Sequence[ToolCall | IncompleteCall],
        *,
        messages: Sequence[Message] = (),
        iteration: int = 1,
        agent_scope: AgentScope = NO_SCOPE,
        budget: Budget | None = None,
    ) -> Batch:
        """Start ``calls`` as a run of their own (see ``Run.start_batch``)."""
        return self.begin_run(agent_scope=agent_scope, budget=budget).start_batch(calls, messages=messages, iteration=iteration)

    async def run(
        self,
        calls: Sequence[ToolCall | IncompleteCall],
        *,
        messages: Sequence[Message] = (),
        iteration: int = 1,
        agent_scope: AgentScope = NO_SCOPE,
        budget: Budget | None = None,
        on_settled: Callable[[ToolExecution], None] | None = None,
    ) -> list[ToolExecution]:
        """Run ``calls`` in parallel and return their executions in call order.

        ``on_settled`` gets each the moment it settles; its exceptions are raised here. On an exception or cancellation, the tools
        are stopped and awaited first.
        """
        batch = self.start_batch(calls, messages=messages, iteration=iteration, agent_scope=agent_scope, budget=budget)
        try:
            while (event := await batch.next_event()) is not None:
                if on_settled is not None and isinstance(event, ToolExecution):
                    on_settled(event)
            return batch.executions
        finally:
            await batch.stop()

    def find(self, name: str) -> Tool:
        """Return the tool of this name. Raises UnknownToolError with the nearest names."""
        return find_tool(self.tools, name)


def _after_hooks(callbacks: Sequence[Callback]) -> tuple[RegisteredHook, ...]:
    """Return the callbacks after a tool as hooks, in order."""
    if not callbacks:
        return ()
    from patchbay.hooks import native  # not at import: most programs have no callbacks

    hooks = enumerate(callbacks)
    return tuple(native(f"callback {number:03}", after_tool=partial(call_and_await, callback)) for number, callback in hooks)
