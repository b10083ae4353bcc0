"""Law 4: any split of a stream gives the reply of the whole text, and the events agree with the reply."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import patchbay
from patchbay.formats import events

from .texts import number_id, options, read_in, read_whole, splits, texts


@given(st.data(), texts, options)
def test_any_split_gives_the_reply_of_the_whole_text(data: st.DataObject, text: str, chosen: dict[str, Any]) -> None:
    streamed, _ = read_in(data.draw(splits(text)), **chosen)
    assert read_whole(text, **chosen) == streamed


@given(texts, options)
def test_character_by_character_gives_the_reply_of_the_whole_text(text: str, chosen: dict[str, Any]) -> None:
    streamed, _ = read_in(list(text), **chosen)
    assert read_whole(text, **chosen) == streamed


def streamed_reply(seen: list[Any]) -> dict[str, Any]:
    """The reply as reconstructed from the events alone."""
    content, reasoning = "", ""
    calls: list[Any] = []
    names: dict[int, tuple[str, str]] = {}
    written: dict[int, str] = {}
    cut: list[Any] = []
    for event in seen:
        if isinstance(event, events.TextDelta):
            content += event.text
        elif isinstance(event, events.ReasoningDelta):
            reasoning += event.text
        elif isinstance(event, events.TextWasReasoning):
            assert not names, "calls were told before"
            content, reasoning = "", content.strip() + reasoning
        elif isinstance(event, events.CallStart):
            assert event.index == len(names), "indices count up"
            names[event.index], written[event.index] = (event.id, event.name), ""
        elif isinstance(event, events.CallArguments):
            written[event.index] += event.text
        elif isinstance(event, events.CallEnd):
            assert (event.call.id, event.call.name, event.call.raw_arguments) == (*names[event.index], written[event.index])
            calls.append(event.call)
        elif isinstance(event, events.CallCut):
            if event.index is not None:
                assert written[event.index] == event.call.raw_arguments
            cut.append(event.call)
    return {"content": content or None, "reasoning": reasoning or None, "calls": calls, "cut": cut}


@given(st.data(), texts, options)
def test_stream_events_equal_the_reply(data: st.DataObject, text: str, chosen: dict[str, Any]) -> None:
    reply, seen = read_in(data.draw(splits(text)), **chosen)
    assert {
        "content": reply.content,
        "reasoning": reply.reasoning,
        "calls": list(reply.tool_calls),
        "cut": list(reply.incomplete),
    } == streamed_reply(seen)


@given(texts, texts, options)
def test_begun_call_is_never_retracted(head: str, tail: str, chosen: dict[str, Any]) -> None:
    parser = patchbay.StreamParser(generate_id=number_id, **chosen)
    begun = [event.id for event in parser.feed(head) if isinstance(event, events.CallStart)]
    parser.feed(tail)
    parser.close()
    kept = [call.id for call in (*parser.reply.tool_calls, *parser.reply.incomplete)]
    assert [call_id for call_id in begun if call_id not in kept] == []
