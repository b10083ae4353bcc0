"""One answer of the model while it arrives, and the time that it may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from patchbay.errors import UpstreamError
from patchbay.loop.events import LoopEvent, ReasoningEvent, TextEvent
from patchbay.models.chat import ModelEvent, ModelReply, ReasoningDelta, TextDelta
from patchbay.types import NO_USAGE, Reply, ToolCall, Usage


class OutOfTimeError(Exception):
    """The time of the run was up before the model had answered."""


class UnfinishedError(UpstreamError):
    """The model said nothing more, and no ModelReply had come."""

    def __init__(self) -> None:
        super().__init__("The model's answer ended before it was complete.")


async def next_event(events: AsyncIterator[ModelEvent], ends: float | None) -> ModelEvent | None:
    """Return what the model says next, None at its end. Raises OutOfTimeError at ``ends``, by the event loop's clock.

    The limit is on this one wait: it is over before anything is handed to a consumer (law 10).
    """
    try:
        if ends is None:
            return await anext(events)
        async with asyncio.timeout_at(ends) as limit:
            return await anext(events)
    except StopAsyncIteration:
        return None
    except TimeoutError:
        # A TimeoutError of the model's own is none of ours.
        if ends is None or not limit.expired():
            raise
        raise OutOfTimeError from None


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

    def whole(self) -> tuple[Reply, str | None]:
        """Return the reply and its finish_reason. Raises UnfinishedError if the model stopped before it was whole."""
        if self.end is None:
            raise UnfinishedError
        return self.end.reply, self.end.finish_reason

    def unsaid(self) -> list[LoopEvent]:
        """Return events for what a model that does not stream said all at once."""
        if self.end is None:
            return []
        reply = self.end.reply
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
