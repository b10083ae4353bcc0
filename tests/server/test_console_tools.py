"""``/api/console/tools``: what a role's tools are, what they cost in a prompt, and what became of their calls."""

from __future__ import annotations

import json
from typing import Any

from patchbay.hooks import Meta
from patchbay.hooks.events import CallRecord
from patchbay.proxy import create_app
from patchbay.server import ToolsSettings, create_tools_app
from patchbay.server.recent_calls import MAX_RECENT, MAX_TOOLS, RecentCalls, quantile
from patchbay.testing import Raw, ScriptedUpstream
from patchbay.types import Attachment
from support.http_server import HttpResponse, ask, serving

JSON = {"content-type": "application/json"}
TOKEN = "the-token-of-this-test-1"
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "The sky.", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'


def get(port: int, path: str = "", **headers: str) -> Any:
    answer = ask(port, "GET", f"/api/console/tools{path}", headers=headers)
    assert 200 == answer.status, answer.body
    return answer.json


def call(port: int, name: str, **arguments: Any) -> Any:
    return ask(port, "POST", "/api/tools/call", {"name": name, "arguments": arguments}, headers=JSON).json


def chat(port: int, **fields: Any) -> HttpResponse:
    body = {"model": "qwen3-8b", "messages": [{"role": "user", "content": "Hi. " * 50}], **fields}
    return ask(port, "POST", "/v1/chat/completions", body, headers=JSON)


def by_name(listing: Any) -> dict[str, Any]:
    return {tool["name"]: tool for tool in listing["tools"]}


def record(tool: str = "add", *, seconds: float = 0.1, code: str = "", role: str = "ann") -> CallRecord:
    meta = Meta(agent_id=role, turn_id="t1")
    return CallRecord(5.0, meta, {}, "c1", tool, "", "", (), "", bool(code), code, 0, seconds)


def test_quantiles_are_those_of_the_recent_calls_that_ran():
    calls = RecentCalls()
    for number in range(1, 101):
        calls.add(record(seconds=number / 100))
    calls.add(record(seconds=0.0, code="denied"))
    recent = calls.of("ann", "add")
    assert (0.5, 0.95, "denied") == (quantile(recent, 0.5), quantile(recent, 0.95), recent[-1].code)
    assert quantile(calls.of("ben", "add"), 0.5) is None


def test_calls_are_kept_within_bounds():
    calls = RecentCalls()
    for _ in range(MAX_RECENT + 50):
        calls.add(record("often"))
    for number in range(MAX_TOOLS):
        calls.add(record(f"invented_{number}"))
        calls.add(record("often"))
    assert () == calls.of("ann", "invented_0")
    assert MAX_RECENT == len(calls.of("ann", "often"))


def test_a_registered_tool_has_its_calls_its_definition_and_its_last_failure():
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        if a > 100:
            raise ValueError("too large")
        return a + b

    with ScriptedUpstream([]) as upstream:
        app = create_tools_app(("ann", "ben"), upstream=upstream.url)
        app.managers["ann"].register_tool(add)
        with serving(app) as port:
            assert 3 == call(port, "add", a=1, b=2)["output"]
            call(port, "add", a=101, b=2)
            tool = by_name(get(port))["add"]
            assert ("function", "active", 2, 1) == (tool["kind"], tool["state"], tool["calls"], tool["errors"])
            assert "tool_error" == tool["failed"]["code"]
            detail = get(port, "/definition?name=add&role=ann")
            assert "Add two numbers." == detail["sent"]["function"]["description"]
            size = len(json.dumps(detail["sent"], separators=(",", ":")))
            assert round(size / 4) == tool["tokens"] == detail["tokens"]
            assert ["tool_error", ""] == [each["code"] for each in detail["recent"]]
            assert [] == get(port, "?role=ben")["tools"]
            assert 404 == ask(port, "GET", "/api/console/tools/definition?name=none").status
            assert 404 == ask(port, "GET", "/api/console/tools?role=nobody").status


def test_a_tool_that_models_do_not_get_says_why():
    with ScriptedUpstream([]) as upstream, serving(create_tools_app(("ann",), upstream=upstream.url)) as port:
        remote = {"$ref": "http://127.0.0.1:1/x.json"}
        body = {"name": "odd", "callback_url": "http://127.0.0.1:9/", "parameters": remote}
        assert ask(port, "POST", "/api/tools/register", body, headers=JSON).json["ok"]
        tool = by_name(get(port))["odd"]
        assert ("callback", "left out", 0) == (tool["kind"], tool["state"], tool["tokens"])
        assert tool["problem"]


def test_tokens_are_estimated_by_what_the_models_server_counted():
    def answer(body: Any) -> Raw:
        usage = {"prompt_tokens": len(json.dumps(body, separators=(",", ":"))) // 3, "completion_tokens": 1}
        message = {"role": "assistant", "content": "Fine."}
        return Raw(
            [json.dumps({"choices": [{"index": 0, "message": message}], "usage": usage}).encode()],
            content_type=JSON["content-type"],
        )

    with ScriptedUpstream(answer, model="qwen3-8b") as upstream, serving(create_app(upstream.url)) as port:
        for _ in range(3):
            assert 200 == chat(port, tools=[WEATHER], patchbay={"tools": "native"}).status
        listing = get(port)
        estimate = listing["estimate"]
        assert 3 == estimate["requests"]
        assert abs(3.0 - estimate["bytes_per_token"]) < 0.2
        assert abs(by_name(listing)["weather"]["tokens"] - len(json.dumps(WEATHER, separators=(",", ":"))) / 3) < 5
        assert estimate["prompt_tokens"] > by_name(listing)["weather"]["tokens"]


def test_a_proxy_shows_the_tools_of_the_last_turns_and_how_often_they_were_called():
    with ScriptedUpstream([CALL, "Fine."]) as upstream, serving(create_app(upstream.url, tools="text")) as port:
        chat(port, tools=[WEATHER])
        chat(port, tools=[{**WEATHER, "function": {**WEATHER["function"], "description": "sk-abcdefghijklmnopqrstuvwxyz0123"}}])
        tool = by_name(get(port))["weather"]
        assert ("client", "offered", 1, False) == (tool["kind"], tool["state"], tool["calls"], tool["can_call"])
        assert "[redacted]" == tool["description"]
        assert tool["turn"] == ask(port, "GET", "/api/turns?limit=1").json["turns"][0]["id"]


def test_the_list_needs_the_token():
    with ScriptedUpstream([]) as upstream:
        for app in (
            create_tools_app(("ann",), settings=ToolsSettings(token=TOKEN), upstream=upstream.url),
            create_app(upstream.url, api_key=TOKEN),
        ):
            with serving(app) as port:
                for method, path in (
                    ("GET", ""),
                    ("GET", "/definition?name=a"),
                    ("GET", "/changes?server=a"),
                    ("POST", "/changes"),
                ):
                    body = {"server": "a", "digest": "b"} if method == "POST" else None
                    assert 401 == ask(port, method, f"/api/console/tools{path}", body, headers=JSON).status
                get(port, authorization=f"Bearer {TOKEN}")


def test_a_call_answers_with_the_places_of_invalid_arguments_and_with_files():
    def draw(place: str) -> list[Any]:
        return [f"A map of {place}", Attachment(b"\x89PNG\r\n\x1a\n", "image/png", "map.png")]

    app = create_tools_app(("ann",))
    app.managers["ann"].register_tool(draw)
    with serving(app) as port:
        assert ["/place must be a valid string"] == call(port, "draw", place=3)["details"]
        answer = call(port, "draw", place="Oslo")
        (file,) = answer["files"]
        assert ("image/png", "map.png") == (file["media_type"], file["name"])
        assert b"\x89PNG\r\n\x1a\n" == ask(port, "GET", file["url"]).body
