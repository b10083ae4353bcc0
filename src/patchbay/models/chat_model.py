"""The interface between the loop and any model.

One request in, events out, the last of them the whole reply. The fake for this interface is ``patchbay.testing.ScriptedModel``.
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
    """A request to a model.

    ``parameters`` holds the model's name and all that the caller passes on (temperature, max_tokens, ...), named as in OpenAI's
    API. So is ``tool_choice``. With ``stream`` the model should yield its text as it is written.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    tool_choice: Any = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False


@dataclass(frozen=True)
class ModelReply:
    """The last event of every answer, with all of it. ``finish_reason`` is the server's, None without one."""

    reply: Reply
    finish_reason: str | None = None
    usage: Usage = NO_USAGE


ModelEvent: TypeAlias = TextDelta | ReasoningDelta | ModelReply


@runtime_checkable
class ChatModel(Protocol):
    """A model that can be asked for one answer."""

    def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:
        """Answer ``request``: any number of deltas, then exactly one ModelReply.

        Deltas are optional; if there are any, they add up to the reply's content and reasoning. A failing server is an
        UpstreamError. Closing the iterator stops the request; no timeout or cancel scope may be held across its yields.
        """
        ...
