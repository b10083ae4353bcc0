"""pydantic-ai, with its own ``FunctionModel``."""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bench.turns import cases


class Row(cases.Turns):
    """Turns of a pydantic-ai agent."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        self._agent = Agent(FunctionModel(self._answer), tools=self.tools(), instructions=cases.INSTRUCTION)

    async def turn(self) -> object:
        return (await self._agent.run(cases.MESSAGE)).output

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.model_calls += 1
        assert len(info.function_tools) == self.case.tools
        if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
            return ModelResponse(parts=[TextPart(cases.DONE)])
        numbers = range(self.case.calls)
        return ModelResponse(parts=[ToolCallPart("noop", self.arguments_text(n), tool_call_id=f"c{n}") for n in numbers])
