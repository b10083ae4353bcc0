"""Law 4 on the wire: any split of an upstream's answer into deltas, events and network pieces gives the same response."""

from __future__ import annotations

import json
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from patchbay.errors import InvalidCallError, UpstreamError
from patchbay.formats.events import CallCut
from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange
from patchbay.models.options import TextOptions
from patchbay.types import Reply

from .texts import TOOLS, read_in, read_whole, solid, splits, texts

BODY = {"model": "m", "messages": [{"role": "user", "content": "?"}], "tools": TOOLS}
OPTIONS = TextOptions(tools="text")


def exchange(*, stream: bool) -> Exchange:
    """One request of a client in text mode."""
    return Exchange(json.dumps({**BODY, "stream": stream}).encode(), OPTIONS, Capabilities())


def chunks_of(deltas: list[str]) -> list[dict[str, Any]]:
    """The chunks of a text, as a server sends them."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    inner = [{"role": "assistant", "content": ""}, *({"content": delta} for delta in deltas)]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in inner]
    return [*chunks, {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]


def client_reads(stream: bytes) -> dict[str, Any]:
    """Content, reasoning, calls and finish reason that a client assembles from a stream."""
    content, reasoning, finish = "", "", None
    calls: list[list[str]] = []
    events = stream.decode("utf-8", "surrogatepass").split("\n\n")
    assert ["data: [DONE]", ""] == events[-2:]
    for event in events[:-2]:
        assert event.startswith("data: ")
        assert "\n" not in event
        for choice in json.loads(event[6:])["choices"]:
            delta = choice["delta"]
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or ():
                if call["index"] == len(calls):
                    calls.append([call["function"]["name"], ""])
                calls[call["index"]][1] += call["function"].get("arguments") or ""
            finish = choice["finish_reason"] or finish
    return {"content": content, "reasoning": reasoning, "calls": calls, "finish": finish}


def expected(reply: Reply) -> dict[str, Any]:
    """The same of a reply."""
    calls = [[call.name, call.raw_arguments] for call in reply.tool_calls]
    cut = [[call.name, call.raw_arguments] for call in reply.incomplete if call.name]
    finish = "length" if reply.incomplete else "tool_calls" if calls else "stop"
    return {"content": reply.content or "", "reasoning": reply.reasoning or "", "calls": calls + cut, "finish": finish}


broken = st.tuples(texts, texts).map('\n{"name": "f", "arguments": {x```'.join)
"""Texts in which a call may be broken."""


def has_broken_call(text: str) -> bool:
    """Whether the model is asked again for a call in the text: frontends/test_all_protocols.py."""
    return any(isinstance(event, CallCut) and event.broken and event.call.name for event in read_in([text], tools=TOOLS)[1])


writings = st.fixed_dictionaries({"ensure_ascii": st.booleans(), "separators": st.sampled_from([(",", ":"), (", ", ": ")])})
"""How a server writes JSON."""


@st.composite
def network(draw: st.DrawFn, events: list[bytes]) -> list[bytes]:
    """A stream in the pieces in which it may arrive: event by event, several at a time, or cut anywhere."""
    wire = b"".join(events)
    if draw(st.booleans()):
        places = draw(st.lists(st.integers(0, len(wire)), max_size=10))
    else:
        ends = list(accumulate(map(len, events)))
        places = [end for end in ends if draw(st.booleans())]
    return [wire[begin:end] for begin, end in pairwise([0, *sorted(places), len(wire)])]


@given(st.data(), texts | broken, writings)
def test_any_split_on_the_wire_gives_the_same_response(data: st.DataObject, text: str, writing: dict[str, Any]) -> None:
    assume("</think>" not in text)  # what was shown before a lone closer cannot be unsaid: test below
    assume(not any("\ud800" <= char <= "\udfff" for char in text))  # halves may meet in one JSON text: models/wire/test_responses
    deltas = list(text) if data.draw(st.booleans()) else data.draw(splits(text))
    events = [b"data: " + json.dumps(chunk, **writing).encode() + b"\n\n" for chunk in chunks_of(deltas)]
    ours = exchange(stream=True)
    out = b"".join([ours.feed(piece) for piece in data.draw(network([*events, b"data: [DONE]\n\n"]))])
    if has_broken_call(text):
        with pytest.raises(InvalidCallError):  # its beginning was sent: the model is not asked again
            ours.end_attempt()
        return
    last, again = ours.end_attempt()
    assert not again
    assert expected(read_whole(text, tools=TOOLS)) == client_reads(out + last)


def test_upstream_event_without_an_end_is_refused() -> None:
    ours = exchange(stream=True)
    half = b"x" * 16 * 1024 * 1024
    ours.feed(b"data: " + half)
    ours.feed(half)
    assert ours.finished
    with pytest.raises(UpstreamError, match="more than 32 MiB"):
        ours.end_attempt()


@given(texts | broken)
def test_whole_response_equals_the_reply_of_its_text(text: str) -> None:
    assume(not any("\ud800" <= char <= "\udfff" for char in text))
    message = {"role": "assistant", "content": text}
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    out, again = exchange(stream=False).read_whole(json.dumps(body).encode())
    assert has_broken_call(text) == again
    if again:
        return
    (choice,) = json.loads(out)["choices"]
    reply = read_whole(text, tools=TOOLS)
    shown = choice["message"]
    assert (reply.content or "", reply.reasoning or "") == (shown["content"] or "", shown.get("reasoning_content") or "")
    read = expected(reply)
    assert read["calls"] == [[call["function"]["name"], call["function"]["arguments"]] for call in shown.get("tool_calls") or ()]
    assert read["finish"] == choice["finish_reason"]


@given(st.data(), texts)
def test_prefilled_reasoning_loses_nothing_on_the_wire(data: st.DataObject, text: str) -> None:
    """Text before a lone closer may have been sent as content already; it must appear exactly once."""
    text = "thought w0w\n</think>\nw1w " + text.replace("think>", "")
    assume(not has_broken_call(text))
    assume(not any("\ud800" <= char <= "\udfff" for char in text))
    wire = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks_of(data.draw(splits(text))))
    ours = exchange(stream=True)
    out = ours.feed(wire + b"data: [DONE]\n\n")
    last, _ = ours.end_attempt()
    read = client_reads(out + last)
    outcome = read["content"] + "\n" + read["reasoning"]
    assert (1, 1) == (outcome.count("w0w"), outcome.count("w1w"))
    reply = read_whole(text, tools=TOOLS)
    assert solid(reply.content or "") in solid(read["content"])
    assert expected(reply)["calls"] == read["calls"]
