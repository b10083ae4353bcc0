"""A tool server before a scripted upstream, both on real sockets, and the real ``openai`` client before it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai

from patchbay.models.options import TextOptions
from patchbay.server.app import create_tools_app
from patchbay.server.governance import Governance
from patchbay.server.settings import ChatSettings, ProxySettings, ToolsSettings
from patchbay.testing import Message, Raw, ScriptedUpstream
from tools_server.rig import BOUND, Callback, Script, Server, calling_back, json_response, serving

MODEL = "some-model"
USER = {"role": "user", "content": "How is Rome?"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
THEIRS = {
    "type": "function",
    "function": {"name": "open_door", "description": "Open it.", "parameters": PARAMETERS, "strict": False, "x-more": [1]},
}


PROTOCOLS = ("chat", "messages", "responses", "gemini")


def request_of(protocol: str, *, model: str = MODEL, stream: bool = False, tool: str = "") -> tuple[str, dict[str, Any]]:
    """Path and body of the same question in each protocol, with a tool of the client's own if it is named."""
    if protocol == "gemini":
        body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": USER["content"]}]}]}
        tools: Any = [{"functionDeclarations": [{"name": tool, "parametersJsonSchema": PARAMETERS}]}]
        path = f"/v1beta/models/{model}:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}"
    else:
        path, fields, one = {
            "chat": ("/v1/chat/completions", {"messages": [USER]}, {"function": {"name": tool, "parameters": PARAMETERS}}),
            "messages": ("/v1/messages", {"max_tokens": 99, "messages": [USER]}, {"name": tool, "input_schema": PARAMETERS}),
            "responses": ("/v1/responses", {"input": [USER]}, {"name": tool, "parameters": PARAMETERS}),
        }[protocol]
        tools = [one if protocol == "messages" else {"type": "function", **one}]
        body = {"model": model, **fields, **({"stream": True} if stream else {})}
    return path, {**body, "tools": tools} if tool else body


SUNNY = json_response({"output": {"sky": "clear"}, "is_error": False})


@dataclass
class Outcome:
    """What a client sees of a turn, whole or as a stream."""

    text: str | None
    finish: str
    report: Any


@dataclass
class ChatServer:
    """A running chat server and its scripted upstream; ``callback`` is that of the tool ``weather`` (``serve_weather``)."""

    server: Server
    upstream: ScriptedUpstream
    callback: Callback = None  # type: ignore[assignment]

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/v1"

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**{"base_url": self.base, "api_key": "client-key", "max_retries": 0, "timeout": BOUND, **options})

    def ask(self, **fields: Any) -> Any:
        """The answer to a request, as the SDK reads it."""
        with self.client() as client:
            return client.chat.completions.create(**{"model": MODEL, "messages": [USER], **fields})

    def stream(self, **fields: Any) -> list[Any]:
        """The chunks of a streamed answer."""
        with self.client() as client:
            return list(client.chat.completions.create(**{"model": MODEL, "messages": [USER], "stream": True, **fields}))

    def outcome(self, *, streamed: bool, **fields: Any) -> Outcome:
        """What a request ends in, whole or as a stream."""
        if streamed:
            chunks = self.stream(**fields)
            return Outcome(text_of(chunks), finish_of(chunks), report_of(chunks))
        answer = self.ask(**fields)
        (choice,) = answer.choices
        return Outcome(choice.message.content, choice.finish_reason, answer.model_extra["patchbay"])

    def post(self, body: Any = None, **headers: str) -> Any:
        """The answer to a request as it comes over the wire."""
        body = {"model": MODEL, "messages": [USER]} if body is None else body
        return self.server.ask("POST", "/v1/chat/completions", body, **headers)

    @property
    def asked(self) -> list[Any]:
        """The bodies that reached the upstream."""
        return [request.json for request in self.upstream.chats]


@contextlib.contextmanager
def serve_chat(
    script: Any,
    *,
    roles: tuple[str, ...] = ("ann", "ben"),
    refuses: bool = False,
    tools: Any = "native",
    proxy: dict[str, Any] | None = None,
    chat: dict[str, Any] | None = None,
    governance: Governance | None = None,
    store: str | None = None,
    **settings: Any,
) -> Iterator[ChatServer]:
    """Run a chat server. ``tools`` is the tool mode; with ``refuses`` the upstream rejects tools."""
    with ScriptedUpstream(script, tools="refuse" if refuses else "ignore") as upstream:
        app = create_tools_app(
            roles,
            settings=ToolsSettings(**{"lease": 0.0, **settings}),
            upstream=ProxySettings(upstream.url, **(proxy or {})),
            chat=ChatSettings(TextOptions(tools=tools), **(chat or {})),
            governance=governance,
            store=store,
        )
        with serving(app=app) as server:
            yield ChatServer(server, upstream)


@contextlib.contextmanager
def serve_weather(script: Any, *, answers: Script = SUNNY, **options: Any) -> Iterator[ChatServer]:
    """Run a chat server with the registered tool ``weather``, whose callback answers like this."""
    with calling_back(answers) as callback, serve_chat(script, **options) as at:
        at.callback = callback
        at.server.register("weather", callback.url)
        yield at


def call(name: str, arguments: str = "{}", id: str = "call_1") -> dict[str, Any]:  # noqa: A002 - OpenAI's name
    """A native call of the model's."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*made: dict[str, Any], content: str | None = None, **fields: Any) -> Message:
    """An answer of the model that calls tools."""
    return Message({"content": content, "tool_calls": list(made), **fields}, finish_reason="tool_calls")


def whole(message: dict[str, Any], reason: str = "stop", **fields: Any) -> Raw:
    """An answer of the model as one document, whatever was asked for."""
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": reason}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **fields}
    return Raw([json.dumps(answer).encode()], content_type="application/json")


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def calls_of(chunks: list[Any]) -> list[tuple[str, str, str]]:
    """Id, name and arguments of each call in a stream."""
    found: dict[int, list[str]] = {}
    for chunk in chunks:
        for each in (chunk.choices[0].delta.tool_calls or ()) if chunk.choices else ():
            one = found.setdefault(each.index, ["", "", ""])
            one[0] += each.id or ""
            one[1] += each.function.name or ""
            one[2] += each.function.arguments or ""
    return [(id_, name, arguments) for id_, name, arguments in found.values()]


def finish_of(chunks: list[Any]) -> str:
    (reason,) = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    return str(reason)


def report_of(chunks: list[Any]) -> Any:
    (report,) = [found for chunk in chunks if (found := (chunk.model_extra or {}).get("patchbay")) is not None]
    return report


def assert_answered_once(messages: list[dict[str, Any]]) -> None:
    """Law 1: behind each message with calls stand their results, one each, in call order."""
    expected: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert expected, message
            assert expected.pop(0) == message["tool_call_id"]
            continue
        assert [] == expected
        expected = [each["id"] for each in message.get("tool_calls") or ()]
    assert [] == expected
