"""The rows without a framework of others: a loop by hand, ``ToolRunner``, ``LlmAgent``, each with a model in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from bench.turns import cases
from patchbay import ToolRunner
from patchbay.agents import InMemorySessionService, LlmAgent, Runner
from patchbay.models.chat_model import ChatRequest, ModelEvent, ModelReply
from patchbay.types import Reply, ToolCall


class FakeModel:
    """Asks for the calls, then answers; it renders the tools that it is given in OpenAI's form each time, as an adapter does."""

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


class ByHandTurns(cases.Turns):
    """A loop by hand, the lower bound: dicts and ``asyncio.gather``, no validation, no events, no session."""

    checks = False

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        self._tools = {tool.__name__: tool for tool in self.tools()}

    async def turn(self) -> object:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": cases.INSTRUCTION},
            {"role": "user", "content": cases.MESSAGE},
        ]
        while True:
            reply = await self._ask(messages)
            messages.append({"role": "assistant", **reply})
            if not reply["calls"]:
                return reply["text"]
            running = [self._tools[call["name"]](**call["arguments"]) for call in reply["calls"]]
            results = await asyncio.gather(*running, return_exceptions=True)
            for call, result in zip(reply["calls"], results, strict=True):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    async def _ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        self.model_calls += 1
        if messages[-1]["role"] == "tool":
            return {"text": cases.DONE, "calls": []}
        numbers = range(self.case.calls)
        return {"text": None, "calls": [{"id": f"c{n}", "name": "noop", "arguments": self.arguments(n)} for n in numbers]}


class RunnerTurns(cases.Turns):
    """The loop and the executor alone, without sessions and agents."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        self._runner = ToolRunner(FakeModel(self), tools=self.tools())

    async def turn(self) -> object:
        result = await self._runner.run(
            [{"role": "system", "content": cases.INSTRUCTION}, {"role": "user", "content": cases.MESSAGE}]
        )
        return result.content


class AgentTurns(cases.Turns):
    """An agent with its runner: sessions, state, events. Each turn is in a new session, which the runner makes."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        agent = LlmAgent(name="bench", model=FakeModel(self), instruction=cases.INSTRUCTION, tools=self.tools())
        self._sessions = InMemorySessionService()
        self._runner = Runner(agent=agent, app_name="bench", session_service=self._sessions)
        self._number = 0

    async def turn(self) -> object:
        self._number += 1
        said = None
        async for event in self._runner.run(user_id="u", session_id=f"s{self._number}", message=cases.MESSAGE):
            if event.is_final_response() and event.content is not None:
                said = event.content.parts[0].text
        return said

    async def forget(self) -> None:
        await self._sessions.delete_session("bench", "u", f"s{self._number}")
