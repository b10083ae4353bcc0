"""What the proxy answers and sends upstream, byte for byte: ``create_app`` in this process before a scripted upstream on loopback.

``proxy/answers.txt`` shows scenarios whole; ``proxy/texts.txt`` has digests for the golden text of each format, streamed and not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from patchbay.proxy import create_app
from patchbay.testing import Message, Raw, ScriptedUpstream, Text, events, pieces
from patchbay.testing import Recorded as Request

from . import ROOT, Names, Recorded
from .texts import as_tool, digest

MODES = ("native", "text", "auto")
WEATHER = as_tool(
    "get_weather", {"description": "Say how the weather is.", "properties": {"city": {"type": "string"}}, "required": ["city"]}
)
CLOCK = as_tool("clock", {"description": "Say how late it is."})
QUESTION: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it warm in Rome?"}]
FENCED = 'I look.\n\n```tool_call\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n```'
HERMES = '<think>Rome, then.</think>Fine.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
UNKNOWN = '```tool_call\n{"name": "no_such_tool", "arguments": {}}\n```'
TWO = FENCED + '\n\n```tool_call\n{"name": "clock", "arguments": {}}\n```\nDone.'
NATIVE_CALLS = [
    {"id": "n1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}},
    {"id": "n2", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
]
HISTORY: list[dict[str, Any]] = [
    *QUESTION,
    {"role": "assistant", "content": "One moment.", "tool_calls": NATIVE_CALLS},
    {"role": "tool", "tool_call_id": "n2", "content": "noon"},
    {"role": "tool", "tool_call_id": "n1", "content": '```tool_call\n{"name": "clock", "arguments": {}}\n```'},
    {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
]


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}  # fmt: skip


ENVELOPE = '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'

RECORDED = events(
    chunk({"role": "assistant", "content": ""}), chunk({"reasoning_content": "Rome."}), chunk({"content": "Let "}), chunk({"content": "me."}),
    chunk({"tool_calls": [{"index": 0, "id": "n1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"Rome"}'}}]}),
    chunk({}, "tool_calls"),
    {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
     "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}},
)  # fmt: skip
"""A stream as OpenAI sends it."""

ODD = RECORDED.replace(b"\n\n", b"\r\n\r\n").replace(b"data: {", b": a comment\r\ndata: {", 2)
BROKEN = events(chunk({"role": "assistant", "content": "Half"}), done=False)
NAMELESS = events(chunk({"content": HERMES[:50]}), chunk({"content": HERMES[50:]}), chunk({}, "stop"))

# By name: what the upstream answers, in order, and what the request has besides.
SCENARIOS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "prose": (["It is warm in Rome. Two and two make {4}."], {}),
    "a fenced call": ([FENCED], {}),
    "two calls and words behind": ([TWO], {}),
    "reasoning and a call in tags": ([HERMES], {}),
    "a call of an unknown tool": ([UNKNOWN], {}),
    "a call that is cut off": ([Text(FENCED[:-12], finish_reason="length")], {}),
    "native calls": ([Message({"content": "I look.", "tool_calls": NATIVE_CALLS}, finish_reason="tool_calls")], {}),
    "native reasoning": ([Message({"reasoning_content": "Rome.", "content": "Warm."})], {}),
    "a refusal": ([Message({"refusal": "No."})], {}),
    "nothing": ([""], {}),
    "no tools": (["Warm."], {"tools": None}),
    "no tools, a call in the text": ([FENCED], {"tools": None}),
    "a history of calls": (["Noon."], {"messages": HISTORY}),
    "choice: none": ([FENCED, "Warm."], {"tool_choice": "none"}),
    "choice: required": (["Warm.", FENCED], {"tool_choice": "required"}),
    "choice: required, never met": (["Warm.", "Warm.", "Warm.", "Warm."], {"tool_choice": "required"}),
    "choice: one tool": ([FENCED, TWO], {"tool_choice": {"type": "function", "function": {"name": "clock"}}}),
    "no parallel calls": ([TWO, FENCED], {"parallel_tool_calls": False}),
    "two choices": ([FENCED], {"n": 2}),
    "usage": ([FENCED], {"stream_options": {"include_usage": True}}),
    "a prefix in another language": (["Простите: 東京 🌧️ — « ok »."], {"seed": 7, "x_unknown": [1.0, 1e3]}),
    "bad tools": (["Warm."], {"tools": [{"type": "function"}]}),
    "bad choice": (["Warm."], {"tool_choice": {"type": "function", "function": {"name": "no_such_tool"}}}),
    "error 400": ([Raw([b'{"error":{"message":"too long","type":"invalid_request_error"}}'], 400, "application/json")] * 2, {}),
    "error 500, no JSON": ([Raw([b"<html>Oh</html>"], 500, "text/html")] * 2, {}),
    "error 429": ([Raw([b'{"detail":"slow"}'], 429, "application/json", [("Retry-After", "3")])] * 2, {}),
    "a page": ([Raw([b"<html>Welcome</html>"], 200, "text/html")] * 2, {}),
    "a body that is no completion": ([Raw([b'{"hello": 1}'], 200, "application/json")] * 2, {}),
}
STREAMS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "a recorded stream": ([Raw([RECORDED])], {}),
    "a recorded stream, cut anywhere": ([Raw(pieces(RECORDED, 7))], {}),
    "a recorded stream with CRLF and comments": ([Raw([ODD])], {}),
    "a recorded stream of text": ([Raw([NAMELESS])], {}),
    "a stream without its end": ([Raw([BROKEN])], {}),
    "a stream whose connection is cut": ([Raw([BROKEN], end="cut")], {}),
    "a stream that ends in an error": ([Raw([BROKEN + events({"error": {"message": "CUDA OOM"}}, done=False)])], {}),
    "a stream with a broken event": ([Raw([BROKEN + b"data: {nonsense\n\n" + RECORDED])], {}),
    "an empty stream": ([Raw([])], {}),
}


class Steps:
    """Pieces of a stream, each read by the proxy before the next one is sent: else it is up to the machine which come together."""

    def __init__(self, parts: Iterable[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._parts = parts
        self._loop = loop

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            asyncio.run_coroutine_threadsafe(settled(), self._loop).result(10)
            yield part


async def settled() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


def record() -> Recorded:
    """Play all scenarios."""
    logging.disable(logging.CRITICAL)  # what is refused is logged, too
    try:
        return asyncio.run(played())
    finally:
        logging.disable(logging.NOTSET)


async def played() -> Recorded:
    shown = []
    with Upstream() as upstream:
        for mode in MODES:
            for name, (script, fields) in SCENARIOS.items():
                for streamed in (False, True):
                    shown.append(f"##### {name}, {mode}, {'streamed' if streamed else 'whole'}\n")
                    shown.append(await upstream.exchange(script, {**fields, "stream": streamed}, tools=mode))
            for name, (script, fields) in STREAMS.items():
                shown.append(f"##### {name}, {mode}\n")
                shown.append(await upstream.exchange(script, {**fields, "stream": True}, tools=mode))
        options = {
            "repair_rounds": 1,
            "xml_tools": {"weather": "get_weather"},
            "system_injection": "prepend",
            "tool_call_tag": "use",
        }
        wrong = FENCED.replace("tool_call", "use").replace('"Rome"', "[1]")
        for streamed in (False, True):
            shown.append(f"##### options, {'streamed' if streamed else 'whole'}\n")
            script = [wrong, "<weather>\n<city>Rome</city>\n</weather>"]
            shown.append(await upstream.exchange(script, {"stream": streamed}, tools="text", **options))
        digests = [f"{name} {digest(await upstream.exchange(*given, tools=mode))}\n" for name, mode, *given in golden()]
    return Recorded({"proxy/answers.txt": "".join(shown), "proxy/texts.txt": "".join(digests)})


def golden() -> Iterator[tuple[str, str, list[Any], dict[str, Any]]]:
    """The first two golden texts of each format, whole and streamed in pieces of 1 and 7 characters."""
    folder = ROOT / "tests" / "formats" / "cases"
    offered = tomllib.loads((folder / "tools.toml").read_text(encoding="utf-8"))
    counted: dict[str, int] = {}
    for file in sorted(folder.glob("*.toml")):
        for case in tomllib.loads(file.read_text(encoding="utf-8")).get("case", []):
            counted[case["format"]] = counted.get(case["format"], 0) + 1
            if counted[case["format"]] > 2:
                continue
            tools = [as_tool(name, offered["tools"][name]) for name in case.get("tools", offered["default"])]
            for mode in ("text", "native"):
                for size in (0, 1, 7):
                    fields = {"tools": tools, "stream": bool(size)}
                    yield f"{case['id']}:{mode}:{size}", mode, [Text(case["text"], piece=size or 1)], fields


class Upstream:
    """A scripted upstream that is started once, and asked through a new proxy for each exchange."""

    def __init__(self) -> None:
        self._script: list[Any] = []
        self._server = ScriptedUpstream(self._answer)
        self._shown: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._server.__enter__()
        return self

    def __exit__(self, *ended: object) -> None:
        self._server.__exit__(*ended)

    def _answer(self, body: dict[str, Any]) -> Any:
        answer = self._script.pop(0) if self._script else Raw([b"{}"], 500, "application/json")
        if isinstance(answer, str):
            answer = Text(answer, piece=20)
        if isinstance(answer, Text | Message) and body.get("stream"):
            answer = Raw(streamed(answer, body))
        if isinstance(answer, Raw):
            answer = Raw(Steps(answer.chunks, self._loop), answer.status, answer.content_type, answer.headers, answer.end)
        return answer

    async def exchange(self, script: list[Any], fields: Mapping[str, Any], **options: Any) -> str:
        """Send one request through the proxy; return what went upstream and what came back."""
        body = {"model": "a-model", "messages": QUESTION, "tools": [WEATHER, CLOCK], **fields}
        body = {name: value for name, value in body.items() if value is not None}
        self._script[:] = script
        before = len(self._server.requests)
        app = create_app(self._server.url, upstream_key="upstream-key", **options)
        try:
            answer = await asyncio.wait_for(ask(app, json.dumps(body, separators=(",", ":")).encode()), 30)
        finally:
            await app.aclose()
        names = Names(call=r"call_[0-9a-f]{24}", port=r"127\.0\.0\.1:(\d+)", id=r"chatcmpl-(?!scripted)[0-9a-zA-Z]{8,}")
        sent = [self._sent(request) for request in self._server.requests[before:]]
        return names("".join(sent) + answer).replace(ENVELOPE, "{ENVELOPE,") + "\n"

    def _sent(self, request: Request) -> str:
        """Show a request; one that was shown already by its number."""
        heads = {name: request.headers.get(name) for name in ("content-type", "authorization", "accept")}
        shown = f"> {request.method} {request.path} {heads}\n> {request.body.decode()}\n"
        number = self._shown.setdefault(shown, len(self._shown) + 1)
        return f"> request {number}, as above\n" if number < len(self._shown) else f"> request {number}\n{shown}"


def streamed(answer: Text | Message, body: Mapping[str, Any]) -> Iterator[bytes]:
    """Return an answer as events, for each choice a delta for so many characters."""
    message = {"content": answer.text} if isinstance(answer, Text) else dict(answer.message)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for key, value in message.items():
        if key == "tool_calls":
            for index, call in enumerate(value):
                function = call["function"]
                deltas.append({"tool_calls": [{"index": index, **call, "function": {"name": function["name"], "arguments": ""}}]})
                deltas += [
                    {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
                    for part in cut(function["arguments"], answer.piece)
                ]
        else:
            deltas += [{key: part} for part in cut(value, answer.piece)]
    choices = range(body.get("n", 1))
    for delta in deltas:
        yield from (events(chunk(delta, index=index), done=False) for index in choices)
    yield from (events(chunk({}, answer.finish_reason, index), done=False) for index in choices)
    if body.get("stream_options"):
        usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
        yield events({**chunk({}), "choices": [], "usage": usage}, done=False)
    yield events()


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


async def ask(app: Any, body: bytes) -> str:
    """POST a chat completion as an ASGI server would; return status, headers and body."""
    sent: list[dict[str, Any]] = []
    requests = iter([{"type": "http.request", "body": body, "more_body": False}])
    left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        for message in requests:
            return message
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions", "query_string": b"", "root_path": "",
        "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    failure = ""
    try:
        await app(scope, receive, send)
    except Exception as error:  # noqa: BLE001 - a server would cut the connection: that is what the client sees
        failure = f"< cut: {type(error).__name__}\n"
    start = sent[0]
    shown = [
        f"{name.decode()}: {value.decode()}"
        for name, value in start["headers"]
        if name.lower() not in (b"date", b"server", b"x-request-id")
    ]
    data = b"".join(message.get("body", b"") for message in sent[1:])
    ended = "" if not sent[-1].get("more_body") else "< not ended\n"
    return f"< {start['status']} {'; '.join(sorted(shown))}\n{data.decode()}\n{ended}{failure}"
