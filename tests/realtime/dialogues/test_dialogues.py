"""Whole sessions by their dialogues: what is sent and emitted for each step of the program and of the server."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from patchbay.realtime import RealtimeLimits
from patchbay.realtime.responses import ResponseController

from .player import Case, cases, played


@pytest.mark.parametrize(
    ("case", "provider"),
    [pytest.param(case, provider, id=f"{provider}: {case.name}") for case in cases() for provider in case.providers],
)
def test_a_session_does_what_its_dialogue_says(case: Case, provider: str):
    assert case.lines == played(case, provider)


async def test_event_that_cannot_be_handled_is_an_error_event_and_is_logged_once(caplog):
    host = Mock()
    controller = ResponseController(Mock(), RealtimeLimits(), host)
    for _ in range(5):
        controller.handle(object())  # type: ignore[arg-type]
    assert ["error"] * 5 == [call.args[0].type for call in host.emit.call_args_list]
    assert 1 == caplog.text.count("Handling a object failed")
