"""One guard before every route of the proxy and the tool server: foreign web pages and rebound names reach nothing.

The routes are those of the applications themselves, so that a new route without the guard fails here.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.routing import Mount, Route

from chat_server.rig import call, calls
from patchbay.hooks import HookManager, Modify, Respond
from patchbay.proxy import create_app
from patchbay.realtime.config import RealtimeSettings
from patchbay.server.app import create_tools_app
from patchbay.server.governance import Governance
from patchbay.server.http import CHAT
from patchbay.server.proxy import HEALTH_PATHS, ProxyApp
from patchbay.testing import ScriptedUpstream
from support.http_server import BOUND, ask, serving

UPSTREAM = "http://127.0.0.1:9/v1"
FOREIGN_PAGE = {"origin": "https://evil.example", "content-type": "text/plain"}
FOREIGN_HOSTS = ("evil.example", "evil.example:8787", "10.0.0.1", "gpu", "localhost.evil.example")


class DeleteHook:
    """A hook that offers a tool and runs its calls."""

    def __init__(self) -> None:
        self.runs = 0

    def before_llm(self, request: Any) -> Modify:
        tool = {"type": "function", "function": {"name": "delete_all", "parameters": {"type": "object"}}}
        return Modify({"tools": [*request.tools, tool]})

    def before_tool(self, _call: Any) -> Respond:
        self.runs += 1
        return Respond("deleted")


def governance(hook: object) -> Governance:
    manager = HookManager()
    manager.mount("delete", hook)
    return Governance(hooks=manager)


APPLICATIONS: dict[str, Callable[[], Any]] = {
    "proxy": lambda: create_app(UPSTREAM),
    "proxy with cors": lambda: create_app(UPSTREAM, cors=True),
    "proxy with a key": lambda: create_app(UPSTREAM, api_key="the-key-of-the-proxy"),
    "proxy with hooks": lambda: create_app(UPSTREAM, governance=Governance()),
    "serve": lambda: create_tools_app(upstream=UPSTREAM, realtime=RealtimeSettings(model="openai/gpt-realtime", api_key="k")),
    "serve without models": create_tools_app,
}


def flat(routes: Any) -> Iterator[Any]:
    """Yield routes, those of included routers too, which newer versions of FastAPI keep apart."""
    for route in routes:
        router = getattr(route, "original_router", None)
        yield from (route,) if router is None else flat(router.routes)


def routes_of(app: Any) -> Iterator[tuple[str, str]]:
    """Yield method and path of each route; "WS" for those of WebSockets."""
    for route in flat(app.api.routes) if hasattr(app, "api") else ():
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        if isinstance(route, Mount):
            yield "GET", f"{path}/x"
        else:
            assert isinstance(route, Route), route
            for method in route.methods or ():
                yield method, path
    proxy = app if isinstance(app, ProxyApp) else app._proxy
    if proxy is not None:
        for path in (*HEALTH_PATHS, "/v1/models", "/v1beta/models", "/v1/responses/resp_1", "/v1/files/x"):
            yield "GET", path
        for path in (*proxy._frontends._routes, f"/v1{CHAT}", "/v1beta/models/m:generateContent", "/v1/embeddings"):
            yield "POST", path
        yield "OPTIONS", f"/v1{CHAT}"
        yield "DELETE", "/v1/responses/resp_1"
        yield "WS", "/v1/responses"
    if isinstance(app, ProxyApp):
        yield "GET", "/api/events"
    else:
        yield from (("GET", "/mcp"), ("POST", "/mcp"), ("DELETE", "/mcp"))
        yield "WS", "/api/sessions/default"
    yield from (("GET", "/nowhere"), ("POST", "/nowhere"), ("WS", "/nowhere"))


def answer_of(port: int, method: str, path: str, headers: dict[str, str]) -> int:
    """Return the status of a request, or of a WebSocket's handshake (101)."""
    if method != "WS":
        return ask(port, method, path, b"{}" if method == "POST" else None, headers=headers).status
    handshake = {
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "x" * 22 + "==",
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND)
    try:
        connection.request("GET", path, headers={**handshake, **headers})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("name", APPLICATIONS)
def test_no_route_answers_a_rebound_name_or_a_page_of_another_site(name: str) -> None:
    app = APPLICATIONS[name]()
    routes = sorted(set(routes_of(app)))
    with serving(app, sockets=True) as port:
        for method, path in routes:
            for host in FOREIGN_HOSTS:
                status = answer_of(port, method, path, {"host": host, "content-type": "application/json"})
                assert status in (400, 403), (method, path, host, status)
            if name != "proxy with cors":
                assert 403 == answer_of(port, method, path, FOREIGN_PAGE), (method, path)
        assert len(routes) > 10


@contextmanager
def hooked_servers() -> Iterator[tuple[dict[str, int], DeleteHook, ScriptedUpstream]]:
    hook = DeleteHook()
    with ScriptedUpstream([calls(call("delete_all")), "Done."] * 9) as upstream:
        proxy = create_app(upstream.url, governance=governance(hook))
        with serving(proxy) as port, serving(create_tools_app(upstream=upstream.url, governance=governance(hook))) as other:
            yield {"proxy": port, "serve": other}, hook, upstream


def test_a_pages_plain_post_runs_no_tool_of_a_hook() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Delete all."}]}
    with hooked_servers() as (ports, hook, upstream):
        for port in ports.values():
            for headers in (
                FOREIGN_PAGE,
                {**FOREIGN_PAGE, "origin": "null"},
                {"host": "evil.example", "content-type": "text/plain"},
            ):
                assert ask(port, "POST", "/v1/chat/completions", body, headers=headers).status in (400, 403)
            assert (0, []) == (hook.runs, upstream.chats)
        for port in ports.values():
            local = {"origin": "http://localhost:3000", "content-type": "application/json"}
            assert 200 == ask(port, "POST", "/v1/chat/completions", body, headers=local).status
        assert 2 == hook.runs


def test_a_refusal_names_the_flag() -> None:
    with serving(create_app(UPSTREAM)) as port:
        for headers, status, code, flag in (
            ({"host": "evil.example"}, 400, "untrusted_host", "--allow-host"),
            (FOREIGN_PAGE, 403, "untrusted_origin", "--allow-origin"),
        ):
            refused = ask(port, "GET", "/v1/models", headers=headers)
            assert (status, code, True) == (refused.status, refused.json["error"]["code"], flag in refused.message)


def test_names_and_pages_that_are_allowed_come_through_http_and_websockets() -> None:
    allowed = {"host": "llm.example.com", "origin": "https://app.example.com"}
    with ScriptedUpstream([]) as upstream:
        app = create_app(upstream.url, allowed_hosts=["*.example.com"], allowed_origins=["https://app.example.com"])
        with serving(app, sockets=True) as port:
            assert 200 == ask(port, "GET", "/v1/models", headers=allowed).status
            assert 101 == answer_of(port, "WS", "/v1/responses", allowed)
            assert 403 == answer_of(port, "WS", "/v1/responses", {**allowed, "origin": "https://other.example.com"})


@pytest.mark.parametrize(
    ("host", "status"), [("192.168.1.5:8787", 200), ("gpu:8787", 200), ("[fd00::1]", 200), ("gpu.evil.example", 400)]
)
async def test_other_machines_use_an_address_or_a_name_without_a_dot(host: str, status: int) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": "GET", "path": "/health", "query_string": b"", "client": ("192.168.1.9", 5),
             "headers": [(b"host", host.encode())]}  # fmt: skip
    await create_app(UPSTREAM)(scope, receive, send)
    assert status == sent[0]["status"]
