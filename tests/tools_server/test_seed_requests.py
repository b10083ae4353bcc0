"""What the contract's two documents print (seeds 000 and 001), as printed, to a real ``patchbay serve``.

Only ports are others. An answer must hold what the documents print of it; what is more, a client of theirs never looks at.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from support.processes import listening
from support.seed_lifecycle import LIFECYCLE
from tools_server.dialogues import dialogues, hold
from tools_server.rig import BOUND, Server, calling_back, json_response

CALLED = """
{
  "name": "get_weather",
  "arguments": {"city": "Beijing"},
  "call_id": "call_abc123",
  "raw_arguments": "{\\"city\\":\\"Beijing\\"}"
}
"""
SUCCESS = '{ "output": {"temp_c": 22, "weather": "sunny"}, "is_error": false }'
FAILURE = '{ "output": null, "is_error": true, "error": "city not found" }'


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    command = [sys.executable, "-m", "patchbay", "serve", "--port", "0", "--store", "memory", "--lease", "0"]
    with listening([*command, "--roles", "小八,小九"], name="patchbay serve", timeout=60) as child:
        yield Server(int(child.url.rpartition(":")[2]), None)  # type: ignore[arg-type]


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    """A server with the registrations of this test only."""
    yield running
    for tools in running.ask("GET", "/api/tools").json["tools_by_role"].values():
        for tool in tools:
            running.post("clear", source=tool["source"])


SECTIONS = dialogues("seeds.txt")


@pytest.mark.parametrize("title", SECTIONS)
def test_the_requests_of_the_documents_are_answered_as_they_print(server: Server, title: str) -> None:
    hold(server, SECTIONS[title])


@pytest.mark.parametrize(
    ("body", "output", "shown"),
    [
        (SUCCESS, {"temp_c": 22, "weather": "sunny"}, {"temp_c": 22, "weather": "sunny"}),
        (FAILURE, None, {"error": "city not found"}),
        ('{"temp_c": 22}', {"temp_c": 22}, {"temp_c": 22}),  # without an output all of it is the output
        ('{"output": [22, 3]}', [22, 3], [22, 3]),
    ],
)
def test_callback_request_and_responses_follow_the_documentation(server: Server, body: str, output: Any, shown: Any) -> None:
    call = json.loads(CALLED)
    with calling_back(json_response(body.encode())) as callback:
        server.register("get_weather", callback.url)
        answer = server.call("get_weather", raw_arguments=call["raw_arguments"], call_id=call["call_id"])
    assert (body == FAILURE, output, shown) == (answer["is_error"], answer["output"], json.loads(answer["content"]))
    [received] = callback.calls
    assert call == received.json
    assert received.head.startswith("POST /tool_invoke ")


def test_the_full_lifecycle_pattern_registers_and_unregisters(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("httpx") is None:  # newer openai clients bring its successor, of the same names
        monkeypatch.setitem(sys.modules, "httpx", importlib.import_module("httpx2"))
    names: dict[str, Any] = {}
    exec(LIFECYCLE.replace("http://127.0.0.1:48911", f"http://127.0.0.1:{server.port}"), names)
    asyncio.run(asyncio.wait_for(names["register_with_retry"](), BOUND))
    [tool] = server.ask("GET", "/api/tools").json["tools_by_role"]["小八"]
    assert ("get_weather", "http://127.0.0.1:9876/tool_invoke") == (tool["name"], tool["callback_url"])
    asyncio.run(asyncio.wait_for(names["unregister_on_shutdown"](), BOUND))
    assert {"小八": [], "小九": []} == server.ask("GET", "/api/tools").json["tools_by_role"]


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"X-Forwarded-For": "127.0.0.1"}, 403, "unexpected_proxy"),  # what a client behind a proxy would write itself
        ({"X-Forwarded-For": "8.8.8.8"}, 403, "unexpected_proxy"),
        ({"Forwarded": "for=127.0.0.1"}, 403, "unexpected_proxy"),
        ({"Origin": "https://example.com"}, 403, "untrusted_origin"),
        ({"Host": "rebound.example.com"}, 400, "untrusted_host"),
        ({"Content-Type": "text/plain"}, 422, None),
    ],
)
def test_the_real_server_believes_no_header_about_where_a_request_comes_from(
    running: Server, headers: dict[str, str], status: int, code: str | None
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=BOUND)
    try:
        # Headers alone: reading the declared body first would block.
        connection.putrequest("POST", "/api/tools/register", skip_host="Host" in headers)
        for name, value in {"Content-Type": "application/json", "Content-Length": "10", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = json.loads(answer.read())
    finally:
        connection.close()
    assert (status, code) == (answer.status, body.get("error_code"))
