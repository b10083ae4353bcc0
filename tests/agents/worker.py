"""A process that runs a turn and waits at each step for a line to continue: ``worker.py URL SESSION``.

At each moment it writes a line, such as "before calls" (the event is about to be recorded), "after calls" (it is), "tool a", "model
1"; the line that it reads lets that step continue. With a third argument, a number, it runs so many turns without waiting.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from patchbay.agents import DatabaseSessionService, Event, LlmAgent, Runner, Session
from patchbay.models.chat_model import ChatRequest, ModelReply
from patchbay.types import Reply, ToolCall

TOOLS = ("a", "b", "c")


class Breakpoints:
    """Waits at named moments for a line of standard input."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}

    async def listen(self) -> None:
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            self._waiting.pop(line).set()

    async def come_to(self, moment: str) -> None:
        gone_on = self._waiting[moment] = asyncio.Event()
        print(moment, flush=True)  # noqa: T201
        await gone_on.wait()


class Service(DatabaseSessionService):
    def __init__(self, url: str, moments: Breakpoints) -> None:
        super().__init__(url)
        self.moments = moments

    async def append_event(self, session: Session, event: Event) -> Event:
        what = kind(event)
        await self.moments.come_to(f"before {what}")
        kept = await super().append_event(session, event)
        await self.moments.come_to(f"after {what}")
        return kept


class Model:
    def __init__(self, moments: Breakpoints | None) -> None:
        self.moments = moments

    async def respond(self, request: ChatRequest) -> AsyncIterator[Any]:
        is_first = request.messages[-1]["role"] == "user"
        if self.moments is not None:
            await self.moments.come_to(f"model {1 if is_first else 2}")
        if not is_first:
            yield ModelReply(Reply("done"), "stop")
            return
        yield ModelReply(Reply(None, tool_calls=tuple(ToolCall(name, name, "{}") for name in TOOLS)), "tool_calls")


def kind(event: Event) -> str:
    """Return the kind of an event: "user", "calls", "answer", "result b"."""
    if event.author == "user":
        return "user"
    if event.get_function_calls():
        return "calls"
    if responses := event.get_function_responses():
        return f"result {' '.join(response.name for response in responses)}"
    return "answer"


def tool(name: str, moments: Breakpoints | None) -> Any:
    async def work(tool_context: Any) -> str:
        tool_context.state[f"done_{name}"] = True
        if moments is not None:
            await moments.come_to(f"tool {name}")
        else:
            await asyncio.sleep(0)
        return f"result of {name}"

    work.__name__ = name
    return work


async def step(url: str, session_id: str) -> None:
    moments = Breakpoints()
    listening = asyncio.create_task(moments.listen())
    agent = LlmAgent(name="agent", model=Model(moments), tools=[tool(name, moments) for name in TOOLS], output_key="answer")
    async with Service(url, moments) as service:
        async for _ in Runner(agent, "runs", service).run("user", session_id, "hi"):
            pass
    await moments.come_to("end")
    await listening


async def run_turns(url: str, session_id: str, turns: int) -> None:
    agent = LlmAgent(name="agent", model=Model(None), tools=[tool(name, None) for name in TOOLS])
    async with DatabaseSessionService(url) as service:
        for number in range(turns):
            async for _ in Runner(agent, "runs", service).run("user", session_id, str(number)):
                pass


if __name__ == "__main__":
    url, session_id, *turns = sys.argv[1:]
    asyncio.run(run_turns(url, session_id, int(turns[0])) if turns else step(url, session_id))
