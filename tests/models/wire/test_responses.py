"""Responses of a wrapped client and of the proxy, whole and streamed: text, calls, other fields, usage and choices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from patchbay.testing.script import Message, Raw, Text, error, events
from support.chat_clients import chat, sdk_client
from support.fenced_texts import ROME, TOOLS, block, words
from support.scripted_server import chunk, completion, json_body

CUT = 'Sure.\n```tool_call\n{"name": "get_weather", "arguments": {"city":"Ro'
UNREADABLE = 'Hello\n```tool_call\n{"name": a}\n```\nBye'
WRITTEN = '{"n": 12345678901234567890, "f":1.0, "e":1e400, "b":1,"10":2,"2":3, "u":"caf\u00e9 \\u00e9 \U0001f600"}'
SPACES = "    indented = 1\n\n  more  \n\n"
DEEP = '{"v": ' + "[" * 5000 + "]" * 5000 + "}"
WEATHER = ("get_weather", '{"city": "Rome"}')
READINGS: dict[str, tuple[Text, str, list[tuple[str, str]], str]] = {
    "an unreadable block": (Text(UNREADABLE), UNREADABLE, [], "stop"),
    "a call": (Text(f"Sure.\n{block(ROME)}", finish_reason="stop"), "Sure.", [WEATHER], "tool_calls"),
    "two calls": (Text(f"Sure.\n{block(ROME)}\n{block(ROME)}\n"), "Sure.", [WEATHER] * 2, "tool_calls"),
    "arguments as they are written": (
        Text(f'```tool_call\n{{"name": "set_opts", "arguments": {WRITTEN}}}\n```'), "", [("set_opts", WRITTEN)], "tool_calls"
    ),
    "deeply nested arguments": (
        Text(block(f'{{"name": "set_opts", "arguments": {DEEP}}}'), piece=1000), "", [("set_opts", DEEP)], "tool_calls"
    ),
    "white space": (Text(SPACES), SPACES, [], "stop"),
    **{f"the reason {reason}": (Text("Once", finish_reason=reason), "Once", [], reason) for reason in ("length", "content_filter")},
}  # fmt: skip


@pytest.mark.parametrize("reading", READINGS)
def test_text_calls_and_finish_reason_are_read(wire, stream, reading):
    written, content, calls, reason = READINGS[reading]
    answer = wire.ask(written, stream=stream).first
    shown = answer.content or ""
    assert (content, calls, reason) == (shown.strip() if calls else shown, answer.calls, answer.finish_reason)
    assert len(calls) == len(set(answer.ids)) == sum(map(bool, answer.ids))


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_truncated_call_finishes_with_length(wire, stream, reason):
    answer = wire.ask(Text(CUT, finish_reason=reason), stream=stream).first
    assert ("length", ["Sure."]) == (answer.finish_reason, words(answer.content))


def test_call_broken_inside_of_a_truncated_answer_is_not_asked_for_again(wire, stream):
    text = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Ro<|end|><|start|>assistant me'
    answer = wire.ask(Text(text, finish_reason="length"), stream=stream).first
    assert "length" == answer.finish_reason
    assert not (answer.calls and not stream)


NATIVE = {"id": "call_native1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}


@pytest.mark.parametrize("mode", ["auto", "native", "text"])
@pytest.mark.parametrize("content", [None, "I will look it up."], ids=["alone", "with text"])
def test_native_calls_are_kept(wire, stream, mode, content):
    message = Message({"role": "assistant", "content": content, "tool_calls": [NATIVE]}, finish_reason="tool_calls")
    answer = wire.ask(message, stream=stream, mode=mode).first
    assert ([WEATHER], ["call_native1"], "tool_calls") == (answer.calls, answer.ids, answer.finish_reason)
    assert (content or "") == (answer.content or "")


@pytest.mark.parametrize("mode", ["auto", "text"])
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "refusal"])
def test_reasoning_and_refusals_of_the_upstream_are_kept(wire, stream, mode, key):
    content = None if key == "refusal" else f"Sure.\n{block(ROME)}"
    answer = wire.ask(Message({"role": "assistant", key: "I wonder.", "content": content}), stream=stream, mode=mode)
    assert ([] if content is None else [WEATHER]) == answer.first.calls
    found = [answer.first.extra]
    if stream:
        found = [c.choices[0].delta.model_dump() for c in answer.chunks if c.choices]
    assert "I wonder." == "".join(each.get(key) or each.get("reasoning_content") or "" for each in found)


EXTRAS = {
    "annotations": [
        {"type": "url_citation", "url_citation": {"url": "http://x.y", "title": "t", "start_index": 0, "end_index": 1}}
    ],
    "audio": {"id": "audio_1", "data": "AAAA", "expires_at": 9, "transcript": "hello"},
    "vendor_field": {"kept": True},
}
LOGPROBS = {"content": [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}], "refusal": None}


def test_fields_of_a_whole_response_are_kept(wire):
    whole = completion(wire.model, {"content": "Hi", "refusal": None, **EXTRAS}, system_fingerprint="fp_1", vendor_top=1)
    whole["choices"][0] |= {"logprobs": LOGPROBS, "vendor_choice": 2}
    raw = wire.ask(json_body(whole), stream=False).raw.model_dump(exclude_unset=True)
    given = raw["choices"][0]
    assert ("fp_1", 1, 2, LOGPROBS) == (raw["system_fingerprint"], raw["vendor_top"], given["vendor_choice"], given["logprobs"])
    assert EXTRAS == {name: given["message"][name] for name in EXTRAS}


@pytest.mark.parametrize("mode", ["text", "auto"])
def test_fields_of_a_streamed_response_are_kept(wire, mode):
    """In auto mode the first response is buffered until it is known whether to retry."""
    first = {**chunk(wire.model, role="assistant", content="Hi", **EXTRAS), "system_fingerprint": "fp_1", "vendor_top": 1}
    first["choices"][0]["logprobs"] = LOGPROBS
    chunks = first, chunk(wire.model, refusal="No."), chunk(wire.model, finish_reason="stop")
    answer = wire.ask(Raw([events(*chunks)]), stream=True, mode=mode)
    assert ("Hi", "No.") == (answer.first.content, answer.first.extra["refusal"])
    assert EXTRAS == {name: answer.first.extra[name] for name in EXTRAS}
    if mode == "text":
        dumped = [c.model_dump(exclude_unset=True) for c in answer.chunks]
        assert "fp_1" in [c.get("system_fingerprint") for c in dumped]
        assert 1 in [c.get("vendor_top") for c in dumped]
        assert LOGPROBS == answer.first.extra["logprobs"]


@pytest.mark.parametrize("text", ["Just prose.", f"Sure.\n{block(ROME)}\n"], ids=["prose", "call"])
def test_usage_has_its_own_chunk_with_empty_choices(wire, text):
    answer = wire.ask(text, stream=True, stream_options={"include_usage": True})
    (with_usage,) = [c for c in answer.chunks if c.usage is not None]
    assert answer.chunks[-1] is with_usage
    assert ([], True) == (with_usage.choices, with_usage.usage.total_tokens > 0)


def test_usage_on_the_finish_chunk_is_kept(wire):
    last = {**chunk(wire.model, finish_reason="stop"), "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}
    written = Raw([events(chunk(wire.model, role="assistant", content="Hi"), last)])
    assert 3 == wire.ask(written, stream=True, stream_options={"include_usage": True}).usage.total_tokens


def test_interleaved_choices_of_a_stream_are_kept_apart(wire):
    texts = {0: f"Zero.\n{block(ROME)}\n", 1: "One only talks."}
    chunks = [chunk(wire.model, index, role="assistant", content="") for index in texts]
    for at in range(max(map(len, texts.values()))):
        chunks += [chunk(wire.model, index, content=text[at]) for index, text in texts.items() if at < len(text)]
    chunks += [chunk(wire.model, index, "stop") for index in texts]
    zero, one = wire.ask(Raw([events(*chunks)]), stream=True).choices.values()
    assert ([WEATHER], ["Zero."], "tool_calls") == (zero.calls, words(zero.content), zero.finish_reason)
    assert ("One only talks.", [], "stop") == (one.content, one.calls, one.finish_reason)


def test_each_of_two_choices_has_its_call(wire, stream):
    answer = wire.ask(f"Sure.\n{block(ROME)}\n", stream=stream, n=2)
    assert {0: ([WEATHER], "tool_calls"), 1: ([WEATHER], "tool_calls")} == {
        index: (choice.calls, choice.finish_reason) for index, choice in answer.choices.items()
    }


def test_deeply_nested_arguments_and_results_of_the_history_are_sent_to_the_model(wire):
    deep = "[" * 5000 + "]" * 5000
    call = {"id": "c1", "type": "function", "function": {"name": "set_opts", "arguments": f'{{"v": {deep}}}'}}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": deep},
    ]
    assert "Done." == wire.ask("Done.", stream=False, messages=messages).first.content
    assert 2 == wire.requests[0].prompt().count(deep)


@pytest.mark.parametrize(
    ("mode", "written", "reasoning", "content", "calls"),
    [
        ("text", f"<think>Hm.</think>\nSure.\n{block(ROME)}", "Hm.", ["Sure."], [WEATHER]),
        ("text", "<think>\n\n</think>\n\nHello.", None, ["Hello."], []),
        ("auto", "<think>\n\n</think>\n\nHello.", None, ["Hello."], []),
    ],
)
def test_written_reasoning_is_a_field_of_its_own(wire, stream, mode, written, reasoning, content, calls):
    answer = wire.ask(written, stream=stream, mode=mode).first
    assert (reasoning, content, calls) == (answer.reasoning and answer.reasoning.strip(), words(answer.content), answer.calls)


@pytest.mark.parametrize("tag", ["CALL", "call"])
def test_configured_tag_is_prompted_and_recognised(upstream, proxies, model, stream, tag):
    upstream.on(model, block(ROME, label="CALL"))
    with sdk_client(proxies("--tools", "text", "--tag", tag).url) as client:
        assert [WEATHER] == chat(client, model, stream=stream, tools=TOOLS).first.calls
    assert f"```{tag}" in upstream.seen[model][0].json["messages"][0]["content"]


SURROGATES = '```tool_call\n{"name": "search", "arguments": {"q": "a \ud83d\ude00 b \ud800 c"}}\n```'


def with_surrogates(*chunks: Any) -> Raw:
    """Chunks as a server sends them that writes halves of characters as escapes."""
    return Raw(["".join(f"data: {json.dumps(each)}\n\n" for each in chunks).encode() + b"data: [DONE]\n\n"])


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_surrogate_pairs_are_read_in_any_split(wire, size):
    """A server that counts UTF-16 units may cut a character in two; JSON can write either half."""
    deltas = [chunk(wire.model, content=SURROGATES[at : at + size]) for at in range(0, len(SURROGATES), size)]
    written = with_surrogates(chunk(wire.model, role="assistant", content=""), *deltas, chunk(wire.model, finish_reason="stop"))
    answer = wire.ask(written, stream=True).first
    assert (["search"], "tool_calls") == ([name for name, _ in answer.calls], answer.finish_reason)
    arguments = json.loads(answer.calls[0][1])["q"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert arguments in ("a \U0001f600 b \ufffd c", "a \ufffd\ufffd b \ufffd c")


def test_lone_surrogate_in_prose_is_sent(wire, stream):
    text = "before \ud800 after\x00."
    written = json_body(completion(wire.model, {"content": text + " More."}))
    if stream:
        deltas = chunk(wire.model, role="assistant", content=text), chunk(wire.model, content=" More.")
        written = with_surrogates(*deltas, chunk(wire.model, finish_reason="stop"))
    content = (wire.ask(written, stream=stream).first.content or "").replace("\ud800", "\ufffd")
    assert "before \ufffd after\x00. More." == content.replace("\ufffd\ufffd\ufffd", "\ufffd")


FAILURES = {
    **{str(status): error(status, "Context too long.") for status in (400, 500, 503)},
    "cut": Raw([b'data: {"choices":[{"ind'], end="cut"),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_first_response_is_sent_if_the_probe_fails(wire, stream, failure):
    """In auto mode a second request finds out whether tools were ignored: its failure does not concern the client."""
    answer = wire.ask("It is sunny.", failure, stream=stream, mode="auto").first
    assert ("It is sunny.", "stop") == (answer.content, answer.finish_reason)
