"""Runs the tool calls of a session across turns and connections, and sends each call's one result.

A round's calls start when their response is completed. Results are sent together in call order, then one response is requested.
A call whose connection is gone, or that was reported as still running, has its result sent as a line.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from patchbay.executor import ToolExecution
from patchbay.loop import ToolProgressEvent, ToolResultEvent
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
    ABANDONED,
    CallAdmission,
    LateResults,
    NotRunError,
    Round,
    late_result_text,
    results_text,
    still_running_text,
)
from patchbay.realtime.turns import Turn, Turns
from patchbay.tools.context import Progress
from patchbay.types import ToolCall

MAX_STILL_RUNNING: Final = 32
"""Maximum number of calls reported as still running; further ones are waited for."""

_DROPPED_KEPT: Final = 32


class ToolCallRounds:
    """Rounds of calls. ``late_results`` wait for an idle moment; ``dropped`` are the last that came too late for the model."""

    def __init__(
        self, limits: RealtimeLimits, tools: SessionTools, transcript: Transcript, turns: Turns, host: SessionHost
    ) -> None:
        self.dropped: deque[ToolExecution] = deque(maxlen=_DROPPED_KEPT)
        self._slow_after = limits.slow_after
        self._turns = turns
        self._host = host
        self._session_tools = tools
        self._admission = CallAdmission(limits, tools, transcript, emit=host.emit, on_execution=self._on_execution)
        self._pending = self._admission.pending
        self._rounds: list[Round] = []
        self._forming_round: Round | None = None
        self._finishing: set[Round] = set()
        self.late_results = LateResults()
        turns.on_execution, turns.on_progress = self._on_execution, self._on_progress

    # State

    @property
    def has_open_rounds(self) -> bool:
        """True if results are outstanding."""
        return any(not each.is_delivered for each in self._rounds)

    @property
    def is_idle(self) -> bool:
        """True if no call runs and no result is queued."""
        return not self._pending and not self.late_results and not self.has_open_rounds

    def is_busy_with(self, turn: Turn) -> bool:
        """True if calls of a turn are open, also such as were reported as running."""
        return bool(self.late_results) or any(each.turn is turn for each in self._rounds)

    def has_running(self, turn: Turn) -> bool:
        """True if a call of the turn runs that was not reported as running."""
        return any(current.turn is turn and not call.still_running for current, call in self._pending.values())

    # Calls of responses

    def start_early(self, controller: ResponseController, partial: PartialCall) -> None:
        """Run a call while its response continues, if admitted."""
        turn = self._turns.ensure()
        if self._admission.admits_early(turn, partial):
            current = self._open_round(controller, turn)
            call = self._admission.register(current, partial)
            current.calls.append(call)
            self._admission.run(current, turn, [call])

    def start(self, controller: ResponseController, calls: Sequence[PartialCall]) -> None:
        """Run the calls of a completed response."""
        turn = self._turns.ensure()
        turn.rounds += 1
        current = self._open_round(controller, turn)
        self._forming_round = None
        early = self._set_calls(current, calls)
        self._admission.admit(current, turn, [call for call in current.calls if id(call.partial) not in early])
        current.is_open = False
        self._set_timer(current)
        self._check_later(current)

    def start_late(self, controller: ResponseController, partial: PartialCall) -> None:
        """Run one more call of the last response, in its round if results are outstanding there."""
        current = next((each for each in reversed(self._rounds) if each.controller is controller and not each.is_delivered), None)
        if current is None or current.turn is None:
            self.start(controller, [partial])
            return
        call = self._admission.register(current, partial)
        current.calls.append(call)
        self._admission.admit(current, current.turn, [call])

    def reject(self, controller: ResponseController, calls: Sequence[PartialCall]) -> None:
        """Answer the calls of an incomplete response: they do not run, and running ones are abandoned."""
        current = self._forming_round
        claimed = {id(call.partial) for call in current.calls} if current is not None else set[int]()
        if current is None or current.controller is not controller or not any(id(partial) in claimed for partial in calls):
            current = Round(1, controller, None)  # perhaps of an older response
            self._rounds.append(current)
        else:
            self._forming_round = None
        early = self._set_calls(current, [partial for partial in calls if partial.done or partial.claimed])
        current.is_open = current.wants_response = False
        for call in current.calls:
            if id(call.partial) not in early:
                call.text = NotRunError(call.call.name).for_model
        self._abandon(current)

    def cancel_calls(self, call_ids: Sequence[str]) -> bool:
        """Cancel calls on the server's request; return whether a result of any was outstanding."""
        was_waiting = False
        for current in list(self._rounds):
            for call in current.calls:
                if call.wire_id in call_ids and not call.abandoned and (call.execution is None or not call.answered):
                    call.answered = call.abandoned = was_waiting = True
                    for batch in current.batches:
                        batch.cancel(call.call.id)
                    self._check_later(current)
        return was_waiting

    def abandon(self, *, keep: ResponseController | None = None) -> None:
        """Abandon all calls but those reported as running.

        Those of the connection ``keep`` continue: its server cancels calls itself.
        """
        for current in list(self._rounds):
            if not current.is_delivered and current.controller is not keep:
                current.wants_response = False
                self._abandon(current)

    # Connections

    def on_connected(self, controller: ResponseController) -> None:
        """Continue on another connection. A resumed one knows the calls; on others their results become lines.

        Known results are sent at once, ahead of newer input.
        """
        self._admission.rate_limit.reset()
        for current in list(self._rounds):
            if current.is_delivered or current.controller is controller:
                continue
            if controller.resumed:
                current.controller = controller
                if current.is_complete:
                    self._deliver(current)
                continue
            current.deliver()
            for call in current.calls:
                if not call.answered:
                    call.answered = True
                    call.still_running = not call.abandoned
                    if call.execution is not None and not call.abandoned:
                        self._queue_late_result(call.execution, results_text([call]), current)
            self._remove_if_done(current)

    def on_disconnected(self, controller: ResponseController) -> None:
        """Abandon calls of a response that had not ended."""
        current, self._forming_round = self._forming_round, None
        if current is not None and current.controller is controller:
            current.is_open = current.wants_response = False
            for call in current.calls:
                call.answered = True
            self._abandon(current)

    def send_late_results(self, controller: ResponseController, *, may_ask: bool) -> None:
        """Send queued results as lines, and request a response if wanted."""
        asks = may_ask and self.late_results.wants_response
        lines = self.late_results.drain_lines()
        for number, line in enumerate(lines, 1):
            self._host.add_input(line, wanted=asks)
            controller.send_text(line, answer=asks and number == len(lines))
        if asks:
            controller.request_response()

    async def stop(self) -> None:
        """Stop all calls and wait for their end; results that were not sent are dropped."""
        self._forming_round = None
        rounds, self._rounds = self._rounds, []
        for execution in self.late_results.drain():
            self._drop(execution)
        for current in rounds:
            current.deliver()
            for call in current.calls:
                if call.execution is not None and not call.answered:
                    self._drop(call.execution)
                call.answered = call.abandoned = True
        await asyncio.gather(*(batch.stop() for current in rounds for batch in current.batches))

    # Rounds

    def _open_round(self, controller: ResponseController, turn: Turn) -> Round:
        """Return the round of the response in progress."""
        if self._forming_round is None or self._forming_round.controller is not controller:
            self._forming_round = Round(max(turn.responses, 1), controller, turn)
            self._rounds.append(self._forming_round)
        return self._forming_round

    def _set_calls(self, current: Round, calls: Sequence[PartialCall]) -> set[int]:
        """Set the calls of a round in call order; return which had started early."""
        early = {id(call.partial): call for call in current.calls}
        current.calls = [early.get(id(partial)) or self._admission.register(current, partial) for partial in calls]
        return set(early)

    def _on_progress(self, call: ToolCall, progress: Progress) -> None:
        if (found := self._pending.get(call.id)) is not None and not found[1].abandoned:
            self._host.emit(ToolProgressEvent(call, progress, found[0].number))

    def _on_execution(self, execution: ToolExecution) -> None:
        """Record an execution and route its result."""
        found = self._pending.pop(execution.call.id, None)
        if found is None:
            return
        current, call = found
        call.execution = execution
        if current.turn is not None:
            current.turn.record_execution(execution)
        if call.abandoned:
            self._drop(execution)
            self._remove_if_done(current)
            self._host.advance()
            return
        if call.text is None:
            call.text = execution.content
        self._host.emit(ToolResultEvent(execution, current.number))
        if current.turn is not None and (reader := self._turns.take_new_reader(current.turn.run)) is not None:
            self._host.offer_tool(reader)
        if self._session_tools.pop_changed():
            self._host.sync_tools()
        if call.still_running:
            self._queue_late_result(execution, late_result_text(call.call, execution.content), current)
            self._remove_if_done(current)
        else:
            self._check_later(current)

    def _check_later(self, current: Round) -> None:
        """Check in the next tick whether the round is complete, to send results that settle together at once."""
        if current not in self._finishing and not current.is_delivered:
            self._finishing.add(current)
            asyncio.get_running_loop().call_soon(self._finish, current)

    def _finish(self, current: Round) -> None:
        self._finishing.discard(current)
        if current.is_complete and not current.is_delivered and not current.controller.closed:
            self._deliver(current)

    def _deliver(self, current: Round) -> None:
        """Send the results in call order, and continue."""
        current.deliver()
        controller = current.controller
        executions = current.executions
        self._emit_outputs(
            [call.execution for call in current.calls if call.execution is not None and not call.abandoned], current
        )
        if self._is_aborted(current) or (all_handled(executions) and len(executions) == len(current.calls)):
            current.wants_response = False
        wanted = [call for call in current.calls if not call.answered]
        for call in wanted:
            call.answered = True
        if wanted:
            controller.send_results([CallResult(call.wire_id, call.wire_name, call.text or "") for call in wanted])
            if known := [call for call in wanted if call.execution is not None or call.still_running]:
                self._host.add_input(Line("user", results_text(known)), wanted=current.wants_response)
        self._remove_if_done(current)
        if wanted and current.wants_response:
            controller.request_response()
        else:
            controller.resume(mutes=bool(wanted) and self._host.is_muted)

    def _abandon(self, current: Round) -> None:
        """Stop what runs in a round and answer without waiting for it."""
        for call in current.calls:
            if call.execution is None and call.call.id in self._pending:
                call.abandoned = True
                if call.text is None:
                    call.text = ABANDONED
        for batch in current.batches:
            self._host.run_in_background(batch.stop())
        if current is self._forming_round:
            return  # answered together with the remaining calls at the end of the response
        if not current.is_delivered and not current.controller.closed:
            current.is_open = False
            self._deliver(current)
        elif not current.is_delivered and all(call.answered for call in current.calls):
            current.deliver()
            self._remove_if_done(current)

    def _set_timer(self, current: Round) -> None:
        if self._slow_after is not None and not current.is_delivered:
            current.timer = asyncio.get_running_loop().call_later(self._slow_after, self._on_slow, current)

    def _on_slow(self, current: Round) -> None:
        """Report calls as still running rather than keep the model waiting."""
        current.timer = None
        slow = [call for call in current.calls if call.text is None and not call.answered]
        still_running = sum(call.still_running for _, call in self._pending.values())
        if current.is_delivered or current.controller.closed or still_running + len(slow) > MAX_STILL_RUNNING:
            self._set_timer(current)
            return
        for call in slow:
            call.text = still_running_text(call.call.name)
            call.still_running = True
        self._deliver(current)

    def _is_aborted(self, current: Round) -> bool:
        """True if a hook ended the turn by a call of this round; reported once."""
        aborted = current.aborted
        if aborted is not None and not current.abort_reported:
            current.abort_reported = True
            if current.turn is not None:
                current.turn.record_error(aborted)
            self._host.emit(ErrorEvent(aborted))
        return aborted is not None

    def _queue_late_result(self, execution: ToolExecution, text: str, current: Round) -> None:
        """Queue a result for the next idle moment; its outputs for the user are emitted now."""
        self._emit_outputs([execution], current)
        asks = not self._is_aborted(current) and not all_handled([execution])
        if (oldest := self.late_results.add(execution, text, asks=asks)) is not None:
            self._drop(oldest)
        asyncio.get_running_loop().call_soon(self._host.advance)  # in the next tick, with others

    def _drop(self, execution: ToolExecution) -> None:
        """Discard a result."""
        self.dropped.append(execution)
        self._host.emit(DroppedEvent("result", execution.call.id, execution.call.name))

    def _emit_outputs(self, executions: Sequence[ToolExecution], current: Round) -> None:
        for output in user_outputs(executions):
            self._host.emit(output)
            hooks = current.turn.run.hooks if current.turn is not None else None
            if hooks is not None and hooks.observed:
                emit_output(hooks, output, current.number)

    def _remove_if_done(self, current: Round) -> None:
        if current.is_delivered and current in self._rounds and not any(call.call.id in self._pending for call in current.calls):
            self._rounds.remove(current)
