"""What a chunk holds reaches the client whatever else stands in it: the exchange alone, without a wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange
from patchbay.models.options import TextOptions

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
CALL = '```tool_call\n{"name": "f", "arguments": {"a": 1}}\n```'


def stream_to_client(
    *chunks: list[dict[str, Any]], mode: str = "text", rounds: int = 0, **fields: Any
) -> dict[int, dict[str, Any]]:
    """What the client reads of each choice when the upstream sends these lists of choices (a new attempt after each finish)."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL], "stream": True, **fields}
    options = TextOptions(tools=mode, repair_rounds=rounds)  # type: ignore[arg-type]
    exchange = Exchange(json.dumps(body).encode(), options, Capabilities())
    out, again = b"", False
    for number, choices in enumerate(chunks):
        out += exchange.feed(b"data: " + json.dumps({"id": f"c{number}", "choices": choices}).encode() + b"\n\n")
        if all(choice.get("finish_reason") for choice in choices):
            last, again = (exchange.feed(b"data: [DONE]\n\n") and (b"", False)) or exchange.end_attempt()
            out += last
    assert not again
    assert out.endswith(b"data: [DONE]\n\n")
    read: dict[int, dict[str, Any]] = {}
    for line in out.decode().split("\n\n"):
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            seen = read.setdefault(choice["index"], {"content": "", "arguments": [], "roles": 0, "finish": []})
            delta = choice["delta"]
            seen["content"] += delta.get("content") or ""
            seen["roles"] += "role" in delta
            for call in delta.get("tool_calls") or ():
                if "id" in call:
                    seen["arguments"].append("")
                seen["arguments"][call["index"]] += call["function"].get("arguments") or ""
            seen["finish"] += [choice["finish_reason"]] if choice.get("finish_reason") else []
    return read


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": index, "delta": fields, "finish_reason": finish}


NATIVE = [{"index": 0, "id": "n1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]


@pytest.mark.parametrize("mode", ["text", "native"])
def test_text_in_the_chunk_with_the_finish_reason_is_not_lost(mode: str) -> None:
    read = stream_to_client([delta(role="assistant", content="Hello ")], [delta(content="world", finish="stop")], mode=mode)
    assert ("Hello world", ["stop"]) == (read[0]["content"], read[0]["finish"])


@pytest.mark.parametrize("mode", ["text", "native"])
def test_native_calls_in_the_chunk_with_the_finish_reason_are_not_lost(mode: str) -> None:
    read = stream_to_client([delta(role="assistant", content="")], [delta(tool_calls=NATIVE, finish="tool_calls")], mode=mode)
    assert (['{"a": 1}'], ["tool_calls"]) == (read[0]["arguments"], read[0]["finish"])


def test_content_and_calls_in_one_chunk_both_arrive() -> None:
    read = stream_to_client([delta(role="assistant", content="Sure.", tool_calls=NATIVE)], [delta(finish="stop")], mode="native")
    assert ("Sure.", ['{"a": 1}'], ["tool_calls"]) == (read[0]["content"], read[0]["arguments"], read[0]["finish"])


def test_two_choices_in_one_chunk_do_not_disturb_each_other() -> None:
    read = stream_to_client(
        [delta(0, content="Plain "), delta(1, content=CALL[:30])],
        [delta(0, content="words."), delta(1, content=CALL[30:])],
        [delta(0, finish="stop"), delta(1, finish="stop")],
        n=2,
    )
    assert ("Plain words.", [], ["stop"]) == (read[0]["content"], read[0]["arguments"], read[0]["finish"])
    assert ("", ['{"a": 1}'], ["tool_calls"]) == (read[1]["content"], read[1]["arguments"], read[1]["finish"])


@pytest.mark.parametrize("first", [{"role": "assistant", "content": ""}, {"role": "assistant"}])
def test_discarded_answer_is_hidden_and_its_retry_complete(first: dict[str, Any]) -> None:
    read = stream_to_client(
        [delta(**first)],
        [delta(content=CALL)],
        [delta(finish="stop")],
        [delta(**first)],
        [delta(content="The real answer.")],
        [delta(finish="stop")],
        tool_choice="none",
    )
    assert ("The real answer.", 1, ["stop"]) == (read[0]["content"], read[0]["roles"], read[0]["finish"])


def test_retry_of_an_invalid_call_replaces_the_text() -> None:
    read = stream_to_client(
        [delta(content="Try.\n" + CALL.replace("1", '"x"'), finish="stop")],
        [delta(content="Which number do you mean?", finish="stop")],
        rounds=1,
    )
    assert ("Which number do you mean?", [], ["stop"]) == (read[0]["content"], read[0]["arguments"], read[0]["finish"])


def test_truncated_call_is_sent_as_far_as_it_came_with_repairs_on() -> None:
    read = stream_to_client([delta(content=CALL[:-6], finish="length")], rounds=1)
    assert (['{"a": '], ["length"]) == (read[0]["arguments"], read[0]["finish"])


def test_content_in_parts_is_passed_on() -> None:
    parts = [{"type": "text", "text": "Hello"}]
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL], "stream": True}
    exchange = Exchange(json.dumps(body).encode(), TextOptions(tools="native"), Capabilities())
    chunk = b"data: " + json.dumps({"id": "c", "choices": [delta(content=parts)]}).encode() + b"\n\n"
    assert chunk == exchange.feed(chunk)


def test_lines_of_prose_that_arrive_together_are_passed_on_as_they_came() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL], "stream": True}
    exchange = Exchange(json.dumps(body).encode(), TextOptions(tools="text"), Capabilities())
    deltas = ["A title ", "that leads to no call.\nThe ", "first ", "line.\n", "The ", "second.\n\n", "The ", "end."]
    events = [b"data: " + json.dumps({"id": "c", "choices": [delta(content=text)]}).encode() + b"\n\n" for text in deltas]
    assert events[:2] == [exchange.feed(event) for event in events[:2]]
    assert b"".join(events[2:]) == exchange.feed(b"".join(events[2:]))
