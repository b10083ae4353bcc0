"""``patchbay serve --plugins``: one command for the server and its plugins, and how both end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from faults.rig import BOUND, is_alive, poll_until
from patchbay.plugins.host.control import ask, folder_of
from plugins.host_rig import write_plugin
from support.cli import run_cli
from support.processes import Process

SERVE = [sys.executable, "-m", "patchbay", "serve", "--port", "0", "--plugins-port", "0", "--mcp-config", "none"]
SLOW = """
import asyncio

@neko_plugin
class Plugin(NekoPluginBase):
    @llm_tool(name="slow", timeout=60)
    async def slow(self):
        (self.ctx.folder / "begun").touch()
        while not (self.ctx.folder / "go").exists():
            await asyncio.sleep(0.01)
        return "done"
"""


class Served:
    """A running command: its process, its address, and the port of its plugins."""

    def __init__(self, process: Process) -> None:
        self.process = process
        assert process.stdout is not None
        self.url = process.stdout.readline().split()[-1]
        line = next(line for line in process.stdout if line.startswith("  plugins "))
        self.port = int(line.split()[-1])

    def request(self, method: str, path: str, **body: Any) -> Any:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=BOUND)
        with contextlib.closing(connection):
            headers = {"content-type": "application/json"} if body else {}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            return json.loads(connection.getresponse().read())

    def names(self) -> list[str]:
        return [each["name"] for each in self.request("GET", "/api/tools")["tools_by_role"]["default"]]

    def worker(self) -> int:
        [status] = ask(folder_of(self.port), do="list")
        return int(status["pid"])

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and stderr."""
        _, errors = self.process.communicate(timeout=BOUND)
        return self.process.wait(BOUND), errors


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    return write_plugin(tmp_path / "plugins" / "slow", SLOW)


@contextlib.contextmanager
def serving(plugin: Path, *flags: str) -> Iterator[Served]:
    store = f"sqlite:///{plugin.parent.parent}/tools.db"
    command = [*SERVE, "--store", store, "--plugins", str(plugin.parent), *flags]
    with Process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            served = Served(process)
            poll_until(lambda: served.names() == ["slow"], what="the tool")
            yield served
        finally:
            process.kill()


@pytest.fixture
def served(plugin: Path) -> Iterator[Served]:
    with serving(plugin) as served:
        yield served


def test_a_broken_plugin_is_a_warning_and_the_log_begins_with_the_plugins(plugin: Path):
    (write_plugin(plugin.parent / "bad", SLOW) / "main.py").write_text("def (\n")
    with serving(plugin) as served:
        assert served.process.stderr is not None
        lines = []
        for line in served.process.stderr:
            lines.append(line)
            if "It cannot be run as it is" in line:
                break
    broken = [" WARNING [bad] " in line for line in lines if "slow registered" not in line]
    assert broken
    assert all(broken), lines


@contextlib.contextmanager
def interrupted_call(plugin: Path, served: Served) -> Iterator[Future[Any]]:
    """Call the slow tool, and press Ctrl-C while it runs."""
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(served.request, "POST", "/api/tools/call", name="slow", arguments={})
        poll_until((plugin / "begun").exists)
        served.process.send_signal(signal.SIGINT)
        stderr = served.process.stderr
        assert stderr is not None
        poll_until(lambda: "1 request running" in stderr.readline(), what="the drain")
        yield call


def test_one_ctrl_c_lets_running_calls_finish_and_then_removes_the_tools_and_ends_the_plugins(plugin: Path, served: Served):
    worker = served.worker()
    with interrupted_call(plugin, served) as call:
        assert is_alive(worker)
        (plugin / "go").touch()
        assert ("done", False) == ((answer := call.result(BOUND))["output"], answer["is_error"])
    assert 0 == served.end()[0]
    assert not is_alive(worker)
    assert not folder_of(served.port).exists()


def test_a_second_ctrl_c_does_not_wait_and_leaves_no_process(plugin: Path, served: Served):
    worker = served.worker()
    with interrupted_call(plugin, served) as call:
        served.process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            call.result(BOUND)
    assert 0 == served.end()[0]
    poll_until(lambda: not is_alive(worker), what="the end of the plugin")


def test_the_store_has_no_tool_of_the_plugins_after_the_end(plugin: Path):
    with serving(plugin) as served:
        served.process.send_signal(signal.SIGTERM)
        assert 0 == served.end()[0]
    (plugin / "plugin.toml").unlink()
    store = f"sqlite:///{plugin.parent.parent}/tools.db"
    command = [*SERVE[:-4], "--mcp-config", "none", "--store", store]
    with Process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            done = run_cli("tools", "list", "--server", url)
            assert (0, "default  0 tools\n") == (done.returncode, done.stdout)
        finally:
            process.kill()


def test_plugins_of_a_server_with_a_token_need_none_and_their_calls_are_signed(plugin: Path, tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("a-token-of-this-server")
    token.chmod(0o600)
    (plugin / "go").touch()
    with serving(plugin, "--token-file", str(token), "--callback-ports", "9", "--strict-arguments") as served:
        assert "done" == served.request("POST", "/api/tools/call", name="slow", arguments={})["output"]
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=BOUND)
        with contextlib.closing(connection):
            body = json.dumps({"name": "slow", "arguments": {}})
            path = "/api/llm-tools/callback/slow/slow"
            connection.request("POST", path, body, {"content-type": "application/json"})
            assert 403 == connection.getresponse().status
        done = run_cli(
            "plugins", "stop", "slow", "--port", str(served.port), XDG_RUNTIME_DIR=os.environ.get("XDG_RUNTIME_DIR", "")
        )
        assert (0, "stopped slow\n") == (done.returncode, done.stdout)
        poll_until(lambda: served.names() == [], what="the removal of the tool")


def test_a_port_in_use_and_a_missing_folder_are_one_line_errors(tmp_path: Path):
    (tmp_path / "plugins").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ["--store", "memory", "--plugins", str(tmp_path / "plugins"), "--plugins-port", port]
        done = run_cli("serve", "--port", "0", "--mcp-config", "none", *flags)
    assert (2, f"patchbay: cannot listen on 127.0.0.1 port {port}: address already in use.\n") == (done.returncode, done.stderr)
    done = run_cli("serve", "--port", "0", "--mcp-config", "none", "--store", "memory", "--plugins", str(tmp_path / "none"))
    assert (2, 1) == (done.returncode, done.stderr.count("\n"))
    assert "neither a folder nor module:Class" in done.stderr
