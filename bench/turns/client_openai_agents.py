"""openai-agents over the real client, with its tracing off."""

from __future__ import annotations

from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool, set_tracing_disabled
from bench.turns import cases, client

set_tracing_disabled(disabled=True)


class Row(client.Turns):
    """Turns of an openai-agents agent."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        model = OpenAIChatCompletionsModel(model=client.MODEL, openai_client=self.client())
        tools = [function_tool(tool) for tool in self.tools()]
        self._agent = Agent(name="bench", instructions=cases.INSTRUCTION, tools=list(tools), model=model)
        self._config = RunConfig(tracing_disabled=True)
        self._history = [_item(message) for message in self.history()]

    async def turn(self) -> object:
        asked = [*self._history, {"role": "user", "content": cases.MESSAGE}]
        return (await Runner.run(self._agent, asked, run_config=self._config)).final_output


def _item(message: dict[str, Any]) -> Any:
    if message["role"] == "tool":
        return {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
    if calls := message.get("tool_calls"):
        return {"type": "function_call", "call_id": calls[0]["id"], **calls[0]["function"]}
    return {"role": message["role"], "content": message["content"]}
