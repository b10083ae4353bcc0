"""What is registered outlives the server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from patchbay.database import Database
from patchbay.server.app import create_tools_app
from patchbay.server.settings import ToolsSettings
from ports import kept_port
from support.cli import run_cli
from support.processes import Process, listening
from tools_server.rig import BOUND, calling_back, json_response, serving

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PATCHBAY_", "NEKO_", "MAIN_SERVER"))}


def test_registrations_survive_a_restart_and_work(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/tools.db"
    with calling_back(json_response("done")) as callback:
        with serving(store=store) as server:
            assert server.register("a", callback.url, description="x", timeout_seconds=5, source="s")["stored"]
            server.register("b", callback.url, role="ben")
            server.register("gone", callback.url)
            server.post("unregister", name="gone")
            server.post("unregister", name="a", role="ben")
            before = server.ask("GET", "/api/tools").json
        with serving(store=store) as server:
            after = server.ask("GET", "/api/tools").json
            assert before["tools_by_role"] == after["tools_by_role"]
            assert (["a"], ["b"]) == tuple([tool["name"] for tool in tools] for tools in after["tools_by_role"].values())
            assert "done" == server.call("a")["output"]
            assert (0o600, None) == ((tmp_path / "tools.db").stat().st_mode & 0o777, server.app.managers["ann"].active)


def test_a_secret_outlives_the_server_too(tmp_path: Any) -> None:
    signatures = []
    with calling_back(json_response("done")) as callback:
        for start in range(2):
            with serving(store=f"{tmp_path}/tools.db") as server:
                if not start:
                    server.register("a", callback.url)
                server.call("a", call_id="c")
            call = callback.calls[-1]
            signatures.append(call.header("x-patchbay-signature"))
    assert signatures[0] == signatures[1]


def test_tools_dropped_by_the_health_check_stay_dropped(tmp_path: Any) -> None:
    store = f"{tmp_path}/tools.db"
    with serving(store=store, lease=0.01) as server, server.awaiting("clear"):
        server.register("a", f"http://127.0.0.1:{kept_port()}/", source="plugin:p")
    with serving(store=store) as server:
        assert {} == server.tools()


def test_stored_tool_with_an_unreachable_callback_is_hidden_until_it_returns(tmp_path: Any) -> None:
    store = f"{tmp_path}/tools.db"
    with contextlib.ExitStack() as callbacks:
        callback = callbacks.enter_context(calling_back(json_response("done"), port=kept_port()))
        with serving(store=store) as server:
            server.register("a", callback.url)
        callbacks.close()
        app = create_tools_app(("ann",), store=store, settings=ToolsSettings(lease=0.02))
        hidden = threading.Event()
        app.registry.subscribe(lambda change: hidden.set() if change.action == "hide" else None)
        with serving(app=app) as server:
            assert hidden.wait(BOUND)
            with server.awaiting("show"):
                callbacks.enter_context(calling_back(json_response("done"), port=callback.port))
            assert "done" == server.call("a")["output"]


@pytest.mark.parametrize("next_change", [True, False])
def test_failed_save_is_reported_and_repeated(tmp_path: Any, monkeypatch: Any, next_change: bool) -> None:
    broken = threading.Event()
    broken.set()
    write = Database.write

    async def writing(self: Any, work: Any, **options: Any) -> Any:
        if broken.is_set():
            raise OSError("disk full")
        return await write(self, work, **options)

    monkeypatch.setattr(Database, "write", writing)
    store = f"{tmp_path}/tools.db"
    with serving(store=store) as server:
        answer = server.register("a")
        assert (True, False) == (answer["ok"], answer["stored"])
        assert ["a"] == list(server.tools())
        broken.clear()
        if next_change:
            assert server.register("b")["stored"]
    with serving(store=store) as server:
        assert ["a", "b"][: 1 + next_change] == list(server.tools())


def test_registration_without_a_store_is_not_stored(server: Any) -> None:
    assert server.register("a")["stored"] is False


def test_many_concurrent_registrations_are_all_stored(tmp_path: Any) -> None:
    store = f"{tmp_path}/tools.db"
    with serving(("ann",), store=store) as server, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: server.register(f"t{n}", source=f"plugin:{n % 50}"), range(200)))
    assert all(answer["ok"] and answer["stored"] for answer in answers)
    with serving(("ann",), store=store) as server:
        assert 200 == len(server.tools())


# The command


@contextlib.contextmanager
def patchbay_serve(*flags: str) -> Iterator[Any]:
    with listening(
        [sys.executable, "-m", "patchbay", "serve", "--port", "0", *flags], name="patchbay serve", timeout=BOUND
    ) as child:
        yield child


def tools_of(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/api/tools", timeout=BOUND) as answer:
        return [tool["name"] for tool in json.load(answer)["tools_by_role"]["ann"]]


def post(url: str, path: str, **fields: Any) -> Any:
    request = urllib.request.Request(f"{url}/api/tools/{path}", json.dumps(fields).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=BOUND) as answer:
        return json.load(answer)


def test_serve_prints_its_address_and_stored_tools_survive_a_kill(tmp_path: Any) -> None:
    flags = ("--roles", "ann, ben", "--store", f"sqlite:///{tmp_path}/tools.db", "--lease", "0")
    with patchbay_serve(*flags) as child:
        assert post(child.url, "register", name="a", callback_url="http://localhost:9/")["stored"]
        os.kill(child.pid, signal.SIGKILL)
    with patchbay_serve(*flags) as child:
        assert ["a"] == tools_of(child.url)
        assert "patchbay serve listening on" in "".join(child.printed)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_is_clean(how: signal.Signals, tmp_path: Any) -> None:
    command = [sys.executable, "-m", "patchbay", "serve", "--port", "0", "--store", str(tmp_path / "tools.db")]
    with Process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("patchbay serve listening on http://127.0.0.1:")
        process.send_signal(how)
        _, errors = process.communicate(timeout=BOUND)
    assert (0, "") == (process.returncode, errors)


def test_documented_variable_sets_the_port() -> None:
    port = kept_port()
    command = [sys.executable, "-m", "patchbay", "serve", "--store", "memory"]
    environment = {**ENVIRONMENT, "MAIN_SERVER_PORT": str(port)}
    with Process(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert f"patchbay serve listening on http://127.0.0.1:{port}\n" == process.stdout.readline()
        process.terminate()
        process.communicate(timeout=BOUND)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--roles", " , "], "--roles needs at least one name"),
        (["--token-file", "/nowhere/token"], "token file /nowhere/token cannot be read"),
        (["--store", "mysql://x/y"], "mysql"),
        (["--proxy", "127.0.0.1"], "--proxy also needs --token-file"),
        (["--callback-ports", "5-x"], "range of ports '5-x'"),
        (["--callback-ports", "70000"], "range of ports '70000'"),
        (["--callback-ports", "9-5"], "range of ports '9-5'"),
        (["--max-result-size", "big"], "is not a size"),
        (["--allow-host", "a b"], "Invalid host name"),
        (["--port", "70000"], "'--port'"),
    ],
)
def test_invalid_flags_are_a_one_line_error(flags: list[str], message: str) -> None:
    done = run_cli("serve", "--store", "memory", *flags)
    assert (2, "") == (done.returncode, done.stdout)
    assert message in done.stderr
    assert 1 == done.stderr.count("\n")


def test_port_in_use_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_cli("serve", "--store", "memory", "--port", str(taken.getsockname()[1]))
    assert 2 == done.returncode
    assert "address already in use" in done.stderr
