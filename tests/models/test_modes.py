"""Which errors say that a server takes no tools, tool_choice or response_format, in the words of many servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from patchbay.models.capabilities import Capabilities, ModelCapabilities, refuses_choice, refuses_tools
from patchbay.models.exchange import Exchange
from patchbay.models.options import TextOptions
from patchbay.models.policy import refuses_format

REFUSES: Final = {"tools": refuses_tools, "tool_choice": refuses_choice, "response_format": refuses_format}
ROWS: Final = [
    row.split("\t") for row in Path(__file__).with_name("refusals.tsv").read_text(encoding="utf-8").removesuffix("\n").split("\n")
]
"""What is refused (or not), and the status and the text of the error."""


@pytest.mark.parametrize(("what", "refused", "status", "text"), ROWS)
def test_refusals_are_recognised_and_other_mistakes_are_not(what: str, refused: str, status: str, text: str) -> None:
    assert (refused == "yes") == REFUSES[what](int(status), text)


def test_one_stray_closing_tag_is_not_enough_to_read_every_answer_as_reasoning() -> None:
    known = ModelCapabilities("m")
    found = []
    for unopened in (True, True, False):
        known.note_reasoning(unopened=unopened)
        found.append(known.prefilled)
    assert [False, True, False] == found


def test_server_with_tools_is_not_probed_but_can_refuse_them() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    answer = {"choices": [{"index": 0, "message": {"content": "Hello."}, "finish_reason": "stop"}]}
    exchange = Exchange(json.dumps(body).encode(), TextOptions(), Capabilities(doubts=False))
    assert not exchange.answer(json.dumps(answer).encode())[1]
    assert exchange.on_upstream_error(400, "this model does not support tools")
