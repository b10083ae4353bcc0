"""Conversations as the coding agents send them: each upstream prompt goes on where the last one ended, so that caches hold."""

from __future__ import annotations

import json
from collections.abc import Callable
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
Steps = list[list[dict[str, Any]]]
"""What is added to a conversation before each request."""


def text(words: str, kind: str = "text", **more: Any) -> dict[str, Any]:
    return {"type": kind, "text": words, **more}


def item(role: str, words: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [text(words, kind)]}


def codex_turn(turn: int) -> Steps:
    """Codex: developer messages, reasoning, namespaces, a custom tool."""
    first = [item("developer", "You are Codex."), item("user", "<environment_context>\n/</environment_context>")]
    before = [item("assistant", f"Did {turn - 1}.", "output_text")] if turn else first
    return [
        [*before, item("user", f"Do {turn}.")],
        [
            {"type": "reasoning", "id": f"rs{turn}", "summary": [text("Hm.", "summary_text")], "encrypted_content": None},
            item("assistant", "I look.", "output_text"),
            {"type": "function_call", "call_id": f"a{turn}", "name": "shell", "arguments": '{"command": "ls"}'},
            {"type": "function_call", "call_id": f"b{turn}", "name": "read", "namespace": "mcp__files", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"a{turn}", "output": RESULT},
            {"type": "function_call_output", "call_id": f"b{turn}", "output": [text(RESULT, "input_text")]},
        ],
        [
            {"type": "custom_tool_call", "call_id": f"c{turn}", "name": "apply_patch", "input": f"*** Begin\n+{turn}\n```\n"},
            {"type": "custom_tool_call_output", "call_id": f"c{turn}", "output": "Done."},
        ],
    ]


CODEX_TOOLS = [
    {"type": "function", "name": "shell", "description": "Run it.", "strict": False, "parameters": SCHEMA},
    {"type": "namespace", "name": "mcp__files", "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}]},
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
    {"type": "web_search"},
]


def codex(items: list[Any]) -> dict[str, Any]:
    body = {"model": "m", "input": items, "tools": CODEX_TOOLS, "stream": True, "store": False, "parallel_tool_calls": True}
    return body | {"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}


def claude_turn(turn: int) -> Steps:
    """Claude Code: system messages in the middle, results as blocks."""
    before = [{"role": "assistant", "content": [text(f"Did {turn - 1}.")]}] if turn else []
    calls = [
        {"type": "tool_use", "id": f"{name}{turn}", "name": "Bash", "input": {"command": command}}
        for name, command in (("a", "ls"), ("b", 'echo "x"'))
    ]
    results = [
        {"type": "tool_result", "tool_use_id": f"a{turn}", "content": RESULT},
        {"type": "tool_result", "tool_use_id": f"b{turn}", "is_error": True, "content": [text(RESULT)]},
    ]
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    return [
        [*before, {"role": "user", "content": [text(f"<reminder>{turn}</reminder>"), text("Do it.")]}],
        [
            {"role": "assistant", "content": [thought, text("I look."), *calls]},
            {"role": "user", "content": results},
            {"role": "system", "content": [text(f"Mind {turn}.")]},
        ],
    ]


def claude_code(messages: list[Any]) -> dict[str, Any]:
    """Marks for caches move on with each request."""
    mark = {"cache_control": {"type": "ephemeral"}}
    marked = json.loads(json.dumps(messages))
    marked[-1]["content"][-1] |= mark
    tools = [{"name": name, "description": "Run it.", "input_schema": SCHEMA, "defer_loading": name == "later"} for name in ("Bash", "later")]  # fmt: skip
    system = [text("You are Claude Code.", **mark), text("Be brief.", **mark)]
    body = {"model": "m", "max_tokens": 32000, "system": system, "messages": marked, "tools": tools, "stream": True}
    return body | {"thinking": {"type": "adaptive"}, "metadata": {"user_id": "u"}}


def gemini_turn(turn: int) -> Steps:
    """gemini-cli: signatures of thoughts, calls with and without an id."""
    before = [{"role": "model", "parts": [{"text": f"Did {turn - 1}."}]}] if turn else []
    ids = {"id": f"a{turn}"} if turn % 2 else {}
    call = {"functionCall": {"name": "shell", "args": {"command": "ls"}, **ids}, "thoughtSignature": "s"}
    return [
        [*before, {"role": "user", "parts": [{"text": f"Do {turn}."}]}],
        [
            {"role": "model", "parts": [{"text": "Hm.", "thought": True}, {"text": "I look."}, call]},
            {"role": "user", "parts": [{"functionResponse": {"name": "shell", "response": {"output": RESULT}, **ids}}]},
        ],
    ]


def gemini_cli(contents: list[Any]) -> dict[str, Any]:
    tools = [{"functionDeclarations": [{"name": "shell", "description": "Run it.", "parametersJsonSchema": SCHEMA}]}]
    body = {"systemInstruction": {"parts": [{"text": "You are Gemini."}]}, "contents": contents, "tools": tools}
    return body | {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}


AGENTS: dict[str, tuple[Callable[[int], Steps], Callable[[list[Any]], dict[str, Any]], Any, str]] = {
    "codex": (codex_turn, codex, OpenAIResponses(), ""),
    "claude code": (claude_turn, claude_code, AnthropicMessages(), ""),
    "gemini-cli": (gemini_turn, gemini_cli, GenerateContent(), "/v1beta/models/m:streamGenerateContent"),
}


def prompts(agent: str, options: TextOptions) -> list[dict[str, Any]]:
    """The upstream's body for each request of a conversation, the whole history each time."""
    turn, request, frontend, path = AGENTS[agent]
    history: list[dict[str, Any]] = []
    bodies = []
    for step in (step for number in range(TURNS) for step in turn(number)):
        history += step
        decoded = frontend.decode(encode(request(history)), path)
        bodies.append(json.loads(Exchange(encode(decoded.body), options, Capabilities(), decoded.encoder).request))
    return bodies


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
