"""Faults that others' runs have (their numbers are those of the agents' contract), each shown not to be ours.

Here are those that only show in a whole run. 1 and 30 (parallel agents) are in ``test_workflow``, 17 and 18 (hand-overs) in
``test_transfer``, 19 (agents as tools) in ``test_agent_tool``, 24 (two runs on one session) in ``test_runner`` and
``test_runner_database``, 4 (the model's time) in ``test_limits``; 28 (histories) has more tests in ``test_history``.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from patchbay.agents import (
    DatabaseChatHistoryService,
    DatabaseSessionService,
    EventBus,
    LlmAgent,
    ParallelAgent,
    Runner,
    create_history_tool,
)
from patchbay.testing import ScriptedModel, ScriptedUpstream, Text
from support.running import run

from .turns import call, lines, log, run_turn, state


@pytest.fixture
def service(tmp_path):
    made = DatabaseSessionService(tmp_path / "sessions.db")
    yield made
    run(made.close())


def test_keys_belong_to_the_application_the_user_or_the_run(service):
    def note(tool_context) -> str:
        tool_context.state.update({"app:a": 1, "user:u": 2, "temp:t": 3, "own": 4})
        return "noted"

    seen = []

    def look(tool_context) -> str:
        seen.append(tool_context.state.to_dict())
        return "seen"

    model = ScriptedModel([call("note"), call("look"), "done", call("look"), "done", call("look"), "done"])
    runner = Runner(LlmAgent(name="a", model=model, tools=[note, look]), session_service=service)
    run(run_turn(runner))
    run(run_turn(runner))
    run(run_turn(runner, session="another"))
    assert [
        {"app:a": 1, "user:u": 2, "temp:t": 3, "own": 4},
        {"app:a": 1, "user:u": 2, "own": 4},
        {"app:a": 1, "user:u": 2},
    ] == seen


class Colour(enum.Enum):
    BLUE = "blue"


@dataclass
class Row:
    day: dt.date


class Model(BaseModel):
    at: dt.datetime


class Opaque:
    def __repr__(self) -> str:
        return "<opaque>"


@pytest.mark.parametrize(
    "value",
    [
        dt.date(2024, 2, 29),
        Row(dt.date(2024, 2, 29)),
        Model(at=dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)),
        {1, 2},
        b"\xff\x00",
        Colour.BLUE,
        Opaque(),
        {"n": float("nan")},
        "lone \ud800 surrogate",
        {"deep": [Opaque(), {3: Row(dt.date(2024, 2, 29))}]},
    ],
    ids=lambda value: type(value).__name__,
)
def test_results_and_state_without_json_do_not_end_the_run(service, value):
    def odd(tool_context) -> object:
        tool_context.state["odd"] = value
        return value

    model = ScriptedModel([call("odd"), "done", "and on"])
    runner = Runner(LlmAgent(name="a", model=model, tools=[odd]), session_service=service)
    assert ["a > odd", "a < odd", "a: done"] == lines(run(run_turn(runner)))
    assert ["a: and on"] == lines(run(run_turn(runner)))
    assert "odd" in run(state(runner))
    # What the model was shown then is what it is shown now, after it has been in the database.
    assert model.requests[1].messages == model.requests[2].messages[: len(model.requests[1].messages)]


def test_listener_can_neither_stall_nor_end_a_run_nor_change_tool_arguments():
    async def scenario():
        bus, given, never = EventBus(), [], asyncio.Event()

        async def meddle(event) -> None:
            event.data["args"]["a"] = 666

        async def hang(_event) -> None:
            await never.wait()

        def refuse(_event) -> bool:
            raise ValueError("no")

        def blind(_event) -> None:
            raise SystemExit

        bus.subscribe("tool.call", meddle, priority=9)
        bus.subscribe("*", hang, priority=5)
        bus.subscribe("*", blind)
        bus.subscribe("*", lambda _event: None, filter_func=refuse)

        async def double(a: int) -> int:
            for _ in range(5):
                await asyncio.sleep(0)  # every listener has had its turn
            given.append(a)
            return 2 * a

        model = ScriptedModel([call("double", a=3), "six"])
        events = await run_turn(Runner(LlmAgent(name="a", model=model, tools=[double]), bus=bus))
        never.set()
        return given, lines(events), events

    given, told, events = run(scenario())
    assert [3] == given
    assert ["a > double", "a < double", "a: six"] == told
    assert {"a": 3} == events[0].get_function_calls()[0].args


def test_events_are_read_in_append_order_despite_the_clock(service, monkeypatch):
    from patchbay.agents import content

    times = iter(range(10_000, 0, -1))
    monkeypatch.setattr(content.time, "time", lambda: float(next(times)))

    def noop() -> str:
        return "ok"

    children = [LlmAgent(name=name, model=ScriptedModel([call("noop"), "done"]), tools=[noop]) for name in "ab"]
    runner = Runner(ParallelAgent(name="side", sub_agents=children), session_service=service)
    events = run(run_turn(runner))
    assert ["user: hi", *lines(events)] == run(log(runner))


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        pytest.param(
            '```tool_call\n{"name": "note", "arguments": {"text": "1"}}\n```\n'
            '```tool_call\n{"name": "note", "arguments": {"text": "2"}}\n```',
            ["1", "2"],
            id="several calls in one reply",
        ),
        pytest.param(
            '```tool_call\n{"name": "note", "arguments": {"text": "a } and { b"}}\n```', ["a } and { b"], id="braces in strings"
        ),
        pytest.param(
            'First:\n```tool_call\n{"name": "note", "arguments": {"text": "1"}}\n```\nThat is it.', ["1"], id="words around"
        ),
        pytest.param('```tool_call\n{"name": "note", "arguments": null}\n```', ["nothing"], id="null for arguments"),
        pytest.param(
            '```tool_call\n{"name": "note", "arguments": "{\\"text\\": \\"1\\"}"}\n```', ["1"], id="arguments as a string"
        ),
        pytest.param(
            'So:\n````markdown\n```tool_call\n{"name": "note", "arguments": {"text": "x"}}\n```\n````\nShall I?',
            [],
            id="an example in a fence of its own",
        ),
        pytest.param(
            'So:\n```python\nprint(\'{"name": "note", "arguments": {"text": "x"}}\')\n```', [], id="an example in a program"
        ),
    ],
)
def test_text_only_model_is_parsed(reply, expected):
    noted = []

    async def note(text: str = "nothing") -> str:
        noted.append(text)
        return "noted"

    async def scenario(upstream):
        async with Runner(LlmAgent(name="a", model=f"{upstream.url}#m", tools=[note], tool_mode="text")) as runner:
            return await run_turn(runner)

    with ScriptedUpstream([Text(reply), Text("Done.")]) as upstream:
        events = run(scenario(upstream))
    assert expected == sorted(noted)
    said = "".join(event.content.text for event in events)
    if expected:
        assert "Done." == events[-1].content.text
        assert "tool_call" not in said
        if reply.startswith("First"):
            assert "First:" in said
            assert "That is it." in said
    else:
        assert reply == said


def test_agent_finds_messages_of_both_sides_of_an_earlier_run(tmp_path):
    async def scenario():
        history = DatabaseChatHistoryService(tmp_path / "history.db")
        try:
            search = create_history_tool(history, default_agent="a", user_id="u")
            model = ScriptedModel(["It costs 50% of it.", call("search_history", keyword="50%"), "done"])
            runner = Runner(LlmAgent(name="a", model=model, tools=[search]), history_service=history)
            await run_turn(runner, "How much?", session="yesterday")
            await run_turn(runner, "What did you say about 50%?", session="today")
            return model.requests[2].messages[-1]["content"], await history.get_session_history("yesterday")
        finally:
            await history.close()

    found, yesterday = run(scenario())
    assert ["User: What did you say about 50%?", "AI: It costs 50% of it."] == [each[14:] for each in found.splitlines()]
    assert [("user", "How much?"), ("assistant", "It costs 50% of it.")] == [(each.role, each.content) for each in yesterday]
