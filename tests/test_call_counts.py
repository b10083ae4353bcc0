"""How many calls of Python functions a piece of work may cost: a guard of speed that a busy machine cannot disturb.

``MOST_CALLS`` holds the limits, at most a tenth above what Python 3.11 needs (later versions need less: they inline
comprehensions). A change that raises one says so, and why, in its commit; one that lowers a count lowers its limit.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from bench.turns import client, client_patchbay
from bench.turns.cases import DONE, LARGE, ONE, Turns
from bench.turns.patchbay_model import FakeModel

from patchbay import StreamParser, parse
from patchbay.agents import InMemorySessionService, LlmAgent, RunConfig, Runner
from patchbay.agents.content import Event
from patchbay.agents.messages import from_messages
from patchbay.agents.view import is_question

MOST_CALLS = {
    "parse a sentence": 340,
    "parse a reply with a fenced call": 1075,
    "parse a reply with a Hermes call": 1035,
    "feed a chunk of prose": 7.1,
    "turn of a runner, 300 tools, 200 messages": 10600,
    "turn of a runner in text, 300 tools, 200 messages": 20600,
    "run of an agent on a session of 1,000 events": 1060,
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": "Search things by a query.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["query"],
            },
        },
    }
    for number in range(4)
]
FENCED = 'I look it up.\n\n```tool_call\n{"name": "tool_1", "arguments": {"query": "abc", "limit": 3}}\n```'
HERMES = 'Fine.\n<tool_call>\n{"name": "tool_2", "arguments": {"query": "abc"}}\n</tool_call>'
CHUNKS = ["The quick", " brown fox", " jumps", " over the", " lazy dog.", " It is 3 o'clock,", " more or less."] * 20


def count_calls(work: Callable[[], object]) -> int:
    """The calls that ``work`` makes when it has been done before, so that what is made once and kept is not counted."""
    work()
    count = 0

    def profile(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # finalizers and callbacks of the collector would be counted too
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return count


def feed_chunks() -> None:
    """Feed ``CHUNKS`` to a parser that has begun, so that its first chunk is not counted."""
    for chunk in CHUNKS:
        parser.feed(chunk)


def turns_of(row: type[client.Turns]) -> Callable[[], object]:
    """Return what makes one turn of a row of the benchmark, over the real ``openai`` client; each in a new conversation."""

    turns = functools.cache(lambda: row(LARGE))

    def turn() -> None:
        assert DONE == asyncio.run(turns().turn())

    return turn


def runs_on(events: int, limit: int | None = 100) -> Callable[[], object]:
    """Return what makes one run of an agent; the first on a session of so many events."""

    async def begin() -> Runner:
        model = FakeModel(RUNS)
        runner = Runner(LlmAgent(name="counted", model=model, tools=RUNS.tools()), session_service=InMemorySessionService())
        session = await runner.session_service.create_session("patchbay", "u", session_id="s")
        for content in from_messages(client.history(events)):
            author = "user" if is_question(content) else "counted"
            await runner.session_service.append_event(session, Event(author=author, content=content))
        return runner

    async def one(runner: Runner) -> None:
        *_, last = [event async for event in runner.run("u", "s", "hi", RunConfig(max_history_events=limit))]
        assert DONE == last.content.text

    runner = functools.cache(lambda: asyncio.run(begin()))

    def run() -> None:
        asyncio.run(one(runner()))

    return run


class Runs(Turns):
    """What the agent's model and tool count."""

    async def turn(self) -> object:
        raise NotImplementedError


RUNS = Runs(ONE)
parser = StreamParser(TOOLS)
WORK: dict[str, tuple[Callable[[], object], int]] = {
    "parse a sentence": (lambda: parse("A small sentence."), 1),
    "parse a reply with a fenced call": (lambda: parse(FENCED, tools=TOOLS), 1),
    "parse a reply with a Hermes call": (lambda: parse(HERMES, tools=TOOLS), 1),
    "feed a chunk of prose": (feed_chunks, len(CHUNKS)),
    "turn of a runner, 300 tools, 200 messages": (turns_of(client_patchbay.Run), 1),
    "turn of a runner in text, 300 tools, 200 messages": (turns_of(client_patchbay.RunText), 1),
    "run of an agent on a session of 1,000 events": (runs_on(1000), 1),
}
"""What is done, and by how many its calls are divided."""


@pytest.mark.parametrize("name", MOST_CALLS)
def test_no_more_functions_are_called_than_the_table_allows(name: str) -> None:
    work, times = WORK[name]
    assert count_calls(work) / times <= MOST_CALLS[name]


@pytest.mark.parametrize("name", MOST_CALLS)
def test_a_limit_is_no_more_than_a_fifth_above_the_count(name: str) -> None:
    work, times = WORK[name]
    assert MOST_CALLS[name] <= 1.2 * count_calls(work) / times + 1


@pytest.mark.parametrize("limit", [100, None])
def test_a_run_costs_no_more_on_a_session_that_is_twice_as_long(limit: int | None) -> None:
    short, long = (count_calls(runs_on(events, limit)) for events in (1000, 2000))
    # Without a limit the messages themselves are more: what is looked at of each is a call or two.
    assert long <= 1.03 * short if limit is not None else long - short <= 3 * 1000


def test_calls_of_functions_are_counted() -> None:
    def called() -> None:
        pass

    def work() -> None:
        for _ in range(3):
            called()

    assert 1 + 3 == count_calls(work)
