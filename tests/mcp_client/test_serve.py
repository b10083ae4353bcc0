"""MCP servers in ``patchbay serve`` and ``patchbay mcp test``; without them the SDK is not imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from patchbay.mcp.config import McpServer, ServersFile
from support.processes import listening, run_process

from .rig import raw_server

WITHOUT_SDK = """
import sys
sys.modules["mcp"] = sys.modules["mcp_types"] = None
from patchbay.cli import main
main(["mcp", "test", "--mcp-config", sys.argv[1], "raw"])
"""


def check_server(config, *arguments):
    """Run ``patchbay mcp test``."""
    command = [sys.executable, "-m", "patchbay", "mcp", "test", "--mcp-config", str(config), *arguments]
    return run_process(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def config(tmp_path):
    file = ServersFile(tmp_path / "mcp.json")
    file.put(raw_server(roles=("ann",)))
    file.put(raw_server(name="off", disabled=True))
    return file.path


def ask(url: str, body: dict | None = None) -> dict:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def test_without_the_extra_the_error_names_it(config):
    done = subprocess.run([sys.executable, "-c", WITHOUT_SDK, str(config)], capture_output=True, text=True, timeout=60)
    assert (2, "patchbay: MCP servers need the MCP SDK, which is not installed: pip install 'patchbay-tools[mcp]'\n") == (
        done.returncode,
        done.stderr,
    )


def test_a_server_is_tested_by_its_name(config):
    found = json.loads(check_server(config, "raw", "--json").stdout)
    assert ("ready", "mcp__raw__say") == (found["state"], list(found["tools"])[-1])


def test_the_test_of_a_server_names_the_tools_that_are_left_out(tmp_path):
    file = ServersFile(tmp_path / "mcp.json")
    file.put(raw_server("schemas"))
    assert ["bad", "remote"] == [line.split("'")[1] for line in check_server(file.path, "raw").stderr.splitlines()]


def test_test_of_a_url_that_is_not_an_mcp_server_reports_it_once(tmp_path):
    class Page(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST  # noqa: N815

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        file = ServersFile(tmp_path / "mcp.json")
        file.put(McpServer(name="page", url=f"http://127.0.0.1:{site.server_port}/mcp"))
        done = check_server(file.path, "page")
        site.shutdown()
    reply = "patchbay: the MCP server 'page' cannot be connected: Unexpected content type: text/html"
    assert (1, [reply]) == (done.returncode, done.stderr.splitlines())


def test_serve_registers_the_tools_for_their_roles_and_calls_them(config, tmp_path):
    with_hooks = tmp_path / "patchbay.json"  # the same key, in the file of hooks and approvals
    with_hooks.write_text(json.dumps({"mcpServers": {"more": raw_server(name="more").to_json()}}))
    flags = ["--port", "0", "--store", "memory", "--roles", "ann,ben", "--mcp-config", str(config), "--config", str(with_hooks)]
    with listening([sys.executable, "-m", "patchbay", "serve", *flags], name="patchbay serve", timeout=60) as child:
        tools: dict[str, set[str]] = {}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not {"mcp:raw", "mcp:more"} <= tools.get("ann", set()):
            listed = ask(f"{child.url}/api/tools")["tools_by_role"]
            tools = {role: {each["source"] for each in found} for role, found in listed.items()}
        assert {"ann": {"mcp:raw", "mcp:more"}, "ben": {"mcp:more"}} == tools
        called = ask(f"{child.url}/api/tools/call", {"name": "mcp__raw__say", "arguments": {"n": 7}, "role": "ann"})
        assert ("said 7", False) == (called["content"], called["is_error"])
        body = {"name": "mcp__raw__say", "description": "", "callback_url": "http://127.0.0.1:9/x", "source": "mcp:raw"}
        assert "source_reserved" == ask(f"{child.url}/api/tools/register", body)["failed_roles"][0]["code"]


def test_serve_reloads_servers_on_a_signal_and_keeps_unchanged_ones(tmp_path):
    file = ServersFile(tmp_path / "mcp.json")
    for name in ("same", "gone", "other"):
        file.put(raw_server(name=name, allow=("pid",)))
    flags = ["--port", "0", "--store", "memory", "--mcp-config", str(file.path)]
    with listening([sys.executable, "-m", "patchbay", "serve", *flags], name="patchbay serve", timeout=60) as child:

        def until(*names: str) -> None:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                found = {each["name"] for each in ask(f"{child.url}/api/tools")["tools_by_role"]["default"]}
                if found == set(names):
                    return
            assert set(names) == found

        def pid() -> str:
            return ask(f"{child.url}/api/tools/call", {"name": "mcp__same__pid", "arguments": {}})["content"]

        until("mcp__same__pid", "mcp__gone__pid", "mcp__other__pid")
        before = pid()
        file.remove("gone")
        file.put(raw_server(name="other", allow=("say",)))
        file.put(raw_server(name="new", allow=("say",)))
        os.kill(child.pid, signal.SIGHUP)
        until("mcp__same__pid", "mcp__other__say", "mcp__new__say")
        file.put(raw_server("${PATCHBAY_NO_SUCH}", name="same"))
        os.kill(child.pid, signal.SIGHUP)
        while not any("was not reloaded" in line for line in child.printed):
            ask(f"{child.url}/health")
        assert before == pid()


def test_proxy_reports_that_it_mounts_no_servers(tmp_path):
    config = tmp_path / "patchbay.json"
    config.write_text(json.dumps({"mcpServers": {"raw": raw_server().to_json()}}))
    flags = ["--upstream", "http://127.0.0.1:9", "--port", "0", "--store", "memory", "--config", str(config)]
    with listening([sys.executable, "-m", "patchbay", "proxy", *flags], name="patchbay proxy", timeout=60) as child:
        assert any("mcpServers are for patchbay serve" in line for line in child.printed)
