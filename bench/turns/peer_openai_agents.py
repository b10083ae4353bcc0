"""openai-agents, with a ``Model`` in memory and its tracing off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
from bench.turns import cases

set_tracing_disabled(disabled=True)


class FakeModel(Model):
    """Asks for the calls, then answers."""

    def __init__(self, row: cases.Turns) -> None:
        self._row = row

    async def get_response(
        self,
        system_instructions: str | None,  # noqa: ARG002
        input: Any,  # noqa: A002
        model_settings: Any,  # noqa: ARG002
        tools: list[Any],
        *_: Any,
        **__: Any,
    ) -> ModelResponse:
        row = self._row
        row.model_calls += 1
        assert len(tools) == row.case.tools
        if isinstance(input, list) and input[-1].get("type") == "function_call_output":
            text = ResponseOutputText(text=cases.DONE, type="output_text", annotations=[], logprobs=[])
            message = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
            return ModelResponse(output=[message], usage=Usage(), response_id=None)
        calls = [
            ResponseFunctionToolCall(
                id=f"f{n}", call_id=f"c{n}", type="function_call", name="noop", arguments=row.arguments_text(n)
            )
            for n in range(row.case.calls)
        ]
        return ModelResponse(output=list(calls), usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


class Row(cases.Turns):
    """Turns of an openai-agents agent."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        tools = [function_tool(tool) for tool in self.tools()]
        self._agent = Agent(name="bench", instructions=cases.INSTRUCTION, tools=list(tools), model=FakeModel(self))
        self._config = RunConfig(tracing_disabled=True)

    async def turn(self) -> object:
        return (await Runner.run(self._agent, cases.MESSAGE, run_config=self._config)).final_output
