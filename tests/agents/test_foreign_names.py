"""Code written for other agent frameworks (SoulBot, ADK) works unchanged."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any, ClassVar

import openai
import pytest
from pydantic import Field

from patchbay import ToolRunner
from patchbay.agents import (
    Agent,
    BaseAgent,
    Content,
    DatabaseChatHistoryService,
    DatabaseSessionService,
    Event,
    InMemorySessionService,
    InvocationContext,
    LlmAgent,
    LoopAgent,
    Part,
    ReadonlyContext,
    Runner,
    exit_loop,
)
from patchbay.errors import ConfigurationError
from patchbay.testing import ScriptedModel
from patchbay.types import ToolCall


class Greeter(BaseAgent):
    greeting: str
    names: list[str] = []  # noqa: RUF012  (as users write it)
    KIND: ClassVar[str] = "greeter"

    async def _run_async_impl(self, ctx: InvocationContext) -> Any:
        yield ctx.event([Part(f"{self.greeting} {', '.join(self.names)}")])


class Polite(LlmAgent):
    tone: str = "polite"
    description: str


def test_custom_agent_can_declare_fields():
    (event,) = Runner(Greeter(name="g", greeting="Hello", names=["Ann"])).run("u", "s", "Hi")
    assert "Hello Ann" == event.content.text
    one, other = Greeter(name="a", greeting="x"), Greeter(name="b", greeting="y")
    one.names.append("Bob")
    assert [] == other.names
    model = ScriptedModel(["ok"])
    polite = Polite(name="p", model=model, tone="very polite", description="It greets.")
    assert ("very polite", model, "It greets.") == (polite.tone, polite.model, polite.description)


def test_a_field_may_have_a_default_factory():
    class Collector(BaseAgent):
        found: list[str] = dataclasses.field(default_factory=list)
        seen: dict[str, int] = Field(default_factory=dict)
        limit: int = Field(default=3, description="How many.")
        key: str = Field(description="No default.")

    one, other = Collector(name="a", key="x"), Collector(name="b", key="y", limit=4)
    one.found.append("it")
    assert ([], {}, 3, 4, "x") == (other.found, other.seen, one.limit, other.limit, one.key)
    with pytest.raises(TypeError, match="Collector needs 'key'"):
        Collector(name="c")


def test_fields_that_are_missing_or_not_declared_are_refused():
    with pytest.raises(TypeError, match="Greeter needs 'greeting'"):
        Greeter(name="g")
    with pytest.raises(TypeError, match="LlmAgent has no parameter 'modell'"):
        LlmAgent(name="a", modell="gpt-4o-mini")


def test_custom_agent_with_a_constructor_sets_its_own_fields():
    class Own(BaseAgent):
        limit: int

        def __init__(self, limit: int) -> None:
            super().__init__(name="own")
            self.limit = limit

    assert 3 == Own(3).limit


def test_exit_loop_ends_a_loop():
    model = ScriptedModel(["one", ToolCall("c1", "exit_loop"), "done"])
    writer = Agent(name="writer", model=model, tools=[exit_loop])
    events = list(Runner(LoopAgent(name="loop", sub_agents=[writer])).run("u", "s", "Write."))
    assert ["one", "done"] == [event.content.text for event in events if event.is_final_response()]


def test_an_instruction_may_be_written_with_a_readonly_context():
    def instruction(context: ReadonlyContext) -> str:
        return f"You are {context.agent_name}, and the state is {dict(context.state)}."

    model = ScriptedModel(["ok"])
    list(Runner(LlmAgent(name="otter", model=model, instruction=instruction)).run("u", "s", "Hi"))
    assert "You are otter, and the state is {}." == model.requests[0].messages[0]["content"]


def test_an_event_is_dumped_as_pydantic_would():
    event = Event(author="a", content=Content("model", [Part("hi")]))
    assert event.to_dict() == event.model_dump()
    dumped = event.model_dump(exclude_none=True)
    assert dumped == json.loads(event.model_dump_json(exclude_none=True))
    assert ("a", "hi") == (dumped["author"], dumped["content"]["parts"][0]["text"])
    assert "error_code" not in dumped


@pytest.mark.parametrize("make", [lambda path: InMemorySessionService(), DatabaseSessionService], ids=["memory", "database"])
def test_the_agent_that_a_session_is_created_for_is_its_last_one(make, tmp_path):
    async def main() -> list[str]:
        async with make(tmp_path / "sessions.db") as service:
            session = await service.create_session("app", "u", agent_name="root", session_id="s")
            found = await service.get_session("app", "u", "s")
            return [session.last_agent, found.last_agent]

    assert ["root", "root"] == asyncio.run(main())


def test_a_history_is_an_async_context_manager(tmp_path):
    async def main() -> int:
        async with DatabaseChatHistoryService(tmp_path / "history.db") as history:
            await history.add_message("u", "a", "s", "user", "hi")
            return len(await history.get_session_history("s"))

    assert 1 == asyncio.run(main())


def test_runner_with_a_client_requires_a_model_name():
    with (
        openai.OpenAI(api_key="k", base_url="http://127.0.0.1:9/v1") as client,
        pytest.raises(ConfigurationError, match="No model"),
    ):
        ToolRunner(client).run_sync("hi")
