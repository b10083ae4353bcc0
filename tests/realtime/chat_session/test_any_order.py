"""Any order of texts, interruptions and changes: requests are in order, and each call has one event."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from patchbay.errors import UpstreamError
from patchbay.models import ModelReply
from patchbay.models.chat_model import TextDelta
from patchbay.realtime import ChatSession, RealtimeLimits
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from patchbay.types import Reply, ToolCall

from .playing import assert_answered_once

ACTS = st.sampled_from(["say", "say", "interrupt", "respond", "tools", "wait", "wait", "breathe"])
ANSWERS = st.sampled_from(["text", "call", "calls", "unknown", "fail", "same id"])


class Model:
    """Answers by script, and checks each request."""

    def __init__(self, answers: list[str]) -> None:
        self._answers = answers
        self._count = 0

    async def respond(self, request: Any) -> AsyncIterator[Any]:
        assert_answered_once(request.messages)
        assert "user" == request.messages[0]["role"]
        kind = self._answers[self._count % len(self._answers)]
        self._count += 1
        await asyncio.sleep(0)
        if kind == "fail":
            raise UpstreamError("out of order")
        yield TextDelta("So")
        await asyncio.sleep(0)
        names = {"call": ["quick"], "calls": ["slow", "quick"], "unknown": ["nothing"], "same id": ["quick", "quick"]}.get(
            kind, []
        )
        ids = [1] * len(names) if kind == "same id" else range(len(names))
        yield ModelReply(
            Reply("So", tool_calls=tuple(ToolCall(f"c{number}", name, "{}") for number, name in zip(ids, names, strict=True)))
        )


@given(acts=st.lists(ACTS, max_size=25), answers=st.lists(ANSWERS, min_size=1, max_size=8))
def test_any_order_of_user_actions_is_valid(acts: list[str], answers: list[str]):
    async def slow(_arguments: Any) -> str:
        for _ in range(5):
            await asyncio.sleep(0)
        return "slow"

    async def work() -> None:
        manager = LLMSessionManager("ann")
        manager.register_tool(ToolDefinition("slow", handler=slow))
        manager.register_tool(ToolDefinition("quick", handler=lambda _arguments: "quick"))
        limits = RealtimeLimits(max_rounds=3, kept_items=12)
        session = ChatSession(Model(answers), limits=limits)
        await manager.prepare(session)
        async with session:
            await manager.swap()
            for number, act in enumerate(acts):
                if act == "say":
                    await session.send_text(f"Text {number}.")
                elif act == "interrupt":
                    await session.interrupt()
                elif act == "respond":
                    await session.respond()
                elif act == "tools":
                    await manager.register_tool_and_sync(ToolDefinition(f"t{number}", handler=lambda _arguments: "t"))
                elif act == "wait":
                    await asyncio.sleep(0)
                else:
                    for _ in range(20):
                        await asyncio.sleep(0)
                assert len(session.messages) <= 12
                assert_answered_once(session.messages)
            asked = sum(act in ("say", "interrupt", "respond") for act in acts)
            is_at_rest = session.idle and asked > 0
        events = [event async for event in session.events()]
        called = Counter(event.tool_call.id for event in events if event.type == "tool_call")
        answered = Counter(event.execution.call.id for event in events if event.type == "tool_result")
        assert called == answered
        assert "closed" == events[-1].state
        assert not is_at_rest or "idle" == events[-2].type
        assert sum(event.type == "idle" for event in events) <= asked
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    async def bounded() -> None:
        async with asyncio.timeout(90):
            await work()

    asyncio.run(bounded())
