"""A plugin's ``logging`` as LOG messages to the host.

What lives here: the handler. What does not: what a plugin prints, which the host reads from its pipes.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

from patchbay.plugins.messages import Log
from patchbay.tools import well_formed

MOST_CHARS = 32 * 1024
"""How much of one record is sent."""
MOST_AT_ONCE = 500
AT_ONCE_SECONDS = 0.1
"""So many records are sent in so many seconds; more would cost the host the time that it has for other plugins."""


class HostHandler(logging.Handler):
    """Hands records to ``offer``, which says whether it took them; what was dropped is counted, and told with the next one.

    From any thread. Where there is no host any more, records go to standard error.
    """

    def __init__(self, offer: Callable[[Log], bool | None]) -> None:
        super().__init__()
        self._offer = offer
        self._dropped = 0
        self._since = 0.0
        self._sent = 0
        self._formatter = logging.Formatter("%(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record. Never raises."""
        try:
            if self._is_too_much():
                self._dropped += 1
                return
            text = well_formed(self._formatter.format(record))
            if len(text) > MOST_CHARS:
                text = f"{text[:MOST_CHARS]}... ({len(text)} characters)"
            message = Log(level=record.levelno, logger=record.name, message=text, created=record.created, dropped=self._dropped)
            taken = self._offer(message)
            if taken is None:
                print(f"{record.levelname} {record.name}: {text}", file=sys.stderr)  # noqa: T201  (nobody else is left to tell)
            self._dropped = self._dropped + 1 if taken is False else 0
        except Exception:  # noqa: BLE001  (as logging's own handlers: a record must not break what it is about)
            self.handleError(record)

    def _is_too_much(self) -> bool:
        now = time.monotonic()
        if now - self._since > AT_ONCE_SECONDS:
            self._since, self._sent = now, 0
        self._sent += 1
        return self._sent > MOST_AT_ONCE
