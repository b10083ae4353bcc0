"""``format=`` in a request: the model is asked, and shown its history, in its own family's way."""

from __future__ import annotations

import json
from typing import Any

import pytest

from patchbay import flatten_messages, render_contract, render_tool_choice
from patchbay.errors import ConfigurationError
from patchbay.formats.render import WRITERS, render_calls
from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange
from patchbay.models.options import TextOptions
from patchbay.transcript import NO_RESULT
from patchbay.types import ToolCall, ToolResult

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    for name in ("get_weather", "get_time")
]
PARIS = '{"city": "Paris"}'
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Paris?"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "get_weather", "arguments": PARIS}},
            {"id": "call_b", "type": "function", "function": {"name": "get_time", "arguments": PARIS}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_b", "content": "noon"},
    {"role": "tool", "tool_call_id": "call_a", "content": "rain"},
    {"role": "assistant", "content": "It rains at noon."},
    {"role": "user", "content": "And now?"},
]


def sent(name: str = "hermes", *, options: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The body that a text model is sent."""
    body = {"model": "m", "messages": HISTORY, "tools": TOOLS, **fields}
    exchange = Exchange(json.dumps(body).encode(), TextOptions(tools="text", format=name, **(options or {})), Capabilities())
    return json.loads(exchange.request)


def test_hermes_prompt_and_history_use_its_own_format() -> None:
    body = sent()
    assert {"model", "messages"} == body.keys()
    system, *rest = body["messages"]
    assert f"Be brief.\n\n{render_contract(TOOLS, format='hermes')}" == system["content"]
    assert "<tools>\n" in system["content"]
    assert [
        {"role": "user", "content": "Paris?"},
        {
            "role": "assistant",
            "content": f'I look.\n<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>\n'
            f'<tool_call>\n{{"name": "get_time", "arguments": {PARIS}}}\n</tool_call>',
        },
        {"role": "user", "content": "<tool_response>\nrain\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"},
        {"role": "assistant", "content": "It rains at noon."},
        {"role": "user", "content": "And now?"},
    ] == rest


def test_other_options_apply_to_a_family() -> None:
    body = sent(
        options={"system_injection": "prepend", "include_examples": False}, tool_choice="required", parallel_tool_calls=False
    )
    contract, system, *_, last = body["messages"]
    assert {"role": "system", "content": render_contract(TOOLS, format="hermes", include_examples=False)} == contract
    assert HISTORY[0] == system
    assert f"And now?\n\n{render_tool_choice('required', parallel=False)}" == last["content"]


def test_custom_template_replaces_the_family_instructions() -> None:
    body = sent(options={"template": lambda context: f"{context.format}: {context.rendered_tools}"})
    assert f"Be brief.\n\nhermes: {WRITERS['hermes'].listing(read(TOOLS))}" == body["messages"][0]["content"]


def read(tools: Any) -> Any:
    """OpenAI's tools as specs."""
    from patchbay.types import read_specs

    return read_specs(tools)


def test_no_tools_are_taught_where_none_may_be_called() -> None:
    body = sent(tool_choice="none")
    assert HISTORY[0] == body["messages"][0]
    assert "<tool_call>" in body["messages"][2]["content"]


def test_auto_is_the_fenced_contract() -> None:
    assert sent("fenced") == sent("auto")
    assert "```tool_call\n" in sent("auto")["messages"][2]["content"]


@pytest.mark.parametrize(("model", "name"), [("qwen2.5:7b", "hermes"), ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3_coder")])
def test_model_known_by_name_is_prompted_in_its_format(model: str, name: str) -> None:
    assert sent(name, model=model) == sent("auto", model=model)
    assert sent("auto") != {**sent("auto", model=model), "model": "m"}


@pytest.mark.parametrize("model", ["m", "gemma3:4b", "gpt-oss:20b", "mistral-nemo", "qwen2.5:" + "7" * 300])
def test_unknown_model_is_prompted_with_the_contract(model: str) -> None:
    """No name, a family without a format of its own, special tokens that a server without tools takes out of an answer."""
    assert sent("fenced", model=model) == sent("auto", model=model)


@pytest.mark.parametrize("model", ["qwen2.5:7b", "m"])
def test_requested_format_precedes_the_model_name(model: str) -> None:
    assert "```tool_call\n" in sent("fenced", model=model)["messages"][2]["content"]
    assert "[TOOL_CALLS]" in sent("mistral_args", model=model)["messages"][2]["content"]
    assert "```call\n" in sent("auto", options={"tool_call_tag": "call"}, model=model)["messages"][2]["content"]
    taught = sent("auto", options={"template": lambda context: context.format}, model=model)
    assert "Be brief.\n\nfenced" == taught["messages"][0]["content"]


@pytest.mark.parametrize(
    ("name", "read_as"), [("hermes", "hermes"), ("hermes", "auto"), ("fenced", "auto"), ("glm45", "auto"), ("kimi_k2", "auto")]
)
def test_model_is_parsed_in_the_named_format_or_any(name: str, read_as: str) -> None:
    body = {"model": "qwen2.5:7b", "messages": HISTORY, "tools": TOOLS}
    exchange = Exchange(json.dumps(body).encode(), TextOptions(tools="text", format=read_as), Capabilities())
    text = render_calls(name, [ToolCall("", "get_time", PARIS)], "I look.")
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    out, _ = exchange.read_whole(json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode())
    call = json.loads(out)["choices"][0]["message"]["tool_calls"][0]["function"]
    assert ("get_time", {"city": "Paris"}) == (call["name"], json.loads(call["arguments"]))


def test_an_unknown_format_is_refused_where_it_is_named() -> None:
    with pytest.raises(ConfigurationError, match="hermez"):
        TextOptions(format="hermez")
    with pytest.raises(ConfigurationError, match="hermez"):
        flatten_messages([], format="hermez")


@pytest.mark.parametrize("name", WRITERS)
def test_each_family_renders_each_call_with_its_result_in_order(name: str) -> None:
    writer = WRITERS[name]
    view = flatten_messages(HISTORY, format=name)
    assert ["system", "user", "assistant", "user", "assistant", "user"] == [message["role"] for message in view]
    ids = [writer.call_id(0, "get_weather", "call_a"), writer.call_id(1, "get_time", "call_b")]
    calls = [ToolCall(ids[0], "get_weather", PARIS), ToolCall(ids[1], "get_time", PARIS)]
    assert writer.turn("I look.", calls) == view[2]["content"]
    assert (
        writer.results([ToolResult(ids[0], "get_weather", "rain"), ToolResult(ids[1], "get_time", "noon")]) == view[3]["content"]
    )


@pytest.mark.parametrize("name", ["hermes", "kimi_k2", "react", "mistral_json"])
def test_missing_result_is_rendered_as_missing(name: str) -> None:
    assert json.dumps(NO_RESULT)[1:-1] in flatten_messages([*HISTORY[:4], *HISTORY[5:]], format=name)[3]["content"]


def test_counted_ids_continue_through_the_conversation() -> None:
    view = flatten_messages([*HISTORY, *HISTORY[1:]], format="kimi_k2")
    shown = "\n".join(message["content"] for message in view)
    for number, name in enumerate(["get_weather", "get_time"] * 2):
        assert f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>" in shown
        assert f"## Return of functions.{name}:{number}\n" in shown


def test_images_in_a_result_stay_parts() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [*HISTORY[:4], {**HISTORY[4], "content": [{"type": "text", "text": "rain"}, image]}]
    text, kept = flatten_messages(messages, format="hermes")[3]["content"]
    assert text["text"].startswith("<tool_response>\nrain\n(1 attachment, see below)\n</tool_response>")
    assert image == kept
