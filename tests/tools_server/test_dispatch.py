"""Calls on their way to callbacks, and every answer that a callback may give."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from patchbay import ToolCall
from patchbay.executor import Executor
from patchbay.server import callback_tool
from patchbay.server.callback_tool import CallbackDispatcher
from patchbay.server.settings import ToolsSettings
from patchbay.tools import Tool, ToolDefinition
from patchbay.tools.registry import Registration, ToolRegistry
from ports import kept_port
from tools_server.dialogues import WIRE, differs
from tools_server.rig import BOUND, calling_back, json_response, no_response, raw_response, serving


def ask_of(server: Any) -> Any:
    """Register a callback that answers like this, call it, and return what came of it."""

    def call(script: Any, **fields: Any) -> Any:
        with calling_back(script) as callback:
            server.register(callback_url=callback.url, **fields)
            return server.call()

    return call


@pytest.fixture
def ask(server: Any) -> Any:
    return ask_of(server)


@pytest.fixture(scope="module")
def shared_ask() -> Iterator[Any]:
    with serving() as server:
        yield ask_of(server)


def test_call_is_posted_as_documented(server: Any) -> None:
    with calling_back(json_response({"output": {"temp_c": 22}, "is_error": False})) as callback:
        secret = server.register("get_weather", callback.url)["secret"]
        answer = server.call("get_weather", raw_arguments='{"city": "Beijing"}', call_id="call_abc123")
    [call] = callback.calls
    assert call.head.startswith("POST /tool_invoke HTTP/1.1\r\n")
    assert {
        "name": "get_weather", "arguments": {"city": "Beijing"}, "call_id": "call_abc123", "raw_arguments": '{"city": "Beijing"}',
    } == call.json  # fmt: skip
    assert ("application/json", f"127.0.0.1:{callback.port}") == (call.header("content-type"), call.header("host"))
    genuine = hmac.new(secret.encode(), call.body, hashlib.sha256).hexdigest()
    assert f"sha256={genuine}" == call.header("x-patchbay-signature")
    assert 32 == len(call.header("idempotency-key") or "")
    assert (True, False, {"temp_c": 22}, '{"temp_c": 22}', "ann", "call_abc123") == tuple(
        answer[key] for key in ("ok", "is_error", "output", "content", "role", "call_id")
    )


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [("", {}), ("{}", {}), ("null", {}), ('{"a": 1}', {"a": 1}), ("[1]", {"value": [1]}), ('"x"', {"value": "x"}),
     ("not json", {"_raw": "not json"}), ('{"a": NaN}', {"_raw": '{"a": NaN}'}), ('{"a": 1', {"_raw": '{"a": 1'}),
     ('{"a": "\\ud800"}', {"a": "\ud800"})],
)  # fmt: skip
def test_any_arguments_of_the_model_are_forwarded(server: Any, raw: str, arguments: Any) -> None:
    with calling_back(json_response("done")) as callback:
        server.register(callback_url=callback.url)
        assert server.call(raw_arguments=raw)["ok"]
    assert (arguments, raw) == (callback.calls[0].json["arguments"], callback.calls[0].json["raw_arguments"])


def test_strict_arguments_forward_only_valid_ones() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with serving(strict_arguments=True) as server, calling_back(json_response("done")) as callback:
        server.register(callback_url=callback.url, parameters=schema)
        for raw in ("{}", "[1]", "no json", '{"n": "x"}'):
            answer = server.call(raw_arguments=raw)
            assert (False, "invalid_arguments") == (answer["ok"], answer["code"])
            assert "The tool did not run" in answer["content"]
        assert server.call(arguments={"n": 5})["ok"]
    assert [{"n": 5}] == [call.json["arguments"] for call in callback.calls]


def test_tool_with_an_unreadable_schema_can_be_called(server: Any) -> None:
    with calling_back(json_response("done")) as callback:
        server.register(callback_url=callback.url, parameters={"type": 5, "$ref": "nowhere"})
        assert "done" == server.call()["output"]


ROW = re.compile(r"(\d+) (\S+) (.*)  ->  (.*)")
ROWS = [row.groups() for line in (WIRE / "callbacks.txt").read_text("utf-8").splitlines() if (row := ROW.fullmatch(line))]


@pytest.mark.parametrize(("status", "kind", "body", "expected"), ROWS)
def test_what_the_answer_of_a_callback_gives(shared_ask: Any, status: str, kind: str, body: str, expected: str) -> None:
    answer = shared_ask(json_response(body.encode(), status=f"{status} X", kind=kind.strip("-")))
    shown = json.loads(answer["content"]) if '"shown"' in expected else None
    assert "" == differs(json.loads(expected), {**answer, "shown": shown})


@pytest.mark.parametrize(
    ("script", "output"),
    [
        (json_response(b"\xef\xbb\xbf{\"output\": 1}"), 1),
        (json_response(b"caf\xe9", kind="text/plain"), "caf\ufffd"),
        (json_response(b"caf\xe9", kind=""), "caf\ufffd"),
        (raw_response(b"HTTP/1.0 200 OK\r\n\r\nuntil the end"), "until the end"),
        (raw_response(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"o\r\n9\r\nutput\": 1\r\n1\r\n}\r\n0\r\n\r\n"), 1),
        (raw_response(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), "hi"),
    ],
)  # fmt: skip
def test_non_json_response_is_text_without_a_declared_type(ask: Any, script: Any, output: Any) -> None:
    answer = ask(script)
    assert (True, output) == (answer["ok"], answer["output"])


PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"

HOSTILE = {
    "a long error": (json_response(b"x" * 1000, status="400 Bad"), f": {'x' * 200}"),
    "endless nesting": (json_response(b"[" * 50_000), "JSON that cannot be read"),
    "something compressed": (json_response(b"\x1f\x8b", more="Content-Encoding: gzip\r\n"), "compressed form"),
    "an image": (json_response(PNG, kind="image/png"), "answered image/png, which is not text"),
    "an endless image": (json_response(PNG * 70_000, kind="image/png"), "answered image/png, which is not text"),
    "a file": (
        json_response(b"%PDF-1.7\n\xe2\xe3", kind="application/octet-stream"),
        "answered application/octet-stream, which is not text",
    ),
    "half of it": (raw_response(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"output": 1}'), "in the middle of the answer"),
    "half a chunk": (
        raw_response(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nab"),
        "in the middle of the answer",
    ),
    "another protocol": (raw_response(b"SSH-2.0-OpenSSH_9.6\r\n"), "is not HTTP"),
    "nothing": (raw_response(b""), "ended before the answer"),
    "half a head": (raw_response(b"HTTP/1.1 200 OK\r\nContent-"), "ended before the answer"),
    "an endless head": (raw_response(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 50_000), "not HTTP"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_response_is_an_error_that_quotes_it(ask: Any, name: str) -> None:
    script, text = HOSTILE[name]
    answer = ask(script)
    assert (False, "callback_failed", None) == (answer["ok"], answer["code"], answer["output"])
    assert text in answer["error"]
    assert list(json.loads(answer["content"])) == ["error"]


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_redirect_is_not_followed(server: Any, status: str) -> None:
    with calling_back(json_response("not this one")) as other:
        with calling_back(json_response(b"", status=status, more=f"Location: {other.url}\r\n")) as callback:
            server.register(callback_url=callback.url)
            answer = server.call()
        assert ("callback_failed", []) == (answer["code"], other.calls)
    assert f"redirected (HTTP {status[:3]})" in answer["content"]


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_large_response_is_truncated_with_a_notice(kind: str) -> None:
    body = b'{"output": "' + b"x" * 5000 + b'"}'
    with serving(max_result_size=1000) as server, calling_back(json_response(body, kind=kind)) as callback:
        server.register(callback_url=callback.url)
        answer = server.call()
    assert answer["ok"]
    text, _, note = answer["output"].partition("\n")
    assert body[:1000].decode() == text
    assert "[... cut here: the callback's answer is larger than 1000 bytes ...]" == note


def test_an_endless_answer_ends_at_the_limit() -> None:
    stopped = threading.Event()

    def endless(connection: socket.socket, end: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while not end.is_set():
                connection.sendall(b"x" * 65536)
        except OSError:
            stopped.set()

    with serving(max_result_size=100_000) as server, calling_back(endless) as callback:
        server.register(callback_url=callback.url)
        assert "cut here" in server.call()["content"]
        assert stopped.wait(BOUND)  # the connection was ended from here


def hangs_after_the_head(connection: socket.socket, end: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    end.wait(BOUND)


def drips(connection: socket.socket, end: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not end.wait(0.01):
        connection.sendall(b"x")


def drips_its_head(connection: socket.socket, end: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while not end.wait(0.01):
        connection.sendall(b"x")


def drips_progress(connection: socket.socket, end: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n")
    while not end.wait(0.01):
        connection.sendall(b'{"progress": {"message": "still here"}}\n')


@pytest.mark.parametrize("script", [no_response, hangs_after_the_head, drips, drips_its_head, drips_progress])
def test_one_deadline_covers_the_whole_call(ask: Any, script: Any) -> None:
    answer = ask(script, timeout_seconds=0.2)
    assert (False, "tool_timeout") == (answer["ok"], answer["code"])
    assert "timed out after 0.2s" in answer["content"]


def test_unreachable_callback_has_not_run(server: Any) -> None:
    server.register(callback_url=f"http://127.0.0.1:{kept_port()}/")
    answer = server.call()
    assert "callback_failed" == answer["code"]
    assert "Connection refused; the tool did not run" in answer["content"]


def test_call_lost_on_a_pooled_connection_is_not_repeated(server: Any) -> None:
    """The callback may have carried it out before it died; only who made the call can know whether to make it again."""
    heads: list[bytes] = []

    def keeps_the_connection(connection: socket.socket, _end: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        heads.append(connection.recv(65536))

    with calling_back(keeps_the_connection) as callback:
        server.register(callback_url=callback.url)
        assert server.call()["ok"]
        answer = server.call()
        assert "the tool may have run" in answer["content"]
        assert (1, 1) == (len(callback.calls), len(heads))


def test_a_call_may_bring_its_own_idempotency_key(server: Any) -> None:
    with calling_back(json_response(1)) as callback:
        server.register(callback_url=callback.url)
        server.call(idempotency_key="mine")
        server.call()
        server.call()
        keys = [call.header("idempotency-key") for call in callback.calls]
        graces = [call.header("x-patchbay-grace") for call in callback.calls]
    assert (["60", None, None], "mine") == (graces, keys[0])
    assert 3 == len({*keys, "mine"})
    assert 422 == server.post("call", name="a", idempotency_key="k" * 257).status


def test_slow_callback_with_64_calls_does_not_delay_another(server: Any) -> None:
    with calling_back(no_response) as slow, calling_back(json_response("quick")) as quick, ThreadPoolExecutor(64) as threads:
        server.register("slow", slow.url)
        server.register("quick", quick.url)
        calls = [threads.submit(server.call, "slow") for _ in range(64)]
        while len(slow.calls) < 64:
            assert not any(call.done() for call in calls), "no slow call may end before the last one has come"
            slow.end.wait(0.01)
        assert ["quick"] * 8 == [server.call("quick")["output"] for _ in range(8)]
        assert not any(call.done() for call in calls)
        slow.end.set()
        assert {"callback_failed"} == {call.result(BOUND)["code"] for call in calls}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1"])
def test_localhost_is_not_resolved(server: Any, host: str, monkeypatch: Any) -> None:
    def look_up(*_: Any, **__: Any) -> Any:
        raise AssertionError("a name was looked up")

    with calling_back(json_response("done")) as callback:
        server.register(callback_url=f"http://{host}:{callback.port}/")
        body = json.dumps({"name": "a"}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=BOUND) as connection:
            monkeypatch.setattr(socket, "getaddrinfo", look_up)
            head = f"POST /api/tools/call HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode() + body)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
            monkeypatch.undo()
    assert b'"output":"done"' in answer
    assert f"{host.lower()}:{callback.port}" == callback.calls[0].header("host")


def test_environment_proxies_are_not_used(server: Any, monkeypatch: Any) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{kept_port()}")
    with calling_back(json_response("done")) as callback:
        server.register(callback_url=callback.url)
        assert "done" == server.call()["output"]


def test_a_tool_of_this_process_can_be_called_too(server: Any) -> None:
    server.app.managers["ben"].register_tool(ToolDefinition("add", handler=lambda numbers: {"sum": numbers["a"] + numbers["b"]}))
    assert {"sum": 3} == server.call("add", role="ben", arguments={"a": 1, "b": 2})["output"]


def test_non_json_result_is_rendered_as_for_a_model(server: Any) -> None:
    server.app.managers["ann"].register_tool(
        ToolDefinition("odd", handler=lambda _: {"a": 2**80, "b": float("inf"), "c": object})
    )
    answer = server.call("odd")
    assert answer["ok"]
    assert "1208925819614629174706176" in answer["content"]


async def test_connections_that_make_room_for_others_end_their_running_call_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callback_tool, "MAX_CLIENTS", 1)
    go_on = threading.Event()

    def answers_slowly(connection: socket.socket, end: threading.Event) -> None:
        go_on.wait(BOUND)
        json_response("done")(connection, end)

    with calling_back(json_response("done")) as first, calling_back(answers_slowly) as second:
        dispatcher = CallbackDispatcher(ToolsSettings(connect_timeout=BOUND))
        registry = dispatcher.health.registry = ToolRegistry(["ann"], dispatcher.tool)
        for name, callback in (("first", first), ("second", second)):
            registry.register(Registration(name, source="s", callback_url=callback.url))
        executor = Executor(registry.snapshot("ann").tools.values())

        async def called(name: str) -> Any:
            [execution] = await executor.run([ToolCall("c", name, "{}")])
            go_on.set()
            return execution.value if execution.error is None else execution.error

        running = asyncio.ensure_future(called("second"))
        while not second.calls:
            await asyncio.sleep(0.005)
        values = [await called("first"), await running]
        await dispatcher.close()
        assert ["done"] * 2 == values


def test_stored_tool_with_a_disallowed_port_is_left_out(tmp_path: Any, caplog: Any) -> None:
    store = f"{tmp_path}/tools.db"
    with calling_back(json_response("done")) as callback:
        with serving(store=store) as server:
            server.register("a", callback.url)
        with serving(store=store, callback_ports=frozenset({1})) as server:
            assert {} == server.tools()
        with serving(store=store, callback_ports=frozenset({callback.port})) as server:
            assert "done" == server.call("a")["output"]
    assert "The stored tool 'a' cannot be used" in caplog.text


def test_text_truncated_within_a_character_is_still_text() -> None:
    with (
        serving(max_result_size=3) as server,
        calling_back(json_response("caf\u00e9s".encode(), kind="application/yaml")) as callback,
    ):
        server.register(callback_url=callback.url)
        answer = server.call()
    assert (True, True) == (answer["ok"], answer["output"].startswith("caf"))
    assert "cut here" in answer["output"]


@pytest.mark.parametrize(("script", "seconds"), [(raw_response(b""), 30), (no_response, 0.2)])
def test_a_call_that_was_not_answered_may_have_run(ask: Any, script: Any, seconds: float) -> None:
    assert "unknown" == ask(script, timeout_seconds=seconds)["ran"]


def test_a_call_that_reaches_no_tool_did_not_run(server: Any) -> None:
    server.register("gone", f"http://127.0.0.1:{kept_port()}/", source="s")
    assert ["no", "no", "no"] == [server.call(name)["ran"] for name in ("nowhere", "gone", "gone")]


def test_invalid_arguments_did_not_run_and_a_raising_tool_did() -> None:
    class Fails(Tool):
        async def run(self, arguments: Any, context: Any) -> Any:
            raise ValueError("x")

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with serving(strict_arguments=True) as server, calling_back(json_response("done")) as callback:
        server.register("a", callback.url, parameters=schema)
        server.app.managers["ann"].register_tool(Fails("fails"))
        assert ("no", "yes") == (server.call("a")["ran"], server.call("fails")["ran"])
        assert "ran" not in server.call("a", arguments={"n": 1})
