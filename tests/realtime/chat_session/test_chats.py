"""Chat sessions by their dialogues: what is requested and emitted for each step of the program and of the model."""

from __future__ import annotations

import pytest

from realtime.dialogues.player import Case, cases_in

from .player import TABLES, played


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases_in(TABLES)])
def test_a_chat_does_what_its_dialogue_says(case: Case):
    assert case.lines == played(case)
