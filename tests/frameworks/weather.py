"""A tool and a typed answer with an agent framework: python weather.py FRAMEWORK BASE_URL... Prints what each gave, as JSON lines.

It runs in an environment of its own, with the packages of requirements.txt.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
import pydantic

QUESTION = "How warm is Rome?"


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


def get_degrees(city: str) -> str:
    """The temperature in a city."""
    called.append(city)
    return "21.0 degrees"


called: list[str] = []


async def openai_agents(url: str, how: str) -> Any:
    import agents

    agents.set_tracing_disabled(disabled=True)
    client = openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0)
    model = agents.OpenAIChatCompletionsModel("m", openai_client=client)
    agent = agents.Agent("weather", model=model, tools=[agents.function_tool(get_degrees)], output_type=Weather)
    if how == "whole":
        return (await agents.Runner.run(agent, QUESTION)).final_output
    result = agents.Runner.run_streamed(agent, QUESTION)
    async for _ in result.stream_events():
        pass
    return result.final_output


async def pydantic_ai(url: str, how: str) -> Any:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider

    profile = OpenAIModelProfile(supports_json_schema_output=True)
    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=url, api_key="unused"), profile=profile)
    agent = Agent(model, tools=[get_degrees], output_type=NativeOutput(Weather))
    if how == "whole":
        return (await agent.run(QUESTION)).output
    async with agent.run_stream(QUESTION) as result:
        return await result.get_output()


async def langchain(url: str, how: str) -> Any:
    from langchain.agents import create_agent
    from langchain.agents.structured_output import ProviderStrategy
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model="m", base_url=url, api_key="unused", max_retries=0, use_responses_api=False, streaming=how == "stream"
    )
    agent = create_agent(model, tools=[get_degrees], response_format=ProviderStrategy(Weather))
    return (await agent.ainvoke({"messages": [{"role": "user", "content": QUESTION}]}))["structured_response"]


async def main(framework: str, base_urls: list[str]) -> None:
    run = {"openai-agents": openai_agents, "pydantic-ai": pydantic_ai, "langchain": langchain}[framework]
    for base_url in base_urls:
        for how in ("whole", "stream"):
            called.clear()
            answer = await asyncio.wait_for(run(base_url, how), 30)
            print(json.dumps([how, called, answer.model_dump()]))  # noqa: T201  (the test reads it)


asyncio.run(main(sys.argv[1], sys.argv[2:]))
