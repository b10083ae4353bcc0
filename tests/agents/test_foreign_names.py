"""Code written for other agent frameworks (SoulBot, ADK) works unchanged."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar

import pytest
from pydantic import Field

from patchbay.agents import (
    Agent,
    BaseAgent,
    Content,
    Event,
    InvocationContext,
    LlmAgent,
    LoopAgent,
    Part,
    ReadonlyContext,
    Runner,
    exit_loop,
)
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
