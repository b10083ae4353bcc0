"""Conversations as the coding agents send them: each upstream prompt goes on where the last one ended, so that caches hold."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from patchbay.frontends import AnthropicMessages, GenerateContent, OpenAIResponses
from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange
from patchbay.models.options import TextOptions
from patchbay.models.wire import encode

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TURNS = 7
RESULT = 'line 1\n```tool_call\n{"name": "shell"}\n```\n<b>"quoted"</b>'


def codex() -> list[bytes]:
    """Codex: developer messages, reasoning, namespaces, a custom tool; the whole history each time."""
    tools = [
        {"type": "function", "name": "shell", "description": "Run it.", "strict": False, "parameters": SCHEMA},
        {"type": "namespace", "name": "mcp__files", "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}]},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
        {"type": "web_search"},
    ]
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You are Codex."}]},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "<environment_context>\n/</environment_context>"}],
        },
    ]
    requests = []

    def ask() -> None:
        body = {"model": "m", "input": items, "tools": tools, "stream": True, "store": False, "parallel_tool_calls": True}
        requests.append(encode(body | {"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}))

    for turn in range(TURNS):
        items += [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"Do {turn}."}]}]
        ask()
        items += [
            {
                "type": "reasoning",
                "id": f"rs{turn}",
                "summary": [{"type": "summary_text", "text": "Hm."}],
                "encrypted_content": None,
            },
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": f"a{turn}", "name": "shell", "arguments": '{"command": "ls"}'},
            {"type": "function_call", "call_id": f"b{turn}", "name": "read", "namespace": "mcp__files", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"a{turn}", "output": RESULT},
            {"type": "function_call_output", "call_id": f"b{turn}", "output": [{"type": "input_text", "text": RESULT}]},
        ]
        ask()
        items += [
            {"type": "custom_tool_call", "call_id": f"c{turn}", "name": "apply_patch", "input": f"*** Begin\n+{turn}\n```\n"},
            {"type": "custom_tool_call_output", "call_id": f"c{turn}", "output": "Done."},
        ]
        ask()
        items += [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"Did {turn}."}]}]
    return requests


def claude_code() -> list[bytes]:
    """Claude Code: system blocks, marks for caches that move on, system messages in the middle, results as blocks."""
    tools = [
        {"name": "Bash", "description": "Run it.", "input_schema": SCHEMA},
        {"name": "later", "input_schema": SCHEMA, "defer_loading": True},
    ]
    system = [
        {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in ("You are Claude Code.", "Be brief.")
    ]
    messages: list[dict[str, Any]] = []
    requests = []

    def ask() -> None:
        marked = json.loads(json.dumps(messages))
        marked[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        body = {"model": "m", "max_tokens": 32000, "system": system, "messages": marked, "tools": tools, "stream": True}
        requests.append(encode(body | {"thinking": {"type": "adaptive"}, "metadata": {"user_id": "u"}}))

    for turn in range(TURNS):
        messages += [
            {
                "role": "user",
                "content": [{"type": "text", "text": f"<reminder>{turn}</reminder>"}, {"type": "text", "text": "Do it."}],
            }
        ]
        ask()
        messages += [
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": f"a{turn}", "name": "Bash", "input": {"command": "ls"}},
                {"type": "tool_use", "id": f"b{turn}", "name": "Bash", "input": {"command": 'echo "x"'}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": f"a{turn}", "content": RESULT},
                {"type": "tool_result", "tool_use_id": f"b{turn}", "is_error": True, "content": [{"type": "text", "text": RESULT}]},
            ]},
            {"role": "system", "content": [{"type": "text", "text": f"Mind {turn}."}]},
        ]  # fmt: skip
        ask()
        messages += [{"role": "assistant", "content": [{"type": "text", "text": f"Did {turn}."}]}]
    return requests


def gemini_cli() -> list[bytes]:
    """gemini-cli: schemas under another name, signatures of thoughts, calls with and without an id."""
    tools = [{"functionDeclarations": [{"name": "shell", "description": "Run it.", "parametersJsonSchema": SCHEMA}]}]
    contents: list[dict[str, Any]] = []
    requests = []

    def ask() -> None:
        body = {"systemInstruction": {"parts": [{"text": "You are Gemini."}]}, "contents": contents, "tools": tools}
        requests.append(encode(body | {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}))

    for turn in range(TURNS):
        contents += [{"role": "user", "parts": [{"text": f"Do {turn}."}]}]
        ask()
        ids = {"id": f"a{turn}"} if turn % 2 else {}
        call = {"functionCall": {"name": "shell", "args": {"command": "ls"}, **ids}, "thoughtSignature": "s"}
        contents += [
            {"role": "model", "parts": [{"text": "Hm.", "thought": True}, {"text": "I look."}, call]},
            {"role": "user", "parts": [{"functionResponse": {"name": "shell", "response": {"output": RESULT}, **ids}}]},
        ]
        ask()
        contents += [{"role": "model", "parts": [{"text": f"Did {turn}."}]}]
    return requests


AGENTS = {
    "codex": (codex, OpenAIResponses(), ""),
    "claude code": (claude_code, AnthropicMessages(), ""),
    "gemini-cli": (gemini_cli, GenerateContent(), "/v1beta/models/m:streamGenerateContent"),
}


def prompts(agent: str, options: TextOptions) -> list[dict[str, Any]]:
    """The upstream's body for each request of a conversation."""
    make, frontend, path = AGENTS[agent]
    decoded = [frontend.decode(request, path) for request in make()]
    exchanges = [Exchange(encode(each.body), options, Capabilities(), each.encoder) for each in decoded]
    return [json.loads(each.request) for each in exchanges]


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("format", ["fenced", "hermes", "qwen3_coder"])
def test_each_prompt_of_a_text_model_begins_with_all_bytes_of_the_last_one(agent: str, format: str) -> None:  # noqa: A002
    def bytes_of(body: dict[str, Any]) -> bytes:
        return b"".join(encode([message["role"], message["content"]]) for message in body["messages"])

    bodies = prompts(agent, TextOptions(tools="text", format=format))
    assert len(bodies) >= 2 * TURNS
    for before, after in pairwise(bodies):
        assert bytes_of(after).startswith(bytes_of(before))
    assert {False} == {"tools" in body for body in bodies}


@pytest.mark.parametrize("agent", AGENTS)
def test_messages_to_a_native_model_extend_the_previous_ones(agent: str) -> None:
    """Reasoning is sent in the running turn only: models are trained without that of earlier ones."""
    bodies = prompts(agent, TextOptions(tools="native"))
    for before, after in pairwise(bodies):
        first, second = ([{**each, "reasoning_content": None} for each in body["messages"]] for body in (before, after))
        assert first == second[: len(first)]
        assert encode(before["tools"]) == encode(after["tools"])
    assert all("reasoning_content" not in message for message in bodies[-1]["messages"][:-5])
