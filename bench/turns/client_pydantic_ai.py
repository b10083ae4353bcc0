"""pydantic-ai over the real client."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from bench.turns import cases, client


class Row(client.Turns):
    """Turns of a pydantic-ai agent."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        model = OpenAIChatModel(client.MODEL, provider=OpenAIProvider(openai_client=self.client()))
        self._agent = Agent(model, tools=self.tools(), instructions=cases.INSTRUCTION)
        self._history = [_message(message) for message in self.history()]

    async def turn(self) -> object:
        return (await self._agent.run(cases.MESSAGE, message_history=self._history)).output


def _message(message: dict[str, Any]) -> ModelMessage:
    if message["role"] == "user":
        return ModelRequest(parts=[UserPromptPart(message["content"])])
    if message["role"] == "tool":
        return ModelRequest(parts=[ToolReturnPart("noop", message["content"], tool_call_id=message["tool_call_id"])])
    if calls := message.get("tool_calls"):
        function = calls[0]["function"]
        return ModelResponse(parts=[ToolCallPart("noop", function["arguments"], tool_call_id=calls[0]["id"])])
    return ModelResponse(parts=[TextPart(message["content"])])
