"""What the log of a server has of its sessions: one line for each that fails, and for each connection to a model that is lost.

What lives here: which events are an operator's affair, and their words. What does not: what clients are told (``frames``). A line
says whose session it is and why; what models and clients wrote stands in it cut, and as characters that obey nobody.
"""

from __future__ import annotations

import logging
from typing import Final

from patchbay.legible import one_line, printable
from patchbay.realtime.events import ConnectionEvent, ErrorEvent, RealtimeEvent

_LONGEST: Final = 500
_LONGEST_KEY: Final = 100

_logger = logging.getLogger(__name__)


class SessionLog:
    """The log of the session ``key`` of ``role``."""

    def __init__(self, role: str, key: str) -> None:
        self._whose = f"{_shown(key, _LONGEST_KEY)!r} of the role {_shown(role, _LONGEST_KEY)!r}"
        self._last = ""

    def failed(self, error: Exception) -> None:
        """There is no session."""
        self._say("The session %s could not be opened: %s", str(error))

    def event(self, event: RealtimeEvent) -> None:
        """Something has happened in it."""
        if isinstance(event, ErrorEvent):
            self._say("In the session %s: %s", str(event.error))
        elif isinstance(event, ConnectionEvent) and event.planned:
            _logger.info(
                "The connection of the session %s to its model is renewed: %s", self._whose, _shown(event.reason, _LONGEST)
            )
        elif isinstance(event, ConnectionEvent) and event.state == "lost":
            self._say("The connection of the session %s to its model is lost: %s", event.reason or "no reason was given")

    def ended(self, why: str) -> None:
        """Its model has ended it; what was said of that already is not said again."""
        if _shown(why, _LONGEST) != self._last:
            self._say("The session %s has ended: %s", why)

    def _say(self, words: str, why: str) -> None:
        self._last = _shown(why, _LONGEST)
        _logger.warning(words, self._whose, self._last)


def _shown(text: str, most: int) -> str:
    return printable(one_line(text, most))
