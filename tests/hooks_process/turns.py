"""Whole turns with hooks that are processes: a scripted model that calls one tool."""

from __future__ import annotations

from typing import Any

from patchbay import ToolCall
from patchbay.executor import Executor
from patchbay.hooks import HookManager
from patchbay.loop import FinalEvent, turn
from patchbay.testing import ScriptedModel

CALL = ToolCall("call-1", "add", '{"a": 1, "b": 2}')


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def take_turn(manager: HookManager, *calls: ToolCall, model: ScriptedModel | None = None) -> FinalEvent:
    """Ask a model that makes these calls (one of ``add``, if none is named), and return the end of the turn."""
    model = model or ScriptedModel([list(calls or (CALL,)), "done"])
    events = turn(model, Executor([add], hooks=manager), [{"role": "user", "content": "1 and 2?"}])
    *_, last = [event async for event in events]
    assert isinstance(last, FinalEvent)
    return last


def results(end: FinalEvent) -> list[Any]:
    """Return the results that the model was sent."""
    return [message["content"] for message in end.messages if message["role"] == "tool"]
