"""The console on a proxy and on a tool server: its pages, signing in, and who may read the turns."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchbay.hooks import HookManager
from patchbay.proxy import create_app
from patchbay.server import Governance, ToolsSettings, create_tools_app
from patchbay.server.console_api import ConsolePages
from patchbay.server.console_sessions import ConsoleSessions
from patchbay.testing import ScriptedUpstream
from support.http_server import HttpResponse, ask, serving

TOKEN = "the-token-of-this-test-1"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
SERVERS = ("proxy", "proxy with hooks", "serve")
BROWSER = {"accept": "text/html,application/xhtml+xml"}


@contextlib.contextmanager
def server(kind: str, *, token: str | None = TOKEN, script: Any = ("Fine.", "Fine.")) -> Iterator[int]:
    with ScriptedUpstream(list(script)) as upstream:
        if kind == "serve":
            app: Any = create_tools_app(("ann",), settings=ToolsSettings(token=token, lease=0.0), upstream=upstream.url)
        else:
            governance = Governance(hooks=HookManager()) if kind == "proxy with hooks" else None
            app = create_app(upstream.url, api_key=token, governance=governance)
        with serving(app) as port:
            yield port


def send(port: int, method: str, path: str, body: Any = None, **headers: str) -> HttpResponse:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(port, method, path, body, headers={"content-type": "application/json", **given})


def sign_in(port: int, token: str = TOKEN) -> HttpResponse:
    return send(port, "POST", "/api/console/session", {"token": token})


def cookie_of(answer: HttpResponse) -> str:
    return answer.headers["set-cookie"].partition(";")[0]


@pytest.mark.parametrize("kind", SERVERS)
def test_cookie_of_a_sign_in_counts_as_the_token_until_the_sign_out(kind: str) -> None:
    with server(kind) as port:
        before = send(port, "GET", "/api/console").json
        assert 401 == send(port, "GET", "/api/turns").status
        signed = sign_in(port)
        cookie = cookie_of(signed)
        after = send(port, "GET", "/api/console", cookie=cookie).json
        assert 200 == send(port, "GET", "/api/turns", cookie=cookie).status
        out = send(port, "DELETE", "/api/console/session", cookie=cookie, origin=f"http://127.0.0.1:{port}")
        assert 401 == send(port, "GET", "/api/turns", cookie=cookie).status
        assert 200 == send(port, "GET", "/api/turns", authorization=f"Bearer {TOKEN}").status
    assert {"version", "server", "needs_token", "signed_in"} == before.keys()
    assert (kind.partition(" ")[0], True, False) == (before["server"], before["needs_token"], before["signed_in"])
    assert (True, {"kept": 200, "bytes": 52_428_800, "archived_seconds": None}) == (after["signed_in"], after["turns"])
    assert (["ann"] if kind == "serve" else []) == after["roles"]
    assert after["upstream"].startswith("http://127.0.0.1:")
    assert (204, 204, b"") == (signed.status, out.status, signed.body)
    assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"} == {
        each.strip() for each in signed.headers["set-cookie"].split(";")[1:]
    }
    assert TOKEN not in signed.headers["set-cookie"]
    assert "Max-Age=0" in out.headers["set-cookie"]


@pytest.mark.parametrize("kind", SERVERS)
def test_wrong_token_signs_nobody_in(kind: str) -> None:
    with server(kind) as port:
        answers = [sign_in(port, token) for token in ("", "wrong", TOKEN + "x")]
        assert 401 == send(port, "GET", "/api/turns", cookie="patchbay_console=x").status
    assert [(401, False)] * 3 == [(each.status, "set-cookie" in each.headers) for each in answers]


@pytest.mark.parametrize("kind", SERVERS)
def test_cookie_counts_only_for_the_pages_of_this_origin(kind: str) -> None:
    with server(kind) as port:
        cookie = cookie_of(sign_in(port))
        own = f"http://127.0.0.1:{port}"
        read = {
            "nothing": send(port, "GET", "/api/turns", cookie=cookie),
            "own page": send(port, "GET", "/api/turns", cookie=cookie, sec_fetch_site="same-origin"),
            "other port": send(port, "GET", "/api/turns", cookie=cookie, sec_fetch_site="same-site"),
            "other port's origin": send(port, "GET", "/api/turns", cookie=cookie, origin="http://127.0.0.1:1"),
        }
        chat = {
            "own page": send(port, "POST", "/v1/chat/completions", CHAT, cookie=cookie, origin=own),
            "own page's header": send(port, "POST", "/v1/chat/completions", CHAT, cookie=cookie, sec_fetch_site="same-origin"),
            "nothing": send(port, "POST", "/v1/chat/completions", CHAT, cookie=cookie),
            "other port": send(port, "POST", "/v1/chat/completions", CHAT, cookie=cookie, origin="http://127.0.0.1:1"),
        }
    assert {"nothing": 200, "own page": 200, "other port": 401, "other port's origin": 401} == {
        name: each.status for name, each in read.items()
    }
    refused = (
        500 if kind == "serve" else 401
    )  # without its token a tool server serves this machine's programs; the script is over
    assert {"own page": 200, "own page's header": 200, "nothing": refused, "other port": refused} == {
        name: each.status for name, each in chat.items()
    }


def test_cookie_has_the_name_of_its_port_and_ends() -> None:
    now = 0.0
    sessions = ConsoleSessions(clock=lambda: now)

    def scope(port: int, **headers: str) -> dict[str, Any]:
        pairs = [(b"host", b"localhost:%d" % port), *((name.encode(), value.encode()) for name, value in headers.items())]
        return {"type": "http", "method": "GET", "headers": pairs}

    def admits(port: int, cookie: str) -> bool:
        asked = scope(port, cookie=f"theme=dark; {cookie}")
        return sessions.admits(asked, {name: [value] for name, value in asked["headers"]})

    cookie = sessions.begin(scope(8000)).decode().partition(";")[0]
    assert cookie.startswith("patchbay_console_8000=")
    assert admits(8000, cookie)
    assert not admits(8001, cookie)
    now = 12 * 3600.0
    assert not admits(8000, cookie)


@pytest.mark.parametrize("kind", SERVERS)
def test_server_without_a_token_needs_no_sign_in_on_this_machine(kind: str) -> None:
    with server(kind, token=None) as port:
        about = send(port, "GET", "/api/console").json
        assert 200 == send(port, "GET", "/api/turns").status
        foreign = [
            send(port, "GET", "/api/turns", host="evil.example"),
            send(port, "GET", "/api/turns", origin="https://evil.example"),
            send(port, "GET", "/console", host="evil.example"),
        ]
        assert 204 == sign_in(port).status
    assert (False, True) == (about["needs_token"], about["signed_in"])
    assert [400, 403, 400] == [each.status for each in foreign]


def test_key_that_is_too_short_for_the_admin_api_leaves_a_proxy_without_a_console() -> None:
    with server("proxy", token="short") as port:
        answer = send(port, "GET", "/console")
    assert 409 == answer.status
    assert "no console" in answer.json["detail"]


@pytest.mark.parametrize("kind", SERVERS)
def test_root_leads_browsers_to_the_console_and_programs_to_what_it_was(kind: str) -> None:
    with server(kind) as port:
        browser = ask(port, "GET", "/", headers=BROWSER)
        program = ask(port, "GET", "/")
    assert (302, "/console") == (browser.status, browser.headers["location"])
    assert (404 if kind == "serve" else 200) == program.status


def test_base_path_at_the_root_leaves_all_paths_to_the_upstream() -> None:
    with ScriptedUpstream([]) as upstream, serving(create_app(upstream.url, base_path="")) as port:
        assert "/console" == ask(port, "GET", "/console").json["path"].removeprefix("/v1")
        assert 200 == ask(port, "GET", "/", headers=BROWSER).status


@contextlib.contextmanager
def serving_pages(folder: Path) -> Iterator[int]:
    console = ConsolePages(folder)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await console(scope, receive, send)
        else:
            await run_lifespan(receive, send)

    with serving(app) as port:
        yield port


async def run_lifespan(receive: Any, send: Any) -> None:
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})


def test_pages_are_served_with_a_strict_policy(tmp_path: Path) -> None:
    files = {"index.html": "<!doctype html>", "assets/app-QWERTY12.js": "go()", "assets/chart.css": "a{}", "secret.env": "no"}
    (tmp_path / "console" / "assets").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "console" / name).write_text(text)
    (tmp_path / "outside.js").write_text("no")
    with serving_pages(tmp_path / "console") as port:
        found = {
            path: ask(port, "GET", path)
            for path in (
                "/console", "/console/", "/console/turns/7", "/console/assets/app-QWERTY12.js", "/console/assets/chart.css",
                "/console/secret.env", "/console/../outside.js", "/console/%2e%2e/outside.js", "/console/none.js", "/console/assets",
            )
        }  # fmt: skip
        assert 405 == ask(port, "POST", "/console").status
        head = ask(port, "HEAD", "/console")
    page = b"<!doctype html>"
    assert [page] * 4 == [found[path].body for path in ("/console", "/console/", "/console/turns/7", "/console/assets")]
    script, style = found["/console/assets/app-QWERTY12.js"], found["/console/assets/chart.css"]
    assert (b"go()", "text/javascript; charset=utf-8", "public, max-age=31536000, immutable") == (
        script.body, script.headers["content-type"], script.headers["cache-control"],
    )  # fmt: skip
    assert (b"a{}", "text/css; charset=utf-8", "no-cache") == (
        style.body, style.headers["content-type"], style.headers["cache-control"],
    )  # fmt: skip
    wrong = ("/console/secret.env", "/console/../outside.js", "/console/%2e%2e/outside.js", "/console/none.js")
    assert [404] * 4 == [found[path].status for path in wrong]
    assert (200, b"") == (head.status, head.body)
    for answer in found.values():
        policy = answer.headers["content-security-policy"]
        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} <= {
            each.strip() for each in policy.split(";")
        }
        assert "unsafe" not in policy
        assert ("nosniff", "no-referrer") == (answer.headers["x-content-type-options"], answer.headers["referrer-policy"])


def test_installation_without_built_pages_says_so(tmp_path: Path) -> None:
    with serving_pages(tmp_path) as port:
        answer = ask(port, "GET", "/console")
    assert (404, b"This installation has no console: its pages were not built.") == (answer.status, answer.body)


def test_proxy_imports_no_web_framework_before_the_console_is_used() -> None:
    code = (
        "import sys; from patchbay.proxy import create_app; create_app('http://127.0.0.1:9/v1');"
        "import json; print(json.dumps([each for each in ('fastapi', 'patchbay.executor', 'patchbay.server.turn_views') if each in sys.modules]))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert [] == json.loads(found.stdout)
