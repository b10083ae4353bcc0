"""Responses of a wrapped client and of the proxy, whole and streamed: text, calls, other fields, usage and choices."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from patchbay.testing.script import Message, Raw, Text, error, events
from support.chat_clients import chat, sdk_client
from support.fenced_texts import ROME, TOOLS, block, words
from support.scripted_server import SharedUpstream, chunk

Connect = Callable[..., openai.OpenAI]

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
def test_text_calls_and_finish_reason_are_read(
    connect: Connect, upstream: SharedUpstream, model: str, stream: bool, reading: str
) -> None:
    written, content, calls, reason = READINGS[reading]
    upstream.on(model, written)
    answer = chat(connect(), model, stream=stream, tools=TOOLS)
    shown = answer.first.content or ""
    assert (content, calls, reason) == (shown.strip() if calls else shown, answer.first.calls, answer.first.finish_reason)
    assert len(calls) == len(set(answer.first.ids)) == sum(map(bool, answer.first.ids))


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_truncated_call_finishes_with_length(
    connect: Connect, upstream: SharedUpstream, model: str, stream: bool, reason: str
) -> None:
    upstream.on(model, Text(CUT, finish_reason=reason))
    answer = chat(connect(), model, stream=stream, tools=TOOLS)
    assert ("length", ["Sure."]) == (answer.first.finish_reason, words(answer.first.content))


NATIVE = {"id": "call_native1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}


@pytest.mark.parametrize("mode", ["auto", "native", "text"])
@pytest.mark.parametrize("content", [None, "I will look it up."], ids=["alone", "with text"])
def test_native_calls_are_kept(
    connect: Connect, upstream: SharedUpstream, model: str, stream: bool, mode: str, content: str | None
) -> None:
    upstream.on(model, Message({"role": "assistant", "content": content, "tool_calls": [NATIVE]}, finish_reason="tool_calls"))
    answer = chat(connect(mode), model, stream=stream, tools=TOOLS)
    assert [("get_weather", '{"city": "Rome"}')] == answer.first.calls
    assert (["call_native1"], "tool_calls") == (answer.first.ids, answer.first.finish_reason)
    assert (content or "") == (answer.first.content or "")


@pytest.mark.parametrize("mode", ["auto", "text"])
def test_refusal_is_kept(connect: Connect, upstream: SharedUpstream, model: str, stream: bool, mode: str) -> None:
    upstream.on(model, Message({"role": "assistant", "content": None, "refusal": "I will not."}))
    answer = chat(connect(mode), model, stream=stream, tools=TOOLS)
    if stream:
        assert "I will not." == "".join(c.choices[0].delta.refusal or "" for c in answer.chunks if c.choices)
    else:
        assert "I will not." == answer.first.extra["refusal"]


@pytest.mark.parametrize("mode", ["auto", "text"])
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_fields_of_the_upstream_are_kept(
    connect: Connect, upstream: SharedUpstream, model: str, stream: bool, mode: str, key: str
) -> None:
    upstream.on(model, Message({"role": "assistant", key: "I wonder.", "content": f"Sure.\n{block(ROME)}"}))
    answer = chat(connect(mode), model, stream=stream, tools=TOOLS)
    assert [("get_weather", '{"city": "Rome"}')] == answer.first.calls
    if stream:
        deltas = [c.choices[0].delta.model_dump() for c in answer.chunks if c.choices]
        shown = "".join(delta.get(key) or delta.get("reasoning_content") or "" for delta in deltas)
    else:
        shown = answer.first.extra.get(key) or answer.first.extra.get("reasoning_content")
    assert "I wonder." == shown


EXTRAS = {
    "annotations": [
        {"type": "url_citation", "url_citation": {"url": "http://x.y", "title": "t", "start_index": 0, "end_index": 1}}
    ],
    "audio": {"id": "audio_1", "data": "AAAA", "expires_at": 9, "transcript": "hello"},
    "vendor_field": {"kept": True},
}


def test_fields_of_a_whole_response_are_kept(connect: Connect, upstream: SharedUpstream, model: str) -> None:
    logprobs = {"content": [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}], "refusal": None}
    message = {"role": "assistant", "content": "Hi", "refusal": None, **EXTRAS}
    completion = {
        "id": "chatcmpl-9", "object": "chat.completion", "created": 7, "model": model, "system_fingerprint": "fp_1",
        "service_tier": "default", "vendor_top": 1,
        "choices": [{"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop", "vendor_choice": 2}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }  # fmt: skip
    upstream.on(model, Raw([json.dumps(completion).encode()], content_type="application/json"))
    raw = chat(connect(), model, stream=False, tools=TOOLS).raw.model_dump(exclude_unset=True)
    assert "fp_1" == raw["system_fingerprint"]
    assert (1, 2) == (raw["vendor_top"], raw["choices"][0]["vendor_choice"])
    assert logprobs == raw["choices"][0]["logprobs"]
    for key, value in EXTRAS.items():
        assert value == raw["choices"][0]["message"][key]


def test_fields_of_a_streamed_response_are_kept(connect: Connect, upstream: SharedUpstream, model: str) -> None:
    logprobs = {"content": [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}], "refusal": None}
    first = {**chunk(model, role="assistant", content="Hi", **EXTRAS), "system_fingerprint": "fp_1", "vendor_top": 1}
    first["choices"][0]["logprobs"] = logprobs
    upstream.on(model, Raw([events(first, chunk(model, finish_reason="stop"))]))
    answer = chat(connect(), model, stream=True, tools=TOOLS)
    dumped = [c.model_dump(exclude_unset=True) for c in answer.chunks]
    assert "fp_1" in [c.get("system_fingerprint") for c in dumped]
    assert 1 in [c.get("vendor_top") for c in dumped]
    assert logprobs == answer.first.extra["logprobs"]
    for key, value in EXTRAS.items():
        assert value == answer.first.extra[key]


@pytest.mark.parametrize("text", ["Just prose.", f"Sure.\n{block(ROME)}\n"], ids=["prose", "call"])
def test_usage_has_its_own_chunk_with_empty_choices(connect: Connect, upstream: SharedUpstream, model: str, text: str) -> None:
    upstream.on(model, text)
    answer = chat(connect(), model, stream=True, tools=TOOLS, stream_options={"include_usage": True})
    with_usage = [c for c in answer.chunks if c.usage is not None]
    assert 1 == len(with_usage)
    assert answer.chunks[-1] is with_usage[0]
    assert [] == with_usage[0].choices
    assert with_usage[0].usage.total_tokens > 0


def test_usage_on_the_finish_chunk_is_kept(connect: Connect, upstream: SharedUpstream, model: str) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    last = {**chunk(model, finish_reason="stop"), "usage": usage}
    upstream.on(model, Raw([events(chunk(model, role="assistant", content="Hi"), last)]))
    answer = chat(connect(), model, stream=True, tools=TOOLS, stream_options={"include_usage": True})
    assert 3 == answer.usage.total_tokens


def test_interleaved_choices_of_a_stream_are_kept_apart(connect: Connect, upstream: SharedUpstream, model: str) -> None:
    texts = {0: f"Zero.\n{block(ROME)}\n", 1: "One only talks."}
    chunks = [chunk(model, index, role="assistant", content="") for index in texts]
    for at in range(max(map(len, texts.values()))):
        chunks += [chunk(model, index, content=text[at]) for index, text in texts.items() if at < len(text)]
    chunks += [chunk(model, index, "stop") for index in texts]
    upstream.on(model, Raw([events(*chunks)]))
    answer = chat(connect(), model, stream=True, tools=TOOLS)
    assert [("get_weather", '{"city": "Rome"}')] == answer.choices[0].calls
    assert (["Zero."], "tool_calls") == (words(answer.choices[0].content), answer.choices[0].finish_reason)
    assert ("One only talks.", [], "stop") == (
        answer.choices[1].content, answer.choices[1].calls, answer.choices[1].finish_reason
    )  # fmt: skip


def test_each_of_two_choices_has_its_call(connect: Connect, upstream: SharedUpstream, model: str, stream: bool) -> None:
    upstream.on(model, f"Sure.\n{block(ROME)}\n")
    answer = chat(connect(), model, stream=stream, tools=TOOLS, n=2)
    assert {0, 1} == set(answer.choices)
    for choice in answer.choices.values():
        assert [("get_weather", '{"city": "Rome"}')] == choice.calls
        assert "tool_calls" == choice.finish_reason


def test_deeply_nested_arguments_and_results_of_the_history_are_sent_to_the_model(
    connect: Connect, upstream: SharedUpstream, model: str
) -> None:
    upstream.on(model, "Done.")
    deep = "[" * 5000 + "]" * 5000
    call = {"id": "c1", "type": "function", "function": {"name": "set_opts", "arguments": f'{{"v": {deep}}}'}}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": deep},
    ]
    assert "Done." == chat(connect(), model, stream=False, tools=TOOLS, messages=messages).first.content
    assert 2 == upstream.seen[model][0].prompt().count(deep)


def test_written_reasoning_is_a_field_of_its_own(connect: Connect, upstream: SharedUpstream, model: str, stream: bool) -> None:
    upstream.on(model, f"<think>Hm.</think>\nSure.\n{block(ROME)}")
    answer = chat(connect(), model, stream=stream, tools=TOOLS)
    assert ("Hm.", ["Sure."]) == ((answer.first.reasoning or "").strip(), words(answer.first.content))
    assert [("get_weather", '{"city": "Rome"}')] == answer.first.calls


@pytest.mark.parametrize("tag", ["CALL", "call"])
def test_configured_tag_is_prompted_and_recognised(
    upstream: SharedUpstream, proxies: Callable[..., Any], model: str, stream: bool, tag: str
) -> None:
    upstream.on(model, block(ROME, label="CALL"))
    with sdk_client(proxies("--tools", "text", "--tag", tag).url) as client:
        answer = chat(client, model, stream=stream, tools=TOOLS)
    assert [("get_weather", '{"city": "Rome"}')] == answer.first.calls
    assert f"```{tag}" in upstream.seen[model][0].json["messages"][0]["content"]


@pytest.mark.parametrize("mode", ["text", "auto"])
def test_empty_reasoning_is_left_out(connect: Connect, upstream: SharedUpstream, model: str, stream: bool, mode: str) -> None:
    upstream.on(model, "<think>\n\n</think>\n\nHello.")
    answer = chat(connect(mode), model, stream=stream, tools=TOOLS)
    assert ("Hello.", None, "stop") == (answer.first.content, answer.first.reasoning, answer.first.finish_reason)


SURROGATES = '```tool_call\n{"name": "search", "arguments": {"q": "a \ud83d\ude00 b \ud800 c"}}\n```'


def test_surrogate_pairs_are_read_in_any_split(connect: Connect, upstream: SharedUpstream, model: str) -> None:
    """A server that counts UTF-16 units may cut a character in two; JSON can write either half."""
    for size in (1, 2, 7, 1000):
        deltas = [chunk(model, content=SURROGATES[at : at + size]) for at in range(0, len(SURROGATES), size)]
        wire = "".join(f"data: {json.dumps(each)}\n\n" for each in [chunk(model, role="assistant", content=""), *deltas])
        end = f"data: {json.dumps(chunk(model, finish_reason='stop'))}\n\ndata: [DONE]\n\n"
        upstream.on(f"{model}-{size}", Raw([(wire + end).encode()]))
        answer = chat(connect(), f"{model}-{size}", stream=True, tools=TOOLS)
        assert (["search"], "tool_calls") == ([name for name, _ in answer.first.calls], answer.first.finish_reason)
        arguments = json.loads(answer.first.calls[0][1])["q"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert arguments in ("a \U0001f600 b \ufffd c", "a \ufffd\ufffd b \ufffd c"), size


def test_lone_surrogate_in_prose_is_sent(connect: Connect, upstream: SharedUpstream, model: str, stream: bool) -> None:
    text = "before \ud800 after\x00."
    if stream:
        wire = "".join(
            f"data: {json.dumps(each)}\n\n"
            for each in [
                chunk(model, role="assistant", content=text),
                chunk(model, content=" More."),
                chunk(model, finish_reason="stop"),
            ]
        )
        upstream.on(model, Raw([(wire + "data: [DONE]\n\n").encode()]))
    else:
        message = {"role": "assistant", "content": text + " More."}
        body = {
            "id": "c",
            "object": "chat.completion",
            "created": 7,
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
        upstream.on(model, Raw([json.dumps(body).encode()], content_type="application/json"))
    answer = chat(connect(), model, stream=stream, tools=TOOLS)
    content = (answer.first.content or "").replace("\ud800", "\ufffd")
    assert "before \ufffd after\x00. More." == content.replace("\ufffd\ufffd\ufffd", "\ufffd")


def test_fields_of_a_buffered_stream_are_kept(connect: Connect, upstream: SharedUpstream, model: str) -> None:
    """In auto mode the first response is buffered until it is known whether to retry."""
    first = {**chunk(model, role="assistant", content="Hi", **EXTRAS), "system_fingerprint": "fp_1"}
    refusal = chunk(model, refusal="No.")
    wire = "".join(f"data: {json.dumps(each)}\n\n" for each in [first, refusal, chunk(model, finish_reason="stop")])
    upstream.on(model, Raw([(wire + "data: [DONE]\n\n").encode()]))
    answer = chat(connect("auto"), model, stream=True, tools=TOOLS)
    assert "Hi" == answer.first.content
    assert "No." == answer.first.extra["refusal"]
    for key, value in EXTRAS.items():
        assert value == answer.first.extra[key]


FAILURES = {
    **{str(status): error(status, "Context too long.") for status in (400, 500, 503)},
    "cut": Raw([b'data: {"choices":[{"ind'], end="cut"),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_first_response_is_sent_if_the_probe_fails(
    connect: Connect, upstream: SharedUpstream, model: str, stream: bool, failure: Raw
) -> None:
    """In auto mode a second request finds out whether tools were ignored: its failure does not concern the client."""
    upstream.on(model, "It is sunny.", failure)
    answer = chat(connect("auto"), model, stream=stream, tools=TOOLS)
    assert ("It is sunny.", "stop") == (answer.first.content, answer.first.finish_reason)
