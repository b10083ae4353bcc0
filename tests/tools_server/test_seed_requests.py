"""Every request that the contract's two documents print (seeds 000 and 001), as printed, to a real ``patchbay serve``.

Only ports are others. An answer must hold what the documents print of it; what is more, a client of theirs never looks at.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from support.processes import listening
from support.seed_lifecycle import LIFECYCLE
from tools_server.rig import BOUND, calling_back, json_response

ROLE = "小八"

REGISTER = {
    "english": """
{
  "name": "get_weather",
  "description": "Look up the weather in a given city",
  "parameters": {
    "type": "object",
    "properties": {
      "city": {"type": "string", "description": "City name, e.g. 'Beijing'"}
    },
    "required": ["city"]
  },
  "callback_url": "http://127.0.0.1:<plugin_port>/tool_invoke",
  "role": null,
  "source": "my_plugin",
  "timeout_seconds": 30
}
""",
    "chinese": """
{
"name": "get_weather",
"description": "查询指定城市的天气",
"parameters": {
"type": "object",
"properties": {
"city": {"type": "string", "description": "城市名称,如 '北京'"}
},
"required": ["city"]
},
"callback_url": "http://127.0.0.1:<plugin_port>/tool_invoke",
"role": null,
"source": "my_plugin",
"timeout_seconds": 30
}
""",
}
REGISTERED = '{ "ok": true, "registered": "get_weather", "affected_roles": ["小八"], "failed_roles": [] }'
UNREGISTER = '{ "name": "get_weather", "role": null }'
CLEAR = '{ "role": null, "source": "my_plugin" }'
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
def running() -> Iterator[str]:
    command = [sys.executable, "-m", "patchbay", "serve", "--port", "0", "--store", "memory", "--lease", "0"]
    with listening([*command, "--roles", f"{ROLE},小九"], name="patchbay serve", timeout=60) as child:
        yield child.url


@pytest.fixture
def server(running: str) -> Iterator[str]:
    """A server with the registrations of this test only."""
    yield running
    for tools in ask(running, "/api/tools")[1]["tools_by_role"].values():
        for tool in tools:
            ask(running, "/api/tools/clear", json.dumps({"source": tool["source"]}))


def ask(server: str, path: str, body: str | None = None) -> tuple[int, Any]:
    """GET, or POST a body as it is written; return the status and the JSON that comes back."""
    data = None if body is None else body.encode()
    request = urllib.request.Request(server + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=BOUND) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def register(server: str, port: int = 9, how: str = "english", **changed: Any) -> tuple[int, Any]:
    body = REGISTER[how].replace("<plugin_port>", str(port))
    return ask(server, "/api/tools/register", json.dumps({**json.loads(body), **changed}) if changed else body)


def tools(server: str, role: str = ROLE) -> dict[str, Any]:
    status, listing = ask(server, f"/api/tools?role={quote(role)}")
    assert (200, True, [role]) == (status, listing["ok"], list(listing["tools_by_role"]))
    return {tool["name"]: tool for tool in listing["tools_by_role"][role]}


def holds(expected: Any, answer: Any) -> bool:
    return {**answer, **expected} == answer


@pytest.mark.parametrize("how", REGISTER)
def test_a_tool_is_registered_listed_and_unregistered(server: str, how: str) -> None:
    status, answer = register(server, how=how)
    assert 200 == status
    assert holds({**json.loads(REGISTERED), "affected_roles": [ROLE, "小九"]}, answer)
    described = json.loads(REGISTER[how])
    tool = tools(server)["get_weather"]
    assert holds({key: described[key] for key in ("name", "description", "source", "parameters", "timeout_seconds")}, tool)
    status, listing = ask(server, "/api/tools")
    assert (200, [ROLE, "小九"]) == (status, list(listing["tools_by_role"]))
    status, answer = ask(server, "/api/tools/unregister", UNREGISTER)
    assert (200, True, True) == (status, answer["ok"], answer["removed"])
    assert {} == tools(server)


def test_request_for_one_role_is_answered_as_documented(server: str) -> None:
    status, answer = register(server, role=ROLE)
    assert 200 == status
    assert holds(json.loads(REGISTERED), answer)
    assert ({"get_weather"}, set()) == (set(tools(server)), set(tools(server, "小九")))


def test_a_source_is_cleared_and_needs_a_name(server: str) -> None:
    register(server)
    register(server, name="other", source="my_plugin_2")
    status, answer = ask(server, "/api/tools/clear", CLEAR)
    assert (200, True, 2) == (status, answer["ok"], answer["removed"])
    assert {"other"} == set(tools(server))
    for body in ('{ "role": null, "source": "" }', '{ "role": null }'):
        assert 422 == ask(server, "/api/tools/clear", body)[0]
    register(server, source="plugin:weather")
    status, answer = ask(server, "/api/tools/clear", '{"source": "plugin:weather", "role": null}')
    assert (200, True, 2) == (status, answer["ok"], answer["removed"])


def test_callback_request_and_responses_follow_the_documentation(server: str) -> None:
    call = json.loads(CALLED)
    asked = json.dumps({"name": "get_weather", "raw_arguments": call["raw_arguments"], "call_id": call["call_id"]})
    for body, output, shown in (
        (SUCCESS, {"temp_c": 22, "weather": "sunny"}, {"temp_c": 22, "weather": "sunny"}),
        (FAILURE, None, {"error": "city not found"}),
        ('{"temp_c": 22}', {"temp_c": 22}, {"temp_c": 22}),  # without an output all of it is the output
        ('{"output": "sunny"}', "sunny", None),
        ('{"output": [22, 3]}', [22, 3], [22, 3]),
        ('{"output": 22}', 22, 22),
    ):
        with calling_back(json_response(body.encode())) as callback:
            register(server, callback.port)
            status, answer = ask(server, "/api/tools/call", asked)
        assert (200, body == FAILURE) == (status, answer["is_error"])
        assert output == answer["output"]
        assert shown is None or shown == json.loads(answer["content"])
        [received] = callback.calls
        assert call == received.json
        assert received.head.startswith("POST /tool_invoke ")


def test_registration_without_an_accepting_role_lists_the_reasons(server: str) -> None:
    register(server)
    status, answer = register(server, source="somebody_else")
    assert (200, False, []) == (status, answer["ok"], answer["affected_roles"])
    assert answer["failed_roles"]
    assert all(failure["error"] for failure in answer["failed_roles"])


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"name": "x" * 64}, 200),
        ({"name": "x" * 65}, 422),
        ({"timeout_seconds": 300}, 200),
        ({"timeout_seconds": 300.5}, 422),
        ({"callback_url": "http://127.0.0.1:9/any/path"}, 200),
        ({"callback_url": "http://127.9.9.9:9/"}, 200),
        ({"callback_url": "http://[::1]:9/"}, 200),
        ({"callback_url": "http://localhost:9/"}, 200),
        ({"callback_url": "http://192.168.0.1:9/"}, 422),
        ({"callback_url": "http://example.com/"}, 422),
        ({"role": "nobody"}, 404),
    ],
)
def test_limits_are_the_documented_ones(server: str, changed: dict[str, Any], status: int) -> None:
    answered, answer = register(server, **changed)
    assert (status, status != 200) == (answered, "detail" in answer)


def test_the_full_lifecycle_pattern_registers_and_unregisters(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("httpx") is None:  # newer openai clients bring its successor, of the same names
        monkeypatch.setitem(sys.modules, "httpx", importlib.import_module("httpx2"))
    names: dict[str, Any] = {}
    exec(LIFECYCLE.replace("http://127.0.0.1:48911", server), names)
    asyncio.run(asyncio.wait_for(names["register_with_retry"](), BOUND))
    assert "http://127.0.0.1:9876/tool_invoke" == tools(server)["get_weather"]["callback_url"]
    asyncio.run(asyncio.wait_for(names["unregister_on_shutdown"](), BOUND))
    assert {} == tools(server)
