"""Fakes of the providers' chat-completions endpoints: each refuses what the real one does, with the words of the real one.

Requests are read by the ``openai`` SDK's own types of a request, and what a fake answers by its types of an answer: a fake that
speaks another wire than the SDK would be found out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pydantic
from openai.types.chat import ChatCompletion, ChatCompletionChunk, completion_create_params

from patchbay.testing import Message, Raw, Script, ScriptedUpstream
from patchbay.testing.script import error, events

_STREAMED = pydantic.TypeAdapter(completion_create_params.CompletionCreateParamsStreaming)
_WHOLE = pydantic.TypeAdapter(completion_create_params.CompletionCreateParamsNonStreaming)
_REASONING = {"reasoning_content", "reasoning", "reasoning_details"}

Body = dict[str, Any]


class RefusedError(Exception):
    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def well_formed(body: Body) -> None:
    """What every one of them asks: OpenAI's types, names that are allowed, each call with its one result behind it."""
    (_STREAMED if body.get("stream") else _WHOLE).validate_python(body)
    for tool in body.get("tools", ()):
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool["function"]["name"]):
            raise RefusedError(f"Invalid 'tools[0].function.name': {tool['function']['name']!r}")
    waiting: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                raise RefusedError("messages with role 'tool' must be a response to a preceding message with 'tool_calls'")
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            raise RefusedError(f"tool_call_ids did not have response messages: {waiting}")
        waiting = [call["id"] for call in message.get("tool_calls", ())]


def openai_rules(body: Body) -> None:
    if "max_tokens" in body and body["model"].startswith(("o", "gpt-5")):
        raise RefusedError(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
    for index, message in enumerate(body["messages"]):
        for holder in (message, *message.get("tool_calls", ())):
            if unknown := (_REASONING | {"extra_content"}) & holder.keys():
                raise RefusedError(
                    f"Additional properties are not allowed ({unknown.pop()!r} was unexpected) - 'messages.{index}'"
                )


def glm_rules(body: Body) -> None:
    if any(message["role"] == "developer" for message in body["messages"]):
        raise RefusedError("messages 参数非法。请检查文档。")
    if body.get("tool_choice") not in (None, "auto"):
        raise RefusedError("tool_choice 参数非法：仅支持 auto")
    if "max_completion_tokens" in body:
        raise RefusedError("max_completion_tokens 参数非法")


def qwen_rules(body: Body) -> None:
    thinks = bool(body.get("enable_thinking")) or "thinking" in body["model"]
    if thinks and not body.get("stream"):
        raise RefusedError("parameter.enable_thinking must be set to false for non-streaming calls")
    if thinks and body.get("tool_choice") not in (None, "auto", "none"):
        raise RefusedError("The tool_choice parameter does not support being set to required or object in thinking mode")
    for message in body["messages"]:
        if message["role"] == "developer":
            raise RefusedError("developer is not one of ['system', 'assistant', 'user', 'tool', 'function']")
        if message.get("content") is None:
            raise RefusedError("The content field is a required field.")


def stepfun_rules(body: Body) -> None:
    if any(message["role"] == "developer" for message in body["messages"]):
        raise RefusedError("messages.role: unknown role developer")
    for tool in body.get("tools", ()):
        if not re.match(r"[a-zA-Z_]", tool["function"]["name"]):
            raise RefusedError("tools.function.name must match ^[a-zA-Z_][a-zA-Z0-9-_]{0,63}$")


def wants_reasoning(field: str) -> Callable[[Body], None]:
    """A server that refuses the calls of this turn without the reasoning that led to them."""

    def rules(body: Body) -> None:
        users = [index for index, message in enumerate(body["messages"]) if message["role"] == "user"]
        for index, message in enumerate(body["messages"]):
            if message.get("tool_calls") and index > users[-1] and not message.get(field):
                raise RefusedError(f"thinking is enabled but {field} is missing in assistant tool call message at index {index}")
            if index < users[-1] and _REASONING & message.keys():
                raise RefusedError("reasoning of an earlier turn was sent")

    return rules


def wants_signatures(body: Body) -> None:
    """Gemini behind OpenAI's API."""
    for message in body["messages"]:
        for call in message.get("tool_calls", ())[:1]:
            if not call.get("extra_content", {}).get("google", {}).get("thought_signature"):
                raise RefusedError("Function call is missing a thought_signature in functionCall parts.")


def refuses_reasoning(body: Body) -> None:
    """A strict server that gives reasoning and will not have it back."""
    for index, message in enumerate(body["messages"]):
        if "reasoning_content" in message:
            raise RefusedError(f"'messages.{index}' : property 'reasoning_content' is unsupported")


class ChatServer(ScriptedUpstream):
    """A ScriptedUpstream with rules, each a function of the body that raises RefusedError.

    ``strays``: its answers are not to be held against the SDK's types, because the real one's are other than those.
    """

    def __init__(self, script: Script, *rules: Callable[[Body], None], strays: bool = False, **options: Any) -> None:
        super().__init__(script, **options)
        self._strays = strays
        self._rules = (well_formed, *rules)

    @property
    def bodies(self) -> list[Body]:
        return [request.json for request in self.requests if request.path.endswith("/chat/completions")]

    def _chat(self, request: Any) -> Raw:
        try:
            for rule in self._rules:
                rule(request.json)
        except RefusedError as refusal:
            return error(refusal.status, str(refusal), kind="invalid_request_error")
        raw = super()._chat(request)
        if raw.status == 200 and not self._strays:
            raw = Raw(list(raw.chunks), raw.status, raw.content_type, raw.headers, raw.end, raw.gap)
            _check_answer(b"".join(raw.chunks), streamed=bool(request.json.get("stream")))
        return raw


def _check_answer(data: bytes, *, streamed: bool) -> None:
    if not streamed:
        ChatCompletion.model_validate_json(data)
        return
    for event in data.split(b"\n\n"):
        if event.startswith(b"data: {"):
            ChatCompletionChunk.model_validate_json(event[6:])


def calls(*named: tuple[str, str], finish: str = "tool_calls", **message: Any) -> Message:
    """An answer that calls tools: (name, arguments as JSON)."""
    written = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(named)
    ]
    return Message({"role": "assistant", "content": None, "tool_calls": written, **message}, finish_reason=finish)


__all__ = ["ChatServer", "RefusedError", "calls", "error", "events"]
