"""The last requests to models are kept with their content, within exact bounds, and shown by /api/turns."""

from __future__ import annotations

import contextlib
import gc
import gzip
import http.client
import json
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from proxy_rig import Records, open_chat, recording
from websockets.sync.client import connect

from chat_server.rig import PROTOCOLS, call, calls, request_of, serve_weather
from patchbay import tool
from patchbay._redaction import Redactor
from patchbay.agents import LlmAgent
from patchbay.hooks import Meta
from patchbay.hooks.events import CallRecord, HookRecord
from patchbay.models import resolve_model
from patchbay.models.attempt import Attempt
from patchbay.proxy import create_app
from patchbay.server import ToolsSettings, create_tools_app
from patchbay.server.turns import MAX_PASSED, TurnStore
from patchbay.testing import Message, Raw, ScriptedUpstream, Text
from patchbay.tools.registry import Registration
from patchbay.types import ToolCall
from realtime.server.rig import Client
from support.http_server import BOUND, HttpResponse, ask, serving

CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
FENCED = '```tool_call\n{"name": "weather", "arguments": {"city": "Rome"}}\n```'
MESSAGES = [{"role": "user", "content": "How is  Rome?"}]
BODY = {"model": "m", "messages": MESSAGES, "tools": TOOLS}
JSON = {"content-type": "application/json"}
KEY = "the-key-of-this-test"


class Proxy:
    """A proxy in a thread, and what its API says of its turns."""

    def __init__(self, port: int, records: Records) -> None:
        self.port = port
        self.records = records

    def chat(self, body: Any = BODY, **headers: str) -> HttpResponse:
        return ask(self.port, "POST", CHAT, body, headers={"content-type": "application/json", **headers})

    def get(self, path: str, **headers: str) -> Any:
        answer = ask(self.port, "GET", path, headers=headers)
        assert 200 == answer.status, answer.body
        return answer.json

    def turns(self, query: str = "", *, ended: int = 1) -> list[Any]:
        self.records.wait(ended)
        found: list[Any] = self.get(f"/api/turns?{query}")["turns"]
        return found

    def only(self) -> Any:
        [turn] = self.turns()
        return self.get(f"/api/turns/{turn['id']}")

    def attempt(self, index: int = 0) -> Any:
        [turn] = self.turns()
        return self.get(f"/api/turns/{turn['id']}/attempts/{index}")


@contextlib.contextmanager
def proxy(script: Any, *, refuses: bool = False, **settings: Any) -> Iterator[Proxy]:
    with ScriptedUpstream(script, tools="refuse" if refuses else "ignore") as upstream:
        app = create_app(upstream.url, **{"tools": "text", **settings})
        records = recording(app)
        with serving(app) as port:
            yield Proxy(port, records)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_turn_of_each_protocol_shows_what_was_asked_and_answered(protocol: str, stream: bool) -> None:
    with proxy([f"I look.\n\n{FENCED}"]) as at:
        path, body = request_of(protocol, model="m", stream=stream, tool="weather")
        answer = ask(at.port, "POST", path, body)
        turn = at.only()
        shown = at.attempt()
    assert answer.headers["x-request-id"] == turn["id"]
    assert ("done", protocol, "m", "text", "fenced", stream, 1, ["weather"], 1, 200, "How is Rome?") == tuple(
        turn[name]
        for name in (
            "state", "protocol", "model", "mode", "format", "stream", "tools", "calls", "rounds", "status", "preview",
        )
    )  # fmt: skip
    assert "weather" == turn["client_request"]["tools"][0]["function"]["name"]
    assert ("How is Rome?", False, []) == (turn["client_request"]["messages"][-1]["content"], turn["cut"], turn["events"])
    [attempt] = turn["attempts"]
    assert ("answer", 200, "text", "fenced", "") == tuple(
        attempt[name] for name in ("purpose", "status", "mode", "format", "reason")
    )
    assert attempt["began"] >= turn["began"]
    assert attempt["seconds"] >= attempt["first_seconds"] > 0
    assert "```tool_call" in json.dumps(shown["request"]["messages"][0])
    assert (f"I look.\n\n{FENCED}", [], False) == (shown["text"], shown["native_calls"], shown["cut"])
    reading = shown["reading"]
    [read] = reading["calls"]
    assert ("I look.", None, "fenced", [], []) == tuple(
        reading[name] for name in ("content", "reasoning", "format", "incomplete", "repairs")
    )
    assert ("weather", '{"city": "Rome"}', FENCED) == (read["name"], read["arguments"], read["text"])
    assert FENCED == shown["text"][read["begin"] : read["end"]]
    assert [read["id"]] == [each["id"] for each in attempt["calls"]]
    assert len(read["id"]) > 5


def test_attempts_say_why_the_model_was_asked_again() -> None:
    with proxy(["Fine.", FENCED], refuses=True, tools="auto") as at:
        at.chat({**BODY, "tool_choice": "required"})
        turn = at.only()
        texts = [at.attempt(index)["text"] for index in range(3)]
    assert [None, "Fine.", FENCED] == texts
    assert [("native", 400), ("text", 200), ("text", 200)] == [(each["mode"], each["status"]) for each in turn["attempts"]]
    assert [
        "HTTP 400: the server refuses tools, so they are in the prompt",
        "tool_choice was not met: asked again",
        "",
    ] == [each["reason"] for each in turn["attempts"]]
    assert 3 == turn["rounds"]


def test_native_calls_and_reasoning_of_the_server_are_shown_apart_from_the_text() -> None:
    message = {"content": "Well.", "reasoning_content": "Rome, so.", **calls(call("weather", '{"city": "Rome"}')).message}
    for stream in (False, True):
        with proxy([Message({**message, "content": "Well."})], tools="native") as at:
            at.chat({**BODY, "stream": stream})
            shown = at.attempt()
        assert ("Well.", "Rome, so.", []) == (shown["text"], shown["reading"]["reasoning"], shown["reading"]["calls"])
        assert [("weather", '{"city": "Rome"}')] == [(each["name"], each["arguments"]) for each in shown["native_calls"]]


@pytest.mark.parametrize("stream", [False, True])
def test_answer_that_is_passed_on_is_read_from_its_bytes(stream: bool) -> None:
    message = {"content": "Well.", "reasoning_content": "Rome, so.", **calls(call("weather", '{"city": "Rome"}')).message}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    with proxy([Message({**message, "content": "Well."})]) as at:
        at.chat({"model": "m", "messages": MESSAGES, "stream": stream, **options})
        turn, shown = at.only(), at.attempt()
    assert ("Well.", "Rome, so.", None) == (shown["text"], shown["reading"]["reasoning"], turn["attempts"][0]["mode"] or None)
    assert ["weather"] == [each["name"] for each in shown["native_calls"]]
    assert turn["prompt_tokens"] == turn["attempts"][0]["usage"]["prompt_tokens"] > 0


def test_compressed_answer_that_is_passed_on_is_read() -> None:
    document = gzip.compress(json.dumps({"choices": [{"index": 0, "message": {"content": "Fine."}}]}).encode())
    answer = Raw([document], content_type="application/json", headers=[("content-encoding", "gzip")])
    with proxy([answer]) as at:
        at.chat({"model": "m", "messages": MESSAGES}, **{"accept-encoding": "gzip"})
        assert "Fine." == at.attempt()["text"]


def test_long_answer_that_is_passed_on_is_cut() -> None:
    with proxy([Text("word " * MAX_PASSED, piece=100_000)]) as at:
        at.chat({"model": "m", "messages": MESSAGES, "stream": True})
        shown = at.attempt()
    assert shown["cut"]
    assert 0 < len(shown["text"]) < MAX_PASSED


def test_request_that_runs_is_shown_and_then_failed_when_its_client_leaves() -> None:
    with proxy([Raw([b'data: {"choices": [{"index": 0, "delta": {"content": "Fi"}}]}\n\n'], end="hang")], heartbeat=0.1) as at:
        client = open_chat(at.port, {**BODY, "stream": True})
        assert client.recv(1000)
        [running] = at.turns("outcome=running", ended=0)
        assert ("running", "m", 1, None, True) == (
            running["state"], running["model"], running["tools"], running["seconds"], running["stream"],
        )  # fmt: skip
        client.close()
        [failed] = at.turns("outcome=failed")
    assert running["id"] == failed["id"]
    assert failed["error"]


def test_request_that_cannot_be_read_is_a_failed_turn_without_a_body() -> None:
    with proxy([]) as at:
        assert 400 == at.chat(b"{").status
        turn = at.only()
    assert ("failed", 400, None, []) == (turn["state"], turn["status"], turn["client_request"], turn["attempts"])


def test_clients_own_request_id_is_not_the_turns() -> None:
    with proxy([FENCED, "Fine."]) as at:
        answers = [at.chat(body, **{"x-request-id": "mine"}) for body in (BODY, {"model": "m", "messages": MESSAGES})]
        ids = [each["id"] for each in at.turns(ended=2)]
    assert ids == [each.headers["x-request-id"] for each in reversed(answers)]
    assert "mine" not in ids


def test_turns_are_listed_by_pages_and_found_by_what_they_are() -> None:
    with proxy([FENCED, "Fine.", "Über Rom."]) as at:
        at.chat()
        at.chat({"model": "other", "messages": [{"role": "user", "content": "Hello."}]})
        at.chat({**BODY, "messages": [{"role": "user", "content": "Zürich, please."}]})
        third, second, first = (each["id"] for each in at.turns(ended=3))
        page = at.get("/api/turns?limit=2")
        rest = at.get(f"/api/turns?limit=2&before={page['next']}")
        unknown = ask(at.port, "GET", "/api/turns?before=unknown")
        found = {
            query: [each["id"] for each in at.turns(query, ended=3)]
            for query in (
                "model=other", "tool=weather", "outcome=done", "outcome=failed", "q=hello", "q=z%C3%9CRICH", "q=%C3%BCber", "q=nothing",
                "session=s1",
            )
        }  # fmt: skip
    assert (404, "There is no turn 'unknown' (any more): the last 200 are kept.") == (unknown.status, unknown.json["detail"])
    assert ([third, second], second) == ([each["id"] for each in page["turns"]], page["next"])
    assert ([first], None) == ([each["id"] for each in rest["turns"]], rest["next"])
    assert {
        "model=other": [second],
        "tool=weather": [first],
        "outcome=done": [third, second, first],
        "outcome=failed": [],
        "q=hello": [second],
        "q=z%C3%9CRICH": [third],
        "q=%C3%BCber": [third],
        "q=nothing": [],
        "session=s1": [],
    } == found


def test_download_is_the_whole_turn_as_an_attachment() -> None:
    with proxy([FENCED]) as at:
        at.chat()
        [turn] = at.turns()
        answer = ask(at.port, "GET", f"/api/turns/{turn['id']}?download=1")
    assert f'attachment; filename="turn-{turn["id"]}.json"' == answer.headers["content-disposition"]
    assert FENCED == answer.json["attempts"][0]["text"]


def test_secrets_do_not_leave_the_store_and_are_not_found_in_it() -> None:
    told = f"My key is {KEY}, and sk-{'1a' * 12}."
    with proxy([f"You wrote {KEY}.\n{FENCED}"]) as at:
        at.chat({**BODY, "messages": [{"role": "user", "content": told}]}, authorization=f"Bearer {KEY}")
        [turn] = at.turns()
        paths = ("/api/turns", f"/api/turns/{turn['id']}?download=1", f"/api/turns/{turn['id']}/attempts/0")
        shown = "".join(json.dumps(at.get(path)) for path in paths)
        assert [] == at.turns(f"q={KEY}")
    assert KEY not in shown
    assert "1a1a" not in shown
    assert "You wrote [redacted]" in shown


def test_turn_and_attempt_that_are_not_kept_are_404() -> None:
    with proxy([FENCED]) as at:
        at.chat()
        [turn] = at.turns()
        paths = ("/api/turns/none", "/api/turns/none/attempts/0", f"/api/turns/{turn['id']}/attempts/1")
        assert [404] * 3 == [ask(at.port, "GET", path).status for path in paths]


def test_turn_of_a_tool_server_has_the_attempts_of_all_rounds() -> None:
    with serve_weather([calls(call("weather", '{"city": "Rome"}')), "Sunny."]) as at:
        records = recording(at.server.app.proxy)
        at.post(**{"X-Patchbay-Session": "s1"})
        records.wait()
        [found] = at.server.ask("GET", "/api/turns?session=s1").json["turns"]
        turn = at.server.ask("GET", f"/api/turns/{found['id']}").json
        last = at.server.ask("GET", f"/api/turns/{found['id']}/attempts/1").json
    assert ("ann", "s1", "native", ["weather"], 2) == (
        found["role"], found["session"], found["mode"], found["calls"], found["rounds"],
    )  # fmt: skip
    assert [["weather"], []] == [[each["name"] for each in attempt["calls"]] for attempt in turn["attempts"]]
    began, ended = turn["events"]
    assert ("agent.tool.exec_start", {"Tool": "weather", "Arguments": {"city": "Rome"}}) == (began["kind"], began["payload"])
    assert ("agent.tool.exec_end", "weather", False) == (ended["kind"], ended["payload"]["Tool"], ended["payload"]["IsError"])
    assert (turn["id"], "call_1") == (ended["scope"]["turn_id"], ended["attrs"]["call_id"])
    assert ended["payload"]["Duration"] > 0
    assert ("tool", "Sunny.") == (last["request"]["messages"][-1]["role"], last["text"])
    assert turn["client_request"]["messages"] == [{"role": "user", "content": "How is Rome?"}]


def test_requests_of_a_live_session_are_turns() -> None:
    with ScriptedUpstream([calls(call("weather", '{"city": "Rome"}')), "Sunny."]) as upstream:
        app = create_tools_app(("ann",), upstream=upstream.url, settings=ToolsSettings(lease=0.0))
        app.registry.register(Registration("weather", "", SCHEMA, callback_url="http://127.0.0.1:9/"))
        assert app.proxy is not None
        records = recording(app.proxy)
        with serving(app, sockets=True) as port:
            address = f"ws://127.0.0.1:{port}/api/sessions/ann?model=m&session=s1"
            with connect(address, open_timeout=BOUND, proxy=None) as socket:
                Client(socket).answer("How is Rome?")
            records.wait(2)
            second, first = ask(port, "GET", "/api/turns?session=s1").json["turns"]
            shown = ask(port, "GET", f"/api/turns/{second['id']}/attempts/0").json
    assert [("session", "m", "ann", "How is Rome?", 1)] * 2 == [
        (each["protocol"], each["model"], each["role"], each["preview"], each["rounds"]) for each in (first, second)
    ]
    assert (["weather"], [], "Sunny.") == (first["calls"], second["calls"], shown["text"])


def test_requests_of_an_agents_model_are_attempts_of_its_turn() -> None:
    with ScriptedUpstream([calls(call("add", '{"a": 1, "b": 2}')), "It is 3."]) as upstream:

        @tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        agent = LlmAgent(name="helper", model=resolve_model("openai/m", base_url=upstream.url, api_key="unused"), tools=[add])
        app = create_tools_app(settings=ToolsSettings(lease=0.0), agents=[agent])
        assert app.proxy is not None
        records = recording(app.proxy)
        with serving(app) as port:
            assert 200 == ask(port, "POST", CHAT, {"model": "helper", "messages": MESSAGES}, headers=JSON).status
            records.wait()
            [turn] = ask(port, "GET", "/api/turns").json["turns"]
            shown = ask(port, "GET", f"/api/turns/{turn['id']}/attempts/1").json
    assert ("helper", ["add"], 2) == (turn["model"], turn["calls"], turn["rounds"])
    assert ("It is 3.", "m") == (shown["text"], shown["request"]["model"])


def test_begin_of_a_request_is_sent_to_readers_that_ask_for_it() -> None:
    with proxy([FENCED, FENCED]) as at:
        with events(at.port, "?kind=server.request.*") as asking, events(at.port, "") as all_others:
            at.chat()
            begun, ended = read_event(asking), read_event(all_others)
        [turn] = at.turns()
    assert ("server.request.begin", "running", "How is Rome?", "m") == (
        begun["kind"], begun["payload"]["state"], begun["payload"]["preview"], begun["payload"]["model"],
    )  # fmt: skip
    assert ("server.request", turn["id"], 1, "fenced") == (
        ended["kind"], begun["payload"]["id"], ended["payload"]["rounds"], ended["payload"]["format"],
    )  # fmt: skip


@contextlib.contextmanager
def events(port: int, query: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND)
    try:
        connection.request("GET", f"/api/events{query}")
        response = connection.getresponse()
        assert b": \n" == response.readline()
        yield response
    finally:
        connection.close()


def read_event(response: http.client.HTTPResponse) -> Any:
    while not (line := response.readline()).startswith(b"data: "):
        assert line
    return json.loads(line[6:])


# the store


class Choice:
    """A choice whose answer has been read."""

    begins_json, repairs = False, 0

    def __init__(self, size: int) -> None:
        self.raw_text, self.raw_reasoning = ["t" * size], ["r" * size]
        self.calls = [ToolCall(f"call_{'i' * 24}", "n" * size, "a" * size)]


class Reader:
    """The reader of an answer, as a turn finds it at its end."""

    usage: Any = None
    completion = None

    def __init__(self, size: int) -> None:
        self.choices = {0: Choice(size)}


def settled(turn_id: str, name: str) -> CallRecord:
    meta = Meta(turn_id=turn_id, session_key=f"s-{turn_id}")
    decided = ((f"hook {turn_id}", "before_tool", "allow"),)
    return CallRecord(
        time.time(), meta, {"inbound": name}, f"{turn_id}-{name}", name, "", "d", decided, "", False, "", 7, time.time()
    )


def filled(store: TurnStore, count: int, size: int) -> None:
    """Add turns with two attempts each, of so many bytes and characters in all of their parts."""
    for number in range(count):
        body = b"x" * size
        turn = store.begin(f"t{number}", "chat", body, Redactor([f"key-{number}"]))
        turn.model = "m" * size
        for again in range(2):
            reader: Any = Reader(size)
            turn.add_attempt(Attempt(b"%d" % again * size, body, time.time(), reason="w" * size, reader=reader))
        turn.add_passed(b"p" * size)
        for index in range(3):
            turn.add_settled(settled(turn.id, f"{index}" * size))
            texts = [f"{index}-{each}-{turn.id}" + "h" * min(size, 500) for each in range(3)]
            turn.add_hook(HookRecord(f"hook {turn.id}", "before_tool", time.time(), time.perf_counter(), "denied", *texts))
        turn.end(time.perf_counter(), status=number + 1000, error="f" * size, ending=b"e" * size)


@pytest.mark.parametrize("size", [0, 100, 50_000])
def test_memory_of_the_store_stays_within_its_bound(size: int) -> None:
    bound = 4 * 1024 * 1024 if size > 100 else 1024 * 1024
    store = TurnStore(most=2000, most_bytes=bound)
    filled(TurnStore(), 3, size)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        filled(store, 100 if size > 100 else 750, size)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert store.size <= bound
    assert sum(turn.size for turn in store.newest()) == store.size
    assert taken <= bound
    assert len(store.newest()) > 2
    assert store.size > bound // 2


def test_store_keeps_the_last_turns() -> None:
    store = TurnStore(most=3)
    filled(store, 5, 10)
    assert ["t4", "t3", "t2"] == [turn.id for turn in store.newest()]
    assert store.get("t1") is None


def test_turn_that_is_too_large_keeps_its_record_and_no_content() -> None:
    store = TurnStore(most_bytes=100_000)
    filled(store, 1, 10)
    large = store.begin("large", "chat", b"x" * 30_000, Redactor())
    large.add_attempt(Attempt(b"y" * 30_000, b"x", 1.0))
    large.end(1.0, status=200, error="", ending=None)
    assert ["large", "t0"] == [turn.id for turn in store.newest()]
    assert (None, None, True) == (large.body, large.attempts[0].body, large.attempts[0].is_cut)
    assert store.size <= 100_000


def test_turn_that_was_dropped_while_it_runs_is_not_counted_any_more() -> None:
    store = TurnStore(most=1)
    first = store.begin("first", "chat", b"x" * 1000, Redactor())
    second = store.begin("second", "chat", b"y", Redactor())
    first.add_attempt(Attempt(b"z" * 1000, b"z", 1.0))
    first.add_passed(b"z" * 1000)
    first.end(1.0, status=200, error="", ending=None)
    assert ([second], second.size) == (store.newest(), store.size)
    assert (None, []) == (first.attempts[0].body, first.passed)
