"""A run whose process is killed at any moment: settled results are in the log once, in order, and the session stays usable."""

from __future__ import annotations

import asyncio
import itertools

from patchbay.agents import DatabaseSessionService, LlmAgent, Runner
from patchbay.agents.content import new_id
from patchbay.agents.view import NO_RESULT
from patchbay.testing import ScriptedModel
from support.processes import Process
from support.repeated import sampled
from support.running import run

from .child import TOOLS, kind
from .turns import call, lines

WAY = [
    "before user",
    "after user",
    "model 1",
    "before calls",
    "after calls",
    "tool a",
    "tool b",
    "tool c",
    # let go in another order than they were called
    "before result b",
    "after result b",
    "before result c",
    "after result c",
    "before result a",
    "after result a",
    "model 2",
    "before answer",
    "after answer",
    "end",
]
"""Every moment of a turn, in the order that ``walk`` makes them come in."""

HELD = {"tool b": "tool c", "tool c": "after result b", "tool a": "after result c"}
"""Tools that wait until another moment has come: the results are recorded one by one."""


def walk(child: Process, until: str) -> list[str]:
    """Run the turn as far as the moment ``until`` and kill it there; returns the moments that came."""
    came: list[str] = []
    while not came or came[-1] != until:
        line = child.stdout.readline().strip()
        assert "" != line, child.stderr.read()
        came.append(line)
        free = [] if line in HELD else [line]
        free += [held for held, moment in HELD.items() if moment == line and held in came]
        if line != until:
            child.stdin.writelines(f"{moment}\n" for moment in free)
            child.stdin.flush()
    child.kill()
    return came


async def open_session(url: str, session_id: str):
    async with DatabaseSessionService(url) as service:
        return await service.get_session("app", "u", session_id)


def test_killed_run_keeps_all_settled_results_and_the_session_stays_usable(database_url, spawn):
    for until in sampled(WAY, 6):
        check_session_of_a_killed_run(database_url, new_id(), spawn, until)


def check_session_of_a_killed_run(database_url, session_id, spawn, until):
    came = walk(spawn(database_url, session_id, "step"), until)
    assert WAY[: len(came)] == came
    recorded = [moment.removeprefix("after ") for moment in came if moment.startswith("after ")]
    session = run(open_session(database_url, session_id))
    assert recorded == ([] if session is None else [kind(event) for event in session.events])
    settled = [each.removeprefix("result ") for each in recorded if each.startswith("result")]
    # What a tool changed is there with its result, and not before.
    expected = {f"done_{name}": True for name in settled} | ({"answer": "done"} if "answer" in recorded else {})
    own = {} if session is None else {key: value for key, value in session.state.items() if not key.startswith("user:")}
    assert expected == own

    async def go_on() -> tuple[list[str], list]:
        model = ScriptedModel([call("a", "again"), "there you are"])
        agent = LlmAgent(name="agent", model=model, tools=[a])
        async with DatabaseSessionService(database_url) as service:
            events = [event async for event in Runner(agent, "app", service).run("u", session_id, "go on")]
        return lines(events), model.requests

    events, requests = run(go_on())
    assert ["agent > a", "agent < a", "agent: there you are"] == events
    for request in requests:
        shown = request.messages
        calls = [each["id"] for message in shown for each in message.get("tool_calls") or ()]
        assert calls == [message["tool_call_id"] for message in shown if message["role"] == "tool"]
        assert ([*TOOLS] if "calls" in recorded else []) == [each for each in calls if each != "again"]
    outcome = {message["tool_call_id"]: message["content"] for message in requests[0].messages if message["role"] == "tool"}
    assert {
        name: f"result of {name}" if name in settled else f"Error: {NO_RESULT}" for name in TOOLS if "calls" in recorded
    } == outcome
    after = run(open_session(database_url, session_id))
    assert [*recorded, "user", "calls", "result a", "answer"] == [kind(event) for event in after.events]


def a() -> str:
    return "ok"


def test_runs_of_two_processes_on_one_session_never_interleave(database_url, session_id, spawn):
    children = [spawn(database_url, session_id, "turns", 5) for _ in range(3)]
    assert [""] * 3 == [child.communicate(timeout=60)[1] for child in children]
    session = run(open_session(database_url, session_id))
    runs = [
        (invocation, [kind(event) for event in events])
        for invocation, events in itertools.groupby(session.events, key=lambda event: event.invocation_id)
    ]
    assert 15 == len(runs) == len({invocation for invocation, _ in runs})
    for _, kinds in runs:
        assert ["user", "calls", "answer"] == [each for each in kinds if not each.startswith("result")]
        assert [*TOOLS] == sorted(name for each in kinds if each.startswith("result") for name in each.split()[1:])


def test_leaving_a_run_early_frees_the_session_for_another_process(database_url, session_id, spawn):
    async def leave() -> None:
        service = DatabaseSessionService(database_url)
        events = Runner(LlmAgent(name="agent", model=ScriptedModel(["1", "2"])), "app", service).run("u", session_id, "hi")
        async for _ in events:
            break
        child = spawn(database_url, session_id, "turns", 1)
        assert "" == (await asyncio.to_thread(child.communicate, timeout=60))[1]
        await events.aclose()
        await service.close()

    run(leave())
    session = run(open_session(database_url, session_id))
    assert ["user", "answer", "user", "calls"] == [kind(event) for event in session.events][:4]
