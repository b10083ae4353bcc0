"""What the tests of the providers share: asking a model, and the two rounds of a turn with one tool."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from patchbay.models.chat_model import ChatModel, ChatRequest, ModelEvent, ModelReply
from patchbay.types import Message, ToolSpec

WEATHER = ToolSpec(
    "get_weather", "Tell the weather.", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
)
TIME = ToolSpec("get_time", "Tell the time.", {"type": "object", "properties": {"zone": {"type": "string"}}})
QUESTION: Message = {"role": "user", "content": "How is Rome?"}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, URL or proxy of the machine's reaches a test."""
    for name in list(os.environ):
        if name.upper().endswith(("_API_KEY", "_BASE_URL", "_PROXY")):
            monkeypatch.delenv(name)


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


Run = Callable[[Any], Any]


def run(model: Any, coroutine: Any) -> Any:
    """Run a coroutine in a loop of its own, and close there what ``model`` has opened; bounded."""

    async def closing() -> Any:
        try:
            return await asyncio.wait_for(coroutine, 60)
        finally:
            await model.aclose()

    return asyncio.run(closing())


async def events_of(model: ChatModel, request: ChatRequest) -> list[ModelEvent]:
    return [event async for event in model.respond(request)]


async def reply_of(
    model: ChatModel, messages: Sequence[Message], tools: Sequence[ToolSpec] = (WEATHER,), **rest: Any
) -> ModelReply:
    parameters = rest.pop("parameters", {})
    events = await events_of(model, ChatRequest(messages, tools, parameters=parameters, **rest))
    assert isinstance(events[-1], ModelReply)
    return events[-1]


async def replies(model: ChatModel, *asked: dict[str, Any], messages: Sequence[Message] = (QUESTION,)) -> list[ModelReply]:
    """Ask once for each of the requests, one after the other."""
    return [await reply_of(model, messages, **each) for each in asked]


def answered_messages(end: ModelReply, result: str = '{"sky": "clear"}') -> list[Message]:
    """A reply as it stands in the conversation, each call with its result."""
    results = [{"role": "tool", "tool_call_id": call.id, "content": result} for call in end.reply.tool_calls]
    return [end.reply.to_message(), *results]


async def turn(
    model: ChatModel, messages: Sequence[Message] = (QUESTION,), **rest: Any
) -> tuple[list[ModelReply], list[Message]]:
    """Ask until there is an answer without a call; the replies, and the conversation."""
    conversation = list(messages)
    ends = []
    while True:
        end = await reply_of(model, conversation, **rest)
        ends.append(end)
        conversation += answered_messages(end)
        if not end.reply.tool_calls:
            return ends, conversation


def cancel_closes_response(model: Any, server: Any, arrived: threading.Event, **asked: Any) -> bool:
    """Cancel a request once it has arrived; true once the server has seen its client leave."""

    async def cancelled() -> bool:
        work = asyncio.create_task(reply_of(model, [QUESTION], **asked))
        assert await asyncio.to_thread(arrived.wait, 30)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        return await asyncio.to_thread(server.requests[-1].left.wait, 30)

    return run(model, cancelled())


def first_event(model: Any, tools: Any = ()) -> Any:
    """The first event of a stream that is left then."""

    async def first() -> Any:
        answer = model.respond(ChatRequest([QUESTION], tools, stream=True))
        try:
            return await anext(answer)
        finally:
            await answer.aclose()

    return run(model, first())
