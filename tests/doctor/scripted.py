"""Model servers with the habits of real ones, as data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patchbay.testing import Message, Raw, ScriptedUpstream
from patchbay.testing.script import error, on_the_wire
from patchbay.testing.upstream import Recorded

MODEL = "tiny-model"
ARGUMENTS = '{"city": "Paris"}'
TEXTS = {
    "fenced": f'```tool_call\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n```',
    "hermes": f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
    "none": "It is sunny.",
}
TOKEN = 4
"""Characters of a token."""


@dataclass(frozen=True)
class Habits:
    """How a server behaves. ``text``: the format of calls of tools in the prompt; ``context``: tokens, and what it does above."""

    tools: str = "native"
    choice: bool = True
    parallel: bool = True
    text: str = "fenced"
    schema: str = "honoured"
    grammar: bool = False
    tags: bool = False
    refused_roles: tuple[str, ...] = ()
    context: int = 0
    cuts: bool = True
    thinks: bool = False
    cached: bool = True
    counts: bool = True
    key: str = ""
    fails: str = ""
    base: str = "/v1"
    owner: str = "someone"
    rows: tuple[Mapping[str, Any], ...] = ({"id": MODEL},)


class HabitualServer(ScriptedUpstream):
    """A server with habits; ``url`` ends with ``/v1``."""

    def __init__(self, habits: Habits) -> None:
        super().__init__([])
        self._habits = habits
        self._prompts: set[str] = set()

    def _answer(self, request: Recorded) -> Raw:
        habits = self._habits
        if habits.key and request.headers.get("authorization") != f"Bearer {habits.key}":
            return error(401, f"Incorrect API key provided: {request.headers.get('authorization')}")
        if request.path == f"{habits.base}/models":
            return _json({"object": "list", "data": [{"owned_by": habits.owner, **row} for row in habits.rows]})
        if request.path == "/props" and habits.owner == "llamacpp":
            return _json(
                {
                    "default_generation_settings": {"n_ctx": habits.context or 8192},
                    "chat_template_caps": {"supports_tools": habits.tools == "native"},
                    "build_info": "b11549",
                }
            )
        if request.path == f"{habits.base}/chat/completions":
            return self._complete(request.json)
        return error(404, "Not Found")

    def _complete(self, body: dict[str, Any]) -> Raw:
        habits = self._habits
        refusal = self._refusal(body)
        if refusal:
            return error(400, refusal)
        prompt = "".join(str(message.get("content")) for message in body["messages"])
        kept = habits.context * TOKEN if habits.context else len(prompt)
        if len(prompt) > kept and not habits.cuts:
            return error(400, f"the request exceeds the available context size ({habits.context} tokens)")
        message = self._message(body, prompt[-kept:])
        if body.get("stream"):
            return on_the_wire(Message(message), body, model=MODEL)
        tools = json.dumps(body.get("tools")) if habits.tools == "native" and body.get("tools") else ""
        tokens = (min(len(prompt), kept) + len(tools)) // TOKEN
        usage: dict[str, Any] = {"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5}
        if habits.cached and prompt in self._prompts:
            usage["prompt_tokens_details"] = {"cached_tokens": tokens - 1}
        self._prompts.add(prompt)
        finish = "stop"
        if habits.thinks and "content" in message:
            message, finish = {"reasoning_content": "Let me see."}, "length"
        choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
        document = {"id": "c", "object": "chat.completion", "created": 7, "model": MODEL, "choices": [choice]}
        return _json(document | ({"usage": usage} if habits.counts else {}))

    def _refusal(self, body: Mapping[str, Any]) -> str:
        habits = self._habits
        roles = {message["role"] for message in body["messages"]}
        if habits.fails:
            return habits.fails
        if refused := roles.intersection(habits.refused_roles):
            return f"Unsupported role: '{min(refused)}' role is not supported"
        if body.get("tools") and habits.tools == "refuse":
            return f"{MODEL} does not support tools"
        if "tool_choice" in body and not habits.choice:
            return "tool_choice is not supported"
        if "parallel_tool_calls" in body and not habits.parallel:
            return "parallel_tool_calls is not supported"
        wanted = body.get("response_format", {}).get("type")
        if wanted == "json_schema" and habits.schema == "refused":
            return "response_format json_schema is not supported"
        return "response_format structural_tag is unknown" if wanted == "structural_tag" and not habits.tags else ""

    def _message(self, body: Mapping[str, Any], prompt: str) -> dict[str, Any]:
        habits = self._habits
        wanted = body.get("response_format", {}).get("type")
        fields = {"llamacpp": "grammar", "sglang": "ebnf"}
        grammar = body.get(fields.get(habits.owner, ""), "") or body.get("structured_outputs", {}).get("grammar", "")
        if habits.grammar and grammar:
            return {"content": "patchbay-42" if "patchbay-" in grammar else TEXTS["fenced"]}
        if wanted == "json_schema" and habits.schema == "honoured":
            schema = body["response_format"]["json_schema"]["schema"]
            return {
                "content": json.dumps({name: each["enum"][0] for name, each in schema["properties"].items() if "enum" in each})
            }
        if wanted == "structural_tag":
            return {"content": '<patchbay>{"city": "Paris"}</patchbay>'}
        if body.get("tools") and habits.tools == "native":
            function = {"name": "get_weather", "arguments": ARGUMENTS}
            calls = [{"id": f"call_{n}", "type": "function", "function": function} for n in (1, 2)]
            is_one = body.get("parallel_tool_calls") is not False or habits.parallel
            return {"tool_calls": calls[:1] if is_one else calls}
        if "code is" in prompt:
            return {"content": " ".join(re.findall(r"code is (\w+-\d+)", prompt))}
        return {"content": TEXTS[habits.text] if "get_weather" in prompt else "Hello there."}


def _json(value: Any) -> Raw:
    return Raw([json.dumps(value).encode()], content_type="application/json")
