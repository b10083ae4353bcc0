"""Random trees of agents with random scripts, and the invariants of every run of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from patchbay.agents import (
    AgentTool,
    BaseAgent,
    Event,
    InMemorySessionService,
    LlmAgent,
    LoopAgent,
    ParallelAgent,
    RunConfig,
    Runner,
    SequentialAgent,
)
from patchbay.models import ChatRequest, ModelReply
from patchbay.models.chat_model import TextDelta
from patchbay.types import Reply, ToolCall

TARGETS = ("agent0", "agent1", "agent2", "nobody")
TOOLS = ("good", "state", "fails", "cancels", "slow", "unknown", "garbled", "escalates", "goes", "ends", "ask")
SLOW = 7
MOST_ASKED = 15
SESSION = "s"


@dataclass(frozen=True)
class Node:
    """One agent of a tree: its kind, its children, and for a model agent its ``script`` and the agent that it has as a tool."""

    kind: str
    below: tuple[Node, ...] = ()
    script: tuple[Any, ...] = ()
    helper: Node | None = None


CALL = st.tuples(st.sampled_from(TOOLS), st.sampled_from(TARGETS))
REPLY = st.one_of(st.lists(CALL, min_size=1, max_size=4).map(tuple), st.sampled_from(["text", "", "raise", "cut"]))
SCRIPT = st.lists(REPLY, max_size=4).map(tuple)


def _grown(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    below = st.lists(nodes, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Node, st.sampled_from(["sequence", "loop", "parallel"]), below),
        st.builds(Node, st.just("model"), st.lists(nodes, max_size=2).map(tuple), SCRIPT, nodes | st.none()),
    )


TREES = st.recursive(st.builds(Node, st.just("model"), st.just(()), SCRIPT), _grown, max_leaves=6)


@dataclass
class World:
    """The agents of a tree at work, what their models were asked, and what is going on."""

    tree: Node
    service: Any = field(default_factory=InMemorySessionService)
    streaming: bool = False
    requests: list[ChatRequest] = field(default_factory=list)
    busy: Counter[str] = field(default_factory=Counter)
    events: list[Event] = field(default_factory=list)
    made: int = 0
    done: int = 0

    def __post_init__(self) -> None:
        self.runner = Runner(self.agent(self.tree), session_service=self.service)

    def agent(self, node: Node) -> BaseAgent:
        name = f"agent{self.made}"
        self.made += 1
        below = [self.agent(each) for each in node.below]
        if node.kind == "sequence":
            return SequentialAgent(name=name, sub_agents=below)
        if node.kind == "loop":
            return LoopAgent(name=name, sub_agents=below, max_iterations=2)
        if node.kind == "parallel":
            return ParallelAgent(name=name, sub_agents=below)
        tools: list[Any] = [self.good, self.state, self.fails, self.cancels, self.slow, self.escalates, self.goes, self.ends]
        if node.helper is not None:
            helper = AgentTool(self.agent(node.helper))
            helper.name = "ask"
            tools.append(helper)
        return LlmAgent(
            name=name, model=_Model(self, node.script), tools=[*tools, self.garbled], sub_agents=below, output_key=f"out_{name}"
        )

    async def good(self, to: str, tool_context: Any) -> str:
        if tool_context.session.id == SESSION:
            self.done += 1
        return f"good for {to}"

    async def state(self, tool_context: Any) -> int:
        tool_context.state["n"] = tool_context.state.get("n", 0) + 1
        tool_context.progress("counted")
        return int(tool_context.state["n"])

    async def fails(self) -> None:
        raise ValueError("it failed")

    async def cancels(self) -> None:
        raise asyncio.CancelledError

    async def slow(self) -> str:
        self.busy["slow"] += 1
        try:
            for _ in range(SLOW):
                await asyncio.sleep(0)
            return "slow"
        finally:
            try:
                await asyncio.sleep(0)  # cleaning up takes a moment
            finally:
                self.busy["slow"] -= 1

    async def garbled(self, number: int) -> int:
        return number

    async def escalates(self, tool_context: Any) -> None:
        tool_context.actions.escalate = True

    async def goes(self, to: str, tool_context: Any) -> None:
        tool_context.actions.transfer_to_agent = to

    async def ends(self, tool_context: Any) -> None:
        tool_context.invocation_context.end_invocation = True

    async def turn(self) -> None:
        """Run one turn; its events go into ``events``."""
        config = RunConfig(max_llm_calls=MOST_ASKED, streaming=self.streaming)
        async for event in self.runner.run("u", SESSION, "hi", config):
            self.events.append(event)
            await asyncio.sleep(0)

    async def turn_left_after(self, count: int) -> None:
        """Run one turn, and leave it after so many events."""
        config = RunConfig(max_llm_calls=MOST_ASKED, streaming=self.streaming)
        events = self.runner.run("u", SESSION, "hi", config)
        seen = 0
        async for event in events:
            self.events.append(event)
            seen += 1
            if seen > count:
                break
        await events.aclose()

    async def hold(self) -> None:
        """Check the invariants between turns."""
        assert +Counter() == +self.busy
        session = await self.service.get_session("patchbay", "u", SESSION)
        kept = list(session.events) if session is not None else []
        _each_call_has_at_most_one_response(kept)
        # What a tool did that takes no time had settled with it: it is in the log, whatever became of the run (law 3).
        settled = [response for event in kept for response in event.get_function_responses() if response.name == "good"]
        assert self.done == sum("result" in response.response for response in settled)
        _in_the_order_of_the_log(self.events, kept)
        for request in self.requests:
            each_call_has_one_result_right_behind_it(request.messages)


class _Model:
    def __init__(self, world: World, script: tuple[Any, ...]) -> None:
        self.world = world
        self.script = list(script)

    async def respond(self, request: ChatRequest) -> AsyncIterator[Any]:
        self.world.requests.append(request)
        self.world.busy["model"] += 1
        try:
            await asyncio.sleep(0)
            reply = self.script.pop(0) if self.script else "the end"
            if reply == "raise":
                raise RuntimeError("the model is down")
            if reply == "cut":
                yield TextDelta("half a")
                return
            if isinstance(reply, str):
                yield ModelReply(Reply(reply), "stop")
                return
            # It counts from 0 in every reply, as some servers do.
            calls = tuple(ToolCall(str(number), name, _arguments(name, to)) for number, (name, to) in enumerate(reply))
            yield ModelReply(Reply("", tool_calls=calls), "tool_calls")
        finally:
            self.world.busy["model"] -= 1


def _arguments(name: str, to: str) -> str:
    if name in ("good", "goes"):
        return f'{{"to": "{to}"}}'
    return '{"request": "help"}' if name == "ask" else '{"number": "x' if name == "garbled" else "{}"


def _each_call_has_at_most_one_response(kept: list[Event]) -> None:
    open_calls: Counter[tuple[str | None, str]] = Counter()
    for event in kept:
        for response in event.get_function_responses():
            open_calls[event.branch, response.id] -= 1
            assert 0 <= open_calls[event.branch, response.id], f"a second response to {response.id}"
        for call in event.get_function_calls():
            open_calls[event.branch, call.id] += 1


def _in_the_order_of_the_log(events: list[Event], kept: list[Event]) -> None:
    places = {event.id: place for place, event in enumerate(kept)}
    assert len(kept) == len(places)
    outcome = [event for event in events if not event.partial]
    for branch in {event.branch for event in outcome}:
        # Concurrent events may come in either order.
        found = [places[event.id] for event in outcome if event.id in places and _is_on_the_way_to(event.branch, branch)]
        assert sorted(found) == found
    # Events that are not in the log as they were yielded are there in parts.
    pieces = {(event.branch, response.id) for event in kept for response in event.get_function_responses()}
    for event in outcome:
        if event.id not in places:
            assert event.get_function_responses()
            assert pieces >= {(event.branch, response.id) for response in event.get_function_responses()}


def _is_on_the_way_to(branch: str | None, end: str | None) -> bool:
    return branch is None or end == branch or (end or "").startswith(f"{branch}.")


def each_call_has_one_result_right_behind_it(messages: Any) -> None:
    """Law 1, for what a model was sent."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert waiting.pop(0) == message["tool_call_id"]
            continue
        assert [] == waiting
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    assert [] == waiting
