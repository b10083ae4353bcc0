"""How many Python functions a piece of work calls: a measure of speed that a busy machine cannot disturb.

``CALLS`` holds the counts of Python 3.11 (later versions need fewer: they inline comprehensions). A bar is a tenth above; a change that
raises or lowers a count by more writes the new one, and says why in its commit.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import FrameType
from typing import Any, Literal, Self

from bench import grammars
from bench.places import say
from bench.report import Section, at_most
from bench.turns import client
from bench.turns.cases import DONE, LARGE, ONE, Turns
from bench.turns.own import FakeModel
from patchbay import StreamParser, ToolCall, ToolRunner, parse, tool
from patchbay.agents import Event, InMemorySessionService, LlmAgent, RunConfig, Runner
from patchbay.agents.convert import from_messages, is_question
from patchbay.executor import Executor
from patchbay.models.capabilities import Capabilities
from patchbay.models.exchange import Exchange
from patchbay.models.options import TextOptions
from patchbay.models.request_record import RequestRecord
from patchbay.proxy import create_app
from patchbay.server import ChatSettings, ToolsSettings, create_tools_app
from patchbay.testing import ScriptedModel, ScriptedUpstream
from patchbay.tools.registry import Registration

CALLS = {
    "parse a word": 39,
    "parse a sentence": 31,
    "parse a reply with a fenced call": 134,
    "parse a reply with a Hermes call": 131,
    "feed a chunk of prose": 1.01,
    "feed a piece of 40 of prose with lines": 4.72,
    "feed a fenced call in pieces of 40": 258,
    "feed a piece of 40 of a call's argument": 13.64,
    "turn of a runner, 300 tools, 200 messages": 3947,
    "turn of a runner in text, 300 tools, 200 messages": 6109,
    "run of an agent on a session of 1,000 events": 518,
    "run of an agent on a session of 2,000 events": 518,
    "grammar of 50 tools, fenced": 9868,
    "grammar of 50 tools, Hermes": 10521,
    "grammar of 50 tools, XML": 11806,
    "grammar of 50 tools, as a JSON Schema": 6341,
    "grammar of 50 tools, a request after": 8,
    "ask for a reply with a fenced call": 304,
    "pass on a chunk of a stream": 13.01,
    "proxy a request": 469,
    "proxy a request, with its record": 494,
    "proxy a Responses request with 40 tools": 553,
    "chat on a server with 1,000 tools": 600,
    "chat on a server with 1,000 tools, in text": 626,
    "run a tool": 62,
    "turn of a runner": 158,
    "turn of an agent": 336,
}
ROOM = 1.1
"""How much more than its count a piece of work may call."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": "Search things by a query.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["query"],
            },
        },
    }
    for number in range(4)
]
FENCED = 'I look it up.\n\n```tool_call\n{"name": "tool_1", "arguments": {"query": "abc", "limit": 3}}\n```'
HERMES = 'Fine.\n<tool_call>\n{"name": "tool_2", "arguments": {"query": "abc"}}\n</tool_call>'
FILE = FENCED.replace("abc", "x = 1\\nprint(x)\\n" * 1000)
PROSE = "The quick brown fox jumps over the lazy dog,\nand then it sleeps. " * 100
CHUNKS = ["The quick", " brown fox", " jumps", " over the", " lazy dog.", " It is 3 o'clock,", " more or less."] * 20


class Calls:
    """A profile function that counts calls, and switches the collector off: what it runs would be counted too."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        # How often a loop looks for what is ready depends on how busy the machine is, and its list of tasks on earlier tests.
        self.count += event == "call" and not frame.f_globals["__name__"].startswith(("asyncio.", "selectors", "_weakrefset"))

    def __enter__(self) -> Self:
        self._before, self._collects = sys.getprofile(), gc.isenabled()
        gc.disable()
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        if self._collects:
            gc.enable()
        self.count -= 1  # this method


def count_calls(work: Callable[[], object]) -> int:
    """The calls that ``work`` makes when it has been done before: the least of two counts, so that what is made once is not in it."""
    work()
    counts = []
    for _ in range(2):
        with Calls() as calls:
            work()
        counts.append(calls.count)
    return min(counts)


async def count_awaited(opened: Callable[[], AbstractAsyncContextManager[Callable[[], Awaitable[object]]]]) -> int:
    """The same of a coroutine, for which something is open meanwhile."""
    async with opened() as work:
        await work()
        counts = []
        for _ in range(2):
            with Calls() as calls:
                await work()
            counts.append(calls.count)
    return min(counts)


def count(name: str) -> float:
    """The calls of a row of the table."""
    if name in OPENED:
        return asyncio.run(count_awaited(OPENED[name]))
    work, times = WORK[name]
    return count_calls(work) / times


def feed_chunks() -> None:
    """Feed ``CHUNKS`` to a parser that has begun, so that its first chunk is not counted."""
    for chunk in CHUNKS:
        parser.feed(chunk)


def feed_pieces(text: str) -> None:
    """Feed a text in pieces of 40 to a new parser."""
    reading = StreamParser(TOOLS)
    for at in range(0, len(text), 40):
        reading.feed(text[at : at + 40])
    reading.close()


def turns_of(row: type[client.Turns]) -> Callable[[], object]:
    """Return what makes one turn of a row of the benchmark, over the real ``openai`` client; each in a new conversation."""

    turns = functools.cache(lambda: row(LARGE))

    def turn() -> None:
        assert asyncio.run(turns().turn()) == DONE

    return turn


def runs_on(events: int) -> Callable[[], object]:
    """Return what makes one run of an agent; the first on a session of so many events."""

    async def begin() -> Runner:
        model = FakeModel(RUNS)
        runner = Runner(LlmAgent(name="counted", model=model, tools=RUNS.tools()), session_service=InMemorySessionService())
        session = await runner.session_service.create_session("patchbay", "u", session_id="s")
        for content in from_messages(client.history(events)):
            author = "user" if is_question(content) else "counted"
            await runner.session_service.append_event(session, Event(author=author, content=content))
        return runner

    async def one(runner: Runner) -> None:
        *_, last = [event async for event in runner.run("u", "s", "hi", RunConfig(max_history_events=100))]
        assert last.content.text == DONE

    runner = functools.cache(lambda: asyncio.run(begin()))

    def run() -> None:
        with asyncio.Runner() as loop:  # its own "run" looks at signals, by more calls in some versions than in others
            loop.get_loop().run_until_complete(one(runner()))

    return run


class Runs(Turns):
    """Counters of the agent's model and tool."""

    async def turn(self) -> object:
        raise NotImplementedError


def request(*, stream: bool) -> bytes:
    """A client's request to a chat model."""
    messages = [{"role": "system", "content": "Be helpful."}, {"role": "user", "content": "Find abc."}]
    return json.dumps({"model": "m", "messages": messages, "tools": TOOLS, "stream": stream}).encode()


def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    """One event of a model's stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "created": 7, "model": "m", "choices": [choice]}).encode() + b"\n\n"


def ask() -> None:
    """Make a request with tools one for a model of text, and its reply one with a call."""
    answer, _ = Exchange(REQUEST, TEXT_MODE, MEMORY).read_whole(REPLY)
    assert b"tool_calls" in answer


def stream() -> None:
    """Do the same with a stream."""
    exchange = Exchange(STREAM_REQUEST, TEXT_MODE, MEMORY)
    answer = [exchange.feed(data) for data in STREAM]
    assert b"tool_calls" in b"".join(answer) + exchange.end_attempt()[0]


@asynccontextmanager
async def proxy(
    path: str, body: bytes, called: bytes, observers: Sequence[Callable[[RequestRecord], object]] = ()
) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Open a proxy in this process before a real upstream; its answers hold ``called``."""

    async def ask() -> None:
        assert called in await post(app, body, path)

    with ScriptedUpstream(lambda _: FENCED) as upstream:
        app = create_app(upstream.url, tools="text")
        app.observers += observers
        yield ask
        await app.aclose()


async def post(app: Any, body: bytes, path: str = "/v1/chat/completions") -> bytes:
    """The answer of an application to a request of a model."""
    bodies = iter([{"type": "http.request", "body": body, "more_body": False}])
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return next(bodies, None) or await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await app({**scope, "client": ("127.0.0.1", 1)}, receive, send)
    assert sent[0]["status"] == 200
    return bytes(sent[1]["body"])


@asynccontextmanager
async def chats(tools: Literal["native", "text"]) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Open a tool server in this process, with 1,000 registered tools, before a real upstream."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Find abc."}]}).encode()
    with ScriptedUpstream(lambda _: "Fine.") as upstream:
        app = create_tools_app(
            upstream=upstream.url, settings=ToolsSettings(lease=0.0), chat=ChatSettings(TextOptions(tools=tools))
        )
        for number in range(1000):
            described = f"Search {number} by a query.", TOOLS[0]["function"]["parameters"]
            app.registry.register(Registration(f"tool_{number}", *described, callback_url="http://127.0.0.1:9/"))

        async def ask() -> None:
            assert b"Fine." in await post(app, body)

        async with app.api.router.lifespan_context(app.api):
            yield ask


@tool
async def search(query: str, limit: int = 3) -> str:
    """Search things by a query."""
    return query * limit


@asynccontextmanager
async def executor() -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """An executor with a tool."""
    executor = Executor([search])
    yield lambda: executor.run([CALL])


@asynccontextmanager
async def runner() -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """A runner whose model calls a tool once."""
    runner = ToolRunner(ScriptedModel([CALL, "Done."] * 3), tools=[search])
    yield lambda: runner.run("Find abc.")


@asynccontextmanager
async def agent() -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """An agent whose model calls a tool once; each turn in a new session."""
    agent = LlmAgent(name="counted", model=ScriptedModel([CALL, "Done."] * 3), tools=[search])
    runner = Runner(agent, session_service=InMemorySessionService())
    numbers = itertools.count()

    async def turn() -> None:
        async for _ in runner.run("u", f"s{next(numbers)}", "Find abc."):
            pass

    yield turn


REQUEST, STREAM_REQUEST = request(stream=False), request(stream=True)
MORE_TOOLS = [{"type": "function", **TOOLS[0]["function"], "name": f"tool_{number}"} for number in range(40)]
RESPONSES_REQUEST = json.dumps({"model": "m", "input": "Find abc.", "tools": MORE_TOOLS}).encode()
REPLY = json.dumps({"id": "c", "choices": [{"index": 0, "message": {"content": FENCED}, "finish_reason": "stop"}]}).encode()
PIECES = [*CHUNKS, *(FENCED[at : at + 4] for at in range(0, len(FENCED), 4))]
STREAM = [*(chunk({"content": piece}) for piece in PIECES), chunk({}, "stop")]
TEXT_MODE, MEMORY = TextOptions(tools="text"), Capabilities()
CALL = ToolCall("c1", "search", '{"query": "abc"}')
RUNS = Runs(ONE)
PLANNER = grammars.first("Hermes")
parser = StreamParser(TOOLS)
WORK: dict[str, tuple[Callable[[], object], int]] = {
    "parse a word": (lambda: parse("done", tools=TOOLS), 1),
    "parse a sentence": (lambda: parse("A small sentence."), 1),
    "parse a reply with a fenced call": (lambda: parse(FENCED, tools=TOOLS), 1),
    "parse a reply with a Hermes call": (lambda: parse(HERMES, tools=TOOLS), 1),
    "feed a chunk of prose": (feed_chunks, len(CHUNKS)),
    "feed a piece of 40 of prose with lines": (lambda: feed_pieces(PROSE), len(PROSE) // 40),
    "feed a fenced call in pieces of 40": (lambda: feed_pieces(FENCED * 20), 20),
    "feed a piece of 40 of a call's argument": (lambda: feed_pieces(FILE), len(FILE) // 40),
    "turn of a runner, 300 tools, 200 messages": (turns_of(client.Run), 1),
    "turn of a runner in text, 300 tools, 200 messages": (turns_of(client.RunText), 1),
    "run of an agent on a session of 1,000 events": (runs_on(1000), 1),
    "run of an agent on a session of 2,000 events": (runs_on(2000), 1),
    "grammar of 50 tools, fenced": (lambda: grammars.first("the fenced contract"), 1),
    "grammar of 50 tools, Hermes": (lambda: grammars.first("Hermes"), 1),
    "grammar of 50 tools, XML": (lambda: grammars.first("Qwen3-Coder's XML"), 1),
    "grammar of 50 tools, as a JSON Schema": (lambda: grammars.first("a JSON Schema"), 1),
    "grammar of 50 tools, a request after": (lambda: grammars.again(PLANNER, "Hermes"), 1),
    "ask for a reply with a fenced call": (ask, 1),
    "pass on a chunk of a stream": (stream, len(STREAM)),
}
"""What is done, and by how many its calls are divided."""
OPENED = {
    "proxy a request": functools.partial(proxy, "/v1/chat/completions", REQUEST, b"tool_calls"),
    "proxy a request, with its record": functools.partial(
        proxy, "/v1/chat/completions", REQUEST, b"tool_calls", [lambda record: record.calls]
    ),
    "proxy a Responses request with 40 tools": functools.partial(proxy, "/v1/responses", RESPONSES_REQUEST, b"function_call"),
    "chat on a server with 1,000 tools": functools.partial(chats, "native"),
    "chat on a server with 1,000 tools, in text": functools.partial(chats, "text"),
    "run a tool": executor,
    "turn of a runner": runner,
    "turn of an agent": agent,
}
"""What is opened, and gives what is awaited."""


def section() -> Section:
    """Count the calls of each piece of work."""
    say("function calls ...")
    counts = {name: count(name) for name in CALLS}
    verdicts = [at_most(f"Python calls: {name}", found, round(ROOM * CALLS[name], 1), "") for name, found in counts.items()]
    return Section(verdicts, raw={"function_calls": counts})
