"""What an exchange learns of a server: from its description, its token counts, its refusals, and whether it streams."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange, Step
from patchbay.models.options import TextOptions

USAGE = {"prompt_tokens": 90, "completion_tokens": 7, "total_tokens": 97}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
GRAMMAR_REFUSED = '{"error":{"code":400,"message":"Cannot use custom grammar constraints with tools."}}'
CALL = '```tool_call\n{"name": "f", "arguments": {}}\n```'


def make(memory: Capabilities, mode: str = "auto", **fields: Any) -> Exchange[bytes]:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi there."}], "tools": [TOOL], **fields}
    return Exchange(json.dumps(body).encode(), TextOptions(tools=mode), memory)


def sent(exchange: Exchange[bytes]) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(exchange.request)
    return body


def document(content: str, **fields: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return json.dumps({"id": "c", "created": 7, "model": "m", "choices": [choice], "usage": USAGE, **fields}).encode()


def stream(*chunks: Mapping[str, Any]) -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    events = [json.dumps({**head, **chunk}).encode() for chunk in chunks] + [b"[DONE]"]
    return b"".join(b"data: " + event + b"\n\n" for event in events)


def choice(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish}


HELLO = stream(
    {"choices": [choice(content="Hel")]},
    {"choices": [choice(content="lo.")]},
    {"choices": [choice(finish="stop")]},
    {"choices": [], "usage": USAGE},
)


# the server's description


@pytest.mark.parametrize(("supported", "mode", "requests"), [(True, "native", 1), (False, "text", 1), (None, None, 2)])
def test_description_of_the_server_decides_before_the_first_request(
    supported: bool | None, mode: str | None, requests: int
) -> None:
    memory = Capabilities()
    exchange = make(memory)
    steps = exchange.steps()
    assert Step.DESCRIBE is next(steps)
    assert Step.SEND is steps.send({} if supported is None else {"chat_template_caps": {"supports_tools": supported}})
    assert (mode != "text") == ("tools" in sent(exchange))
    count, out = 1, steps.send(document("Hello."))
    while out is Step.SEND:
        count, out = count + 1, steps.send(document("Hello."))
    assert (requests, mode) == (count, memory.of("m").mode)
    assert mode == memory.of("another name of the same model").mode
    assert Step.SEND is next(make(memory).steps())


def test_server_that_cannot_describe_itself_yet_is_asked_again_at_the_second_and_the_fourth_request() -> None:
    memory = Capabilities()
    asked = []
    for _ in range(4):
        steps = make(memory, "text").steps()
        asked.append(next(steps) is Step.DESCRIBE and steps.send(None) is Step.SEND)
    assert [True, True, False, True] == asked
    memory.learn_description({})
    assert all(Step.SEND is next(make(memory, "text").steps()) for _ in range(8))


def test_request_does_not_wait_while_another_one_asks_for_the_description() -> None:
    memory = Capabilities()
    asking = make(memory).steps()
    assert Step.DESCRIBE is next(asking)
    assert Step.SEND is next(make(memory).steps())
    asking.close()  # (its client has left)
    assert Step.DESCRIBE is next(make(memory).steps())


@pytest.mark.parametrize("properties", [None, [], {"chat_template_caps": 1}, {"chat_template_caps": {"supports_tools": "no"}}])
def test_another_answer_describes_nothing(properties: Any) -> None:
    memory = Capabilities()
    memory.learn_description(properties)
    assert memory.of("m").mode is None


@pytest.mark.parametrize(
    ("mode", "fields"),
    [
        ("text", {"patchbay": {"constrain": "off"}}),
        ("text", {"grammar": "x"}),
        ("native", {}),
        ("auto", {"tool_choice": "none"}),
        ("auto", {"tools": []}),
    ],
)
def test_server_is_asked_for_its_description_only_where_it_matters(mode: str, fields: dict[str, Any]) -> None:
    assert Step.DESCRIBE is not next(make(Capabilities(), mode, **fields).steps())
    assert Step.DESCRIBE is not next(make(Capabilities(doubts=False)).steps())


# a client's grammar


@pytest.mark.parametrize("field", ["grammar", "guided_json", "structured_outputs"])
def test_grammar_that_is_refused_beside_tools_goes_with_the_contract_at_once_the_next_time(field: str) -> None:
    memory = Capabilities()
    exchange = make(memory, **{field: "x"})
    assert exchange.on_upstream_error(400, GRAMMAR_REFUSED)
    assert ("x", False) == (sent(exchange)[field], "tools" in sent(exchange))
    assert not exchange.read_whole(document("yes"))[1]
    assert "tools" not in sent(make(memory, **{field: "x"}))
    assert memory.of("m").mode is None
    assert "tools" in sent(make(memory))


def test_grammar_is_no_reason_for_the_contract_where_native_tools_are_demanded() -> None:
    assert not make(Capabilities(), "native", grammar="x").on_upstream_error(400, GRAMMAR_REFUSED)


# the end of a text


def test_block_of_a_result_is_a_stop_sequence_of_a_text_model() -> None:
    memory = Capabilities()
    assert ["```tool_result"] == sent(make(memory, "text"))["stop"]
    assert ["END"] == sent(make(memory, "text", stop=["END"]))["stop"]
    assert "stop" not in sent(make(memory, "native"))
    assert "stop" not in sent(make(memory, "text", model="qwen2.5:7b"))  # (its own format has another end)
    named = Exchange(make(memory).request, TextOptions(tools="text", tool_result_tag="output"), memory)
    assert ["```output"] == sent(named)["stop"]


def test_stop_sequence_that_a_server_refuses_is_left_out_from_then_on() -> None:
    memory = Capabilities()
    exchange = make(memory, "text")
    assert exchange.on_upstream_error(400, "Unsupported parameter: 'stop' is not supported with this model.")
    assert "stop" not in sent(exchange)
    assert not exchange.on_upstream_error(400, "Unsupported parameter: 'stop' is not supported with this model.")
    exchange.read_whole(document("Hello."))
    assert "stop" not in sent(make(memory, "text"))


def test_error_about_the_clients_own_stop_is_the_clients() -> None:
    assert not make(Capabilities(), "text", stop="END").on_upstream_error(400, "'stop' is not supported")


# whole answers as streams


def knows_streams() -> Capabilities:
    memory = Capabilities()
    memory.of("m").streams_usage = True
    return memory


def test_whole_answer_is_streamed_once_llamacpp_is_recognised_or_a_stream_had_its_usage() -> None:
    memory = Capabilities()
    make(memory, "text").read_whole(document("Hello.", timings={"prompt_n": 1}))
    assert memory.of("m").streams_usage
    memory = Capabilities()
    make(memory, "text").read_whole(document("Hello."))
    assert memory.of("m").streams_usage is None
    exchange = make(memory, "text", stream=True, stream_options={"include_usage": True})
    exchange.feed(HELLO)
    exchange.end_attempt()
    body = sent(make(memory, "text", stream_options={"other": 1}))
    assert (True, {"other": 1, "include_usage": True}) == (body["stream"], body["stream_options"])
    assert "stream" not in sent(make(memory, "native"))


@pytest.mark.parametrize("text", ["Hello.", f"I call.\n{CALL}", "<think>hm</think>Hello."])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_streamed_answer_is_the_same_document(text: str, size: int) -> None:
    fields = {"timings": {"prompt_n": 3}, "service_tier": "default"}
    logprobs = [{"token": character, "logprob": -1.0} for character in text]
    given = {"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": {"content": logprobs}}
    other = {"index": 1, "message": {"role": "assistant", "content": "No.", "reasoning_content": "Hm."}}
    choices = [{**given, "finish_reason": "stop", "stop_reason": 7}, {**other, "logprobs": None, "finish_reason": "length"}]
    whole, again = make(Capabilities(), "text", n=2).read_whole(document("", choices=choices, **fields))
    assert not again
    pieces = [(text[at : at + size], logprobs[at : at + size]) for at in range(0, len(text), size)]
    chunks = stream(
        {"choices": [choice(role="assistant", content=None)]},
        *({"choices": [{**choice(content=piece), "logprobs": {"content": probs}}]} for piece, probs in pieces),
        {"choices": [{**choice(finish="stop"), "stop_reason": 7}]},
        {"choices": [choice(1, reasoning_content="Hm.")]},
        {"choices": [choice(1, content="No.")]},
        {"choices": [choice(1, finish="length")], "service_tier": "default"},
        {"choices": [], "usage": USAGE, "timings": {"prompt_n": 3}},
    )
    exchange = make(knows_streams(), "text", n=2)
    assert exchange.upstream_streams
    assert not exchange.client_streams
    assert b"" == exchange.feed(chunks)
    streamed, again = exchange.end_attempt()
    assert not again
    expected, found = json.loads(whole), json.loads(streamed)
    for one in (*expected["choices"], *found["choices"]):
        for call in one["message"].get("tool_calls", ()):
            call["id"] = "random"
    assert {"object": "chat.completion", **expected} == found


def test_answer_to_a_stream_in_one_document_is_read_and_none_is_asked_for_again() -> None:
    memory = knows_streams()
    out, again = make(memory, "text").read_whole(document("Hello."))
    assert ("Hello.", USAGE, False) == (json.loads(out)["choices"][0]["message"]["content"], json.loads(out)["usage"], again)
    assert "stream" not in sent(make(memory, "text"))


def test_stream_without_its_usage_is_the_last_one() -> None:
    memory = knows_streams()
    exchange = make(memory, "text")
    exchange.feed(stream({"choices": [choice(content="Hello.", finish="stop")]}))
    out, _ = exchange.end_attempt()
    assert "Hello." == json.loads(out)["choices"][0]["message"]["content"]
    assert "stream" not in sent(make(memory, "text"))


def test_stream_that_a_server_refuses_is_asked_for_as_a_document() -> None:
    memory = knows_streams()
    exchange = make(memory, "text")
    assert exchange.on_upstream_error(400, "Unrecognized request argument supplied: stream_options")
    assert not {"stream", "stream_options"} & sent(exchange).keys()
    assert not exchange.read_whole(document("Hello."))[1]
    assert "stream" not in sent(make(memory, "text"))


def test_answer_is_asked_for_again_in_a_stream_too() -> None:
    exchange = make(knows_streams(), "text", tool_choice="required")
    exchange.feed(HELLO)
    assert (b"", True) == exchange.end_attempt()
    assert exchange.upstream_streams
    exchange.feed(stream({"choices": [choice(content=CALL, finish="stop")]}, {"choices": [], "usage": USAGE}))
    out, again = exchange.end_attempt()
    answer = json.loads(out)
    assert ("tool_calls", 180, False) == (answer["choices"][0]["finish_reason"], answer["usage"]["prompt_tokens"], again)


# the usage of a stream whose client does not ask for it


def test_count_decides_in_a_stream_and_its_client_gets_no_event_of_its_own_for_it() -> None:
    memory = Capabilities()
    exchange = make(memory, stream=True, messages=[{"role": "user", "content": "x"}])
    assert {"include_usage": True} == sent(exchange)["stream_options"]
    exchange.feed(HELLO.replace(b'"prompt_tokens": 90', b'"prompt_tokens": 900'))
    out, again = exchange.end_attempt()
    assert ("native", False) == (memory.of("m").mode, again)
    assert b'"choices":[],' not in out
    assert "stream_options" not in sent(make(memory, stream=True))


def test_refused_stream_options_cost_one_request() -> None:
    memory = Capabilities()
    exchange = make(memory, stream=True)
    assert exchange.on_upstream_error(
        422, '{"detail":[{"loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}'
    )
    assert "stream_options" not in sent(exchange)
    assert "tools" in sent(exchange)
