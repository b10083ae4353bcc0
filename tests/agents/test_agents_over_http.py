"""Agents with models on a real server: named by a URL or by a client, that call tools by themselves or only write text."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import openai
import pytest

from executor.virtual_time import ManualClockLoop, later
from patchbay.agents import GenerateContentConfig, LlmAgent, LlmRequest
from patchbay.testing import ContractModel, Message, Raw, ScriptedUpstream, Text

from .turns import Chat, assert_settled, kinds, response_of


async def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


def native(*ids: str, **more: Any) -> Message:
    """Calls as a server writes them that knows tools."""
    function = {"name": "multiply", "arguments": '{"a": 6,"b":7}'}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    return Message({"content": None, "tool_calls": calls, **more}, finish_reason="tool_calls")


def url(upstream: ScriptedUpstream, name: str = "m") -> str:
    return f"{upstream.url}#{name}"


async def run_turns(chat: Chat, *messages: str, **settings: Any) -> list[Any]:
    """Make a run for each message and close the model's connections; returns the last run's events."""
    async with chat.runner:
        for message in messages:
            outcome = await chat.say(message, **settings)
    return outcome


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("mode", ["auto", "native", None])
def test_a_model_that_calls_tools_by_itself(mode, streaming):
    with ScriptedUpstream([native("c1", "c2"), "It is 42.", "Again."]) as upstream:
        chat = Chat(
            LlmAgent(name="a", model=url(upstream), instruction="Be so.", tools=[multiply], tool_mode=mode, output_key="out")
        )
        outcome = asyncio.run(run_turns(chat, "What is 6 times 7?", streaming=streaming))
        outcome = [event for event in outcome if not event.partial]
        asyncio.run(run_turns(chat, "Again?", streaming=streaming))
    assert ["?multiply?multiply", "!multiply!multiply", "It is 42."] == kinds(outcome)
    assert [{"result": 42}] * 2 == [each.response for each in outcome[1].get_function_responses()]
    assert {"out": "It is 42."} == outcome[-1].actions.state_delta
    bodies = [request.json for request in upstream.chats]
    assert ["m"] * 3 == [body["model"] for body in bodies]
    assert all(["multiply"] == [each["function"]["name"] for each in body["tools"]] for body in bodies)
    for before, after in itertools.pairwise(bodies):
        assert before["messages"] == after["messages"][: len(before["messages"])]
        assert_settled(after["messages"])
    assert '{"a": 6,"b":7}' == bodies[1]["messages"][2]["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("mode", "tools"), [("text", "ignore"), ("auto", "refuse"), (None, "refuse")])
def test_a_model_that_only_writes_text(mode, tools, streaming):
    with ScriptedUpstream(ContractModel(), tools=tools) as upstream:
        chat = Chat(LlmAgent(name="a", model=url(upstream), tools=[multiply], tool_mode=mode))
        outcome = asyncio.run(run_turns(chat, "Please multiply 6 by 7.", streaming=streaming))
        again = asyncio.run(run_turns(chat, "Please multiply 2 by 3.", streaming=streaming))
    for run, product in ((outcome, 42), (again, 6)):
        assert {"result": product} == response_of(run, "multiply")
        assert f"The tools say: {product}." in run[-1].content.text
        assert "tool_call" not in "".join(word for word in kinds(run) if not word.startswith(("?", "!"))), "no markup leaks"
    answered = [request.json for request in upstream.chats if not request.json.get("tools")]
    for before, after in itertools.pairwise(answered):
        assert before["messages"] == after["messages"][: len(before["messages"])], "the prompt cache of the server holds"


def test_text_model_gives_a_typed_answer():
    call = '```tool_call\n{"name": "give_answer", "arguments": {"answer": [4, 2]}}\n```'
    with ScriptedUpstream([Text(call)]) as upstream:
        chat = Chat(LlmAgent(name="a", model=url(upstream), output_schema=list[int], tool_mode="text", output_key="out"))
        outcome = asyncio.run(run_turns(chat, "Which digits?"))
    assert "[4, 2]" == kinds(outcome)[-1]
    assert {"out": [4, 2]} == outcome[-1].actions.state_delta


def test_cancelled_request_is_cancelled_at_the_server():
    with ScriptedUpstream([Raw([], end="hang")]) as upstream:
        chat = Chat(LlmAgent(name="a", model=url(upstream)))

        async def main() -> Any:
            asking = asyncio.ensure_future(run_turns(chat, "hi", llm_timeout=20.0))
            while not upstream.chats:
                await asyncio.sleep(0.001)
            await later(21)
            return await asking

        with asyncio.Runner(loop_factory=ManualClockLoop) as runner:
            (event,) = runner.run(main())
        assert "TIMEOUT" == event.error_code
        assert upstream.chats[0].left.wait(60)


def test_model_callback_sees_the_bare_model_name_and_may_change_it():
    names = []

    def before(ctx: Any, request: LlmRequest) -> None:
        names.append(request.model)
        if ctx.llm_call_count == 2:
            request.model = "bigger"

    with ScriptedUpstream([native("c1"), "done", "again"]) as upstream:
        model = url(upstream, "org/small:7b")
        chat = Chat(LlmAgent(name="a", model=model, tool_mode="native", tools=[multiply], before_model_callback=before))
        asyncio.run(run_turns(chat, "hi", "more"))
    assert ["org/small:7b"] * 3 == names
    assert ["org/small:7b", "bigger", "org/small:7b"] == [request.json["model"] for request in upstream.chats]


async def test_client_of_the_caller_is_used_and_stays_open():
    with ScriptedUpstream([native("c1"), "done", "again"]) as upstream:
        async with openai.AsyncOpenAI(base_url=upstream.url, api_key="unused") as client:
            config = GenerateContentConfig(temperature=0.5, extra={"model": "mine"})
            chat = Chat(LlmAgent(name="a", model=client, tools=[multiply], generate_content_config=config))
            async with chat.runner:
                assert "done" == kinds(await chat.say())[-1]
            assert "again" == kinds(await chat.say())[-1]
    assert [("mine", 0.5)] * 3 == [(request.json["model"], request.json["temperature"]) for request in upstream.chats]


def test_missing_key_is_read_again_at_the_next_run(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with ScriptedUpstream(["done"]) as upstream:
        chat = Chat(LlmAgent(name="a", model="gpt-4o-mini"))

        async def main() -> None:
            async with chat.runner:
                assert ["[CONFIGURATION]"] == kinds(await chat.say())
                monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
                monkeypatch.setenv("OPENAI_BASE_URL", upstream.url)
                assert ["done"] == kinds(await chat.say())

        asyncio.run(main())
