"""Tools that clients run and whose schemas are published: offered as functions, called by the protocol's own item or block."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter

from frontends.protocols import Server, Written
from patchbay.frontends import AnthropicMessages, OpenAIResponses
from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange
from patchbay.models.exchange_driver import drive_async
from patchbay.models.options import TextOptions
from patchbay.models.wire import encode

OUTPUT_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
ANTHROPIC = {
    "bash_20250124": ("bash", {"command": "ls"}),
    "text_editor_20250124": ("str_replace_editor", {"command": "insert", "path": "a", "insert_line": 1, "new_str": "b"}),
    "text_editor_20250728": ("str_replace_based_edit_tool", {"command": "view", "path": "a", "view_range": [1, 2]}),
    "memory_20250818": ("memory", {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"}),
}
"""The types of tools, and a name and a call of each."""
PATCH = {"type": "update_file", "path": "a.txt", "diff": "@@\n-b\n+c"}
RESPONSES: dict[str, tuple[dict[str, Any], str, dict[str, Any], dict[str, Any], str]] = {
    "shell": (
        {"commands": ["ls", "pwd"], "timeout_ms": 1000},
        "action",
        {"commands": ["ls", "pwd"], "timeout_ms": 1000, "max_output_length": None},
        {"output": [{"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
        '{"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}',
    ),
    "local_shell": ({"command": ["ls"]}, "action", {"type": "exec", "env": {}, "command": ["ls"]}, {"output": "a.txt"}, "a.txt"),
    "apply_patch": (PATCH, "operation", PATCH, {"status": "failed", "output": "No such line."}, "The tool failed: No such line."),
}
"""By the type of the tool: what a model writes, the member of the item with it, its value, the client's result, and its text."""


def decoded_of(body: dict[str, Any]) -> Any:
    frontend: Any = OpenAIResponses() if "input" in body else AnthropicMessages()
    return frontend.decode(encode(body), "")


def upstream_body(body: dict[str, Any]) -> Any:
    """The body of chat completions for a request."""
    return json.loads(encode(decoded_of(body).body))


async def answer_to(body: dict[str, Any], written: Written, *, stream: bool, tools: Any = "native") -> list[Any]:
    """The events of an answer, or the only document."""
    decoded = decoded_of({**body, "stream": stream})
    exchange: Exchange[bytes] = Exchange(encode(decoded.body), TextOptions(tools=tools), Capabilities(), decoded.encoder)
    server = Server([written], stream=stream)
    out = b"".join([piece async for piece in drive_async(exchange, server)])
    return [json.loads(line[6:]) for line in out.split(b"\n") if line.startswith(b"data: ")] if stream else [json.loads(out)]


def call_of(name: str, arguments: Any, call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def messages(kind: str) -> dict[str, Any]:
    return {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi."}],
        "tools": [{"type": kind, "name": ANTHROPIC[kind][0]}],
    }


@pytest.mark.parametrize("kind", ANTHROPIC)
async def test_anthropics_tools_are_functions_with_their_schema(kind):
    name, arguments = ANTHROPIC[kind]
    (tool,) = upstream_body(messages(kind))["tools"]
    assert name == tool["function"]["name"]
    Draft202012Validator(tool["function"]["parameters"]).validate(arguments)
    (answer,) = await answer_to(messages(kind), Written(calls=[call_of(name, arguments)]), stream=False)
    assert [{"type": "tool_use", "id": "c1", "name": name, "input": arguments}] == answer["content"]


def responses(kind: str) -> dict[str, Any]:
    return {"model": "m", "input": "Hi.", "tools": [{"type": kind}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", RESPONSES)
async def test_openais_tools_are_called_by_their_own_items_and_their_results_are_read(kind, stream):
    arguments, member, value, result, text = RESPONSES[kind]
    (tool,) = upstream_body(responses(kind))["tools"]
    Draft202012Validator(tool["function"]["parameters"]).validate(arguments)
    events = await answer_to(responses(kind), Written(calls=[call_of(kind, arguments)]), stream=stream)
    (item,) = events[-1]["response"]["output"] if stream else events[0]["output"]
    assert (f"{kind}_call", "c1", value, "completed") == (item["type"], item["call_id"], item[member], item["status"])
    assert f"{kind}_call" == OUTPUT_ITEM.validate_python(item).type
    if stream:
        added, done = (event for event in events if event["type"].startswith("response.output_item."))
        assert (item["id"], item) == (added["item"]["id"], done["item"])
    output = {"type": f"{kind}_call_output", "call_id": "c1", **result}
    again = upstream_body({**responses(kind), "input": [{"role": "user", "content": "Hi."}, item, output]})["messages"]
    assert kind == again[1]["tool_calls"][0]["function"]["name"]
    assert arguments.items() <= json.loads(again[1]["tool_calls"][0]["function"]["arguments"]).items()
    assert {"role": "tool", "tool_call_id": "c1", "content": text} == again[2]


async def test_a_text_model_calls_a_published_tool():
    text = '```tool_call\n{"name": "shell", "arguments": {"commands": ["ls"]}}\n```'
    (answer,) = await answer_to(responses("shell"), Written(text), stream=False, tools="text")
    assert ("shell_call", ["ls"]) == (answer["output"][0]["type"], answer["output"][0]["action"]["commands"])


def test_a_local_shells_result_may_have_its_calls_id_as_its_own():
    items = [
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"},
    ]
    assert "c1" == upstream_body({**responses("local_shell"), "input": items})["messages"][1]["tool_call_id"]


def test_a_shell_in_a_container_of_openais_is_left_out():
    body = {**responses("shell"), "tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}
    assert "tools" not in upstream_body(body)


def test_a_published_tool_can_be_chosen():
    body = upstream_body({**responses("apply_patch"), "tool_choice": {"type": "apply_patch"}})
    assert {"type": "function", "function": {"name": "apply_patch"}} == body["tool_choice"]


@pytest.mark.parametrize("kind", ["bash", "computer_20250124", 7])
def test_an_unknown_tool_is_left_out(kind):
    assert "tools" not in upstream_body({**messages("bash_20250124"), "tools": [{"type": kind, "name": "bash"}]})
