"""Laws 1, 2 and 3 from model text to conversation: no text raises, and every call gets its result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import patchbay
from patchbay.models import ChatRequest, ModelReply
from patchbay.runner import RunResult

from .texts import texts


class Writes:
    """A ChatModel that writes given texts, one a round, and gives its calls the ids it likes."""

    def __init__(self, written: list[str], *, same_ids: bool) -> None:
        self.written = list(written)
        self.same_ids = same_ids
        self.asked: list[ChatRequest] = []

    async def respond(self, request: ChatRequest) -> AsyncIterator[ModelReply]:
        """Answer with the next text, or with nothing more to say."""
        self.asked.append(request)
        text = self.written.pop(0) if self.written else "Done."
        generate_id = (lambda _index: "call_0") if self.same_ids else None
        yield ModelReply(patchbay.parse(text, unknown_tools="keep", tools=[], generate_id=generate_id))


async def f(a: str) -> str:
    """Fail for some, succeed for others."""
    await asyncio.sleep(0)
    if len(a) % 2:
        raise ValueError(f"not {a!r}")
    return a


def get_weather(city: str = "Rome") -> dict[str, Any]:
    """Give something that is not text."""
    return {"city": city, "odd": {1, 2} if city == "Rome" else "\ud800"}


def run(model: Writes, rounds: int) -> RunResult:
    """One turn, bounded."""
    runner = patchbay.ToolRunner(model, tools=[f, get_weather], max_iterations=rounds)
    return asyncio.run(asyncio.wait_for(runner.run("Go.", "m"), 60))


@given(st.lists(texts, max_size=4), st.booleans(), st.integers(1, 5))
def test_every_call_gets_one_result_in_order_for_any_model_text(written: list[str], same_ids: bool, rounds: int) -> None:
    model = Writes(written, same_ids=same_ids)
    result = run(model, rounds)
    for messages in (result.messages, *(list(request.messages) for request in model.asked)):
        seen: set[str] = set()
        at = 0
        while at < len(messages):
            ids = [call["id"] for call in messages[at].get("tool_calls") or ()]
            at += 1
            answered = [message["tool_call_id"] for message in messages[at : at + len(ids)] if message["role"] == "tool"]
            assert ids == answered, "each call its result, in call order, right behind it"
            assert not seen & set(ids), "an id is of one call only"
            seen |= set(ids)
            at += len(ids)
            assert at >= len(messages) or messages[at]["role"] != "tool", "no result without a call"
    assert all(
        isinstance(json.loads(call["function"]["arguments"]), dict) for m in result.messages for call in m.get("tool_calls") or ()
    )
    assert result.finish_reason in ("stop", "max_iterations", "length")


@given(texts)
def test_recorded_messages_can_always_be_sent(text: str) -> None:
    """As JSON in UTF-8, to a server that reads strictly."""
    model = Writes([text, text], same_ids=False)
    result = run(model, 3)
    body = json.dumps(result.messages, ensure_ascii=False).encode("utf-8")
    assert json.loads(body) == result.messages
    patchbay.flatten_messages(result.messages)
