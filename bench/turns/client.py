"""Turns with the real ``openai`` client: a model's server as a transport in the same process, without a socket.

Imported in the peers' environments too: it uses the standard library and dependencies of the ``openai`` client only.
"""

# No "from __future__ import annotations" here: the tools' annotations are to be types, as every framework can read them.

import json
from typing import Any

import httpx2
import openai

from bench.turns import cases

MODEL = "canned"
RESULT = "ok of this turn"
"""What the function returns: the turn's second request holds it."""


class Turns(cases.Turns):
    """A framework over ``client()``; the model's server counts what it is asked. ``writes``: its model calls tools in text."""

    measured = cases.CLIENT_CASES
    writes = False
    result = RESULT

    def client(self) -> openai.AsyncOpenAI:
        http = httpx2.AsyncClient(transport=_Server(self))
        return openai.AsyncOpenAI(api_key="unused", base_url="http://model.test/v1", http_client=http, max_retries=0)

    def history(self) -> list[dict[str, Any]]:
        """What was said before: questions, calls, results and answers."""
        return history(self.case.messages)


def history(count: int) -> list[dict[str, Any]]:
    """``count`` messages, four for each turn of a conversation."""
    messages: list[dict[str, Any]] = []
    for number in range(count // 4):
        call = {"name": "noop", "arguments": json.dumps({"index": number, "text": "some words"})}
        messages += [
            {"role": "user", "content": f"Question {number}: what is to be known of the matter at hand? " + _WORDS},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{number}", "content": f"Result {number}: " + _WORDS},
            {"role": "assistant", "content": f"Answer {number}: " + _WORDS},
        ]
    return messages


_WORDS = "The harbour was quiet, and the nets were dry before anybody had thought of the boats. " * 3


class _Server(httpx2.AsyncBaseTransport):
    def __init__(self, row: Turns) -> None:
        self._row = row
        call = {"name": "noop", "arguments": row.arguments_text(0)}
        native = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_now", "type": "function", "function": call}],
        }
        text = '```tool_call\n{"name": "noop", "arguments": ' + row.arguments_text(0) + "}\n```"
        self._call = _completion({"role": "assistant", "content": text} if row.writes else native)
        self._done = _completion({"role": "assistant", "content": cases.DONE})
        self._ran = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        row = self._row
        row.model_calls += 1
        body = await request.aread()
        # Of the tools every one is there, natively or in the contract; of the history its first and last words.
        assert row.case.tools < 2 or b"other_%d" % (row.case.tools - 1) in body
        assert not row.case.messages or (b"Question 0:" in body and b"Answer %d:" % (row.case.messages // 4 - 1) in body)
        has_run, self._ran = row.tool_runs > self._ran, row.tool_runs
        assert not has_run or RESULT.encode() in body
        answer = self._done if has_run else self._call
        return httpx2.Response(200, headers={"content-type": "application/json"}, content=answer)


def _completion(message: dict[str, Any]) -> bytes:
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    usage = {"prompt_tokens": 5000, "completion_tokens": 20, "total_tokens": 5020}
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice], "usage": usage}
    return json.dumps(answer).encode()
