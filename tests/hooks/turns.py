"""Turns with hooks, as the tests of this folder run them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from patchbay import hooks
from patchbay.executor import Executor
from patchbay.hooks import HookManager, HookPolicy, HookTimeouts, ToolOutput
from patchbay.loop import FinalEvent, turn
from patchbay.testing import ScriptedModel
from patchbay.types import ToolCall
from support.running import run

HI = [{"role": "user", "content": "hi"}]


def managed(*hooks: Any, policy: HookPolicy | None = None, timeouts: HookTimeouts | None = None, **named: Any) -> HookManager:
    manager = HookManager(policy=policy, timeouts=timeouts)
    for number, hook in enumerate(hooks):
        manager.mount(f"hook{number}", hook)
    for name, hook in named.items():
        manager.mount(name, hook)
    return manager


def hook(**methods: Any) -> Any:
    """Return a hook with these methods. A value that is not a function is the method's answer."""

    def method(given: Any) -> Any:
        async def asked(_self: Any, *about: Any) -> Any:
            answer = given(*about) if callable(given) else given
            answer = await answer if asyncio.iscoroutine(answer) else answer
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return asked

    return type("Hook", (), {name: method(given) for name, given in methods.items()})()


def decision(written: Any) -> Any:
    """Return the decision of a row: ``{"DenyTool": "reason"}``, ``{"Approval": [True, "why"]}``, ``{"class": "DenyTool"}``.

    ``{"value": ...}`` is something that is no decision.
    """
    if written is None:
        return None
    ((name, value),) = written.items()
    if name == "value":
        return value
    if name == "class":
        return lambda _view: getattr(hooks, value)  # called by ``hook``, as functions are
    if isinstance(value, dict) and "ToolOutput" in value:
        value = ToolOutput(value["ToolOutput"])
    is_arguments = isinstance(value, list) and name in ("Approval", "Continue")
    return getattr(hooks, name)(*value) if is_arguments else getattr(hooks, name)(value)


def called(name: str = "add", arguments: str = '{"a": 1, "b": 2}', call_id: str = "c1") -> ToolCall:
    return ToolCall(call_id, name, arguments)


class Table:
    """Two tools, and a record of their calls."""

    def __init__(self) -> None:
        self.ran: list[Any] = []

    def tools(self) -> list[Any]:
        async def add(a: int, b: int = 2) -> int:
            self.ran.append(("add", a, b))
            return a + b

        async def rm(path: str) -> str:
            self.ran.append(("rm", path))
            return "gone"

        return [add, rm]


class TurnOutcome:
    """A finished turn: its events, its requests, and the tools that ran."""

    def __init__(self, events: list[Any], model: ScriptedModel, ran: list[Any]) -> None:
        self.events = events
        self.requests = model.requests
        self.ran = ran
        self.final: FinalEvent = events[-1]

    @property
    def results(self) -> list[str]:
        return [message["content"] for message in self.final.messages if message["role"] == "tool"]

    @property
    def codes(self) -> list[str | None]:
        return [execution.result.code for execution in self.final.tool_executions]

    def offered(self, number: int = 0) -> list[str]:
        return [spec.name for spec in self.requests[number].tools]


async def run_turn(
    manager: HookManager | None,
    steps: Sequence[Any] = (called(), "done"),
    *,
    messages: Sequence[Any] = HI,
    tools: Sequence[Any] = (),
    parameters: Any = None,
    **options: Any,
) -> TurnOutcome:
    """Run one turn over a script, with the tools of the Table and ``tools``."""
    table, model = Table(), ScriptedModel(steps)
    executor = Executor([*table.tools(), *tools], hooks=manager, **options)
    events = [event async for event in turn(model, executor, messages, parameters=parameters)]
    assert isinstance(events[-1], FinalEvent)
    assert_settled(events[-1].messages)
    if manager is not None:
        await asyncio.wait_for(manager.events.flush(), 60)
    return TurnOutcome(events, model, table.ran)


def play_turn(manager: HookManager | None, *steps: Any, **options: Any) -> TurnOutcome:
    return run(run_turn(manager, steps, **options) if steps else run_turn(manager, **options))


def assert_settled(messages: Sequence[Any]) -> None:
    """Law 1: each call has one result, in call order, right behind it."""
    seen: set[str] = set()
    at = 0
    while at < len(messages):
        ids = [call["id"] for call in messages[at].get("tool_calls") or ()]
        at += 1
        answered = [message["tool_call_id"] for message in messages[at : at + len(ids)] if message["role"] == "tool"]
        assert ids == answered
        assert not seen & set(ids)
        seen |= set(ids)
        at += len(ids)
        assert at >= len(messages) or messages[at]["role"] != "tool"
