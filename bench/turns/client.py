"""Turns with the real ``openai`` client: a model's server as a transport in the same process, without a socket.

The rows: the bare client, ``wrap``, ``ToolRunner`` and ``LlmAgent``, natively and with a model that writes its calls.
"""

# No "from __future__ import annotations" here: the tools' annotations are to be types, as every framework can read them.

import json
from typing import Any

import httpx2
import msgspec
import openai

from bench.turns import cases
from patchbay import ToolRunner, wrap
from patchbay.agents import GenerateContentConfig, InMemorySessionService, LlmAgent, RunConfig, Runner
from patchbay.agents.content import Event
from patchbay.agents.convert import from_messages
from patchbay.tools import collect_tools

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
        if request.method == "GET":  # (its description, which the server does not have)
            return httpx2.Response(404, request=request)
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


class Bare(Turns):
    """The bare client, the lower bound: it is given the two bodies of the turn, and the call is made by hand."""

    checks = False

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        self._client = self.client()
        self._noop = self.tools()[0]
        self._tools = [tool.spec.to_openai() for tool in collect_tools(self.tools()).values()]
        self._history = self.history()

    async def turn(self) -> object:
        messages = [
            {"role": "system", "content": cases.INSTRUCTION},
            *self._history,
            {"role": "user", "content": cases.MESSAGE},
        ]
        message = await self._ask(messages)
        call = message.tool_calls[0]
        result = await self._noop(**json.loads(call.function.arguments))
        messages += [message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": result}]
        return (await self._ask(messages)).content

    async def _ask(self, messages: list[dict[str, Any]]) -> Any:
        body = {"messages": messages, "tools": self._tools}
        return (await self._client.chat.completions.create(model=MODEL, messages=(), extra_body=body)).choices[0].message


class Wrapped(Bare):
    """The wrapped client, in the place of the bare one."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        self._client = wrap(self._client, tools="text" if self.writes else "native")

    async def _ask(self, messages: list[dict[str, Any]]) -> Any:
        answer = await self._client.chat.completions.create(model=MODEL, messages=messages, tools=self._tools)
        return answer.choices[0].message


class WrappedText(Wrapped):
    """The same with a model that writes."""

    writes = True


class Run(Turns):
    """Turns of a ToolRunner."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        self._runner = ToolRunner(
            self.client(), tools=self.tools(), tool_mode="text" if self.writes else "native", tool_search=None
        )
        self._history = self.history()

    async def turn(self) -> object:
        system, user = {"role": "system", "content": cases.INSTRUCTION}, {"role": "user", "content": cases.MESSAGE}
        return (await self._runner.run([system, *self._history, user], MODEL)).content


class RunText(Run):
    """The same with a model that writes."""

    writes = True


class Agent(Turns):
    """Turns of an agent, each the second run that its session has seen: the first was before the clock."""

    def __init__(self, case: cases.Case, *, sloppy: bool = False) -> None:
        super().__init__(case, sloppy=sloppy)
        agent = LlmAgent(
            name="bench",
            model=self.client(),
            instruction=cases.INSTRUCTION,
            tools=self.tools(),
            tool_mode="text" if self.writes else "native",
            tool_search=None,
            generate_content_config=GenerateContentConfig(extra={"model": MODEL}),
        )
        self._sessions = InMemorySessionService()
        self._runner = Runner(agent=agent, app_name="bench", session_service=self._sessions)
        self._number = 0
        self._contents = from_messages(self.history())
        self._config = RunConfig(max_history_events=None)

    async def turn(self) -> object:
        if not self._number:
            await self.forget()
        return await self._run()

    async def _run(self) -> object:
        said = None
        async for event in self._runner.run("u", f"s{self._number}", cases.MESSAGE, self._config):
            if event.is_final_response() and event.content is not None:
                said = event.content.parts[0].text
        return said

    async def forget(self) -> None:
        """Begin the next session, with its history and a first run."""
        counted = self.model_calls, self.tool_runs
        await self._sessions.delete_session("bench", "u", f"s{self._number}")
        self._number += 1
        session = await self._sessions.create_session("bench", "u", session_id=f"s{self._number}")
        for content in self._contents:
            author = "user" if content.role == "user" and content.parts[0].function_response is None else "bench"
            await self._sessions.append_event(
                session, Event(author=author, invocation_id="i", content=msgspec.structs.replace(content))
            )
        await self._run()
        self.model_calls, self.tool_runs = counted


class AgentText(Agent):
    """The same with a model that writes."""

    writes = True
