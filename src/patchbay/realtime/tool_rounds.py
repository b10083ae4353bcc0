"""Runs the tool calls of a session across turns and connections, and sends each call's one result.

The calls of a response are a round, and one batch of the executor. The results are sent together in call order, then one response
is requested. A result that is known only after its round was answered (a slow tool, a lost connection) is sent as a line.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Final

from patchbay.errors import ToolError
from patchbay.executor import Batch, ToolExecution, ToolProgress
from patchbay.executor.invocation import emit_call_end
from patchbay.loop import ToolCallEvent, ToolProgressEvent, ToolResultEvent
from patchbay.loop.observers import emit_output
from patchbay.loop.turn import all_handled, user_outputs
from patchbay.realtime.call_assembly import PartialCall
from patchbay.realtime.config import RealtimeLimits
from patchbay.realtime.events import DroppedEvent, ErrorEvent
from patchbay.realtime.history import Transcript
from patchbay.realtime.host import SessionHost
from patchbay.realtime.providers.base import CallResult, Line
from patchbay.realtime.responses import ResponseController
from patchbay.realtime.session_tools import SessionTools
from patchbay.realtime.tool_calls import (
    FloodError,
    NotRunError,
    Round,
    RoundCall,
    RoundsError,
    SlidingWindowLimit,
    rejected_execution,
    result_line,
    results_text,
)
from patchbay.realtime.turns import Turn, Turns
from patchbay.types import Message, ToolCall

MAX_STILL_RUNNING: Final = 32
"""Maximum number of calls reported as still running; further ones are waited for."""

MAX_LATE_RESULTS: Final = 64
"""Maximum number of late results that wait for an idle moment; the oldest are dropped."""

_DROPPED_KEPT: Final = 32


class ToolCallRounds:
    """The rounds of a session. ``dropped`` are the last results that came too late for the model."""

    def __init__(
        self, limits: RealtimeLimits, tools: SessionTools, transcript: Transcript, turns: Turns, host: SessionHost
    ) -> None:
        self.dropped: deque[ToolExecution] = deque(maxlen=_DROPPED_KEPT)
        self._limits = limits
        self._rate_limit = SlidingWindowLimit(limits.flood_calls, limits.flood_seconds)
        self._tools = tools
        self._transcript = transcript
        self._turns = turns
        self._host = host
        self._rounds: list[Round] = []
        self._late_results: deque[tuple[ToolExecution, bool]] = deque()  # with whether the model is to respond

    # State

    @property
    def has_open_rounds(self) -> bool:
        """True if results are outstanding."""
        return any(not each.is_delivered for each in self._rounds)

    @property
    def has_late_results(self) -> bool:
        """True if results wait to be sent as lines."""
        return bool(self._late_results)

    @property
    def is_idle(self) -> bool:
        """True if no call runs and no result waits to be sent."""
        return not self._rounds and not self._late_results

    def is_busy_with(self, turn: Turn) -> bool:
        """True if calls of a turn are open, also such as were reported as running."""
        return bool(self._late_results) or any(each.turn is turn for each in self._rounds)

    def has_running(self, turn: Turn) -> bool:
        """True if a call of the turn runs that was not reported as running."""
        calls = [call for each in self._rounds if each.turn is turn for call in each.calls.values()]
        return any(call.execution is None and call.fate != "background" for call in calls)

    # Calls of responses

    def start_round(self, controller: ResponseController, calls: Sequence[PartialCall]) -> None:
        """Run the calls of a completed response within the limits, and reject the others."""
        turn = self._turns.ensure()
        turn.rounds += 1
        current = Round(max(turn.responses, 1), controller, turn)
        self._rounds.append(current)
        admitted: list[RoundCall] = []
        for partial in calls:
            one = self._register(current, partial)
            self._host.emit(ToolCallEvent(one.call, current.number))
            if (error := self._refusal(turn, one.call)) is None:
                admitted.append(one)
            else:
                self._refuse(current, one, error)
        self._limit_rounds(current)
        batch = current.batch = turn.run.start_batch(
            [one.to_run for one in admitted], messages=self._messages(current), iteration=current.number
        )
        self._set_timer(current)
        self._host.run_in_background(self._consume(current, batch))

    def reject(self, controller: ResponseController, calls: Sequence[PartialCall]) -> None:
        """Answer the calls of an incomplete response: they do not run."""
        results = [CallResult(each.call_id, each.name, NotRunError(each.name).for_model) for each in calls if each.done]
        if results:
            controller.send_results(results)
        controller.resume(mutes=bool(results) and self._host.is_muted)

    def cancel_calls(self, call_ids: Sequence[str]) -> bool:
        """Cancel calls on the server's request; return whether a result of any was outstanding."""
        was_waiting = False
        for current in [each for each in self._rounds if not each.is_delivered]:
            for call in current.calls.values():
                if call.partial.call_id in call_ids and call.fate == "wanted":
                    was_waiting = True
                    call.fate = "withdrawn"
                    if current.batch is not None:
                        current.batch.cancel(call.call.id)
            self._deliver_if_complete(current)
        return was_waiting

    def abandon(self, *, keep: ResponseController | None = None) -> None:
        """Abandon all calls but those reported as running.

        Those of the connection ``keep`` continue: its server cancels calls itself.
        """
        for current in [each for each in self._rounds if not each.is_delivered and each.controller is not keep]:
            current.wants_response = False
            for call in current.calls.values():
                if call.execution is None and call.fate == "wanted":
                    call.fate = "abandoned"
            if current.batch is not None:
                self._host.run_in_background(current.batch.stop())
            if not current.controller.closed:
                self._deliver(current)

    def on_connected(self) -> None:
        """Continue on another connection, which knows no call: all results that are owed become lines."""
        self._rate_limit.reset()
        for current in [each for each in self._rounds if not each.is_delivered]:
            current.deliver()
            for call in current.calls.values():
                if call.fate == "wanted":
                    call.fate = "background"
                    if call.execution is not None:
                        self._add_late_result(current, call.execution)
            self._remove_if_settled(current)

    def send_late_results(self, controller: ResponseController) -> bool:
        """Send the late results as lines; return whether the model is to respond to any of them."""
        results = list(self._late_results)
        self._late_results.clear()
        for execution, _ in results:
            line = Line("user", result_line(execution.call.name, execution.content))
            self._host.add_input(line)
            controller.send_text(line, answer=False)
        return any(asks for _, asks in results)

    async def stop(self) -> None:
        """Stop all calls; results that were not sent are dropped."""
        for execution, _ in self._late_results:
            self._drop(execution)
        self._late_results.clear()
        batches: list[Batch] = []
        for current in self._rounds:
            for call in current.calls.values():
                if call.execution is None:
                    call.fate = "abandoned"
                elif not current.is_delivered and call.fate == "wanted":
                    self._drop(call.execution)
            current.deliver()
            if current.batch is not None:
                batches.append(current.batch)
        await asyncio.gather(*(batch.stop() for batch in batches))

    # Admission

    def _register(self, current: Round, partial: PartialCall) -> RoundCall:
        """Add a call to its round, under the tool's own name and a unique id."""
        known, call_id = current.turn.run.call_ids, partial.call_id
        if not call_id or call_id in known or any(call_id in each.calls for each in self._rounds):
            call_id = f"call_{uuid.uuid4().hex[:24]}"
        known.add(call_id)
        call = ToolCall(call_id, self._tools.original_name(partial.name), partial.text or "{}")
        one = current.calls[call_id] = RoundCall(call, partial)
        return one

    def _refusal(self, turn: Turn, call: ToolCall) -> ToolError | None:
        """Return why a call may not run, None if it may."""
        if turn.rounds > self._limits.max_rounds:
            return RoundsError(call.name, limit=self._limits.max_rounds)
        is_within = self._rate_limit.try_acquire(asyncio.get_running_loop().time())
        return None if is_within else FloodError(call.name)

    def _refuse(self, current: Round, one: RoundCall, error: ToolError) -> None:
        execution = rejected_execution(one.call, error)
        hooks = current.turn.run.hooks
        if hooks is not None and (hooks.observed or hooks.recorders):
            emit_call_end(hooks, current.number, execution, None)
        self._on_execution(current, execution)

    def _limit_rounds(self, current: Round) -> None:
        """Request no response to a model that calls on after its calls were refused; report that once."""
        turn, limit = current.turn, self._limits.max_rounds
        if turn.rounds > limit + 1:
            current.wants_response = current.controller.continues_unprompted
        if turn.rounds == limit + 2:  # an unprompted model may call for long
            error = RoundsError(next((one.call.name for one in current.calls.values()), ""), limit=limit)
            turn.record_error(error)
            self._host.emit(ErrorEvent(error))

    def _messages(self, current: Round) -> list[Message]:
        """Return the conversation as tools see it, ending with the calls."""
        calls = [one.call.to_openai() for one in current.calls.values()]
        called: Message = {"role": "assistant", "content": None, "tool_calls": calls}
        return [*self._transcript.messages(), called]

    # Results

    async def _consume(self, current: Round, batch: Batch) -> None:
        """Handle the progress and the results of a round until its last call has ended."""
        while (event := await batch.next_event()) is not None:
            if isinstance(event, ToolExecution):
                self._on_execution(current, event)
            else:
                self._on_progress(current, event)
        self._deliver_if_complete(current)
        self._remove_if_settled(current)
        self._host.advance()

    def _on_progress(self, current: Round, event: ToolProgress) -> None:
        if current.calls[event.call.id].fate in ("wanted", "background"):
            self._host.emit(ToolProgressEvent(event.call, event.progress, current.number))

    def _on_execution(self, current: Round, execution: ToolExecution) -> None:
        """Record an execution and route its result."""
        call = current.calls[execution.call.id]
        call.execution = execution
        current.turn.record_execution(execution)
        if call.fate in ("abandoned", "withdrawn"):
            self._drop(execution)
            return
        self._host.emit(ToolResultEvent(execution, current.number))
        if (reader := self._turns.take_new_reader(current.turn.run)) is not None:
            self._host.offer_tool(reader)
        if self._tools.pop_changed():
            self._host.sync_tools()
        if call.fate == "background":
            self._add_late_result(current, execution)
            asyncio.get_running_loop().call_soon(self._host.advance)  # in the next tick, with others

    def _deliver_if_complete(self, current: Round) -> None:
        if current.is_complete and not current.is_delivered and not current.controller.closed:
            self._deliver(current)

    def _deliver(self, current: Round) -> None:
        """Send the results in call order, and continue."""
        current.deliver()
        controller, calls = current.controller, list(current.calls.values())
        executions = [one.execution for one in calls if one.fate == "wanted" and one.execution is not None]
        self._emit_outputs(current, executions)
        if self._is_aborted(current) or (all_handled(executions) and len(executions) == len(calls)):
            current.wants_response = False
        wanted = [one for one in calls if one.fate != "withdrawn"]
        if wanted:
            controller.send_results([one.result for one in wanted])
            if known := [one for one in wanted if one.is_known]:
                self._host.add_input(Line("user", results_text(known)))
        self._remove_if_settled(current)
        # Calls may come after the end of their response, as a round of their own: the last one requests the response.
        is_last = not any(each.controller is controller and not each.is_delivered for each in self._rounds)
        if wanted and current.wants_response and is_last:
            controller.request_response()
        else:
            controller.resume(mutes=bool(wanted) and self._host.is_muted)

    def _set_timer(self, current: Round) -> None:
        if self._limits.slow_after is not None and not current.is_delivered:
            current.timer = asyncio.get_running_loop().call_later(self._limits.slow_after, self._on_slow, current)

    def _on_slow(self, current: Round) -> None:
        """Report calls as still running rather than keep the model waiting."""
        current.timer = None
        slow = [one for one in current.calls.values() if one.execution is None and one.fate == "wanted"]
        reported = [one for each in self._rounds for one in each.calls.values() if one.fate == "background" and not one.execution]
        if current.is_delivered or current.controller.closed or len(reported) + len(slow) > MAX_STILL_RUNNING:
            self._set_timer(current)
            return
        for one in slow:
            one.fate = "background"
        self._deliver(current)

    def _is_aborted(self, current: Round) -> bool:
        """True if a hook ended the turn by a call of this round; reported once."""
        aborted = current.aborted
        if aborted is not None and not current.abort_reported:
            current.abort_reported = True
            current.turn.record_error(aborted)
            self._host.emit(ErrorEvent(aborted))
        return aborted is not None

    def _add_late_result(self, current: Round, execution: ToolExecution) -> None:
        """Queue a result for the next idle moment; its outputs for the user are emitted now."""
        self._emit_outputs(current, [execution])
        self._late_results.append((execution, not self._is_aborted(current) and not all_handled([execution])))
        if len(self._late_results) > MAX_LATE_RESULTS:
            self._drop(self._late_results.popleft()[0])

    def _drop(self, execution: ToolExecution) -> None:
        """Discard a result."""
        self.dropped.append(execution)
        self._host.emit(DroppedEvent("result", execution.call.id, execution.call.name))

    def _emit_outputs(self, current: Round, executions: Sequence[ToolExecution]) -> None:
        hooks = current.turn.run.hooks
        for output in user_outputs(executions):
            self._host.emit(output)
            if hooks is not None and hooks.observed:
                emit_output(hooks, output, current.number)

    def _remove_if_settled(self, current: Round) -> None:
        if current.is_delivered and current.is_settled and current in self._rounds:
            self._rounds.remove(current)
