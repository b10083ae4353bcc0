"""One turn of a chat as it is written down while it happens, so that what was said and done stays when it is broken off. Pure.

What lives here: messages in order, each call with its one result. What does not: the turn (``patchbay.loop``), which hands out
the whole conversation when it comes to its end.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from patchbay.loop import ReplyEvent
from patchbay.loop.conversation import files_message, reply_message
from patchbay.loop.settled import NOT_SHOWN
from patchbay.tools import well_formed
from patchbay.types import Message, ToolCall, ToolResult


class Told:
    """A turn that began with ``messages``. ``text``, ``reply`` and ``result`` are told what happens."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages: list[Message] = list(messages)
        self._calls: Sequence[ToolCall] = ()  # of the last reply
        self._results: dict[str, ToolResult] = {}  # of these
        self._said: list[str] = []
        self.rounds = 0
        """How many replies there were."""

    def text(self, piece: str) -> None:
        """The model says something."""
        self._said.append(piece)

    @property
    def is_answering(self) -> bool:
        """Whether the model has begun to say something that is not whole."""
        return bool(self._said)

    def reply(self, event: ReplyEvent, tools: Container[str]) -> None:
        """The model's reply is whole; ``tools`` are those that it may call."""
        self._messages = [*self._done(), reply_message(event.reply, event.calls, tools)]
        self._calls = event.calls
        self._results.clear()
        self._said.clear()
        self.rounds += 1

    def result(self, result: ToolResult) -> None:
        """A call has settled."""
        self._results[result.call_id] = result

    def messages(self) -> list[Message]:
        """What there is by now, each call with its result."""
        said = "".join(self._said)
        return [*self._done(), {"role": "assistant", "content": well_formed(said)}] if said else self._done()

    def _done(self) -> list[Message]:
        results = [self._results.get(call.id) or ToolResult(call.id, call.name, NOT_SHOWN) for call in self._calls]
        messages = [*self._messages, *(result.to_message() for result in results)]
        return [*messages, files_message(results)] if any(result.attachments for result in results) else messages
