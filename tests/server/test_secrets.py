"""Secrets leave by no exit: neither to clients, nor to the terminal, a log file, events or lists."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from proxy_rig import running_command, running_upstream
from test_log_lines import lines_of

from patchbay._redaction import Redactor, protect
from patchbay.cli.http import ServerClient
from patchbay.errors import ConfigurationError
from patchbay.hooks.types import Event, Meta
from patchbay.plugins.host.server_api import HttpToolsApi
from patchbay.proxy import create_app
from patchbay.registrations import RegistrationStore
from patchbay.server.app import create_tools_app
from patchbay.server.event_stream import encoded
from patchbay.server.settings import ProxySettings, ToolsSettings
from support.cli import run_cli
from support.http_server import BOUND, ask, serving

UPSTREAM_KEY = "up-key-0123456789"
CLIENT_KEY = "client-key-0123456789"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def echo(status: int, *, stream: bool = False) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return an upstream that repeats the key that it was sent, in a header and in its body."""

    async def answer(request: web.Request) -> web.StreamResponse:
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        headers = {"x-request-id": f"for {key}", "openai-organization": key, "x-echo": key}
        error = {"error": {"message": f"bad key {key}", "type": "t", "code": "c", "param": key}}
        if stream:
            return web.Response(text=f"data: {json.dumps(error)}\n\n", content_type="text/event-stream", headers=headers)
        return web.json_response(error, status=status, headers=headers)

    return answer


PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": {**CHAT, "max_tokens": 5},
    "/v1/responses": {"model": "m", "input": "Hi."},
    "/v1beta/models/m:generateContent": {"contents": [{"parts": [{"text": "Hi."}]}]},
    "/v1/embeddings": {"model": "m", "input": "x"},
}


@pytest.mark.parametrize("whose", ["client", "upstream"])
@pytest.mark.parametrize("status", [400, 401, 500])
def test_a_key_that_the_upstream_repeats_reaches_nobody(whose: str, status: int, tmp_path: Path, caplog: Any) -> None:
    log = tmp_path / "log"
    key, settings = (CLIENT_KEY, {}) if whose == "client" else (UPSTREAM_KEY, {"upstream_key": UPSTREAM_KEY})
    with running_upstream(echo(status)) as upstream:
        with serving(create_app(upstream.url, log_file=log, **settings)) as port:
            for path, body in PATHS.items():
                for header in ("authorization", "x-api-key"):
                    value = f"Bearer {CLIENT_KEY}" if header == "authorization" else CLIENT_KEY
                    answer = ask(port, "POST", path, {**body, "tools": []}, headers={header: value})
                    assert (status, False, False) == (answer.status, key in str(answer.headers), key.encode() in answer.body), (
                        path
                    )
        app = create_tools_app(upstream=ProxySettings(upstream.url, **settings))
        with serving(app) as port:
            answer = ask(
                port,
                "POST",
                "/v1/chat/completions",
                CHAT,
                headers={"authorization": f"Bearer {CLIENT_KEY}", "content-type": "application/json"},
            )
            assert (status, False, False) == (answer.status, key in str(answer.headers), key.encode() in answer.body)
    assert 10 <= len(log.read_text().splitlines())
    assert (False, False) == (key in log.read_text(), key in caplog.text)


def test_a_key_in_an_error_within_a_stream_is_hidden(caplog: Any) -> None:
    with running_upstream(echo(200, stream=True)) as upstream, serving(create_app(upstream.url)) as port:
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
            tools = [TOOL] if path == "/v1/chat/completions" else []  # without any, the stream passes byte for byte
            body = {**PATHS[path], "stream": True, "tools": tools}
            answer = ask(port, "POST", path, body, headers={"authorization": f"Bearer {CLIENT_KEY}"})
            assert (False, False) == (CLIENT_KEY in str(answer.headers), CLIENT_KEY.encode() in answer.body), path
    assert CLIENT_KEY not in caplog.text


def test_headers_of_a_response_that_passes_through_hold_no_key() -> None:
    async def models(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": []}, headers={"x-echo": f"key={UPSTREAM_KEY}"})

    with running_upstream(models) as upstream, serving(create_app(upstream.url, upstream_key=UPSTREAM_KEY)) as port:
        assert "key=[redacted]" == ask(port, "GET", "/v1/models").headers["x-echo"]


def test_short_and_ordinary_words_as_keys_leave_error_messages_as_they_are() -> None:
    async def refuse(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no token is dummy or password"}}, status=400)

    with running_upstream(refuse) as upstream, serving(create_app(upstream.url)) as port:
        for key in ("token", "dummy", "password", "message"):
            answer = ask(port, "POST", "/v1/chat/completions", CHAT, headers={"authorization": f"Bearer {key}"})
            assert "no token is dummy or password" == answer.message


URLS = [
    "ftp://u:pw-in-url@host/v1", "http://u:pw-in-url@host/v1", "http://u:pw-in-url@host:99999", "http://u:pw@pw-in-url@host",
    "http://u:pw-in-url@[::1/", "http://u:pw-in-url@",
]  # fmt: skip
COMMANDS = [
    "proxy --upstream", "serve --store memory --upstream", "serve --store", "tail --server", "approvals list --server", "audit --server",
    "chat --server",
]  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_a_password_in_a_url_is_in_no_error(url: str) -> None:
    for command in COMMANDS:
        done = run_cli(*command.split(), url)
        assert (True, False) == (done.returncode > 0, "pw-in-url" in done.stdout + done.stderr), (command, done.stderr)
    for make in (create_app, RegistrationStore, HttpToolsApi, ServerClient):
        with pytest.raises(ConfigurationError) as error:
            make(url)
        assert "pw-in-url" not in str(error.value), make


async def test_what_is_configured_is_hidden_everywhere() -> None:
    create_app(
        "http://127.0.0.1:9/v1",
        upstream_key="key-of-upstream-1",
        api_key="key-of-proxy-1",
        upstream_headers={"X-Api-Key": "header-secret-1"},
    )
    create_tools_app(settings=ToolsSettings(token="token-of-server-1"))
    RegistrationStore("postgresql://u:database-secret-1@127.0.0.1:9/x")
    protect("short", None)
    for secret in ("key-of-upstream-1", "key-of-proxy-1", "header-secret-1", "token-of-server-1", "database-secret-1"):
        assert "a [redacted] b" == Redactor().text(f"a {secret} b")
        event = Event("1", "agent.error", 0.0, Meta(), {}, "error", {"Message": f"failed with {secret}"}, {})
        assert b"failed with [redacted]" in encoded(event)
    assert "short" == Redactor().text("short")


HOOK = """
import json, os, sys
print("started with", os.environ.get("WEBHOOK"), os.environ.get("API_TOKEN"), os.environ.get("UPSTREAM_API_KEY"), file=sys.stderr, flush=True)
print("not a reply:", os.environ["WEBHOOK"], flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request.get("method") == "hook.hello":
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {}}), flush=True)
    elif "id" in request:
        error = {"code": -1, "message": "refused with " + os.environ["API_TOKEN"]}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}), flush=True)
"""


def test_a_hooks_environment_is_its_own_and_in_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_API_KEY", UPSTREAM_KEY)
    (tmp_path / "hook.py").write_text(HOOK)
    hook = {
        "enabled": True, "command": [sys.executable, str(tmp_path / "hook.py")], "intercept": ["before_llm"], "fail_closed": True,
        "env": {"WEBHOOK": "https://example.com/T0/B1", "API_TOKEN": "t0ken-of-hook"},
    }  # fmt: skip
    config = tmp_path / "hooks.json"
    config.write_text(json.dumps({"hooks": {"processes": {"h": hook}}}))
    with (
        running_upstream(echo(200)) as upstream,
        running_command("proxy", "--upstream", upstream.url, "--config", str(config), "--store", "memory") as (process, port),
    ):
        answer = ask(port, "POST", "/v1/chat/completions", CHAT, headers={"authorization": f"Bearer {CLIENT_KEY}"})
        assert (403, False) == (answer.status, b"t0ken-of-hook" in answer.body)
        lines = "\n".join(lines_of(process))
    assert "[h] started with [redacted] [redacted] None" in lines
    assert "not a reply: [redacted]" in lines
    assert ([], "refused with [redacted]" in lines) == ([s for s in ("T0/B1", "t0ken-of-hook", UPSTREAM_KEY) if s in lines], True)


PLUGIN = """
import os
from patchbay.plugins import NekoPluginBase

class Look(NekoPluginBase):
    pass

print("has", os.environ.get("WEATHER_KEY"), os.environ.get("UPSTREAM_API_KEY"), os.environ.get("NAMED"), flush=True)
"""


def test_a_plugins_environment_is_its_own_and_in_no_log(tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(textwrap.dedent(PLUGIN))
    done = subprocess.Popen(
        [sys.executable, "-m", "patchbay", "plugins", "run", "look:Look", "--port", "0", "--env", "WEATHER_KEY=w3ather-key", "--env", "NAMED"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
        env={**os.environ, "UPSTREAM_API_KEY": UPSTREAM_KEY, "NAMED": "x", "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    try:
        assert done.stdout is not None
        seen = ""
        for line in done.stdout:
            seen += line
            if "has " in line:
                break
        assert seen.rstrip().endswith("has [redacted] None x"), seen
    finally:
        done.terminate()
        done.communicate(timeout=BOUND)


def test_the_query_of_a_callback_is_listed_only_for_the_token() -> None:
    token = "0123456789abcdef-token"
    url = "http://127.0.0.1:9/call?key=c4llback"
    with serving(create_tools_app(settings=ToolsSettings(token=token, lease=0.0))) as port:
        json_type, bearer = {"content-type": "application/json"}, {"authorization": f"Bearer {token}"}
        assert ask(port, "POST", "/api/tools/register", {"name": "a", "callback_url": url}, headers=json_type).json["ok"]
        found: dict[str, tuple[str, str]] = {}
        for name, headers in (("token", bearer), ("none", {})):
            answer = ask(port, "GET", "/api/tools", headers=headers)
            found[name] = (answer.json["tools_by_role"]["default"][0]["callback_url"], answer.headers["etag"])
        assert (url, "http://127.0.0.1:9/call") == (found["token"][0], found["none"][0])
        assert 200 == ask(port, "GET", "/api/tools", headers={**bearer, "if-none-match": found["none"][1]}).status


def test_passwords_in_urls_are_found_in_every_spelling() -> None:
    for text, hidden in {
        "http://u:pw@host/x": "http://u:[redacted]@host/x",
        "postgresql://u:p@w:d@host": "postgresql://u:[redacted]@host",
        r"ftp:\/\/u:pw@host": r"ftp:\/\/u:[redacted]@host",
        "see http://127.0.0.1:80/a?b=c@d": "see http://127.0.0.1:80/a?b=c@d",
        "http://user@host: a@b": "http://user@host: a@b",
        "a:b@c": "a:b@c",
        "postgresql://u:***@host": "postgresql://u:***@host",
    }.items():
        assert hidden == Redactor().text(text)
