"""The callback and the calls of a plugin: the bodies of the contract, and one answer for each call."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial

import pytest

from patchbay.plugins import envelope
from patchbay.plugins.connection import MessageConnection
from patchbay.plugins.host.callback import CallbackApp, Target
from patchbay.plugins.host.calls import InFlightCalls
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.protocol import Begun, CancelRun, Progress, Result, Trigger
from patchbay.server.http_client import HttpClient
from patchbay.server.origin import Origin
from plugins.tool_server import Served, post


class Plugin:
    """The other end of a connection: keeps what it is asked, and answers when the test says so."""

    def __init__(self) -> None:
        self.received = []
        self.begun = 0  # the calls that the host knows to have begun
        self._arrived = asyncio.Event()

    def on_message(self, message) -> None:
        self.received.append(message)
        self._arrived.set()

    async def receive(self, kind, count=1):
        while len(found := [each for each in self.received if isinstance(each, kind)]) < count:
            self._arrived.clear()
            await self._arrived.wait()
        return found

    async def until_begun(self) -> None:
        """Wait until the host knows that every call has begun."""
        while self.begun < len([each for each in self.received if isinstance(each, Trigger)]):
            await asyncio.sleep(0)

    async def answer(self, trigger, value) -> None:
        data = envelope.body_of(value).encode()
        self.connection.send(Result(req_id=trigger.req_id, success=True, data=data))


@asynccontextmanager
async def connected(tmp_path, calls=None):
    """Connect calls to a plugin, over a real socket."""
    plugin, calls = Plugin(), InFlightCalls("p") if calls is None else calls
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    class HostEnd(MessageConnection):
        def connection_made(self, transport):
            super().connection_made(transport)
            ready.set_result(self)

    def take(message):
        if isinstance(message, Begun):
            calls.on_begun(message.req_id)
            plugin.begun += 1
        else:
            (calls.on_progress if isinstance(message, Progress) else calls.on_result)(message)

    server = await loop.create_unix_server(lambda: HostEnd(take, lambda _: calls.detach(plugin.host_end)), str(tmp_path / "s"))
    _, plugin.connection = await loop.create_unix_connection(
        lambda: MessageConnection(plugin.on_message, lambda _error: None, is_worker=True), str(tmp_path / "s")
    )
    plugin.host_end = await ready
    calls.attach(plugin.host_end)
    try:
        yield plugin, calls
    finally:
        plugin.connection.abort()
        plugin.host_end.abort()
        server.close()


@asynccontextmanager
async def served(calls, *, timeout=30.0, secret=None):
    async def find(plugin, name):
        return Target(calls, timeout, secret) if (plugin, name) == ("p", "t") else None

    callback = Served(CallbackApp(find))
    await callback.start()
    try:
        yield f"{callback.url}/api/llm-tools/callback/p/t"
    finally:
        await callback.close()


def failure(message, error, code, ran):
    return {"output": {"error": message}, "is_error": True, "error": error, "code": code, "ran": ran}


async def test_arguments_and_results_are_forwarded_unchanged(tmp_path):
    async with connected(tmp_path) as (plugin, calls), served(calls) as url:
        raw = (
            b'{"name": "t", "arguments": {"n": 1.10, "big": 12345678901234567890123}, "call_id": "call_1", "raw_arguments": "x"}'
        )
        asking = asyncio.create_task(post(url, None, raw=raw, headers=[(b"Idempotency-Key", b"k1")]))
        [trigger] = await plugin.receive(Trigger)
        assert ('{"n": 1.10, "big": 12345678901234567890123}', "__llm_tool__t", 30.0, "call_1", "k1") == (
            trigger.args,
            trigger.entry_id,
            trigger.timeout,
            trigger.call_id,
            trigger.idempotency_key,
        )
        await plugin.answer(trigger, {"temp_c": 22})
        assert {"output": {"temp_c": 22}, "is_error": False} == await asking


@pytest.mark.parametrize("arguments", ["[1]", '"text"', "null", "7"])
async def test_non_object_arguments_are_empty(tmp_path, arguments):
    async with connected(tmp_path) as (plugin, calls), served(calls) as url:
        asking = asyncio.create_task(post(url, None, raw=b'{"arguments": %b}' % arguments.encode()))
        [trigger] = await plugin.receive(Trigger)
        assert "{}" == trigger.args
        await plugin.answer(trigger, None)
        await asking


async def test_the_bodies_of_calls_that_reach_no_plugin(tmp_path):
    calls = InFlightCalls("p")
    async with served(calls) as url:
        other = await post(url[:-1] + "x", {})
        assert failure("tool 'x' is not registered for plugin 'p'", "TOOL_NOT_REGISTERED", "unknown_tool", "no") == other
        assert failure("plugin 'p' is not running", "PLUGIN_NOT_RUNNING", "plugin_not_running", "no") == await post(url, {})


async def test_timed_out_plugin_call_is_an_error_and_cancelled(tmp_path):
    async with connected(tmp_path) as (plugin, calls), served(calls, timeout=0.2) as url:
        assert failure("tool 't' timed out after 0.2s", "TOOL_TIMEOUT", "tool_timeout", "unknown") == await post(url, {})
        [trigger] = await plugin.receive(Trigger)
        [cancel] = await plugin.receive(CancelRun)
        assert trigger.run_id == cancel.run_id
        await plugin.answer(trigger, "too late")
        assert await calls.call("t", "{}", within=0.2)  # the late answer has been read by now
        assert 0 == len(calls)


async def test_disconnected_caller_cancels_the_call(tmp_path):
    async with connected(tmp_path) as (plugin, calls), served(calls) as url:
        asking = asyncio.create_task(post(url, {}))
        [trigger] = await plugin.receive(Trigger)
        asking.cancel()
        [cancel] = await plugin.receive(CancelRun)
        assert trigger.run_id == cancel.run_id


async def test_call_of_a_lost_plugin_states_whether_it_may_have_run(tmp_path):
    async with connected(tmp_path) as (plugin, calls):
        begun = asyncio.create_task(calls.call("t", "{}", within=30))
        await plugin.receive(Trigger)
        await plugin.until_begun()
        plugin.connection.pause_writing()  # a worker whose BEGUN cannot be sent reads nothing more
        sent = asyncio.create_task(calls.call("t", "{}", within=30))
        await asyncio.sleep(0)
        plugin.connection.abort()
        bodies = [json.loads(body) for body in await asyncio.gather(begun, sent)]
        assert ["PLUGIN_NOT_RUNNING"] * 2 == [body["error"] for body in bodies]
        assert ["unknown", "no"] == [body["ran"] for body in bodies]
        assert "with unknown effects" in bodies[0]["output"]["error"]
        assert "it did not run" in bodies[1]["output"]["error"]
        assert not calls.is_attached


async def test_call_of_a_disconnected_plugin_may_have_run(tmp_path):
    async with connected(tmp_path) as (plugin, calls):
        plugin.connection.pause_writing()
        sent = asyncio.create_task(calls.call("t", "{}", within=30))
        await asyncio.sleep(0)
        calls.detach(plugin.host_end)
        assert "may have run" in json.loads(await sent)["output"]["error"]


async def test_excess_calls_are_refused_and_the_others_continue(tmp_path):
    async with connected(tmp_path, InFlightCalls("p", HostPolicy(calls_most=2, call_bytes_most=100))) as (plugin, calls):
        under_way = [asyncio.create_task(calls.call("t", "{}", within=30)) for _ in range(2)]
        triggers = await plugin.receive(Trigger, 2)
        assert "PLUGIN_BUSY" == json.loads(await calls.call("t", "{}", within=30))["error"]
        for trigger in triggers:
            await plugin.answer(trigger, 1)
        assert [{"output": 1, "is_error": False}] * 2 == [json.loads(body) for body in await asyncio.gather(*under_way)]
        assert "PLUGIN_BUSY" == json.loads(await calls.call("t", '{"a": "%s"}' % ("x" * 200), within=30))["error"]


async def test_call_without_the_servers_signature_is_refused(tmp_path):
    calls = InFlightCalls("p")
    async with served(calls, secret=b"s3cret") as url:
        assert 403 == (await post(url, {}))[0]
        assert 403 == (await post(url, {}, secret="another"))[0]
        assert "PLUGIN_NOT_RUNNING" == (await post(url, {}, secret="s3cret"))["error"]


@pytest.mark.parametrize(
    ("status", "options"),
    [
        (405, {"method": b"GET"}),
        (422, {"headers": [(b"Content-Type", b"text/plain")]}),
        (403, {"headers": [(b"Origin", b"https://evil.example")]}),
        (403, {"headers": [(b"X-Forwarded-For", b"127.0.0.1")]}),
        (403, {"headers": [(b"Forwarded", b"for=8.8.8.8")]}),
        (400, {"raw": b"{"}),
        (400, {"raw": b"[1]"}),
        (400, {"raw": b'{"arguments": {}} x'}),
        (413, {"raw": b'{"arguments": {"a": "' + b"x" * (16 * 1024 * 1024) + b'"}}'}),
    ],
)
async def test_invalid_callback_request_is_rejected(status, options):
    async with served(InFlightCalls("p")) as url:
        assert status == (await post(url, {}, **options))[0]


@pytest.mark.parametrize(
    ("status", "peer", "hosts"),
    [
        (403, "10.0.0.7", [b"127.0.0.1:1"]),
        (403, "127.0.0.2", [b"127.0.0.1:1"]),
        (400, "127.0.0.1", []),
        (400, "127.0.0.1", [b"evil.example"]),
        (400, "127.0.0.1", [b"127.0.0.1.evil.example"]),
        (400, "127.0.0.1", [b"127.0.0.1", b"127.0.0.1"]),
        (200, "::ffff:127.0.0.1", [b"localhost:48916"]),
        (200, "::1", [b"[::1]:48916"]),
    ],
)
async def test_callback_access_is_checked_before_the_body_is_read(status, peer, hosts):
    async def unused(*_):
        return None

    sent = []
    read = []

    async def receive():
        read.append(1)
        return {"type": "http.request", "body": b"{}"} if len(read) == 1 else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    headers = [(b"content-type", b"application/json"), *((b"host", host) for host in hosts)]
    scope = {"type": "http", "method": "POST", "path": "/api/llm-tools/callback/p/t", "headers": headers, "client": (peer, 5)}
    await CallbackApp(unused)(scope, receive, send)
    assert status == sent[0]["status"]
    assert (status == 200) == bool(read)


IN_LINES = [(b"Accept", b"application/json, application/x-ndjson;q=0.9")]


@asynccontextmanager
async def send_call(url, headers=IN_LINES):
    """Send a call, and give its answer when the head of it is there."""
    origin, path = url[: url.index("/", 8)], url[url.index("/", 8) :]
    client = HttpClient(Origin(origin), connect_timeout=5)
    sent = [*headers, (b"Content-Type", b"application/json")]
    asking = asyncio.create_task(client.request(b"POST", path.encode(), sent, b'{"arguments": {}}'))
    try:
        yield asking
    finally:
        asking.cancel()
        await asyncio.wait({asking})
        if not asking.cancelled():
            asking.result().close()
        await client.close()


async def line_of(answer, kept):
    """Read the next line of an answer; ``kept`` has what was read after it."""
    while b"\n" not in kept:
        piece = await answer.read()
        assert piece, bytes(kept)
        kept += piece
    line, _, rest = bytes(kept).partition(b"\n")
    kept[:] = rest
    return json.loads(line)


async def test_progress_is_streamed_and_the_result_is_the_last_line(tmp_path):
    async with connected(tmp_path) as (plugin, calls), served(calls) as url, send_call(url) as asking:
        [trigger] = await plugin.receive(Trigger)
        say = partial(Progress, req_id=trigger.req_id)
        plugin.connection.send(say(message="half", fraction=0.5))
        answer, kept = await asking, bytearray()
        assert (200, "application/x-ndjson") == (answer.status, answer.content_type)
        assert {"progress": {"message": "half", "fraction": 0.5}} == await line_of(answer, kept)
        plugin.connection.send(say(data='{"n":\n1}'))
        assert {"progress": {"data": {"n": 1}}} == await line_of(answer, kept)
        await plugin.answer(trigger, {"found": 3})
        assert {"output": {"found": 3}, "is_error": False} == await line_of(answer, kept)
        assert (b"", b"") == (bytes(kept), await answer.read())


@pytest.mark.parametrize(
    ("headers", "call"),
    [([], ""), ([(b"Accept", b"*/*")], ""), ([(b"Accept", b"application/json")], ""), (IN_LINES, "another")],
)
async def test_call_without_accept_ndjson_or_without_progress_gets_one_json_response(tmp_path, headers, call):
    async with connected(tmp_path) as (plugin, calls), served(calls) as url, send_call(url, headers) as asking:
        [trigger] = await plugin.receive(Trigger)
        plugin.connection.send(Progress(req_id=call or trigger.req_id, message="half"))
        await plugin.answer(trigger, 1)
        answer = await asking
        assert ("application/json", "29") == (answer.content_type, answer.header(b"content-length"))
        assert b'{"output":1,"is_error":false}' == await answer.read()


async def test_progress_that_is_too_long_or_too_much_is_not_passed_on(tmp_path):
    async with connected(tmp_path) as (plugin, calls), served(calls) as url, send_call(url) as asking:
        [trigger] = await plugin.receive(Trigger)
        plugin.connection.send(Progress(req_id=trigger.req_id, message="x" * 70_000))
        for number in range(1500):
            plugin.connection.send(Progress(req_id=trigger.req_id, message=str(number)))
        await plugin.answer(trigger, "done")
        answer, kept = await asking, bytearray()
        lines = [await line_of(answer, kept) for _ in range(1001)]
        assert [str(number) for number in range(1000)] == [line["progress"]["message"] for line in lines[:1000]]
        assert "done" == lines[1000]["output"]


async def test_caller_disconnected_during_progress_cancels_the_call(tmp_path):
    async with connected(tmp_path) as (plugin, calls), served(calls) as url:
        async with send_call(url) as asking:
            [trigger] = await plugin.receive(Trigger)
            plugin.connection.send(Progress(req_id=trigger.req_id, message="half"))
            await asking
        [cancel] = await plugin.receive(CancelRun)
        assert (trigger.run_id, 0) == (cancel.run_id, len(calls))


async def test_a_plugin_that_dies_after_progress_is_answered_for_on_the_last_line(tmp_path):
    async with connected(tmp_path) as (plugin, calls), served(calls) as url, send_call(url) as asking:
        [trigger] = await plugin.receive(Trigger)
        plugin.connection.send(Progress(req_id=trigger.req_id, message="half"))
        answer, kept = await asking, bytearray()
        assert "half" == (await line_of(answer, kept))["progress"]["message"]
        plugin.connection.abort()
        assert "PLUGIN_NOT_RUNNING" == (await line_of(answer, kept))["error"]


def test_the_host_needs_no_web_framework():
    probe = (
        "import sys, patchbay.plugins.host.control, patchbay.server.settings; print({'fastapi', 'pydantic'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    assert "set()\n" == done.stdout
