"""The cases of the OpenResponses compliance suite and more, on native and text-only models, whole, streamed and over a WebSocket.

Every response and every event is checked against the types of the ``openai`` package, made from OpenAI's own description: all that
they require must be there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from openai.types.responses import CompactedResponse, Response, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from websockets.sync.client import connect

from patchbay.proxy import create_app
from patchbay.testing import Message, ScriptedUpstream
from support.http_server import BOUND, ask, serving

EVENTS = {get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(get_args(ResponseStreamEvent)[0])}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The current weather of a place.",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Change files."}
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CALL = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"location": "Rome"}'}


def user(content: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": content}


def script(body: dict[str, Any]) -> Message:
    """What the model writes: calls where it is asked for the weather or a patch, else what it was sent last."""
    messages = body["messages"]
    last = messages[-1]["content"]
    text = last if isinstance(last, str) else "".join(part.get("text", f"[{part['type']}]") for part in last)
    native = bool(body.get("tools"))
    taught = native or "# Tools" in json.dumps(messages[0]["content"])
    if taught and "weather?" in text:
        if native:
            call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": CALL["arguments"]}}
            return Message({"content": None, "tool_calls": [call]}, finish_reason="tool_calls")
        return Message({"content": '```tool_call\n{"name": "get_weather", "arguments": {"location": "Rome"}}\n```'})
    if taught and "patch" in text:
        if native:
            call = {"id": "c1", "type": "function", "function": {"name": "apply_patch", "arguments": '{"input": "+a\\n-b"}'}}
            return Message({"content": None, "tool_calls": [call]}, finish_reason="tool_calls")
        return Message({"content": "```tool_call apply_patch\n+a\n-b\n```"})
    if "Think" in text:
        return Message({"content": "Done.", "reasoning_content": "Well."})
    return Message({"content": f"{len(messages)}: {text}"}, finish_reason="length" if "forever" in text else "stop")


@dataclass(frozen=True)
class Case:
    """A request, and what its output says: a type of item that is there, and words that are in it."""

    name: str
    input: Any
    kind: str = "message"
    words: str = ""
    status: str = "completed"
    fields: dict[str, Any] = field(default_factory=dict)
    check: Callable[[list[str], dict[str, Any]], bool] | None = None


def has_all_events_of(prefix: str) -> Callable[[list[str], dict[str, Any]], bool]:
    return lambda kinds, _response: f"{prefix}.delta" in kinds and f"{prefix}.done" in kinds


CASES = [
    Case("basic text", [user("Say hello in exactly 3 words.")], words="1: Say hello"),
    Case("text alone", "Say hello.", words="1: Say hello"),
    Case("streaming", [user("Count from 1 to 5.")], words="Count", check=has_all_events_of("response.output_text")),
    Case("system prompt", [{"type": "message", "role": "system", "content": "Be a pirate."}, user("Say hello.")], words="2: Say"),
    Case("instructions", "Say hello.", words="2: Say", fields={"instructions": "Be a pirate."}),
    Case("developer", [{"role": "developer", "content": "Be a pirate."}, user("Say hello.")], words="2: Say hello."),
    Case(
        "tool calling", [user("How is the weather?")], "function_call", "Rome", fields={"tools": [WEATHER]},
        check=has_all_events_of("response.function_call_arguments"),
    ),
    Case("tool calling, forced", [user("weather?")], "function_call", "get_weather", fields={"tools": [WEATHER], "tool_choice": "required"}),
    Case(
        "custom tool", [user("Now patch it.")], "custom_tool_call", r"+a\n-b", fields={"tools": [PATCH]},
        check=has_all_events_of("response.custom_tool_call_input"),
    ),
    Case("image input", [user([{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PIXEL}])], words="What is it?[image_url]"),
    Case("file input", [user([{"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}])], words="[file]"),
    Case("multi-turn", [user("I am Al."), {"type": "message", "role": "assistant", "content": "Hello Al."}, user("Who?")], words="3: Who?"),
    Case(
        "assistant phase",
        [
            user("Go on."),
            {"type": "message", "role": "assistant", "phase": "commentary", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "message", "role": "assistant", "phase": "final_answer", "content": [{"type": "output_text", "text": "Fine."}]},
            user("More."),
        ],
        words=": More.",
    ),
    Case("function-call round trip", [user("weather?"), CALL, {"type": "function_call_output", "call_id": "c1", "output": "Sunny."}], words="Sunny."),
    Case("reasoning", "Think.", "reasoning", "Well.", fields={"reasoning": {"effort": "low"}}, check=has_all_events_of("response.reasoning_summary_text")),
    Case("incomplete", "Go on forever.", words="forever", status="incomplete", check=lambda _kinds, response: "max_output_tokens" == response["incomplete_details"]["reason"]),
    Case("text settings", "Say x.", words="Say x.", fields={"text": {"verbosity": "low"}, "metadata": {"a": "b"}}),
]  # fmt: skip


@pytest.fixture(scope="module", params=["native", "text"])
def port(request):
    with ScriptedUpstream(script) as upstream, serving(create_app(upstream.url, tools=request.param), sockets=True) as port:
        yield port


def post(port: int, body: dict[str, Any], path: str = "/v1/responses") -> Any:
    answer = ask(port, "POST", path, {"model": "m", **body})
    assert 200 == answer.status, answer.body
    return answer


def checked(response: dict[str, Any]) -> dict[str, Any]:
    """A response that has all that OpenAI's description requires, and each field that it knows and clients read."""
    Response.model_validate(response)
    known = {
        "background", "completed_at", "frequency_penalty", "max_output_tokens", "presence_penalty", "previous_response_id",
        "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store", "top_logprobs", "truncation", "usage", "user",
    }  # fmt: skip
    assert known <= set(response)
    assert {"effort", "summary"} <= set(response["reasoning"])
    assert "type" in response["text"]["format"]
    for tool in response["tools"]:
        assert tool["type"] != "function" or {"description", "parameters", "strict"} <= set(tool)
    return response


def events_on_socket(port: int, body: dict[str, Any]) -> list[dict[str, Any]]:
    with connect(f"ws://127.0.0.1:{port}/v1/responses", proxy=None, open_timeout=BOUND) as socket:
        socket.send(json.dumps({"type": "response.create", "model": "m", **body}))
        events = [json.loads(socket.recv(timeout=BOUND))]
        while events[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed", "error"):
            events.append(json.loads(socket.recv(timeout=BOUND)))
    return events


@pytest.mark.parametrize("way", ["whole", "stream", "socket"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case(case: Case, way: str, port: int) -> None:
    body = {"input": case.input, **case.fields}
    if way == "whole":
        response = checked(post(port, body).json)
    else:
        if way == "socket":
            events = events_on_socket(port, body)
        else:
            lines = post(port, {**body, "stream": True}).body.decode().split("\n")
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        for number, event in enumerate(events):
            EVENTS[event["type"]].model_validate(event)
            assert number == event["sequence_number"]
            if "response" in event:
                checked(event["response"])
        kinds = [event["type"] for event in events]
        assert ["response.created", "response.in_progress", f"response.{case.status}"] == [*kinds[:2], kinds[-1]]
        response = events[-1]["response"]
        assert case.check is None or case.check(kinds, response)
        assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == len(response["output"])
    assert case.status == response["status"]
    (item,) = [item for item in response["output"] if item["type"] == case.kind]
    assert case.words in json.dumps(item, ensure_ascii=False)


def test_response_is_continued_listed_and_compacted(port: int) -> None:
    first = checked(post(port, {"input": "One."}).json)
    second = checked(post(port, {"input": "Two.", "previous_response_id": first["id"]}).json)
    assert "3: Two." == second["output"][0]["content"][0]["text"]
    checked(ask(port, "GET", f"/v1/responses/{second['id']}").json)
    listed = ask(port, "GET", f"/v1/responses/{second['id']}/input_items?order=asc").json
    ResponseItemList.model_validate(listed)
    assert ["One.", "1: One.", "Two."] == [item["content"][0]["text"] for item in listed["data"]]
    compacted = post(port, {"previous_response_id": second["id"]}, "/v1/responses/compact").json
    compaction = {**compacted, "output": [item for item in compacted["output"] if item["type"] == "compaction"]}
    CompactedResponse.model_validate(compaction)  # (its type of a message has the assistant's role only)
    gone_on = post(port, {"input": [*compacted["output"], user("Three.")]}).json
    assert ": Three." in gone_on["output"][0]["content"][0]["text"]
