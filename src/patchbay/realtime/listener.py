"""Who a talk is for: the seam between what is said on a connection (``talk``) and what becomes of it (``core``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from patchbay.errors import PatchbayError
from patchbay.realtime.call_assembly import PartialCall
from patchbay.realtime.events import RealtimeEvent
from patchbay.realtime.providers.base import Line
from patchbay.realtime.server_events import ServerError, SessionUpdated, Status


class Listener(Protocol):
    """Is told of what happens on a connection, in the order in which it happens."""

    def emit(self, event: RealtimeEvent) -> None:
        """Tell the reader of the session's events."""

    def heard_line(self, line: Line, *, is_answered: bool = True) -> None:
        """Somebody has said something, to its end. Not ``is_answered``: the user, to whom the model has not begun to answer."""

    def response_began(self, *, wanted: bool) -> None:
        """The model answers. Not ``wanted``: it was asked to, and then not any more."""

    def response_ended(self, status: Status, *, chars: int, calls: int) -> None:
        """It has ended. So many characters were said, and so many calls made, as far as is known."""

    def answer_failed(self, error: PatchbayError) -> None:
        """There is no answer, or not all of one."""

    def user_began(self, *, typed: bool) -> None:
        """The user speaks: what was going on for the turn before is void. ``typed``: it is a text of ours that is meant."""

    def call_is_whole(self, call: PartialCall) -> None:
        """A call is known whole, and its response goes on."""

    def calls_are_told(self, calls: Sequence[PartialCall], *, run: bool) -> None:
        """A response is over; these are its calls. ``run``: it was completed."""

    def call_came_late(self, call: PartialCall) -> None:
        """One more call of the response that was completed last."""

    def calls_taken_back(self, call_ids: Sequence[str]) -> bool:
        """The server wants no result for these calls. Returns whether it waited for them, and so has heard something newer."""

    def change_settled(self, news: SessionUpdated | ServerError) -> None:
        """The server has taken a change of the session, or refused it."""

    def now_free(self) -> None:
        """No response is under way or wanted."""

    def leaving(self, seconds: float) -> None:
        """The connection will end."""

    def resumable(self, handle: str) -> None:
        """Another connection can go on where this one is."""
