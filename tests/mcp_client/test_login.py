"""The login to a server over HTTP (OAuth), and its tokens."""

from __future__ import annotations

import asyncio
import http.server
import subprocess
import sys
import threading
import urllib.request
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from patchbay.errors import ConfigurationError
from patchbay.mcp import McpServer
from patchbay.mcp.config import ServersFile, default_file
from patchbay.mcp.login import TokenStore, login
from ports import held_port
from support.cli import run_cli
from support.processes import Process

from .rig import mounted, over_http, raw_server


@contextmanager
def guarded_server(seconds: int, host: str = "127.0.0.1"):
    """A server whose access tokens end after ``seconds``; its login is at ``host``."""
    port, holder = held_port()
    with closing(holder), over_http(port, "oauth_server.py", seconds, host):
        yield McpServer(name="guarded", url=f"http://127.0.0.1:{port}/mcp")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def log_in(answers: str = "") -> str:
    """Log in on the command line; this is the browser."""
    command = [sys.executable, "-m", "patchbay", "mcp", "login", "guarded"]
    with Process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(answers)
        process.stdin.close()
        texts = []
        for line in process.stdout:
            texts.append(line)
            if line.strip().startswith("http://"):
                with urllib.request.urlopen(line.strip(), timeout=30) as page:
                    texts.append(page.read().decode())
    return "".join(texts)


async def test_command_line_login_gives_access_and_tokens_are_refreshed():
    with guarded_server(seconds=3600) as server:
        async with mounted(server) as there:
            assert ("down", True) == (there.host.status[0].state, "patchbay mcp login guarded" in there.host.status[0].problem)
        ServersFile(default_file()).put(server)
        text = log_in()
        assert ("You are logged in" in text, "Logged in to guarded." in text) == (True, True), text
        async with mounted(server) as there:
            assert "42" == (await there.call("mcp__guarded__secret")).content

        store = TokenStore(server)
        before = store.content["tokens"]["access_token"]
        store.content["expires_at"] = 1.0  # it has ended long ago
        store.save()
        async with mounted(server) as there:
            assert "42" == (await there.call("mcp__guarded__secret")).content
        assert before != TokenStore(server).content["tokens"]["access_token"]

        store = TokenStore(server)
        store.content["tokens"] = {"access_token": "revoked", "token_type": "Bearer"}
        store.save()
        async with mounted(server) as there:
            assert "its login has ended" in there.host.status[0].problem


async def test_login_uses_the_configured_client_and_the_missing_scope():
    with guarded_server(seconds=3600) as server:
        ours = replace(server, client_id="known", client_secret="its secret")
        store = TokenStore(ours)
        store.content["scope"] = "mcp:write"
        store.save()
        ServersFile(default_file()).put(ours)
        text = log_in()
        assert "Logged in to guarded." in text, text
        content = TokenStore(ours).content
        assert ("known", "mcp:write") == (content["client"]["client_id"], content["tokens"]["scope"])
        async with mounted(ours) as there:
            assert "42" == (await there.call("mcp__guarded__secret")).content


async def test_a_call_that_its_login_does_not_allow_did_not_run_and_runs_after_the_next_login():
    with guarded_server(seconds=3600) as server:
        ServersFile(default_file()).put(server)
        log_in()
        async with mounted(server) as there:
            slow = asyncio.create_task(there.call("mcp__guarded__slow"))
            await there.until(lambda: there.host.running_calls == 1)
            refused = await there.call("mcp__guarded__write")
            assert ("no", True) == (refused.ran, "does not allow this: patchbay mcp login guarded" in refused.content)
            assert ("slow", "ready") == ((await slow).content, there.host.status[0].state)
            text = await asyncio.to_thread(log_in)  # asks for what was refused
            assert "Logged in to guarded." in text, text
            assert "written" == (await there.call("mcp__guarded__write")).content


@contextmanager
def answering(status: int = 404, headers: dict[str, str] | None = None):
    """An HTTP server with one response, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            for name, value in {"Content-Length": "0", **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


async def test_login_goes_to_another_origin_only_where_a_person_agrees():
    """A server could else reach what listens on this machine for its user alone."""
    with answering() as (other, asked):
        to_other = {"WWW-Authenticate": f'Bearer resource_metadata="{other}/flushall"'}
        with answering(401, to_other) as (url, _):
            server = McpServer(name="curious", url=f"{url}/mcp")
            ServersFile(default_file()).put(server)
            done = await asyncio.to_thread(run_cli, "mcp", "login", "curious", stdin="n\n")
            assert (1, True, []) == (done.returncode, f"leads to {other}" in done.stderr, asked)
            store = TokenStore(server)
            store.content["tokens"] = {"access_token": "ended", "token_type": "Bearer"}
            store.save()
            async with mounted(server) as there:  # without a person
                problem = f"its login leads to {other}, which is not its origin: patchbay mcp login curious"
                assert (problem, []) == (there.host.status[0].problem, asked)
            await asyncio.to_thread(run_cli, "mcp", "login", "curious", stdin="y\n")
            assert ["/flushall"] == asked[:1]


async def test_tokens_of_another_origin_are_refreshed_there_after_its_login():
    with guarded_server(3600, "localhost") as server:
        ServersFile(default_file()).put(server)
        text = log_in("y\n")
        assert (1, True) == (text.count("Log in there?"), "Logged in to guarded." in text), text
        store = TokenStore(server)
        before = store.content["tokens"]["access_token"]
        store.content["expires_at"] = 1.0
        store.save()
        async with mounted(server) as there:
            assert "42" == (await there.call("mcp__guarded__secret")).content
        assert before != TokenStore(server).content["tokens"]["access_token"]


async def test_tokens_are_encrypted_and_their_owners_alone():
    server = McpServer(name="a", url="https://x.example/mcp")
    store = TokenStore(server)
    store.content["tokens"] = {"access_token": "very-secret", "token_type": "Bearer"}
    store.save()
    files = sorted(default_file().with_name("mcp-tokens").iterdir())
    assert [0o600, 0o600] == [each.stat().st_mode & 0o777 for each in files]
    assert not any(b"very-secret" in each.read_bytes() for each in files)
    assert TokenStore(server).has_tokens
    key = next(each for each in files if each.name == "key")
    key.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others can read the key"):
        TokenStore(server)
    key.chmod(0o600)
    Path(key).write_bytes(b"x" * 44)
    with pytest.raises(ConfigurationError, match="log in again"):
        TokenStore(server)


async def test_a_command_has_no_login():
    with pytest.raises(ConfigurationError, match="only servers with a URL have a login"):
        await login(raw_server(), print)
