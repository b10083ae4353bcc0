"""What ends an agent's work without an answer: an error that becomes its last event, and that no caller has to catch.

What lives here: the error, and what becomes one: what a callback raises, and the end of the run's time while the caller's own
code is at work. What does not: the event (``base``), and the time of models and tools (``patchbay.loop``, ``patchbay.executor``).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

from patchbay.agents.content import Event
from patchbay.executor import Budget
from patchbay.tools.results import describe

T = TypeVar("T")
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


def out_of_time(budget: Budget, event: Event | None = None) -> NoAnswerError:
    """Return the end of a run whose time is up."""
    budget.out_of_time()
    return NoAnswerError("RUN_TIMEOUT", f"The run timed out after {budget.max_seconds}s", event)


async def in_time(budget: Budget, work: Callable[[], Awaitable[T]]) -> T:
    """Wait for ``work()`` as long as the run has time. Raises NoAnswerError then, and where there was none left."""
    if budget.loop is None:
        return await work()
    if budget.ends is not None and budget.loop.time() >= budget.ends:
        raise out_of_time(budget)
    try:
        async with budget.time_left() as limit:
            return await work()
    except TimeoutError:
        # A TimeoutError of its own is none of ours.
        if not limit.expired():
            raise
        raise out_of_time(budget) from None


async def events_in_time(budget: Budget, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """Yield what comes while the run has time; the limit is on each wait, and never on a consumer (law 10)."""
    async with aclosing(events):
        while True:
            try:
                event = await in_time(budget, lambda: anext(events))
            except StopAsyncIteration:
                return
            yield event
