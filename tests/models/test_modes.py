"""What the errors of many servers say: that they take no tools, tool_choice, response_format or media; that a prompt is too long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from patchbay.errors import UpstreamError
from patchbay.models.capabilities import Capabilities, ModelCapabilities
from patchbay.models.exchange import Exchange
from patchbay.models.options import TextOptions
from patchbay.models.refusals import refuses_format, refuses_media, refuses_tool_choice, refuses_tools
from patchbay.models.upstream_errors import CONTEXT, context_tokens, subject_of

REFUSES: Final = {
    "tools": refuses_tools,
    "tool_choice": refuses_tool_choice,
    "media": refuses_media,
    "response_format": refuses_format,
}


def rows_of(name: str) -> list[list[str]]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [row.split("\t") for row in text.removesuffix("\n").split("\n")]


@pytest.mark.parametrize(("what", "refused", "status", "text"), rows_of("refusals.tsv"))
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
    assert not exchange.read_whole(json.dumps(answer).encode())[1]
    assert exchange.on_upstream_error(400, "this model does not support tools")


@pytest.mark.parametrize(("_server", "prompt", "output", "context", "said"), rows_of("too_long.tsv"))
def test_a_prompt_that_is_too_long_is_recognised_with_its_numbers(
    _server: str, prompt: str, output: str, context: str, said: str
) -> None:
    error = UpstreamError(f"The upstream answered HTTP 400: {said}", upstream_status=400, body=json.dumps({"error": said}))
    assert CONTEXT is subject_of(error)
    assert tuple(int(each) if each else None for each in (prompt, output, context)) == context_tokens(error)
