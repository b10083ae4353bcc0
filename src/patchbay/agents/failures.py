"""What ends an agent's work without an answer: an error that becomes its last event, and that no caller has to catch.

What lives here: the error, and what a callback raises as one. What does not: the event (``base``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from patchbay.agents.content import Event
from patchbay.tools.results import describe

_logger = logging.getLogger(__name__)


class NoAnswerError(Exception):
    """An agent ends without an answer; ``code`` and the message are those of its last event.

    ``event`` is that event, where there is something to keep of the answer that is none: its text so far, the tokens it took.
    """

    def __init__(self, code: str, message: str, event: Event | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.event = event


@contextmanager
def callbacks_fail() -> Iterator[None]:
    """Make what a callback raises, or what is wrong with what it returned, a NoAnswerError with the code CALLBACK_ERROR."""
    try:
        yield
    except NoAnswerError:
        raise
    except Exception as error:
        _logger.exception("A callback failed")
        raise NoAnswerError("CALLBACK_ERROR", describe(error)) from error
