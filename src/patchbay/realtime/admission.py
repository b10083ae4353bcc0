"""Which calls run: those within the limits of the session and of the user's turn; the others have a result that says why not.

What lives here: the beginning of a call. What does not: its end (``answers``).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence

from patchbay.errors import ToolError
from patchbay.executor import ToolExecution
from patchbay.executor.told import tell_settled
from patchbay.loop import ToolCallEvent
from patchbay.realtime.calls import HeardCall
from patchbay.realtime.events import ErrorEvent, RealtimeEvent
from patchbay.realtime.flood import FloodError, FloodGuard
from patchbay.realtime.offered import Offered
from patchbay.realtime.remembered import Remembered
from patchbay.realtime.rounds import OneCall, Round, RoundsError, refusal
from patchbay.realtime.settings import RealtimeLimits
from patchbay.realtime.turn import Turn
from patchbay.types import IncompleteCall, Message, ToolCall


class Admission:
    """``under_way`` are the calls that have no execution yet, by their ids; ``settled`` is told of those that do not run."""

    def __init__(
        self,
        limits: RealtimeLimits,
        offered: Offered,
        remembered: Remembered,
        *,
        emit: Callable[[RealtimeEvent], None],
        settled: Callable[[ToolExecution], None],
    ) -> None:
        self.under_way: dict[str, tuple[Round, OneCall]] = {}
        self._max_rounds = limits.max_rounds
        self._flood = FloodGuard(limits.flood_calls, limits.flood_seconds)
        self._offered = offered
        self._remembered = remembered
        self._emit = emit
        self._settled = settled

    def reset(self) -> None:
        """Count no longer how many calls have begun lately."""
        self._flood.reset()

    def takes_early(self, turn: Turn, heard: HeardCall) -> bool:
        """Whether a call may begin while its response goes on: its tool has no effects, and nobody may put another in its place.

        Then it counts as one that has begun.
        """
        if turn.rounds >= self._max_rounds or not heard.call_id:  # which may be told at the end
            return False
        tool = self._offered.tools.get(self._offered.own_name(heard.name))
        if tool is None or tool.annotations.get("read_only") is not True or tool.source or tool.owner or tool.sequential:
            return False
        hooks = turn.run.hooks
        return not (hooks is not None and hooks.chains.of_tools) and self._takes()

    def own(self, current: Round, heard: HeardCall) -> OneCall:
        """Take a call into its round: under the tool's own name, with an id that no other call has."""
        heard.begun = True
        known = current.turn.run.call_ids if current.turn is not None else set[str]()
        call_id = heard.call_id
        if not call_id or call_id in self.under_way or call_id in known:
            call_id = f"call_{uuid.uuid4().hex[:24]}"
        known.add(call_id)
        call = ToolCall(call_id, self._offered.own_name(heard.name), heard.text or "{}")
        return OneCall(call, heard.call_id, heard.name, heard)

    def begin(self, current: Round, turn: Turn, calls: Sequence[OneCall]) -> None:
        """Begin those of the calls that may."""
        admitted: list[OneCall] = []
        for one in calls:
            if turn.rounds > self._max_rounds:
                self._refuse(current, turn, one, RoundsError(one.call.name, limit=self._max_rounds))
            elif not self._takes():
                self._refuse(current, turn, one, FloodError(one.call.name))
            else:
                admitted.append(one)
        if turn.rounds > self._max_rounds + 1:  # it was told so once, and calls on
            current.responds = current.responds and current.talk.goes_on_by_itself
        if turn.rounds == self._max_rounds + 2:  # once: a model that goes on by itself may do so for long
            error = RoundsError(calls[0].call.name if calls else "", limit=self._max_rounds)
            turn.failed(error)
            self._emit(ErrorEvent(error))
        if admitted:
            self.start(current, turn, admitted)

    def start(self, current: Round, turn: Turn, calls: Sequence[OneCall]) -> None:
        """Have calls carried out."""
        for one in calls:
            self.under_way[one.call.id] = current, one
            self._emit(ToolCallEvent(one.call, current.number))
        written = [_written(one) for one in calls]
        current.batches.append(turn.run.start(written, messages=self._messages(calls), iteration=current.number))

    def _takes(self) -> bool:
        return self._flood.take(asyncio.get_running_loop().time())

    def _refuse(self, current: Round, turn: Turn, one: OneCall, error: ToolError) -> None:
        """Settle a call that does not run."""
        self.under_way[one.call.id] = current, one
        self._emit(ToolCallEvent(one.call, current.number))
        execution = refusal(one.call, error)
        hooks = turn.run.hooks
        if hooks is not None and (hooks.observed or hooks.recorders):
            tell_settled(hooks, current.number, execution, None)
        self._settled(execution)

    def _messages(self, calls: Sequence[OneCall]) -> list[Message]:
        """The conversation as tools see it, the calls' own message last."""
        called: Message = {"role": "assistant", "content": None, "tool_calls": [one.call.to_openai() for one in calls]}
        return [*self._remembered.messages(), called]


def _written(one: OneCall) -> ToolCall | IncompleteCall:
    """The call, or what there is of one that was cut off, by its server or by us."""
    call = one.call
    is_whole = one.heard is None or (one.heard.done and not one.heard.is_cut)
    return call if is_whole else IncompleteCall(call.id, call.name, call.raw_arguments, call.raw_arguments)
