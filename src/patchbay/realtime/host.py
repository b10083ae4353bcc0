"""The interface of the session engine to its connections and tool calls."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from patchbay.errors import PatchbayError
from patchbay.realtime.call_assembly import PartialCall
from patchbay.realtime.events import RealtimeEvent
from patchbay.realtime.providers.base import Line
from patchbay.realtime.server_events import ServerError, SessionUpdated, Status
from patchbay.tools import Tool


class SessionHost(Protocol):
    """The session that a connection and tool calls belong to. Events of a connection come in order."""

    @property
    def is_muted(self) -> bool:
        """True if no response is wanted until the user continues."""

    def emit(self, event: RealtimeEvent) -> None:
        """Queue an event for the session's reader."""

    def on_line(self, line: Line, *, is_answered: bool = True) -> None:
        """Handle a complete utterance. Not ``is_answered``: user input to which no response has started."""

    def on_response_started(self, *, wanted: bool) -> None:
        """Handle the start of a response. Not ``wanted``: it was cancelled before it started."""

    def on_response_done(self, status: Status, *, chars: int, calls: int) -> None:
        """Handle the end of a response, with the number of characters and calls as far as known."""

    def on_response_failed(self, error: PatchbayError) -> None:
        """Handle a missing or incomplete response."""

    def on_user_turn(self, *, typed: bool) -> None:
        """Handle the start of the user's turn, which voids the previous one. ``typed``: it is a text sent by us."""

    def on_calls(self, calls: Sequence[PartialCall], *, run: bool) -> None:
        """Handle the calls of a finished response; ``run`` if it was completed. Late calls come apart from the others."""

    def on_calls_cancelled(self, call_ids: Sequence[str]) -> bool:
        """Handle calls cancelled by the server; return whether results of them were pending."""

    def on_session_change(self, event: SessionUpdated | ServerError) -> None:
        """Handle the confirmation or refusal of a session update."""

    def advance(self) -> None:
        """Do what has waited for the end of a response or a call."""

    def on_go_away(self, seconds: float) -> None:
        """Handle that the server will close the connection."""

    def add_input(self, line: Line) -> None:
        """Record a line sent to the model."""

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task."""

    def offer_tool(self, tool: Tool) -> None:
        """Offer one more tool to the model."""

    def sync_tools(self) -> None:
        """Send the model's server the tools, where they have changed."""
