"""One tool call: callbacks -> hooks -> frozen -> approved -> a permit -> run under its deadline -> after hooks.

The facts of a call (``Tool.facts``) are found before it is approved, and checked again under the tool's deadline. Arguments are
frozen once the call is allowed: only its tool can change them (law 9).
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from patchbay._trace import enter_call
from patchbay.errors import ConfigurationError, RepeatedCallError, ToolArgumentsError, ToolDeniedError
from patchbay.executor.callbacks import first_answer
from patchbay.executor.limits import PausableTimer, Permits, count_within, paused
from patchbay.executor.results import NAME_SHOWN, ToolExecution
from patchbay.executor.run import RunState
from patchbay.hooks.calls import PendingCall, is_same_json, to_json_arguments
from patchbay.schema.arguments import read_arguments
from patchbay.tools import Tool
from patchbay.tools.context import ToolContext
from patchbay.tools.results import write_strictly
from patchbay.tools.tool import DENIED, changed_facts, find_facts
from patchbay.types import ToolCall

if TYPE_CHECKING:
    from patchbay.hooks import DecisionLog, HookScope, TurnHooks


_UNCHANGING = frozenset({str, int, float, bool, type(None)})
_CONTAINERS = (list, dict, tuple, set, frozenset, deque, bytearray)  # and what is derived from them


def frozen_copy(arguments: dict[str, Any]) -> dict[str, Any]:
    """Copy ``arguments`` with their containers, pydantic models and dataclasses.

    Other objects are shared: they are immutable, or the function's own defaults, which may be compared by identity.
    """
    for value in arguments.values():
        if type(value) not in _UNCHANGING:
            break
    else:
        return dict(arguments)  # nearly all calls
    try:
        return {name: _copy(value) for name, value in arguments.items()}
    except RecursionError:  # a validator may return what contains itself
        return dict(arguments)


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is list:
        return [_copy(item) for item in value]
    if kind is dict:
        return {key: _copy(item) for key, item in value.items()}
    if kind is tuple:
        return tuple(_copy(item) for item in value)
    if isinstance(value, _CONTAINERS) or is_dataclass(kind) or hasattr(kind, "__pydantic_validator__"):
        try:
            return copy.deepcopy(value)
        except Exception:  # noqa: BLE001  (members of an object may refuse to be copied)
            return value
    return value


_POINT = "turn.tool.after"


def emit_started(hooks: TurnHooks, invocation: Invocation) -> None:
    """Emit the event that a call's tool starts."""
    attrs = {"call_id": invocation.call.id}
    if invocation.tool.owner:
        attrs["responded_by"] = invocation.tool.owner
    _exec_start(hooks, invocation.iteration, invocation.tool.name, invocation.json_arguments, attrs)


def emit_call_end(hooks: TurnHooks, iteration: int, execution: ToolExecution, invocation: Invocation | None) -> None:
    """Emit the event of a settled call, and record it. ``invocation`` is None for a call that failed before it had one."""
    if hooks.observed:
        _emit_end(hooks, iteration, execution, invocation)
    if hooks.recorders:
        call, tool = execution.call, invocation.tool if invocation is not None else None
        arguments = execution.arguments
        if arguments is None:
            arguments = invocation.json_arguments if invocation is not None else call.arguments
        hooks.record(
            iteration,
            call.id,
            tool.name if tool is not None else call.name[:NAME_SHOWN],
            tool.source or "" if tool is not None else "",
            arguments,
            invocation.decision_log if invocation is not None else None,
            execution.result.code if execution.error is not None else "",
            len(execution.result.content),
            execution.seconds,
        )


def _exec_start(hooks: TurnHooks, iteration: int, tool: str, arguments: Any, attrs: dict[str, Any]) -> None:
    from patchbay.hooks.types import copied

    payload = {"Tool": tool, "Arguments": copied(arguments)}
    hooks.emit("agent.tool.exec_start", "turn.tool.before", iteration, payload, attrs=attrs)


def _emit_end(hooks: TurnHooks, iteration: int, execution: ToolExecution, invocation: Invocation | None) -> None:
    decision_log = invocation.decision_log if invocation is not None else None
    begun: dict[str, Any] = {"call_id": execution.call.id}
    if decision_log is not None and decision_log.responded_by:
        begun["responded_by"] = decision_log.responded_by
    attrs = {**begun, "decisions": _decisions(decision_log)} if decision_log is not None and decision_log.decisions else begun
    tool = invocation.tool.name if invocation is not None else execution.call.name[:NAME_SHOWN]
    if execution.arguments is None:  # its tool did not run
        if execution.is_error:
            why = {"Tool": tool, "Reason": str(execution.error)}
            hooks.emit("agent.tool.exec_skipped", _POINT, iteration, why, severity="warn", attrs=attrs)
            return
        # A hook or callback answered instead: reported as the call that the model made.
        tool = execution.call.name[:NAME_SHOWN]
        _exec_start(hooks, iteration, tool, execution.call.arguments, begun)
    output = execution.output
    payload: dict[str, Any] = {
        "Tool": tool,
        "Duration": round(execution.seconds * 1e9),
        "ForLLMLen": len(execution.content),
        "ForUserLen": len(output.for_user) if output is not None else 0,
        "IsError": execution.is_error,
        "Async": output.is_async if output is not None else False,
    }
    severity = "warn" if execution.is_error else "info"
    hooks.emit("agent.tool.exec_end", _POINT, iteration, payload, severity=severity, attrs=attrs)


def _decisions(decision_log: DecisionLog) -> list[dict[str, str]]:
    return [{"by": by, "point": point, "decision": decision} for by, point, decision in decision_log.decisions]


class Invocation(PendingCall):
    """A call in progress, also as hooks review it (``PendingCall``).

    ``given`` are the arguments that its tool got (None: not started), ``ending`` is why it is being stopped.
    ``invalid_arguments`` is the validation error of ``arguments``, None if they are valid; invalid ones reach only
    callbacks, which may correct them.
    ``set_timer`` starts the tool's time limit, ``wait_exclusive`` waits until no other call of the batch runs. ``begin``, if set,
    is called with the tool right before it runs (``CallLog.begin``).
    """

    __slots__ = (
        "_ended", "_iteration", "_run", "_set_timer", "_started", "_wait_exclusive",
        "begin", "ending", "given", "grace", "index", "invalid_arguments", "permits", "task",
    )  # fmt: skip

    def __init__(
        self,
        run: RunState,
        iteration: int,
        index: int,
        call: ToolCall,
        tool: Tool,
        arguments: dict[str, Any],
        invalid_arguments: ToolArgumentsError | None,
        set_timer: Callable[[Invocation, float], PausableTimer],
        wait_exclusive: Callable[[], Awaitable[None]],
    ) -> None:
        self._run = run
        self._iteration = iteration
        self._set_timer = set_timer
        self._wait_exclusive = wait_exclusive
        self._started = self._ended = 0.0
        self._json_arguments = self.decision_log = None
        self.index = index
        self.call = call
        self.tool = tool
        self.arguments = arguments
        self.invalid_arguments = invalid_arguments
        self.permits = Permits(tool, run.permits)
        self.context: ToolContext | None = None
        self.given: dict[str, Any] | None = None
        self.begin: Callable[[Tool], Awaitable[None]] | None = None
        self.ending: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.grace: asyncio.TimerHandle | None = None

    @property
    @override
    def scope(self) -> HookScope:
        hooks = self._run.hooks
        assert hooks is not None  # only hooks read this
        return hooks.scope

    @property
    @override
    def iteration(self) -> int:
        return self._iteration

    @override
    def paused(self) -> AbstractContextManager[None]:
        return paused(self._run.budget)

    @property
    def has_run(self) -> bool:
        """Whether the tool has returned."""
        return self._ended > 0

    @property
    @override
    def seconds(self) -> float:
        return (self._ended or time.perf_counter()) - self._started if self._started else 0.0

    def stop(self) -> None:
        """Signal the tool, and cancel the task."""
        if self.context is not None:
            self.context.stop()
        if self.task is not None:
            self.task.cancel()

    def check_running(self) -> None:
        """Raise CancelledError if the call is being stopped, and an awaited function has swallowed that."""
        if self.ending is not None:
            raise asyncio.CancelledError

    async def run(self, context: ToolContext) -> Any:
        """Take the call through callbacks, hooks and its tool; return its value. Raises what ends the call."""
        run, call = self._run, self.call
        called = tool = self.tool
        enter_call(call.id)
        executor = run.executor
        if executor.max_repeats is not None and (times := run.repeats.times(call)) >= executor.max_repeats:
            raise RepeatedCallError(tool.name, times=times)
        hooks = run.hooks
        if hooks is not None:
            context.hooks = hooks
        if executor.before and tool.acts:
            if (answer := await first_answer(executor.before, call, tool, self._arguments_for_callbacks(), context)) is not None:
                return answer
            self._check_changed_arguments(context)
        arguments = self.arguments
        if hooks is not None:
            chains = hooks.chains
            if not chains.of_tools or not tool.acts:
                hooks = None
            else:
                if chains.before_tool:
                    if (answer := await hooks.before_tool(self)) is not None:
                        return answer
                    if self.tool is not tool:
                        tool = self.tool
                        self.permits = Permits(tool, run.permits)
                has_changed = self.arguments is not arguments
                arguments = self.arguments  # final from here on: hooks get copies
                needs_approval = chains.approve_tool and (not tool.owner or chains.policy.respond_approval == "always")
                if needs_approval or (self.decision_log is not None and self.decision_log.asks):  # (``needs_human``)
                    await hooks.approve(self)
                    arguments = self.arguments  # an approver may have edited them
                    has_changed = True
                if has_changed:  # the text too: another parser may read what the model wrote otherwise (law 9)
                    context.raw_arguments = json.dumps(self.json_arguments)
        if tool.sequential and tool is not called:
            await self._wait_exclusive()
        if self.ending is not None:  # (``check_running``, which costs more)
            raise asyncio.CancelledError
        try:
            await self.permits.acquire()
            value = await self._run_tool(arguments, context)
        finally:
            self.permits.release()
        if hooks is None:
            return value
        if self.ending is not None:
            raise asyncio.CancelledError
        if tool.owner:
            self.log.responded_by = tool.owner
            return value
        return await hooks.after_tool(self, value)

    def _arguments_for_callbacks(self) -> dict[str, Any]:
        """Return the arguments for callbacks, which may change and keep them."""
        _ = self.json_arguments  # as they are now
        return self.arguments

    def _check_changed_arguments(self, context: ToolContext) -> None:
        """Validate the arguments again if callbacks have changed them. Raises ToolArgumentsError.

        Unchanged ones are validated as the model wrote them: not all defaults are JSON.
        """
        before, left = self.json_arguments, self.arguments
        after = to_json_arguments(left)
        if is_same_json(before, after):
            if self.invalid_arguments is not None:
                raise self.invalid_arguments
            self.arguments = frozen_copy(left)
            return
        arguments = read_arguments(self.call.raw_arguments)
        properties = self.tool.parameters.get("properties") or {}
        for name in before.keys() | after.keys():
            if name not in after:
                arguments.pop(name, None)
            elif name not in before or not is_same_json(before[name], after[name]):
                if name in before and name not in arguments and name not in properties:
                    raise ConfigurationError(
                        f"A callback cannot change {name!r} of {self.tool.name!r}: its schema has another name for it."
                    )
                arguments[name] = left[name]
        self.arguments = self.tool.validate(write_strictly(arguments), self._run.executor.validation)
        self.invalid_arguments = None
        self.invalidate()
        context.raw_arguments = json.dumps(self.json_arguments)

    @override
    def owner_of(self, name: str) -> str:
        return self._run.find(name).owner

    @override
    def resolve(self, name: str, arguments: dict[str, Any]) -> tuple[Tool, dict[str, Any]]:
        tool = self._run.find(name)
        return tool, tool.validate(json.dumps(arguments), self._run.executor.validation)

    async def find_facts(self) -> dict[str, Any]:
        """Return the facts of the call, found within the tool's own time limit. For approvals."""
        timer = self._timer()
        try:
            return await self._find_facts(self.arguments)
        finally:
            if timer is not None:
                timer.cancel()

    async def _find_facts(self, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            facts = await find_facts(self.tool, frozen_copy(arguments))
        except ToolDeniedError as error:
            self.log.add(error.by, "facts", "denied", error.reason)
            raise
        self.check_running()
        return facts

    async def _recheck_facts(self, arguments: dict[str, Any], context: ToolContext) -> None:
        """Find the facts again right before the tool runs. Raises ToolDeniedError if they differ from the approved ones.

        They may change while an approved call waits for its turn. Changes while the tool runs are the tool's own concern.
        """
        facts = await self._find_facts(arguments)
        approved = self.decision_log.facts if self.decision_log is not None else None
        if approved is not None and (others := changed_facts(approved, facts)):
            reason = f"since it was approved, this has become another: {', '.join(others):.200}"
            self.log.add(self.tool.name, "facts", "denied", reason)
            raise ToolDeniedError(DENIED, reason, tool_name=self.tool.name, by=self.tool.name)
        context.facts = facts

    def _timer(self) -> PausableTimer | None:
        limit = self.tool.timeout if self.tool.timeout is not None else self._run.tool_timeout
        return self._set_timer(self, limit) if limit is not None else None

    async def _run_tool(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        timer = self._timer()
        if timer is not None:
            count_within(timer, self._run.budget)
        elif self._run.budget.loop is not None:
            count_within(self._run.budget)
        try:
            if self.tool.facts is not None:
                await self._recheck_facts(arguments, context)
            self.given = frozen_copy(arguments)
            if (hooks := self._run.hooks) is not None:
                if arguments is self.arguments:
                    self.arguments = self.given  # hooks do not see what the tool does to its own copy
                if hooks.observed:
                    emit_started(hooks, self)
            if self.begin is not None:
                await self.begin(self.tool)
            self._started = time.perf_counter()
            value = await self.tool.run(arguments, context)
        finally:
            if timer is not None:
                timer.cancel()
        self._ended = time.perf_counter()
        return value
