"""The model of Patchbay's rows: a ``ChatModel`` in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

from bench.turns import cases
from patchbay.models.chat_model import ChatRequest, ModelEvent, ModelReply
from patchbay.types import Reply, ToolCall


class FakeModel:
    """Asks for the calls, then answers; the tools that it is given it puts into OpenAI's words each time, as an adapter does."""

    def __init__(self, row: cases.Turns) -> None:
        self._row = row

    async def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:
        row = self._row
        row.model_calls += 1
        wire = [spec.to_openai() for spec in request.tools]
        assert len(wire) == row.case.tools
        if request.messages[-1]["role"] == "tool":
            yield ModelReply(Reply(cases.DONE), "stop")
            return
        calls = tuple(ToolCall(f"c{number}", "noop", row.arguments_text(number)) for number in range(row.case.calls))
        yield ModelReply(Reply(None, tool_calls=calls), "tool_calls")
