"""The seam between the loop and any model: one request in, events out, the last of them the whole reply.

What a provider's wire looks like is the business of this folder's other files; what is done with the calls in a reply is the
business of ``patchbay.loop``. The fake for this seam is ``patchbay.testing.ScriptedModel``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from patchbay.formats.events import ReasoningDelta, TextDelta
from patchbay.types import NO_USAGE, Message, Reply, ToolSpec, Usage

__all__ = ["ChatModel", "ChatRequest", "ModelEvent", "ModelReply", "ReasoningDelta", "TextDelta"]


@dataclass(frozen=True)
class ChatRequest:
    """What a model is asked in one round.

    ``parameters`` holds the model's name and everything else the caller passes on (temperature, max_tokens, ...), in OpenAI's
    words. ``tool_choice`` is OpenAI's too. With ``stream`` the model should give its text as it is written.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    tool_choice: Any = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False


@dataclass(frozen=True)
class ModelReply:
    """The last event of every answer: the whole of it. ``finish_reason`` is the server's word, None where it said none."""

    reply: Reply
    finish_reason: str | None = None
    usage: Usage = NO_USAGE


ModelEvent: TypeAlias = TextDelta | ReasoningDelta | ModelReply


@runtime_checkable
class ChatModel(Protocol):
    """A model that can be asked for one answer."""

    def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:
        """Answer ``request``: any number of deltas, then exactly one ModelReply.

        Deltas may be left out; where they are given they add up to the reply's content and reasoning. A failing server is an
        UpstreamError. Closing the iterator stops the request; no timeout or cancel scope may be held across its yields.
        """
        ...
