"""A process with durable runs, to be killed: ``child.py URL LOG [MOMENT]``.

It submits the run "r1" and prints its outcome as JSON. Each body of a model and a tool writes a line to the file LOG, such as "model 2"
or "tool pay KEY"; where that begins with MOMENT, the process then kills itself. Rounds: ``look`` and ``pay`` at once, then ``fetch``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from patchbay import ToolCall, ToolContext, tool
from patchbay.agents import LlmAgent, Runner
from patchbay.agents.durable import DurableRuns, servers, watcher
from patchbay.models.chat_model import ChatRequest, ModelReply
from patchbay.types import Reply

servers.GONE, watcher.BEAT, watcher._WATCH = 1.0, 0.3, 0.1
URL, LOG, MOMENT = sys.argv[1], sys.argv[2], "".join(sys.argv[3:4])


def note(line: str) -> None:
    with Path(LOG).open("a") as log:
        print(line, file=log, flush=True)
    if MOMENT and line.startswith(MOMENT):
        os.kill(os.getpid(), signal.SIGKILL)


class Model:
    async def respond(self, request: ChatRequest) -> AsyncIterator[Any]:
        replies = [each for each in request.messages if each["role"] == "assistant"]
        note(f"model {len(replies) + 1}")
        if not replies:  # two calls without ids, as some servers send them
            yield ModelReply(Reply(None, tool_calls=(ToolCall("", "look"), ToolCall("", "pay"))), "tool_calls")
        elif len(replies) == 1:
            yield ModelReply(Reply(None, tool_calls=(ToolCall("", "fetch"),)), "tool_calls")
        else:
            yield ModelReply(Reply(" | ".join(each["content"] for each in request.messages if each["role"] == "tool")), "stop")


@tool
async def look() -> str:
    note("tool look")
    return "seen"


@tool
async def pay() -> str:
    await asyncio.sleep(0.5)  # the other call of the reply is recorded by now
    note("tool pay")
    return "paid"


@tool(annotations={"idempotent": True})
async def fetch(tool_context: ToolContext) -> str:
    note(f"tool fetch {tool_context.idempotency_key}")
    return "fetched"


async def main() -> None:
    agent = LlmAgent(name="teller", model=Model(), tools=[look, pay, fetch])
    durable = DurableRuns(URL)
    async with Runner(agent, "app", durable=durable) as runner:
        async for _ in runner.run("u", "s1", "go", run_id="r1"):
            pass
        session = await runner.session_service.get_session("app", "u", "s1")
        assert session is not None
        results = [each.name for event in session.events for each in event.get_function_responses()]
        asked = [event.content.text for event in session.events if event.author == "user" and event.content is not None]
        print(json.dumps({**dataclasses.asdict(await durable.get("r1")), "results": sorted(results), "asked": asked}))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
