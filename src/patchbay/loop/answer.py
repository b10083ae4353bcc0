"""One answer of the model while it arrives, and the time that it may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from patchbay.errors import UpstreamError
from patchbay.executor import Budget
from patchbay.loop.events import LoopEvent, ReasoningEvent, TextEvent
from patchbay.models.chat import ModelEvent, ModelReply, ReasoningDelta, TextDelta
from patchbay.types import NO_USAGE, Reply, ToolCall, Usage


class OutOfTimeError(Exception):
    """The time of the run was up before the model had answered."""


class UnfinishedError(UpstreamError):
    """The model said nothing more, and no ModelReply had come."""

    def __init__(self) -> None:
        super().__init__("The model's answer ended before it was complete.")


def next_event(events: AsyncIterator[ModelEvent], ends: Budget | float | None) -> Awaitable[ModelEvent | None]:
    """Return what waits for the next that the model says, None at its end; it raises OutOfTimeError at ``ends``.

    That is a time by the event loop's clock, or the end of a budget's time. The limit is on this one wait: it is over before
    anything is handed to a consumer (law 10).
    """
    # Most turns have no limit, and need no coroutine more.
    scope = None if type(ends) is Budget and ends.loop is None else _scope(ends)
    return anext(events, None) if scope is None else _within(scope, events)


async def _within(scope: AbstractAsyncContextManager[asyncio.Timeout], events: AsyncIterator[ModelEvent]) -> ModelEvent | None:
    try:
        async with scope as limit:
            return await anext(events, None)
    except TimeoutError:
        # A TimeoutError of the model's own is none of ours.
        if not limit.expired():
            raise
        raise OutOfTimeError from None


async def in_time(work: Awaitable[Any], budget: Budget) -> Any:
    """Wait for ``work``. Raises OutOfTimeError when the budget's time is up, and whatever ``work`` raises."""
    if (scope := _scope(budget)) is None:
        return await work
    try:
        async with scope as limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise OutOfTimeError from None


def _scope(ends: Budget | float | None) -> AbstractAsyncContextManager[asyncio.Timeout] | None:
    if isinstance(ends, Budget):
        return ends.time_left() if ends.loop is not None else None
    return asyncio.timeout_at(ends) if ends is not None else None


@dataclass
class Answer:
    """One answer of the model while it arrives."""

    end: ModelReply | None = None
    said: list[str] = field(default_factory=list)
    said_reasoning: bool = False

    def take(self, response: Any) -> LoopEvent | None:
        """Return the event for what the model said, if it is one."""
        if self.end is not None:
            raise UpstreamError("The model went on after its reply was complete.")
        if isinstance(response, TextDelta):
            if not response.text:
                return None
            self.said.append(response.text)
            return TextEvent(response.text)
        if isinstance(response, ReasoningDelta):
            self.said_reasoning = self.said_reasoning or bool(response.text)
            return ReasoningEvent(response.text) if response.text else None
        if not isinstance(response, ModelReply):
            raise TypeError(f"A model gave {type(response).__name__}: TextDelta, ReasoningDelta or ModelReply was expected.")
        _check(response)
        self.end = response
        return None

    def settle(self, end: ModelReply) -> None:
        """Take this for the whole reply. Raises TypeError for one that is put together wrongly."""
        _check(end)
        self.end = end

    def ended(self) -> ModelReply:
        """Return the model's reply as it gave it. Raises UnfinishedError if the model stopped before it was whole."""
        if self.end is None:
            raise UnfinishedError
        return self.end

    def unsaid(self, reply: Reply) -> list[LoopEvent]:
        """Return events for what a model that does not stream said all at once, in its whole ``reply``."""
        events: list[LoopEvent] = []
        if reply.reasoning and not self.said_reasoning:
            events.append(ReasoningEvent(reply.reasoning))
        if reply.content and not self.said:
            events.append(TextEvent(reply.content))
        return events

    @property
    def usage(self) -> Usage:
        """The tokens of this answer."""
        return self.end.usage if self.end is not None else NO_USAGE


def _check(end: ModelReply) -> None:
    """Raise TypeError for a reply that is put together wrongly: here, where it can be said whose doing it is."""
    reply = end.reply
    if not isinstance(reply, Reply):
        raise TypeError(f"A model gave a ModelReply of {type(reply).__name__}: a Reply was expected.")
    for name, text in (("content", reply.content), ("reasoning", reply.reasoning), ("finish_reason", end.finish_reason)):
        if text is not None and not isinstance(text, str):
            raise TypeError(f"A model gave a reply whose {name} is {type(text).__name__}, and no text.")
    for call in reply.tool_calls:
        if not isinstance(call, ToolCall) or not isinstance(call.raw_arguments, str):
            raise TypeError(f"A model gave a call that is none, or whose arguments are no JSON text: {call!r:.200}")
    if not isinstance(end.usage, Usage):
        raise TypeError(f"A model gave a reply whose usage is {type(end.usage).__name__}, and no Usage.")
