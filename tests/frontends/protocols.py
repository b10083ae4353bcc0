"""Each protocol as a client: a request for the tool ``weather``, and what a client reads of the answer, whole or streamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from patchbay.errors import PatchbayError
from patchbay.frontends import AnthropicMessages, GenerateContent, OpenAIResponses
from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange
from patchbay.models.exchange_driver import drive_async
from patchbay.models.options import TextOptions
from patchbay.models.wire import encode

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


@dataclass(frozen=True)
class Read:
    """What a client reads. ``finish``: "calls", "stop", "length" or "error"; ``ids`` are those of the calls."""

    text: str
    calls: list[tuple[str, Any]]
    finish: str
    usage: tuple[int, int] = (0, 0)
    ids: tuple[str, ...] = ()


class Chat:
    """Chat completions, which the others are compared with."""

    finishes: ClassVar = {"tool_calls": "calls", "stop": "stop", "length": "length"}

    @staticmethod
    def request(*, stream: bool, tools: bool = True, choice: str | None = None) -> tuple[bytes, Any]:
        body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "How is it?"}], "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        if tools:
            body["tools"] = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
        if choice is not None:
            forced = {"type": "function", "function": {"name": "weather"}}
            body["tool_choice"] = {"any": "required", "tool": forced}.get(choice, choice)
        return encode(body), None

    @classmethod
    def read_whole(cls, answer: Any) -> Read:
        choice, usage = answer["choices"][0], answer.get("usage") or {}
        given = choice["message"].get("tool_calls") or []
        if choice["finish_reason"] == "length":  # OpenAI gives the beginning of a call too: no client runs it
            given = [each for each in given if is_json(each["function"]["arguments"])]
        calls = [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in given]
        counts = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        ids = tuple(each["id"] for each in given)
        return Read(choice["message"]["content"] or "", calls, cls.finishes[choice["finish_reason"]], counts, ids)

    @classmethod
    def read_stream(cls, events: Sequence[Any]) -> Read:
        """As the ``openai`` package does: texts of a call are joined."""
        message: dict[str, Any] = {"content": "", "tool_calls": {}}
        reason, usage = "", {}
        for event in events:
            if "error" in event:
                return Read(message["content"], [], "error")
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                message["content"] += choice["delta"].get("content") or ""
                reason = choice.get("finish_reason") or reason
                for each in choice["delta"].get("tool_calls") or ():
                    call = message["tool_calls"].setdefault(each["index"], {"id": "", "function": {"name": "", "arguments": ""}})
                    call["id"] += each.get("id") or ""
                    for name in ("name", "arguments"):
                        call["function"][name] += each["function"].get(name) or ""
        message["tool_calls"] = list(message["tool_calls"].values())
        return cls.read_whole({"choices": [{"message": message, "finish_reason": reason}], "usage": usage})


class Messages:
    finishes: ClassVar = {"tool_use": "calls", "end_turn": "stop", "max_tokens": "length"}

    @staticmethod
    def request(*, stream: bool, tools: bool = True, choice: str | None = None) -> tuple[bytes, Any]:
        body: dict[str, Any] = {
            "model": "m",
            "max_tokens": 99,
            "messages": [{"role": "user", "content": "How is it?"}],
            "stream": stream,
        }
        if tools:
            body["tools"] = [{"name": "weather", "input_schema": SCHEMA}]
        if choice is not None:
            body["tool_choice"] = {"type": choice, **({"name": "weather"} if choice == "tool" else {})}
        decoded = AnthropicMessages().decode(encode(body), "")
        return encode(decoded.body), decoded.encoder

    @classmethod
    def read_whole(cls, answer: Any) -> Read:
        text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
        given = [block for block in answer["content"] if block["type"] == "tool_use"]
        counts = answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]
        calls = [(block["name"], block["input"]) for block in given]
        return Read(text, calls, cls.finishes[answer["stop_reason"]], counts, tuple(block["id"] for block in given))

    @classmethod
    def read_stream(cls, events: Sequence[Any]) -> Read:
        blocks: dict[int, Any] = {}
        message: dict[str, Any] = {}
        for event in events:
            if event["type"] == "error":
                return Read("".join(block.get("text", "") for block in blocks.values()), [], "error")
            if event["type"] == "content_block_start":
                assert event["index"] == len(blocks)
                blocks[event["index"]] = {**event["content_block"], "json": ""}
            elif event["type"] == "content_block_delta":
                block, delta = blocks[event["index"]], event["delta"]
                if delta["type"] == "text_delta":
                    block["text"] += delta["text"]
                else:
                    block["json"] += delta["partial_json"]
            elif event["type"] == "message_delta":
                message = {"stop_reason": event["delta"]["stop_reason"], "usage": event["usage"]}
        assert ("message_start", "message_stop") == (events[0]["type"], events[-1]["type"])
        for block in blocks.values():
            if block["type"] == "tool_use":
                block["input"] = json.loads(block["json"])
        return cls.read_whole({**message, "content": list(blocks.values())})


class Responses:
    @staticmethod
    def request(*, stream: bool, tools: bool = True, choice: str | None = None) -> tuple[bytes, Any]:
        body: dict[str, Any] = {"model": "m", "input": "How is it?", "stream": stream}
        if tools:
            body["tools"] = [{"type": "function", "name": "weather", "parameters": SCHEMA}]
        if choice is not None:
            forced = {"type": "function", "name": "weather"}
            body["tool_choice"] = {"any": "required", "tool": forced}.get(choice, choice)
        decoded = OpenAIResponses().decode(encode(body), "")
        return encode(decoded.body), decoded.encoder

    @staticmethod
    def read_whole(answer: Any) -> Read:
        items = answer["output"]
        assert len(items) == len({item["id"] for item in items})
        text = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
        given = [item for item in items if item["type"] == "function_call" and item["status"] == "completed"]
        calls = [(item["name"], json.loads(item["arguments"])) for item in given]
        finish = {"incomplete": "length", "completed": "calls" if calls else "stop"}[answer["status"]]
        counts = answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]
        return Read(text, calls, finish, counts, tuple(item["call_id"] for item in given))

    @classmethod
    def read_stream(cls, events: Sequence[Any]) -> Read:
        assert list(range(len(events))) == [event["sequence_number"] for event in events]
        assert "response.created" == events[0]["type"]
        deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        last = events[-1]
        if last["type"] == "response.failed":
            return Read(deltas, [], "error")
        assert last["type"] in ("response.completed", "response.incomplete")
        done = {event["output_index"]: event["item"] for event in events if event["type"] == "response.output_item.done"}
        assert [done[index] for index in sorted(done)] == last["response"]["output"]
        found = cls.read_whole(last["response"])
        assert found.text == deltas
        return found


class Gemini:
    finishes: ClassVar = {"STOP": "stop", "MAX_TOKENS": "length"}

    @staticmethod
    def request(*, stream: bool, tools: bool = True, choice: str | None = None) -> tuple[bytes, Any]:
        body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "How is it?"}]}]}
        if tools:
            body["tools"] = [{"functionDeclarations": [{"name": "weather", "parametersJsonSchema": SCHEMA}]}]
        if choice is not None:
            calling: dict[str, Any] = {"mode": "NONE" if choice == "none" else "ANY"}
            if choice == "tool":
                calling["allowedFunctionNames"] = ["weather"]
            body["toolConfig"] = {"functionCallingConfig": calling}
        path = f"/v1beta/models/m:{'streamGenerateContent' if stream else 'generateContent'}"
        decoded = GenerateContent().decode(encode(body), path)
        return encode(decoded.body), decoded.encoder

    @classmethod
    def read_whole(cls, answer: Any) -> Read:
        return cls.read_stream([answer])

    @classmethod
    def read_stream(cls, events: Sequence[Any]) -> Read:
        parts = [part for event in events if "error" not in event for part in event["candidates"][0]["content"]["parts"]]
        text = "".join(part.get("text", "") for part in parts)
        if "error" in events[-1]:
            return Read(text, [], "error")
        given = [part["functionCall"] for part in parts if "functionCall" in part]
        calls = [(call["name"], call["args"]) for call in given]
        finish = cls.finishes[events[-1]["candidates"][0]["finishReason"]]
        usage = events[-1]["usageMetadata"]
        counts = usage["promptTokenCount"], usage["candidatesTokenCount"]
        return Read(text, calls, "calls" if calls and finish == "stop" else finish, counts, tuple(call["id"] for call in given))


PROTOCOLS: dict[str, Any] = {"chat": Chat, "messages": Messages, "responses": Responses, "gemini": Gemini}


def is_json(text: str) -> bool:
    """Whether a text is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Written:
    """One answer of the upstream. ``calls`` are the elements of its ``tool_calls``.

    ``deltas`` are the same as the deltas of a stream; without them each call is one delta.
    """

    text: str = ""
    calls: Sequence[Any] = ()
    finish: str = ""
    deltas: Sequence[Sequence[Any]] | None = None

    def whole(self) -> bytes:
        """As one document."""
        message = {"role": "assistant", "content": self.text, **({"tool_calls": list(self.calls)} if self.calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return encode({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE})

    def stream(self) -> bytes:
        """As events."""
        calls = self.deltas
        if calls is None:
            calls = [[{"index": index, **call}] for index, call in enumerate(self.calls)]
        deltas: list[dict[str, Any]] = [{"content": self.text[at : at + 5]} for at in range(0, len(self.text), 5)]
        deltas += [{"tool_calls": list(each)} for each in calls]
        chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": self._finish}]})
        chunks.append({"choices": [], "usage": USAGE})
        events = [b"data: " + encode({"id": "x", "created": 1, "model": "m", **chunk}) + b"\n\n" for chunk in chunks]
        return b"".join([*events, b"data: [DONE]\n\n"])

    @property
    def _finish(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")


class Server:
    """An upstream with scripted answers, the last of them for all further requests. ``asked`` are the bodies of its requests.

    ``cut``: the position at which a stream arrives in two pieces.
    """

    def __init__(self, answers: Sequence[Written | bytes], *, stream: bool, cut: int | None = None) -> None:
        self.asked: list[Any] = []
        self._answers = list(answers)
        self._stream = stream
        self._cut = cut
        self._pieces: list[bytes] = []

    async def describe(self) -> None:
        """See AsyncUpstream."""

    async def send(self, body: bytes) -> bytes | None:
        """See AsyncUpstream."""
        self.asked.append(json.loads(body))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if not self._stream and isinstance(answer, Written):
            return answer.whole()
        data = answer if isinstance(answer, bytes) else answer.stream()
        cut = data.find(b"\n\n") + 2 if self._cut is None else self._cut
        self._pieces = [piece for piece in (data[:cut], data[cut:]) if piece]
        return None

    async def read(self) -> bytes:
        """See AsyncUpstream."""
        return self._pieces.pop(0) if self._pieces else b""

    async def close(self) -> None:
        """See AsyncUpstream."""


async def ask(name: str, server: Server, *, stream: bool, native: bool, collected: bool = False, **request: Any) -> Read:
    """Return what a client of a protocol reads from this server, which also is what the server sends: whole, or a stream.

    ``collected``: the server is known to stream, so whole answers come as streams, too.
    """
    protocol = PROTOCOLS[name]
    body, encoder = protocol.request(stream=stream, **request)
    memory = Capabilities()
    memory.of("m").streams_usage = collected
    exchange: Exchange[bytes] = Exchange(body, TextOptions(tools="native" if native else "text"), memory, encoder)
    out = b""
    try:
        async for piece in drive_async(exchange, server):
            out += piece
    except PatchbayError as error:
        if not (stream and out):
            return Read("", [], "error")
        out += exchange.error_event(error)
    if not stream:
        return protocol.read_whole(json.loads(out))
    lines = [
        line.removeprefix(b"data: ")
        for line in out.split(b"\n")
        if line.startswith((b"data: ", b"{")) and line != b"data: [DONE]"
    ]
    return protocol.read_stream([json.loads(line) for line in lines])
