"""The fake of the seam to a model: it complains of what a test's script and the code under test do not agree on."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from patchbay.models import ChatRequest
from patchbay.testing import ScriptedModel
from patchbay.types import ToolCall
from support.running import run


def ask(model: ScriptedModel) -> Any:
    async def answer() -> Any:
        return [event async for event in model.respond(ChatRequest([{"role": "user", "content": "hi"}]))][-1]

    return run(answer())


def ask_and_hide_errors(model: ScriptedModel) -> None:
    """As an agent does: a model that fails is an event, not an exception."""
    with suppress(Exception):
        ask(model)


def test_unused_steps_are_reported() -> None:
    with (
        pytest.raises(AssertionError, match=r"1 of the 2 steps .*2: 'It is sunny.'"),
        ScriptedModel([ToolCall("a", "f"), "It is sunny."]) as model,
    ):
        ask(model)
    with pytest.raises(AssertionError, match="1 of the 2 steps"):
        model.assert_consumed()
    ask(model)
    model.assert_consumed()


def test_unused_steps_do_not_hide_the_error_of_the_block() -> None:
    with pytest.raises(ZeroDivisionError), ScriptedModel(["It is sunny."]):
        raise ZeroDivisionError


def test_scripted_model_repeats_a_swallowed_exhaustion_error_at_exit() -> None:
    model = ScriptedModel(["a"])
    ask(model)
    ask_and_hide_errors(model)
    with pytest.raises(AssertionError, match="asked 2 times, but its script has 1 step"), model:
        pass


def test_scripted_model_repeats_a_swallowed_assertion_at_exit() -> None:
    def step(request: ChatRequest) -> str:
        assert request.tools, "no tools were offered"
        return "a"

    with pytest.raises(AssertionError, match="no tools were offered"), ScriptedModel([step]) as model:
        ask_and_hide_errors(model)


def test_error_scripted_by_a_step_is_raised_as_such() -> None:
    with ScriptedModel([RuntimeError("down")]) as model, pytest.raises(RuntimeError, match="down"):
        ask(model)
