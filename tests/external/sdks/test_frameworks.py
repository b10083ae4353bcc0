"""Agent frameworks: one turn with a tool, whole and streamed, and a typed answer after a tool."""

from __future__ import annotations

import openai
import pydantic_ai
import pytest
from anthropic import AsyncAnthropic
from pydantic import BaseModel
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

import agents
from conftest import URLS

QUESTION = "What is the price of 7 apples in 'Rome'?"
CALL = ("price_of", {"number": 7, "city": "Rome"})
RESULT = "7 apples in Rome: 21"


class Price(BaseModel):
    city: str
    euros: int


def price_of(number: int, city: str) -> str:
    """Return the price of apples."""
    called.append(("price_of", {"number": number, "city": city}))
    return f"{number} apples in {city}: {3 * number}"


called: list[tuple[str, dict]] = []


@pytest.fixture(autouse=True)
def forget_calls():
    called.clear()


def pydantic_model(protocol, url):
    origin = url.removesuffix("/v1")
    match protocol:
        case "Chat":
            return OpenAIChatModel("m", provider=OpenAIProvider(base_url=url, api_key="unused"))
        case "Responses":
            return OpenAIResponsesModel("m", provider=OpenAIProvider(base_url=url, api_key="unused"))
        case "Messages":
            client = AsyncAnthropic(base_url=origin, api_key="unused")
            return AnthropicModel("m", provider=AnthropicProvider(anthropic_client=client))
    return GoogleModel("m", provider=GoogleProvider(base_url=origin, api_key="unused"))


class PydanticAI:
    protocol = kind = ""

    def agent(self, **options):
        return pydantic_ai.Agent(pydantic_model(self.protocol, URLS[self.kind]), tools=[price_of], **options)

    async def test_a_tool_is_called(self):
        result = await self.agent().run(QUESTION)
        assert [CALL] == called
        assert RESULT in result.output

    async def test_a_tool_is_called_in_a_stream(self):
        async with self.agent().run_stream(QUESTION) as result:
            text = "".join([delta async for delta in result.stream_text(delta=True)])
        assert [CALL] == called
        assert RESULT in text
        assert result.usage.output_tokens > 0

    async def test_a_typed_answer(self):
        agent = pydantic_ai.Agent(pydantic_model(self.protocol, URLS[self.kind]), output_type=Price)
        assert Price(city="Rome", euros=7) == (await agent.run(QUESTION)).output


class OpenAIAgents:
    kind = ""

    def agent(self, **options):
        client = openai.AsyncOpenAI(base_url=URLS[self.kind], api_key="unused", max_retries=0)
        model = agents.OpenAIResponsesModel("m", client)
        return agents.Agent("A", model=model, **options)

    @pytest.fixture(autouse=True)
    def no_traces(self):
        agents.set_tracing_disabled(disabled=True)

    async def test_a_tool_is_called(self):
        result = await agents.Runner.run(self.agent(tools=[agents.function_tool(price_of)]), QUESTION)
        assert [CALL] == called
        assert RESULT in result.final_output

    async def test_a_tool_is_called_in_a_stream(self):
        result = agents.Runner.run_streamed(self.agent(tools=[agents.function_tool(price_of)]), QUESTION)
        events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        assert [CALL] == called
        assert RESULT in "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert RESULT in result.final_output

    async def test_a_typed_answer(self):
        result = await agents.Runner.run(self.agent(output_type=Price), QUESTION)
        assert Price(city="Rome", euros=7) == result.final_output

    async def test_another_agent_takes_over(self):
        other = self.agent()
        other.name = "Prices"
        result = await agents.Runner.run(self.agent(handoffs=[other]), QUESTION)
        assert "Prices" == result.last_agent.name

    async def test_a_stored_conversation_goes_on(self):
        agent = self.agent()
        first = await agents.Runner.run(agent, "Hello.")
        second = await agents.Runner.run(agent, "And now?", previous_response_id=first.last_response_id)
        assert ("You said: Hello.", "You said: And now?") == (first.final_output, second.final_output)


for kind in URLS:
    name = f"TestOpenAIAgents{kind.title()}"
    globals()[name] = type(name, (OpenAIAgents,), {"kind": kind})
    for protocol in ("Chat", "Responses", "Messages", "Gemini"):
        name = f"TestPydanticAI{protocol}{kind.title()}"
        globals()[name] = type(name, (PydanticAI,), {"protocol": protocol, "kind": kind})
