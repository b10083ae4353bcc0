"""The server process: it drains when told to stop, replaces its workers, and stays small. Real processes, real signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
from pathlib import Path

import pytest
from aiohttp import web
from proxy_rig import open_chat, open_stream, read_until, running_command, running_upstream, silent

from patchbay.server.runtime import _EARLY_DEATH_SECONDS
from support.http_server import BOUND, ask
from support.processes import Process

MODEL = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def wait_until_refused(port: int) -> None:
    """Wait until no new connection is taken; bounded."""
    for _ in range(3000):
        try:
            socket.create_connection(("127.0.0.1", port), BOUND).close()
        except OSError:
            return
        threading.Event().wait(0.01)
    raise AssertionError("new connections are still taken")


def finish(process: Process) -> tuple[int, str]:
    _, stderr = process.communicate(timeout=2 * BOUND)
    return process.returncode, stderr


async def quick(request: web.Request) -> web.StreamResponse:
    return web.json_response({"object": "chat.completion", "choices": []})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_stop_finishes_running_requests_says_so_and_exits_0(number: signal.Signals, workers: str) -> None:
    go = threading.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        response = await open_stream(request, b"data: one\n\n")
        await asyncio.to_thread(go.wait, 6 * BOUND)
        await response.write(b"data: two\n\n")
        return response

    with (
        running_upstream(slow) as upstream,
        running_command("proxy", "--upstream", upstream.url, "--workers", workers) as (process, port),
    ):
        with open_chat(port, {**MODEL, "stream": True}) as client:
            read_until(client, b"data: one")
            process.send_signal(number)
            # No new connections, while the running one goes on.
            wait_until_refused(port)
            go.set()
            assert b"data: two" in read_until(client, b"0\r\n\r\n")
        assert (0, "stopping: 1 request running, up to 30 s; press Ctrl-C again to stop at once\n") == finish(process)


@pytest.mark.parametrize(("workers", "seconds"), [("1", "0"), ("1", "1"), ("2", "1")])
def test_a_drain_is_bounded(workers: str, seconds: str) -> None:
    with (
        running_upstream(silent) as upstream,
        running_command("proxy", "--upstream", upstream.url, "--drain-timeout", seconds, "--workers", workers) as (process, port),
    ):
        with open_chat(port, MODEL):
            assert upstream.arrived.wait(BOUND)
            process.terminate()
            line = f"stopping: 1 request running, up to {seconds} s; press Ctrl-C again to stop at once\n"
            assert (0, "" if seconds == "0" else line) == finish(process)
        assert upstream.left.wait(BOUND)


@pytest.mark.parametrize("command", [("proxy",), ("proxy", "--workers", "2"), ("serve", "--keep-turns", "1d")])
def test_a_second_stop_ends_at_once_and_loses_nothing(command: tuple[str, ...], tmp_path: Path) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/server.db") if "serve" in command else ()
    with (
        running_upstream(silent) as upstream,
        running_command(*command, "--upstream", upstream.url, "--drain-timeout", "3600", *store) as (process, port),
        open_chat(port, MODEL),
    ):
        assert upstream.arrived.wait(BOUND)
        process.terminate()
        wait_until_refused(port)
        process.terminate()
        status, log = finish(process)
        assert (0, False) == (status, "stored" in log), log
    if store:
        with contextlib.closing(sqlite3.connect(tmp_path / "server.db")) as database:
            assert [(1,)] == database.execute("SELECT count(*) FROM patchbay_turns").fetchall()


@pytest.mark.parametrize("under_way", [False, True])
def test_repeated_stop_signals_do_not_change_the_exit_status(under_way: bool) -> None:
    with (
        running_upstream(silent) as upstream,
        running_command("proxy", "--upstream", upstream.url, "--drain-timeout", "0") as (process, port),
        open_chat(port, MODEL) if under_way else contextlib.nullcontext(),
    ):
        assert not under_way or upstream.arrived.wait(BOUND)
        while process.poll() is None:  # the process is killed where that does not end
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.005)
        assert (0, "") == finish(process)


def test_a_worker_that_dies_is_replaced_and_each_has_its_own_log(tmp_path: Path) -> None:
    with (
        running_upstream(quick) as upstream,
        running_command("proxy", "--upstream", upstream.url, "--workers", "2", "--log-file", str(tmp_path / "log")) as (
            process,
            port,
        ),
    ):
        before = children(process.pid)
        assert 2 == len(before)
        os.kill(before[0], signal.SIGKILL)
        for _ in range(3000):
            now = children(process.pid)
            if len(now) == 2 and before[0] not in now:
                break
            threading.Event().wait(0.01)
        assert 2 == len(set(now) - {before[0]})
        assert [200] * 8 == [ask(port, "GET", "/health").status for _ in range(8)]
        process.terminate()
        status, stderr = finish(process)
        assert 0 == status
        assert "A worker ended" in stderr
    assert ["log", "log-2"] == sorted(path.name for path in tmp_path.iterdir())


def test_workers_that_end_together_after_a_while_are_all_replaced() -> None:
    with (
        running_upstream(quick) as upstream,
        running_command("proxy", "--upstream", upstream.url, "--workers", "3") as (process, port),
    ):
        before = children(process.pid)
        threading.Event().wait(_EARLY_DEATH_SECONDS + 0.1)
        for child in before:
            os.kill(child, signal.SIGKILL)
        for _ in range(3000):
            now = children(process.pid)
            if len(now) == 3 and not set(now) & set(before):
                break
            threading.Event().wait(0.01)
        assert [200] * 6 == [ask(port, "GET", "/health").status for _ in range(6)]
        process.terminate()
        assert 0 == finish(process)[0]


def test_a_server_whose_workers_end_at_once_gives_up() -> None:
    with (
        running_upstream(quick) as upstream,
        running_command("proxy", "--upstream", upstream.url, "--workers", "2") as (process, _),
    ):
        while process.poll() is None:  # bounded by the alarm of the process
            for child in children(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        status, stderr = finish(process)
    assert 1 == status
    assert "giving up" in stderr


def test_workers_leave_when_their_parent_is_killed() -> None:
    with (
        running_upstream(quick) as upstream,
        running_command("proxy", "--upstream", upstream.url, "--workers", "2") as (process, _),
    ):
        workers = children(process.pid)
        process.kill()
        for _ in range(3000):
            if not any(Path(f"/proc/{pid}").exists() for pid in workers):
                break
            threading.Event().wait(0.01)
        assert [] == [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def probe(port: int, path: str) -> tuple[int, dict[str, str]]:
    answer = ask(port, "GET", path, headers={"host": "a-pod-of-the-cluster"})
    return answer.status, json.loads(answer.body)


@pytest.mark.parametrize("command", ["proxy", "serve"])
def test_probes_are_answered_and_a_server_that_stops_is_not_ready_but_serves_for_a_while(command: str) -> None:
    store = ("--store", "memory") if command == "serve" else ()
    with (
        running_upstream(quick) as upstream,
        running_command(command, "--upstream", upstream.url, "--drain-delay", "3600", *store) as (process, port),
    ):
        assert [(200, {"status": "ok"})] * 2 == [probe(port, path) for path in ("/healthz", "/readyz")]
        process.terminate()
        for _ in range(3000):
            ready = probe(port, "/readyz")
            if ready[0] != 200:
                break
            threading.Event().wait(0.01)
        assert (503, {"status": "unavailable", "problem": "The server is stopping."}) == ready
        assert (200, {"status": "ok"}) == probe(port, "/healthz")
        headers = {"content-type": "application/json"}
        assert 200 == ask(port, "POST", "/v1/chat/completions", MODEL, headers=headers).status
        process.terminate()
        assert 0 == finish(process)[0]


def test_a_server_that_cannot_store_is_not_ready(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with running_command("serve", "--store", f"sqlite:///{folder / 'tools.db'}") as (process, port):
        assert 200 == probe(port, "/readyz")[0]
        shutil.rmtree(folder)
        tool = {"name": "a", "callback_url": "http://127.0.0.1:9/", "source": "external"}
        ask(port, "POST", "/api/tools/register", tool, headers={"content-type": "application/json"})
        status, body = probe(port, "/readyz")
        assert (503, "unavailable") == (status, body["status"])
        assert "tools.db" in body["problem"]
        process.terminate()
        finish(process)
