"""Three server processes on one PostgreSQL database, killed, stopped and cut off at random: no stored change is lost.

``PATCHBAY_FAULT_ROUNDS=300`` takes twenty minutes.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from agents.databases import execute, postgres_server, restart_postgres, why_no_postgres
from support.http_server import ask
from support.processes import Process

ROUNDS = int(os.environ.get("PATCHBAY_FAULT_ROUNDS", "20"))
STOPPED_SECONDS = 1.0 if ROUNDS <= 20 else 30.0
AGREE_SECONDS = 10.0
OTHERS = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
JSON = {"content-type": "application/json"}
CHANGES = 8
"""Per round."""

pytestmark = pytest.mark.skipif(why_no_postgres() is not None, reason=str(why_no_postgres()))


class Servers:
    """The servers, by number; one that was killed is started again."""

    def __init__(self, store: str) -> None:
        self._store = store
        self.running: dict[int, tuple[Process, int]] = {}

    def start(self, number: int) -> None:
        command = [sys.executable, "-m", "patchbay", "serve", "--store", self._store, "--port", "0"]
        process = Process(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found
        self.running[number] = process, int(found[1])

    def end(self, number: int) -> None:
        process, _ = self.running[number]
        process.kill()
        process.communicate()

    def post(self, number: int, path: str, **fields: Any) -> dict[str, Any] | None:
        """The answer; None where there was none, or an error: nobody can say whether it was done."""
        with contextlib.suppress(OSError, ValueError):
            answer = ask(self.running[number][1], "POST", f"/api/tools/{path}", fields, headers=JSON)
            return answer.json if answer.status == 200 else None
        return None

    def tools(self, number: int) -> set[str] | None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = ask(self.running[number][1], "GET", "/api/tools").json
            return {tool["name"] for tool in found["tools_by_role"]["default"]}
        return None


@contextlib.contextmanager
def fault(kind: str, process: Process, store: str) -> Iterator[None]:
    """A fault at some moment of the block."""
    actions = {
        "kill": process.kill,
        "stop": lambda: process.send_signal(signal.SIGSTOP),
        "cut": lambda: execute(store, f"SELECT pg_terminate_backend(pid) {OTHERS}"),
        "restart": lambda: restart_postgres(store),
    }
    timer = threading.Timer(random.uniform(0, 0.2), actions[kind])
    timer.start()
    try:
        yield
    finally:
        timer.join()
        if kind == "stop":
            time.sleep(STOPPED_SECONDS)
            process.send_signal(signal.SIGCONT)


def test_no_stored_change_is_lost_and_all_servers_agree() -> None:
    seed = random.randrange(1 << 32)
    random.seed(seed)
    there: set[str] = set()  # stored
    gone: set[str] = set()  # removed, and that is stored
    with postgres_server() as store, contextlib.ExitStack() as stack:
        servers = Servers(store)
        for number in range(3):
            servers.start(number)
            stack.callback(servers.end, number)
        for number in range(ROUNDS):
            kind, victim = random.choice(("kill", "stop", "cut", "restart")), random.randrange(3)
            with fault(kind, servers.running[victim][0], store):
                for change in range(CHANGES):
                    server = (victim + random.randrange(kind == "stop", 3)) % 3  # one that is stopped answers nothing
                    make_change(servers, server, f"t{number}_{change}", there, gone)
            if kind == "kill":
                servers.end(victim)
                servers.start(victim)
            until = time.monotonic() + AGREE_SECONDS
            while not agree(found := [servers.tools(each) for each in range(3)], there, gone):
                assert time.monotonic() < until, (seed, number, kind, found, there, gone)
                time.sleep(0.02)
    assert len(there) + len(gone) > ROUNDS


def agree(found: Sequence[set[str] | None], there: set[str], gone: set[str]) -> bool:
    first = found[0]
    return first is not None and there <= first and not gone & first and all(each == first for each in found)


def make_change(servers: Servers, number: int, name: str, there: set[str], gone: set[str]) -> None:
    if there and random.random() < 0.3:
        name = random.choice(sorted(there))
        there.discard(name)
        answer = servers.post(number, "unregister", name=name)
        if answer is not None and answer["removed"] and answer["stored"]:
            gone.add(name)
        return
    answer = servers.post(number, "register", name=name, callback_url="http://127.0.0.1:9/call")
    if answer is not None and answer["ok"] and answer["stored"]:
        there.add(name)
