"""Traces of real servers, as a receiver of OTLP over HTTP gets them."""

from __future__ import annotations

import gzip
import http.server
import importlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from proxy_rig import running_command

from patchbay.server import span_names
from patchbay.testing import ContractModel, ScriptedUpstream
from plugins.host_rig import write_plugin
from support.http_server import BOUND, ask
from tools_server.rig import calling_back, json_response, poll_until

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"content-type": "application/json", "traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=1"}
SECRET = "the weather in Rome-on-Sea"
CHAT = {"model": "small", "messages": [{"role": "user", "content": f"What is {SECRET}?"}]}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}


class Receiver:
    """Receives spans; ``waits_for`` returns them as soon as there are so many."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self._came = threading.Condition()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def environment(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.server.server_port}"
        return {"PATCHBAY_OTEL": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._came:
            self.bodies.append(body)
            for each in request.resource_spans:
                self.resources.append({pair.key: pair.value.string_value for pair in each.resource.attributes})
                for scope in each.scope_spans:
                    assert span_names.SCHEMA_URL == scope.schema_url
                    self.spans += scope.spans
            self._came.notify()

    def wait_for(self, count: int) -> dict[str, list[Span]]:
        """The spans by name, in the order of time."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.spans) >= count, BOUND), [each.name for each in self.spans]
            found: dict[str, list[Span]] = {}
            for span in sorted(self.spans, key=lambda each: each.start_time_unix_nano):
                found.setdefault(span.name, []).append(span)
            return found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(BOUND)


@contextmanager
def serving(receiver: Receiver, callback: Any, *flags: str, **environment: str) -> Iterator[tuple[ScriptedUpstream, int]]:
    with (
        ScriptedUpstream(ContractModel(), tools="refuse") as upstream,
        running_command(
            "serve", "--store", "memory", "--upstream", upstream.url, *flags, **{**receiver.environment, **environment}
        ) as (process, port),
    ):
        tool = {"name": "get_weather", "callback_url": callback.url, "parameters": CITY, "description": "The weather."}
        assert json.loads(ask(port, "POST", "/api/tools/register", tool, headers=HEADERS).body)["ok"]
        yield upstream, port
        process.terminate()
        process.communicate(timeout=2 * BOUND)


def attributes(span: Span) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


def parent_in(headers: Any) -> tuple[str, str]:
    """The trace and the span that a request came with."""
    version, trace, span, flags = {name.lower(): value for name, value in headers.items()}["traceparent"].split("-")
    assert ("00", "01") == (version, flags)
    return trace, span


def test_a_turn_is_one_trace_of_its_client_with_models_and_tools_below_it_and_no_content(receiver: Receiver) -> None:
    with (
        calling_back(json_response({"output": "21 degrees, secretly"})) as callback,
        serving(receiver, callback) as (upstream, port),
    ):
        answer = ask(port, "POST", "/v1/chat/completions", CHAT, headers=HEADERS)
        assert "21 degrees" in answer.body.decode()
        spans = receiver.wait_for(5)
    [root], chats, [tool] = spans["invoke_agent default"], spans["chat small"], spans["execute_tool get_weather"]
    assert {TRACE} == {span.trace_id.hex() for span in (root, *chats, tool)}
    assert (5, CALLER) == (len(receiver.spans), root.parent_span_id.hex())
    assert {root.span_id} == {span.parent_span_id for span in (*chats, tool)}
    assert 5 == len({span.span_id for span in receiver.spans})
    assert [Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_INTERNAL] == [root.kind, chats[0].kind, tool.kind]
    # What was sent out names the spans that were exported.
    assert [(TRACE, span.span_id.hex()) for span in chats] == [parent_in(each.headers) for each in upstream.chats]
    assert (TRACE, tool.span_id.hex()) == parent_in(
        dict(line.split(": ", 1) for line in callback.calls[0].head.splitlines() if ": " in line)
    )
    assert {"vendor=1"} == {each.headers["tracestate"] for each in upstream.chats}
    # The first request, with native tools, was refused.
    assert [Status.STATUS_CODE_ERROR, Status.STATUS_CODE_UNSET, Status.STATUS_CODE_UNSET] == [each.status.code for each in chats]
    assert ["400", None, None] == [attributes(each).get("error.type") for each in chats]
    assert ["native", "text", "text"] == [attributes(each)["patchbay.tools.mode"] for each in chats]
    assert answer.headers["x-request-id"] == attributes(root)["patchbay.request.id"] == attributes(tool)["patchbay.request.id"]
    assert ("invoke_agent", "default", "small", 200) == tuple(
        attributes(root)[name]
        for name in ("gen_ai.operation.name", "gen_ai.agent.name", "gen_ai.request.model", "http.response.status_code")
    )
    assert attributes(root)["gen_ai.usage.input_tokens"] == sum(
        attributes(each)["gen_ai.usage.input_tokens"] for each in chats[1:]
    )
    assert all(root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano for span in (*chats, tool))
    assert {"patchbay"} == {each["service.name"] for each in receiver.resources}
    assert not any(word.encode() in body for body in receiver.bodies for word in (SECRET, "degrees", "Rome"))


def test_failed_tools_and_requests_are_marked_and_a_client_without_a_trace_gets_one(receiver: Receiver) -> None:
    broken = json_response({"output": "no", "is_error": True})
    with calling_back(broken) as callback, serving(receiver, callback) as (_, port):
        ask(port, "POST", "/v1/chat/completions", CHAT, headers={"content-type": "application/json"})
        bad = {"model": "small", "messages": "none"}
        assert 400 == ask(port, "POST", "/v1/chat/completions", bad, headers=HEADERS).status
        call = {"name": "get_weather", "arguments": {}, "call_id": "c1"}
        ask(port, "POST", "/api/tools/call", call, headers=HEADERS)
        spans = receiver.wait_for(7)
    tools = spans["execute_tool get_weather"]
    assert [Status.STATUS_CODE_ERROR] * 2 == [each.status.code for each in tools]
    own, adopted = tools
    assert (TRACE, CALLER) == (adopted.trace_id.hex(), adopted.parent_span_id.hex())
    first, refused = spans["invoke_agent default"][0], spans["proxy chat"][0]
    assert (b"", own.trace_id) == (first.parent_span_id, first.trace_id)
    assert TRACE != first.trace_id.hex()
    assert (Status.STATUS_CODE_ERROR, "invalid_request") == (refused.status.code, attributes(refused)["error.type"])


def test_content_is_sent_where_it_is_wanted_without_the_clients_key(receiver: Receiver) -> None:
    key = "sk-0123456789abcdefghij"
    asked = {"model": "small", "messages": [{"role": "user", "content": f"What is {SECRET}? My key is {key}."}]}
    with (
        calling_back(json_response({"output": "21 degrees"})) as callback,
        serving(receiver, callback, OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="true") as (_, port),
    ):
        ask(port, "POST", "/v1/chat/completions", asked, headers={**HEADERS, "authorization": f"Bearer {key}"})
        last = attributes(receiver.wait_for(5)["chat small"][-1])
    sent, [written] = json.loads(last["gen_ai.input.messages"]), json.loads(last["gen_ai.output.messages"])
    assert any(SECRET in part["content"] for message in sent for part in message["parts"] if part["type"] == "text")
    assert "21 degrees" in written["parts"][0]["content"]
    assert not any(key.encode() in body for body in receiver.bodies)


def test_what_is_not_sampled_is_not_sent_and_its_context_is_carried_on(receiver: Receiver) -> None:
    with calling_back(json_response({"output": "21 degrees"})) as callback, serving(receiver, callback) as (upstream, port):
        unsampled = {**HEADERS, "traceparent": HEADERS["traceparent"][:-1] + "0"}
        ask(port, "POST", "/v1/chat/completions", CHAT, headers=unsampled)
        ask(port, "POST", "/v1/chat/completions", {**CHAT, "tool_choice": "none"}, headers=HEADERS)
        spans = receiver.wait_for(2)
    assert {"proxy chat", "chat small"} == spans.keys()
    assert 2 == len(receiver.spans)
    *before, last = [each.headers["traceparent"] for each in upstream.chats]
    assert {(TRACE, "00")} == {(each.split("-")[1], each.split("-")[3]) for each in before}
    assert f"00-{TRACE}-{spans['chat small'][0].span_id.hex()}-01" == last


HOOK = """
import sys
from patchbay.hooks.sdk import Hook

hook, inner = Hook(), Hook.answer

def answer(self, method, params):
    if "traceparent" in params:
        with open(sys.argv[1], "a") as file:
            print(method, params["traceparent"], file=file)
    return inner(self, method, params)

Hook.answer = answer

@hook.before_tool
def look(call):
    return None

@hook.before_llm
def see(request):
    return None

hook.run()
"""
PLUGIN = """
@neko_plugin
class Plugin(NekoPluginBase):
    @llm_tool(name="carried")
    async def carried(self, context: ToolContext):
        return context.trace_headers
"""


def test_the_context_reaches_hooks_plugins_and_mcp_servers(receiver: Receiver, tmp_path: Path) -> None:
    write_plugin(tmp_path / "plugins" / "carrier", "from patchbay.tools import ToolContext\n" + PLUGIN)
    (tmp_path / "hook.py").write_text(HOOK)
    process = {"enabled": True, "command": [sys.executable, str(tmp_path / "hook.py"), str(tmp_path / "seen")]}
    process |= {"intercept": ["before_llm", "before_tool"], "hello_timeout_ms": 30_000, "timeout_ms": 30_000}
    server = {"command": sys.executable, "args": ["-S", str(Path(__file__).parents[1] / "mcp_client" / "raw_server.py")]}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"hooks": {"processes": {"spy": process}}, "mcpServers": {"raw": server}}))
    names = ["carried", "mcp__raw__meta"]
    answers = ["".join(f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in names), "Done."]
    flags = ("--config", str(config), "--plugins", str(tmp_path / "plugins"), "--plugins-port", "0", "--tools", "text")
    with (
        ScriptedUpstream(answers) as upstream,
        running_command("serve", "--store", "memory", "--upstream", upstream.url, *flags, **receiver.environment) as (
            process,
            port,
        ),
    ):
        poll_until(
            lambda: (
                set(names)
                <= {each["name"] for each in json.loads(ask(port, "GET", "/api/tools").body)["tools_by_role"]["default"]}
            )
        )
        assert "Done." in ask(port, "POST", "/v1/chat/completions", {**CHAT, "model": "qwen3"}, headers=HEADERS).body.decode()
        spans = receiver.wait_for(5)
        process.terminate()
        process.communicate(timeout=2 * BOUND)
    root, tools = spans["invoke_agent default"][0], [spans[f"execute_tool {name}"][0] for name in names]
    results = [
        json.loads(text) for text in re.findall(r"<tool_response>\n(.+)\n", upstream.chats[-1].json["messages"][-1]["content"])
    ]
    assert [(TRACE, each.span_id.hex()) for each in tools] == [parent_in(each) for each in results]
    assert [None, "tools/call"] == [attributes(each).get("mcp.method.name") for each in tools]
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    parents = {kind: {parent.split("-")[2] for method, parent in seen if method.endswith(kind)} for kind in ("_llm", "_tool")}
    assert {"_llm": {root.span_id.hex()}, "_tool": {each.span_id.hex() for each in tools}} == parents


def test_workers_send_what_is_left_when_they_end(receiver: Receiver) -> None:
    environment = {**receiver.environment, "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
    with (
        ScriptedUpstream(["Hello."]) as upstream,
        running_command("proxy", "--upstream", upstream.url, "--workers", "2", **environment) as (process, port),
    ):
        assert 200 == ask(port, "POST", "/v1/chat/completions", CHAT, headers=HEADERS).status
        process.terminate()
        process.communicate(timeout=2 * BOUND)
    assert {"proxy chat", "chat small"} == receiver.wait_for(2).keys()


def test_a_collector_that_is_gone_delays_a_stop_by_seconds_only_and_the_log_stays_json() -> None:
    with socket.socket() as gone, ScriptedUpstream(["Hello."]) as upstream:
        gone.bind(("127.0.0.1", 0))  # and does not listen
        collector = f"http://127.0.0.1:{gone.getsockname()[1]}"
        environment = {"PATCHBAY_OTEL": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": collector}
        with running_command("proxy", "--upstream", upstream.url, "--log-format", "json", **environment) as (process, port):
            assert 200 == ask(port, "POST", "/v1/chat/completions", CHAT, headers=HEADERS).status
            began = time.monotonic()
            process.terminate()
            log = process.communicate(timeout=BOUND)[1]
            took = time.monotonic() - began
    loggers = {json.loads(line)["logger"] for line in log.splitlines()}
    assert any(name.startswith("opentelemetry.") for name in loggers)
    assert "patchbay.server.telemetry" in loggers
    assert took < 8  # the exporter itself would retry for 10 s, for each batch


def test_opentelemetry_is_imported_only_with_the_flag() -> None:
    # (FastAPI imports OpenTelemetry's API by itself where it is installed.)
    program = (
        "import sys, patchbay.cli, patchbay.proxy, patchbay.server.runtime; plain = {*sys.modules}; import patchbay.server.app; "
        "print('opentelemetry' in plain, 'opentelemetry.sdk' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "False False\n" == done.stdout


def test_names_are_those_of_the_pinned_revision() -> None:
    known: set[str] = set()
    for name in ("_incubating.attributes.gen_ai", "_incubating.attributes.mcp", "attributes.error", "attributes.http"):
        module = importlib.import_module(f"opentelemetry.semconv.{name}_attributes")
        known |= {value for value in vars(module).values() if isinstance(value, str)}
    ours = {value for name, value in vars(span_names).items() if name.isupper() and name != "SCHEMA_URL"}
    theirs = {each for each in ours if not each.startswith("patchbay.")} - {"chat", "execute_tool", "invoke_agent"}
    assert set() == theirs - known
