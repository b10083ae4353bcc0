"""Each protocol over each kind of upstream, whole and streamed: the same calls, text and usage."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product

import pytest

from patchbay.frontends import AnthropicMessages, GenerateContent, OpenAIResponses
from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange
from patchbay.models.exchange_driver import drive_async
from patchbay.models.options import TextOptions
from patchbay.models.wire import encode

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TEXT = "Let me look."
CALLS = [("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})]
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


class Chat:
    """Chat completions, which the others are compared with."""

    @staticmethod
    def request(case, *, stream):
        body = {"model": "m", "messages": [{"role": "user", "content": "How is it?"}], "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        if case.tools:
            body["tools"] = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
        if case.choice is not None:
            forced = {"type": "function", "function": {"name": "weather"}}
            body["tool_choice"] = {"any": "required", "tool": forced}.get(case.choice, case.choice)
        return encode(body), None

    @staticmethod
    def read_whole(answer):
        message = answer["choices"][0]["message"]
        calls = [
            (each["function"]["name"], json.loads(each["function"]["arguments"])) for each in message.get("tool_calls") or ()
        ]
        return message["content"] or "", calls, answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]

    @staticmethod
    def read_stream(events):
        text, calls, usage = "", {}, {}
        for event in events:
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                for each in choice["delta"].get("tool_calls") or ():
                    name, arguments = calls.get(each["index"], ("", ""))
                    function = each["function"]
                    calls[each["index"]] = name + (function.get("name") or ""), arguments + (function.get("arguments") or "")
        found = [(name, json.loads(arguments)) for name, arguments in calls.values()]
        return text, found, usage["prompt_tokens"], usage["completion_tokens"]


class Messages:
    @staticmethod
    def request(case, *, stream):
        body = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "How is it?"}], "stream": stream}
        if case.tools:
            body["tools"] = [{"name": "weather", "input_schema": SCHEMA}]
        if case.choice is not None:
            body["tool_choice"] = {"type": case.choice, **({"name": "weather"} if case.choice == "tool" else {})}
        decoded = AnthropicMessages().decode(encode(body), "")
        return encode(decoded.body), decoded.encoder

    @staticmethod
    def read_whole(answer):
        text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
        calls = [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]
        return text, calls, answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]

    @staticmethod
    def read_stream(events):
        blocks, usage = {}, {}
        assert ("message_start", "message_stop") == (events[0]["type"], events[-1]["type"])
        for event in events:
            if event["type"] == "content_block_start":
                assert event["index"] not in blocks
                blocks[event["index"]] = {**event["content_block"], "json": ""}
            elif event["type"] == "content_block_delta":
                block, delta = blocks[event["index"]], event["delta"]
                if delta["type"] == "text_delta":
                    block["text"] += delta["text"]
                else:
                    block["json"] += delta["partial_json"]
            elif event["type"] == "message_delta":
                usage = event["usage"]
        text = "".join(block["text"] for block in blocks.values() if block["type"] == "text")
        calls = [(block["name"], json.loads(block["json"])) for block in blocks.values() if block["type"] == "tool_use"]
        return text, calls, usage["input_tokens"], usage["output_tokens"]


class Responses:
    @staticmethod
    def request(case, *, stream):
        body = {"model": "m", "input": "How is it?", "stream": stream}
        if case.tools:
            body["tools"] = [{"type": "function", "name": "weather", "parameters": SCHEMA}]
        if case.choice is not None:
            forced = {"type": "function", "name": "weather"}
            body["tool_choice"] = {"any": "required", "tool": forced}.get(case.choice, case.choice)
        decoded = OpenAIResponses().decode(encode(body), "")
        return encode(decoded.body), decoded.encoder

    @staticmethod
    def read_whole(answer):
        items = answer["output"]
        assert len(items) == len({item["id"] for item in items})
        text = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
        calls = [(item["name"], json.loads(item["arguments"])) for item in items if item["type"] == "function_call"]
        return text, calls, answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]

    @classmethod
    def read_stream(cls, events):
        assert list(range(len(events))) == [event["sequence_number"] for event in events]
        assert ("response.created", "response.completed") == (events[0]["type"], events[-1]["type"])
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == events[-1]["response"]["output"]
        deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        found = cls.read_whole(events[-1]["response"])
        assert found[0] == deltas
        return found


class Gemini:
    @staticmethod
    def request(case, *, stream):
        body = {"contents": [{"role": "user", "parts": [{"text": "How is it?"}]}]}
        if case.tools:
            body["tools"] = [{"functionDeclarations": [{"name": "weather", "parametersJsonSchema": SCHEMA}]}]
        if case.choice is not None:
            calling = {"mode": "NONE" if case.choice == "none" else "ANY"}
            if case.choice == "tool":
                calling["allowedFunctionNames"] = ["weather"]
            body["toolConfig"] = {"functionCallingConfig": calling}
        path = f"/v1beta/models/m:{'streamGenerateContent' if stream else 'generateContent'}"
        decoded = GenerateContent().decode(encode(body), path)
        return encode(decoded.body), decoded.encoder

    @classmethod
    def read_whole(cls, answer):
        return cls.read_stream([answer])

    @staticmethod
    def read_stream(events):
        parts = [part for event in events for part in event["candidates"][0]["content"]["parts"]]
        text = "".join(part.get("text", "") for part in parts)
        calls = [(part["functionCall"]["name"], part["functionCall"]["args"]) for part in parts if "functionCall" in part]
        usage = events[-1]["usageMetadata"]
        return text, calls, usage["promptTokenCount"], usage["candidatesTokenCount"]


@dataclass(frozen=True)
class Case:
    """What is asked for, and what the model answers."""

    name: str
    tools: bool = True
    choice: str | None = None
    text: str = TEXT
    calls: int = 0


CASES = [
    Case("no tools", tools=False),
    Case("no call"),
    Case("one call", calls=1),
    Case("two calls", calls=2),
    Case("forced", choice="tool", calls=1),
    Case("any", choice="any", calls=1),
    Case("none", choice="none"),
]
PROTOCOLS = {"chat": Chat, "messages": Messages, "responses": Responses, "gemini": Gemini}


class Server:
    """An upstream that answers one case, native or in text."""

    def __init__(self, case, *, native, stream, cut=None) -> None:
        written = CALLS[: case.calls]
        calls = [
            {"index": at, "id": f"c{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for at, (name, arguments) in enumerate(written)
        ]
        text = case.text
        if not native:
            blocks = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in written]
            text += "".join(f"\n\n```tool_call\n{block}\n```" for block in blocks)
            calls = []
        reason = "tool_calls" if calls else "stop"
        self._whole = None
        if not stream:
            message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
            choice = {"index": 0, "message": message, "finish_reason": reason}
            self._whole = encode({"id": "x", "created": 1, "model": "m", "choices": [choice], "usage": USAGE})
            return
        deltas = [{"content": text[at : at + 5]} for at in range(0, len(text), 5)] + [{"tool_calls": [call]} for call in calls]
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        chunks.append({"choices": [], "usage": USAGE})
        events = [b"data: " + encode({"id": "x", "created": 1, "model": "m", **chunk}) + b"\n\n" for chunk in chunks]
        data = b"".join([*events, b"data: [DONE]\n\n"])
        self._pieces = [events[0], data[len(events[0]) :]] if cut is None else [data[:cut], data[cut:]]

    async def send(self, _body):
        return self._whole

    async def read(self):
        return self._pieces.pop(0) if self._pieces else b""

    async def close(self):
        """Close nothing."""


async def answer(protocol, case, *, native, stream, cut=None):
    body, encoder = protocol.request(case, stream=stream)
    options = TextOptions(tools="native" if native else "text")
    exchange = Exchange(body, options, Capabilities(), encoder)
    assert not (exchange.transparent and encoder is not None)
    # Without tools a chat passes as it is.
    out = b"".join([piece async for piece in drive_async(exchange, Server(case, native=native, stream=stream, cut=cut))])
    if not stream:
        return protocol.read_whole(json.loads(out))
    lines = [line[6:] for line in out.split(b"\n") if line.startswith(b"data: ") and line != b"data: [DONE]"]
    return protocol.read_stream([json.loads(line) for line in lines])


@pytest.mark.parametrize(("native", "stream"), list(product([False, True], repeat=2)))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", PROTOCOLS)
async def test_the_same_answer_in_every_protocol(name, case, native, stream):
    text, calls, prompt, completion = await answer(PROTOCOLS[name], case, native=native, stream=stream)
    assert (case.text, CALLS[: case.calls], 11, 7) == (text.strip(), calls, prompt, completion)


@pytest.mark.parametrize("name", ["messages", "responses", "gemini"])
async def test_stream_split_anywhere_gives_the_same_answer(name):
    case = Case("two calls", calls=2)
    whole = await answer(PROTOCOLS[name], case, native=False, stream=True)
    for cut in range(1, 1500, 7):
        assert whole == await answer(PROTOCOLS[name], case, native=False, stream=True, cut=cut)
