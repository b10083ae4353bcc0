"""How many calls of Python functions a piece of work may cost: a guard of speed that a busy machine cannot disturb.

``MOST_CALLS`` holds the limits, at most a tenth above what Python 3.11 needs (later versions need less: they inline
comprehensions). A change that raises one says so, and why, in its commit; one that lowers a count lowers its limit.
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

import pytest
from bench.turns import client, client_patchbay
from bench.turns.cases import DONE, LARGE, ONE, Turns
from bench.turns.patchbay_model import FakeModel

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

MOST_CALLS = {
    "parse a word": 41,
    "parse a sentence": 33,
    "parse a reply with a fenced call": 141,
    "parse a reply with a Hermes call": 138,
    "feed a chunk of prose": 1.1,
    "feed a piece of 40 of prose with lines": 5.1,
    "feed a fenced call in pieces of 40": 280,
    "feed a piece of 40 of a call's argument": 14.5,
    "turn of a runner, 300 tools, 200 messages": 4200,
    "turn of a runner in text, 300 tools, 200 messages": 6700,
    "run of an agent on a session of 1,000 events": 600,
    "ask for a reply with a fenced call": 310,
    "pass on a chunk of a stream": 14.0,
    "proxy a request": 460,
    "proxy a request, with its record": 475,
    "proxy a Responses request with 40 tools": 520,
    "chat on a server with 1,000 tools": 575,
    "chat on a server with 1,000 tools, in text": 600,
    "run a tool": 67,
    "turn of a runner": 168,
    "turn of an agent": 335,
}

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
        assert DONE == asyncio.run(turns().turn())

    return turn


def runs_on(events: int, limit: int | None = 100) -> Callable[[], object]:
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
        *_, last = [event async for event in runner.run("u", "s", "hi", RunConfig(max_history_events=limit))]
        assert DONE == last.content.text

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
    answer, _ = Exchange(REQUEST, TEXT_MODE, MEMORY).answer(REPLY)
    assert b"tool_calls" in answer


def stream() -> None:
    """Do the same with a stream."""
    exchange = Exchange(STREAM_REQUEST, TEXT_MODE, MEMORY)
    answer = [exchange.feed(data) for data in STREAM]
    assert b"tool_calls" in b"".join(answer) + exchange.end()[0]


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
    assert 200 == sent[0]["status"]
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
    "turn of a runner, 300 tools, 200 messages": (turns_of(client_patchbay.Run), 1),
    "turn of a runner in text, 300 tools, 200 messages": (turns_of(client_patchbay.RunText), 1),
    "run of an agent on a session of 1,000 events": (runs_on(1000), 1),
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


@pytest.mark.parametrize("name", MOST_CALLS)
def test_no_more_functions_are_called_than_the_table_allows(name: str) -> None:
    assert count(name) <= MOST_CALLS[name]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the limits are counted on Python 3.11; later versions need fewer calls")
@pytest.mark.parametrize("name", MOST_CALLS)
def test_limit_exceeds_the_count_by_at_most_a_fifth(name: str) -> None:
    assert MOST_CALLS[name] <= 1.2 * count(name) + 1


@pytest.mark.parametrize("limit", [100, None])
def test_a_run_costs_no_more_on_a_session_that_is_twice_as_long(limit: int | None) -> None:
    short, long = (count_calls(runs_on(events, limit)) for events in (1000, 2000))
    # Without a limit the messages themselves are more: what is looked at of each is a call or two.
    assert long <= 1.03 * short if limit is not None else long - short <= 3 * 1000


def test_calls_of_functions_are_counted() -> None:
    def called() -> None:
        pass

    def work() -> None:
        for _ in range(3):
            called()

    assert 1 + 3 == count_calls(work)
