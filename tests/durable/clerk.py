"""The agent of the workers in tests: it pays once for each run, and answers with the receipt. Each payment is a line of the file LOG."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from patchbay import ToolCall, ToolContext, tool
from patchbay.agents import LlmAgent
from patchbay.agents.durable import servers, watcher
from patchbay.models.chat_model import ChatRequest, ModelReply
from patchbay.types import Reply

if os.environ.get("GONE"):  # the workers import this module
    servers.GONE, watcher.BEAT, watcher._WATCH = float(os.environ["GONE"]), 0.3, 0.1


class Model:
    async def respond(self, request: ChatRequest) -> AsyncIterator[Any]:
        await asyncio.sleep(0.02)
        last = request.messages[-1]
        if last["role"] == "tool":
            yield ModelReply(Reply(last["content"]), "stop")
        else:
            yield ModelReply(Reply(None, tool_calls=(ToolCall("c1", "pay"),)), "tool_calls")


@tool
async def pay(tool_context: ToolContext) -> str:
    with Path(os.environ["LOG"]).open("a") as log:
        log.write(f"{tool_context.invocation_id}\n")
    is_slow = tool_context.invocation_id.startswith("slow")
    await asyncio.sleep(60.0 if is_slow else float(os.environ.get("PAUSE", "0.1")))
    return "paid"


agent = LlmAgent(name="clerk", model=Model(), tools=[pay])
