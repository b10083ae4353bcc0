"""The calls of a connection's responses, collected until they can be handed on: all calls of a response at once, and once.

What lives here: when the calls of a response are known, which of them are void, and those that come behind its end. What does
not: how a call is put together (``calls``), what becomes of it (``answers``), and when the model is asked to go on (``talk``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from patchbay.realtime.calls import CallBook
from patchbay.realtime.listener import Listener
from patchbay.realtime.news import CallPiece, ResponseEnded, WholeCall
from patchbay.realtime.timer import Timer

_GIVEN_UP_KEPT: Final = 8


class Collecting:
    """The response that is under way, or was the last. After its end more of its calls are heard for ``grace`` seconds.

    ``grace_over`` is called when they are not any more.
    """

    def __init__(self, grace: float, listener: Listener, grace_over: Callable[[], None]) -> None:
        self.is_under_way = False
        """Whether there is a response of which something was heard, and not its end. What was asked for may be another one."""
        self.interrupted = False
        """Whether nothing is to come of it."""
        self.is_collected = True
        """Whether its calls were handed on."""
        self.is_answering = False
        """Whether they were handed on to be carried out: nothing is asked for in front of their results."""
        self._grace = grace
        self._listener = listener
        self._grace_over = grace_over
        self._late = Timer(self._grace_ends)
        self._book = CallBook()
        self._given_up: dict[str, set[str]] = {}  # responses that were not waited for any longer, and the calls that they had

    @property
    def response_id(self) -> str:
        """The id of the response that is under way; "" where there is none, or that is not known."""
        return (self._book.response_id or "") if self.is_under_way else ""

    @property
    def is_awaited(self) -> bool:
        """Whether something is still to come of a response, and is wanted: its end, or the rest of its calls."""
        return not self.interrupted if self.is_under_way else not self.is_collected

    def is_known(self, response_id: str) -> bool:
        """Whether this response is the one that is under way, or is over."""
        is_mine = self.is_under_way and self._book.response_id == response_id
        return is_mine or (bool(response_id) and self._book.is_over(response_id))

    def is_stale(self, response_id: str) -> bool:
        """Whether something of this response is not to be heard: it is over, or another one is under way.

        Calls that come behind the end are to be looked for before (``is_late``).
        """
        if response_id and not self.is_under_way and response_id == self._book.response_id:
            return True  # it has just ended
        return self._book.is_stale(response_id, under_way=self.is_under_way)

    def is_late(self, response_id: str) -> bool:
        """Whether it is of the response that was completed just now."""
        return self._late.is_set and not self.is_under_way and response_id in ("", self._book.response_id)

    def begin(self, response_id: str) -> None:
        """The next response begins."""
        self._hand_on()
        self._book.begin(response_id)
        self.is_under_way = True
        self.interrupted = False

    def interrupt(self) -> None:
        """Let nothing come of the response that is under way, nor of calls of the last one that are still being collected."""
        if self.is_under_way:
            self.interrupted = True
        elif self._late.is_set:
            self._hand_on(run=False)
            self._book.end()

    def take(self, piece: CallPiece) -> None:
        """Take a part of a call of the response that is under way."""
        call = self._book.take(piece)
        if call is not None and not self.interrupted and not call.begun:
            self._listener.call_is_whole(call)

    def take_late(self, piece: CallPiece) -> None:
        """Take a part of a call of the response that was completed just now."""
        call = self._book.take(piece)
        if call is None or call.begun:
            return
        if self.is_collected:
            self._book.collected()
            self._listener.call_came_late(call)
        elif all(each.done for each in self._book.calls):
            self._hand_on(late=True)

    def end(self, told: Sequence[WholeCall]) -> int:
        """The response is over; return how many calls it has made. They are handed on by ``hand_on``."""
        self.is_under_way = self.is_collected = False
        self._book.close(told)
        return len(self._book.calls)

    def hand_on(self, *, completed: bool) -> None:
        """Hand the calls of the response on that has ended, at once or when they are whole."""
        if not completed:
            self._hand_on(run=False)
            return
        self._late.set(self._grace)
        if all(call.done for call in self._book.calls):
            self._hand_on(late=True)

    def give_up(self) -> None:
        """Wait for the end of the response no longer."""
        self._given_up[self.response_id] = {call.key for call in self._book.calls}
        if len(self._given_up) > _GIVEN_UP_KEPT:
            self._given_up.pop(next(iter(self._given_up)))

    def ended_after_all(self, news: ResponseEnded) -> bool:
        """Answer the calls of a response that was waited for no longer: its server waits for their results.

        Returns whether it is one of these.
        """
        known = self._given_up.pop(news.response_id, None)
        if known is None:
            return False
        book = CallBook()
        book.begin(news.response_id)
        book.close(call for call in news.calls if call.key not in known)
        if calls := book.collected():
            self._listener.calls_are_told(calls, run=False)
        return True

    def stop(self) -> None:
        """Wait for nothing any more."""
        self.is_under_way = False
        self._late.cancel()

    def _grace_ends(self) -> None:
        self._hand_on()
        self._book.end()
        self._grace_over()

    def _hand_on(self, *, run: bool = True, late: bool = False) -> None:
        """Hand the calls of the response on, once; with ``late`` more of them may come."""
        if not late:
            self._late.cancel()
        if self.is_collected:
            return
        self.is_collected = True
        if calls := self._book.collected():
            self.is_answering = run
            self._listener.calls_are_told(calls, run=run)
        if not run:
            self._book.end()
