"""The calls of a session, over all of its turns and connections: what the one result of each is, and when it is told.

What lives here: rounds of calls, from the response that made them until each has its result. What does not: which of them run
(``admission``), how a call is carried out (``patchbay.executor``), what is said on a connection (``talk``).

A round's calls begin when their response was completed. Its results are told together and in call order, and then the model is
asked to go on, once. A call whose connection is gone has its result told as a line; so has one that was told as still running.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol

from patchbay.executor import ToolExecution
from patchbay.loop import ToolProgressEvent, ToolResultEvent
from patchbay.loop.outputs import all_handled, user_outputs
from patchbay.loop.told import tell_output
from patchbay.realtime.call_assembly import PartialCall
from patchbay.realtime.config import RealtimeLimits
from patchbay.realtime.events import DroppedEvent, ErrorEvent, RealtimeEvent
from patchbay.realtime.history import Transcript
from patchbay.realtime.providers.base import CallResult, Line
from patchbay.realtime.responses import ResponseController
from patchbay.realtime.session_tools import SessionTools
from patchbay.realtime.tool_calls import (
    ABANDONED,
    CallAdmission,
    LateResults,
    NotRunError,
    Round,
    outcome,
    returned,
    still_running,
)
from patchbay.realtime.turns import Turn, Turns
from patchbay.tools import Tool
from patchbay.tools.context import Progress
from patchbay.types import ToolCall

MOST_RUNNING_ON: Final = 32
"""How many calls may run on at once, told as running; one beyond that is waited for."""

_DROPPED_KEPT: Final = 32


class CallHost(Protocol):
    """Who the calls are carried out for."""

    def emit(self, event: RealtimeEvent) -> None:
        """Tell the reader of the session's events."""

    @property
    def is_hushed(self) -> bool:
        """Whether the program wants no answer, until the user goes on."""

    def said(self, line: Line, *, wanted: bool) -> None:
        """The model was told a line, and has not answered yet; ``wanted``: it is to."""

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside all else."""

    def offer(self, tool: Tool) -> None:
        """Tell the model of one more tool."""

    def look(self) -> None:
        """Something has ended: what waits for that may go on."""


class ToolCallRounds:
    """Rounds of calls. ``dropped`` are the last results that came too late: told to nobody."""

    def __init__(
        self, limits: RealtimeLimits, offered: SessionTools, remembered: Transcript, turns: Turns, host: CallHost
    ) -> None:
        self.dropped: deque[ToolExecution] = deque(maxlen=_DROPPED_KEPT)
        self._slow_after = limits.slow_after
        self._turns = turns
        self._host = host
        self._admission = CallAdmission(limits, offered, remembered, emit=host.emit, settled=self._settled)
        self._calls = self._admission.under_way
        self._rounds: list[Round] = []
        self._forming: Round | None = None
        self._finishing: set[Round] = set()
        self._outcomes = LateResults()
        turns.settled, turns.progress = self._settled, self._progress

    # What the session looks at

    @property
    def is_waiting(self) -> bool:
        """Whether calls have no result yet."""
        return any(not each.is_delivered for each in self._rounds)

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way, and no outcome waits to be told."""
        return not self._calls and not self._outcomes and not self.is_waiting

    @property
    def has_outcomes(self) -> bool:
        """Whether there are outcomes to be told at an idle moment."""
        return bool(self._outcomes)

    @property
    def asks(self) -> bool:
        """Whether the model is to answer to one of these."""
        return self._outcomes.ask

    def is_busy_with(self, turn: Turn) -> bool:
        """Whether something is to come of a turn's calls, also of those that were told as running."""
        return bool(self._outcomes) or any(each.turn is turn for each in self._rounds)

    def has_running(self, turn: Turn) -> bool:
        """Whether a call of the turn is running, and was not told as running."""
        return any(current.turn is turn and not one.runs_on for current, one in self._calls.values())

    # What a response calls

    def start_early(self, talk: ResponseController, heard: PartialCall) -> None:
        """Begin a call whose response goes on, if it may."""
        turn = self._turns.ensure()
        if self._admission.takes_early(turn, heard):
            current = self._form(talk, turn)
            one = self._admission.own(current, heard)
            current.calls.append(one)
            self._admission.start(current, turn, [one])

    def start(self, talk: ResponseController, calls: Sequence[PartialCall]) -> None:
        """Carry out the calls of a response that was completed."""
        turn = self._turns.ensure()
        turn.rounds += 1
        current = self._form(talk, turn)
        self._forming = None
        early = self._take_all(current, calls)
        self._admission.begin(current, turn, [one for one in current.calls if id(one.heard) not in early])
        current.is_open = False
        self._set_timer(current)
        self._look(current)

    def start_late(self, talk: ResponseController, heard: PartialCall) -> None:
        """Carry out one more call of the response that was completed last, with the others where they have no results yet."""
        current = next((each for each in reversed(self._rounds) if each.talk is talk and not each.is_delivered), None)
        if current is None or current.turn is None:
            self.start(talk, [heard])
            return
        one = self._admission.own(current, heard)
        current.calls.append(one)
        self._admission.begin(current, current.turn, [one])

    def refuse(self, talk: ResponseController, calls: Sequence[PartialCall]) -> None:
        """Answer the calls of a response that was not completed: they do not run, and those that had begun are given up."""
        current = self._forming
        begun = {id(one.heard) for one in current.calls} if current is not None else set[int]()
        if current is None or current.talk is not talk or not any(id(heard) in begun for heard in calls):
            current = Round(1, talk, None)  # perhaps of an older response, told after all
            self._rounds.append(current)
        else:
            self._forming = None
        early = self._take_all(current, [heard for heard in calls if heard.done or heard.begun])
        current.is_open = current.responds = False
        for one in current.calls:
            if id(one.heard) not in early:
                one.text = NotRunError(one.call.name).for_model
        self._give_up(current)

    def take_back(self, call_ids: Sequence[str]) -> bool:
        """End calls whose results the server does not want any more. Returns whether it was to have one of any of them."""
        was_waiting = False
        for current in list(self._rounds):
            for one in current.calls:
                if one.wire_id in call_ids and not one.given_up and (one.execution is None or not one.told):
                    one.told = one.given_up = was_waiting = True
                    for batch in current.batches:
                        batch.cancel(one.call.id)
                    self._look(current)
        return was_waiting

    def give_up(self, *, spare: ResponseController | None = None) -> None:
        """Give up all calls but those that were told as running.

        Those of the connection ``spare`` go on: its server says itself which it wants no more.
        """
        for current in list(self._rounds):
            if not current.is_delivered and current.talk is not spare:
                current.responds = False
                self._give_up(current)

    # Connections

    def connected(self, talk: ResponseController, *, resumed: bool) -> None:
        """Go on with another connection. Where it has been ``resumed`` it knows the calls of the last; else they become lines.

        What is known by now is told at once: what the user has said since comes behind it.
        """
        self._admission.reset()
        for current in list(self._rounds):
            if current.is_delivered or current.talk is talk:
                continue
            if resumed:
                current.talk = talk
                if current.is_known:
                    self._deliver(current)
                continue
            current.deliver()
            for one in current.calls:
                if not one.told:
                    one.told = True
                    one.runs_on = not one.given_up
                    if one.execution is not None and not one.given_up:
                        self._tell_later(one.execution, returned([one]), current)
            self._forget(current)

    def lost(self, talk: ResponseController) -> None:
        """The connection is gone. A response that was not over has called nothing; its calls that had begun are given up."""
        current, self._forming = self._forming, None
        if current is not None and current.talk is talk:
            current.is_open = current.responds = False
            for one in current.calls:
                one.told = True
            self._give_up(current)

    def tell_outcomes(self, talk: ResponseController, *, may_ask: bool) -> None:
        """Tell what has become of calls that could not be waited for, and have the model answer, where that is wanted."""
        asks = may_ask and self._outcomes.ask
        lines = self._outcomes.take()
        for number, line in enumerate(lines, 1):
            self._host.said(line, wanted=asks)
            talk.say(line, answer=asks and number == len(lines))
        if asks:
            talk.want()

    async def stop(self) -> None:
        """End all calls, and wait until they have ended. The results that nobody was told by now are dropped."""
        self._forming = None
        rounds, self._rounds = self._rounds, []
        for execution in self._outcomes.clear():
            self._drop(execution)
        for current in rounds:
            current.deliver()
            for one in current.calls:
                if one.execution is not None and not one.told:
                    self._drop(one.execution)
                one.told = one.given_up = True
        await asyncio.gather(*(batch.stop() for current in rounds for batch in current.batches))

    # The way of a call to its result

    def _form(self, talk: ResponseController, turn: Turn) -> Round:
        """The round of the response that is under way."""
        if self._forming is None or self._forming.talk is not talk:
            self._forming = Round(max(turn.responses, 1), talk, turn)
            self._rounds.append(self._forming)
        return self._forming

    def _take_all(self, current: Round, calls: Sequence[PartialCall]) -> set[int]:
        """Put the calls of a response into its round, in call order; return which of them had begun early."""
        early = {id(one.heard): one for one in current.calls}
        current.calls = [early.get(id(heard)) or self._admission.own(current, heard) for heard in calls]
        return set(early)

    def _progress(self, call: ToolCall, progress: Progress) -> None:
        if (found := self._calls.get(call.id)) is not None and not found[1].given_up:
            self._host.emit(ToolProgressEvent(call, progress, found[0].number))

    def _settled(self, execution: ToolExecution) -> None:
        """A call has its execution: tell it to whom it is still of use."""
        found = self._calls.pop(execution.call.id, None)
        if found is None:
            return
        current, one = found
        one.execution = execution
        if current.turn is not None:
            current.turn.settled(execution)
        if one.given_up:
            self._drop(execution)
            self._forget(current)
            self._host.look()
            return
        if one.text is None:
            one.text = execution.content
        self._host.emit(ToolResultEvent(execution, current.number))
        if current.turn is not None and (reader := self._turns.new_reader(current.turn.run)) is not None:
            self._host.offer(reader)
        if one.runs_on:
            self._tell_later(execution, outcome(one.call, execution.content), current)
            self._forget(current)
        else:
            self._look(current)

    def _look(self, current: Round) -> None:
        """See, in a moment, whether a round is done: what settles at once is told at once."""
        if current not in self._finishing and not current.is_delivered:
            self._finishing.add(current)
            asyncio.get_running_loop().call_soon(self._finish, current)

    def _finish(self, current: Round) -> None:
        self._finishing.discard(current)
        if current.is_known and not current.is_delivered and not current.talk.over:
            self._deliver(current)

    def _deliver(self, current: Round) -> None:
        """Tell the results, in call order, and have the model go on."""
        current.deliver()
        talk = current.talk
        executions = current.executions
        self._tell_outputs([one.execution for one in current.calls if one.execution is not None and not one.given_up], current)
        if self._is_aborted(current) or (all_handled(executions) and len(executions) == len(current.calls)):
            current.responds = False
        wanted = [one for one in current.calls if not one.told]
        for one in wanted:
            one.told = True
        if wanted:
            talk.answer([CallResult(one.wire_id, one.wire_name, one.text or "") for one in wanted])
            if known := [one for one in wanted if one.execution is not None or one.runs_on]:
                self._host.said(Line("user", returned(known)), wanted=current.responds)
        self._forget(current)
        if wanted and current.responds:
            talk.want()
        else:
            talk.release(mutes=bool(wanted) and self._host.is_hushed)

    def _give_up(self, current: Round) -> None:
        """End what runs in a round, and answer for it without waiting for its end."""
        for one in current.calls:
            if one.execution is None and one.call.id in self._calls:
                one.given_up = True
                if one.text is None:
                    one.text = ABANDONED
        for batch in current.batches:
            self._host.beside(batch.stop())
        if current is self._forming:
            return  # the rest of its calls come with the end of the response: then they are answered together
        if not current.is_delivered and not current.talk.over:
            current.is_open = False
            self._deliver(current)
        elif not current.is_delivered and all(one.told for one in current.calls):
            current.deliver()
            self._forget(current)

    def _set_timer(self, current: Round) -> None:
        if self._slow_after is not None and not current.is_delivered:
            current.timer = asyncio.get_running_loop().call_later(self._slow_after, self._too_slow, current)

    def _too_slow(self, current: Round) -> None:
        """Tell the model that some of a round's tools are still running, rather than let it be silent."""
        current.timer = None
        slow = [one for one in current.calls if one.text is None and not one.told]
        runs_on = sum(one.runs_on for _, one in self._calls.values())
        if current.is_delivered or current.talk.over or runs_on + len(slow) > MOST_RUNNING_ON:
            self._set_timer(current)
            return
        for one in slow:
            one.text = still_running(one.call.name)
            one.runs_on = True
        self._deliver(current)

    def _is_aborted(self, current: Round) -> bool:
        """Whether a hook has ended the turn by a call of this round; that is told once."""
        aborted = current.aborted
        if aborted is not None and not current.has_told_abort:
            current.has_told_abort = True
            if current.turn is not None:
                current.turn.failed(aborted)
            self._host.emit(ErrorEvent(aborted))
        return aborted is not None

    def _tell_later(self, execution: ToolExecution, text: str, current: Round) -> None:
        """Have an outcome told to the model as a line, at the next idle moment; what it has for the user is told now."""
        self._tell_outputs([execution], current)
        asks = not self._is_aborted(current) and not all_handled([execution])
        if (oldest := self._outcomes.add(execution, text, asks=asks)) is not None:
            self._drop(oldest)
        asyncio.get_running_loop().call_soon(self._host.look)  # with those that come at the same time

    def _drop(self, execution: ToolExecution) -> None:
        """Tell a result to nobody."""
        self.dropped.append(execution)
        self._host.emit(DroppedEvent("result", execution.call.id, execution.call.name))

    def _tell_outputs(self, executions: Sequence[ToolExecution], current: Round) -> None:
        for shown in user_outputs(executions):
            self._host.emit(shown)
            hooks = current.turn.run.hooks if current.turn is not None else None
            if hooks is not None and hooks.observed:
                tell_output(hooks, shown, current.number)

    def _forget(self, current: Round) -> None:
        """Drop a round that has nothing to wait for."""
        if current.is_delivered and current in self._rounds and not any(one.call.id in self._calls for one in current.calls):
            self._rounds.remove(current)
