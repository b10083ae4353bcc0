"""Law 2 on the wire: any JSON from an upstream or client gives an answer or a PatchbayError."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import patchbay
from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange
from patchbay.models.options import TextOptions

KEYS = [
    "choices", "index", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "id", "finish_reason",
    "usage", "error", "role", "logprobs", "created", "tools", "tool_choice", "type", "allowed_tools", "mode", "parameters",
]  # fmt: skip
leaves = st.sampled_from(
    [None, True, 0, 1, -1, 1.5, 10**30, "", "f", "stop", "required", "function", "```tool_call\n{", "\ud800", []]
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def exchange(*, stream: bool, mode: str) -> Exchange:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL], "stream": stream}
    return Exchange(json.dumps(body).encode(), TextOptions(tools=mode), Capabilities())  # type: ignore[arg-type]


@given(st.lists(values, max_size=4), st.sampled_from(["text", "native", "auto"]))
def test_events_raise_only_patchbay_errors(events: list[Any], mode: str) -> None:
    ours = exchange(stream=True, mode=mode)
    with suppress(PatchbayError):
        for event in events:
            ours.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
        ours.feed(b"data: [DONE]\n\n")
        ours.end_attempt()


@given(values, values, st.booleans(), st.sampled_from(["text", "native", "auto"]))
def test_answers_raise_only_patchbay_errors(message: Any, finish: Any, stream: bool, mode: str) -> None:
    with suppress(PatchbayError):
        exchange(stream=stream, mode=mode).read_whole(
            json.dumps({"choices": [{"message": message, "finish_reason": finish}]}).encode()
        )
    with suppress(PatchbayError):
        exchange(stream=stream, mode=mode).read_whole(json.dumps(message).encode())


@given(
    st.dictionaries(st.sampled_from([*KEYS, "n", "stream", "functions", "parallel_tool_calls"]), values),
    st.lists(values, max_size=3),
)
def test_no_request_raises_anything_but_that_it_is_invalid(fields: dict[str, Any], messages: list[Any]) -> None:
    for shape in ({}, {"tools": [TOOL]}):
        body = {"model": "m", "messages": messages, **fields, **shape}
        with suppress(InvalidRequestError):
            Exchange(json.dumps(body).encode(), TextOptions(tools="text"), Capabilities())


@given(st.lists(st.dictionaries(st.sampled_from([*KEYS, "tool_call_id"]), values), max_size=4))
def test_any_conversation_can_be_rendered(messages: list[dict[str, Any]]) -> None:
    assert isinstance(patchbay.flatten_messages(messages), list)


def test_an_event_that_is_nested_without_end_is_an_error() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    for field in (b"x", b"usage", b"error", b"choices"):
        with suppress(PatchbayError):
            exchange(stream=True, mode="text").feed(b'data: {"' + field + b'": ' + deep + b"}\n\n")
        with suppress(PatchbayError):
            exchange(stream=False, mode="text").read_whole(b'{"' + field + b'": ' + deep + b"}")
