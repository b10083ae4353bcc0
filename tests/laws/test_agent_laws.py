"""Laws 1, 2, 3 and 10 for any tree of agents: whatever the models write and whenever the run is stopped, the session goes on."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.repeated import examples

from .clock import SteppedLoop
from .trees import TREES, Node, World

STEPS = 20_000
"""More than any of these runs takes: one that takes more hangs."""


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """Agents that fail are what this is about; each writes its traceback."""
    logger = logging.getLogger("patchbay.agents")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


class LoopUnderTest:
    """An event loop for one example; what it complains of fails the test."""

    def __enter__(self) -> Self:
        self.reports: list[Any] = []
        self.loop = SteppedLoop()
        self.loop.set_exception_handler(lambda _loop, report: self.reports.append(report))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        if kind is None:
            gc.collect(0)
            assert [] == self.reports

    def run(self, work: Any, *, cancelled_after: int | None = None) -> asyncio.Task[Any]:
        """Run to the end, cancelled after so many steps; nothing is left running then."""
        task = self.loop.create_task(work)
        if cancelled_after is not None:
            self.loop.step(cancelled_after)
            task.cancel()
        # Also what closes a run that was left between two events: the event loop begins that by itself, a step later.
        idle = 0
        for _ in range(STEPS):
            idle = 0 if asyncio.all_tasks(self.loop) else idle + 1
            if idle == 3:
                break
            self.loop.step()
        assert set() == asyncio.all_tasks(self.loop), "it hangs"
        return task


def holds(stage: LoopUnderTest, world: World, *turns: Any) -> None:
    """Each turn leaves the world in order, and so does one more after them; it is never refused."""
    for work, cancelled_after in [*turns, (World.turn, None)]:
        before = len(world.events)
        task = stage.run(work(world), cancelled_after=cancelled_after)
        if task.cancelled():
            assert cancelled_after is not None
        else:
            assert task.exception() is None
        stage.run(world.hold()).result()
    assert before < len(world.events), "the last turn said nothing at all"


@settings(max_examples=examples(12))
@given(TREES, st.booleans())
def test_a_run_of_any_agents_ends_by_itself(tree, streaming):
    with LoopUnderTest() as stage:
        holds(stage, World(tree, streaming=streaming), (World.turn, None))


@settings(max_examples=examples(12))
@given(TREES, st.booleans(), st.integers(0, 25))
def test_a_run_of_any_agents_can_be_left_after_any_event(tree, streaming, count):
    with LoopUnderTest() as stage:
        holds(stage, World(tree, streaming=streaming), (lambda world: world.turn_left_after(count), None))


@settings(max_examples=examples(12))
@given(TREES, st.booleans(), st.lists(st.integers(0, 120), min_size=1, max_size=3))
def test_a_run_of_any_agents_can_be_cancelled_at_any_await(tree, streaming, moments):
    with LoopUnderTest() as stage:
        holds(stage, World(tree, streaming=streaming), *((World.turn, moment) for moment in moments))


def busy_tree() -> Node:
    """A tree with something of everything under way at the same time."""
    calls = (("slow", "nobody"), ("fails", "nobody"), ("state", "nobody"), ("ask", "nobody"))
    helper = Node("model", (), ((("slow", "nobody"), ("cancels", "nobody")),))
    model = Node("model", (Node("model", (), ((("slow", "nobody"),),)),), (calls, (("goes", "agent4"),)), helper)
    return Node("sequence", (Node("parallel", (model, Node("loop", (Node("model", (), (calls[:3],)),)))), Node("model")))


def steps_of_a_busy_turn() -> int:
    with LoopUnderTest() as stage:
        task = stage.loop.create_task(World(busy_tree()).turn())
        steps = 0
        while not task.done():
            stage.loop.step()
            steps += 1
        return steps


def test_a_busy_run_can_be_cancelled_at_each_of_its_awaits():
    for moment in range(steps_of_a_busy_turn()):
        with LoopUnderTest() as stage:
            world = World(busy_tree())
            holds(stage, world, (World.turn, moment))


def test_a_busy_run_can_be_left_after_each_of_its_events():
    with LoopUnderTest() as stage:
        world = World(busy_tree())
        stage.run(world.turn())
        count = len(world.events)
    assert 12 < count
    for number in range(count):
        with LoopUnderTest() as stage:
            holds(stage, World(busy_tree()), (lambda world, number=number: world.turn_left_after(number), None))
