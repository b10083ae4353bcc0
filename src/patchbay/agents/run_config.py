"""The settings and limits of a run, and the error that ends an agent without an answer."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from patchbay.agents.content import Event
from patchbay.errors import ConfigurationError, PatchbayError
from patchbay.executor import Budget
from patchbay.executor.limits import OutOfTimeError, in_time
from patchbay.loop.events import IncompleteAnswerError
from patchbay.tools.results import describe
from patchbay.tools.tool import checked_count, checked_timeout

T = TypeVar("T")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The limits and settings of one run; times are in seconds, None means no limit.

    Raises ConfigurationError for invalid limits.
    """

    max_llm_calls: int | None = 50
    """Requests to models, over all agents of the run, those of parallel branches included."""
    max_tool_calls: int | None = None
    """Calls of tools, counted in the same way."""
    run_timeout: float | None = None
    """The time of the whole run, callbacks and custom agents included, once it has its session."""
    llm_timeout: float | None = None
    """The time of each answer of a model."""
    tool_timeout: float | None = None
    """The time of tools without a limit of their own."""
    streaming: bool = False
    """Whether the events include partial ones, as a model writes."""
    max_history_events: int | None = 100
    """A model gets the last events of a session with content, so many; of a longer session at least three quarters of that, since
    the window moves in steps, so that the server's prompt cache holds."""
    max_message_length: int | None = None
    """The most characters of a message; a longer one is refused."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """The caller's own, for callbacks and tools."""

    def __post_init__(self) -> None:
        for name in ("max_llm_calls", "max_tool_calls", "max_history_events", "max_message_length"):
            checked_count(getattr(self, name), name)
        for name in ("run_timeout", "llm_timeout", "tool_timeout"):
            checked_timeout(getattr(self, name), name)

    def budget(self) -> Budget:
        """Return a Budget of these limits, unused."""
        return Budget(max_iterations=self.max_llm_calls, max_calls=self.max_tool_calls, max_seconds=self.run_timeout)


@dataclass(kw_only=True)
class GenerateContentConfig:
    """A model's parameters. None leaves a value to the server; ``extra`` has further parameters by OpenAI's names.

    Raises ConfigurationError for values of a wrong type.
    """

    temperature: float | None = None
    max_output_tokens: int | None = None
    top_p: float | None = None
    stop_sequences: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p"):
            number = getattr(self, name)
            if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
                raise ConfigurationError(f"{name} must be a number, or None; not {number!r}.")
        checked_count(self.max_output_tokens, "max_output_tokens")
        stops = self.stop_sequences
        if not isinstance(stops, list | tuple) or not all(isinstance(stop, str) for stop in stops):
            raise ConfigurationError(f"stop_sequences must be a list of texts, not {stops!r}.")

    def parameters(self) -> dict[str, Any]:
        """Return the parameters by OpenAI's names."""
        values = {
            "temperature": self.temperature,
            "max_tokens": self.max_output_tokens,
            "top_p": self.top_p,
            "stop": list(self.stop_sequences) or None,
        }
        return {**{name: value for name, value in values.items() if value is not None}, **self.extra}


class RunFailed(Exception):  # noqa: N818  (an outcome of a run, which no caller catches)
    """An agent ends without an answer; ``code`` and the message are those of its last event.

    ``event`` is that event, if an incomplete answer has text or tokens to record.
    """

    def __init__(self, code: str, message: str, event: Event | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.event = event


def as_run_failed(error: Exception) -> RunFailed:
    """Return the error of a model as the error that ends a run."""
    if isinstance(error, RunFailed):
        return error
    if isinstance(error, IncompleteAnswerError):
        return RunFailed("NO_RESPONSE", "Model returned no response")
    if isinstance(error, PatchbayError):
        return RunFailed(error.code.upper(), str(error))
    _logger.error("The model failed", exc_info=error)
    return RunFailed("MODEL_ERROR", describe(error))


@contextmanager
def callback_errors() -> Iterator[None]:
    """Turn exceptions of a callback, or of its invalid result, into a RunFailed with the code CALLBACK_ERROR."""
    try:
        yield
    except RunFailed:
        raise
    except Exception as error:
        _logger.exception("A callback failed")
        raise RunFailed("CALLBACK_ERROR", describe(error)) from error


def time_exceeded(budget: Budget, event: Event | None = None) -> RunFailed:
    """Return the error of a run whose time is up."""
    budget.out_of_time()
    return RunFailed("RUN_TIMEOUT", f"The run timed out after {budget.max_seconds}s", event)


async def within_time(budget: Budget, work: Callable[[], Awaitable[T]]) -> T:
    """Await ``work()`` while the run has time. Raises RunFailed when its time is up, also before the work has begun."""
    if budget.loop is None:
        return await work()
    if budget.ends is not None and budget.loop.time() >= budget.ends:
        raise time_exceeded(budget)
    try:
        return await in_time(work(), budget)
    except OutOfTimeError:
        raise time_exceeded(budget) from None


async def events_within_time(budget: Budget, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """Yield events while the run has time; the limit is on each wait, and never on a consumer (law 10)."""
    async with aclosing(events):
        while True:
            try:
                event = await within_time(budget, lambda: anext(events))
            except StopAsyncIteration:
                return
            yield event
