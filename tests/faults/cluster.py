"""Three servers on one PostgreSQL, five plugin hosts, two hook processes, and twelve clients that record what was acknowledged.

``Cluster.round`` has one fault while the clients work; ``Cluster.check`` compares what they recorded with what the servers and the
plugins' journal have.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from agents.databases import execute, postgres_server, restart_postgres
from faults.rig import Service, poll_until
from plugins.host_rig import write_plugin

SERVERS, HOSTS, CALLERS, REGISTRARS, ASKERS, DECIDERS = 3, 5, 4, 4, 2, 2
TIMEOUT = 45.0
"""Seconds for one request: a stopped server goes on after 30."""
AGREE_SECONDS = 10.0
SESSIONS = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
FAULTS = ("kill server", "stop server", "cut sessions", "restart PostgreSQL", "kill host", "kill hook")

PLUGIN = """
import os

TEXT = {{"type": "string"}}


@neko_plugin
class Plugin(NekoPluginBase):
    def write(self, line):
        fd = os.open({journal!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, line.encode() + b"\\n")
        finally:
            os.close(fd)

    @llm_tool(name="record_{number}", timeout=10, parameters={{"type": "object", "properties": {{}}}})
    async def record(self, *, tool_context):
        self.write(tool_context.idempotency_key)
        return tool_context.idempotency_key

    @llm_tool(
        name="echo_{number}",
        timeout=10,
        parameters={{"type": "object", "properties": {{"token": TEXT}}, "required": ["token"]}},
    )
    async def echo(self, *, token):
        self.write(token)
        return "result-" + token

    @llm_tool(
        name="guarded_{number}",
        timeout=10,
        parameters={{"type": "object", "properties": {{"token": TEXT}}, "required": ["token"]}},
    )
    async def guarded(self, *, token):
        self.write(token)
        return token
"""
HOOK = """
from patchbay.hooks.sdk import Hook

hook = Hook("watch")


@hook.before_tool
def watch(call):
    return None


if __name__ == "__main__":
    hook.run()
"""


@dataclass
class Asked:
    """A call that a person must approve: ``approvals`` are the decisions that may have been stored, each for one run."""

    approvals: int = 0
    is_denied: bool = False
    answers: list[dict[str, Any] | None] = field(default_factory=list)


@dataclass
class Registrar:
    """Registers and unregisters tools of its own at random servers; an unanswered change is made again until it is answered."""

    cluster: Cluster
    number: int
    acknowledged: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    open: tuple[str, str | None] | None = None
    changes: int = 0

    def work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if self.open is None:
                name = f"x{self.number}_{random.randrange(6)}"
                text = None if name in self.acknowledged and random.random() < 0.4 else uuid.uuid4().hex
                self.open = name, text
            name, text = self.open
            fields = {"name": name} if text is None else {"name": name, "description": text, "callback_url": self.cluster.url}
            answer = self.cluster.post("unregister" if text is None else "register", **fields)
            if answer is not None and answer["ok"] and answer["stored"]:
                if text is None:
                    self.acknowledged.pop(name, None)
                    self.removed.add(name)
                else:
                    self.acknowledged[name] = text
                    self.removed.discard(name)
                self.open = None
                self.changes += 1
            stop.wait(0.01)

    def agrees(self, found: dict[str, str]) -> bool:
        """Whether a server's tools, by name with their description, are what was acknowledged here."""
        unsure = {self.open[0]} if self.open is not None else set()
        there = all(found.get(name) == text for name, text in self.acknowledged.items() if name not in unsure)
        return there and not any(name in found for name in self.removed - unsure)


class Cluster:
    """``with`` starts all of it, and ends it. ``stopped`` are the seconds for which a server is stopped, ``serve`` its options."""

    def __init__(self, folder: Path, *, stopped: float = 1.0, serve: tuple[str, ...] | None = None) -> None:
        self.folder = folder
        self.stopped = stopped
        self.options = ("--config", str(self._write_config())) if serve is None else serve
        self.journal = folder / "journal"
        self.journal.touch()
        self.faults: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.back: list[tuple[str, float]] = []
        self.calls: dict[str, list[dict[str, Any] | None]] = {}
        self.asked: dict[str, Asked] = {}
        self.registrars = [Registrar(self, number) for number in range(REGISTRARS)]
        self.servers: list[Service] = []
        self.hosts: list[Service] = []
        self._ends = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ends:
            self.database = ends.enter_context(postgres_server())
            for number in range(SERVERS):
                self.servers.append(Service(f"server {number}", "serve", "--store", self.database, *self.options))
            for number in range(HOSTS):
                folder = self.folder / f"plugins_{number}"
                write_plugin(folder / f"p{number}", PLUGIN.format(number=number, journal=str(self.journal)))
                server = self.servers[number % SERVERS].url
                self.hosts.append(Service(f"host {number}", "plugins", "run", str(folder), "--server", server))
            for each in (*self.servers, *self.hosts):
                ends.callback(each.stop)
                each.start()
            self.url = f"{self.hosts[0].url}/"  # it listens, and is not called
            self.await_tools()
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def _write_config(self) -> Path:
        hook = self.folder / "hook.py"
        hook.write_text(HOOK)
        process = {"enabled": True, "command": [sys.executable, str(hook)], "intercept": ["before_tool"]}
        rule = {"tools": ["guarded_*"], "outcome": "ask", "deadline": 60}
        config = self.folder / "config.json"
        config.write_text(json.dumps({"hooks": {"processes": {"one": process, "two": process}}, "approvals": {"rules": [rule]}}))
        return config

    # Requests.

    def ask(self, method: str, path: str, body: Any = None, *, server: int | None = None, **headers: str) -> Any:
        """The JSON of a 200 by a server, random by default; None for anything else: it may have been done, or not."""
        port = self.servers[random.randrange(SERVERS) if server is None else server].port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        try:
            connection.request(method, path, json.dumps(body), {"content-type": "application/json", **headers})
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return answer if response.status == 200 else None

    def post(self, path: str, *, server: int | None = None, **fields: Any) -> Any:
        return self.ask("POST", f"/api/tools/{path}", fields, server=server)

    def tools(self, server: int) -> dict[str, str] | None:
        """The descriptions of a server's tools by name; None without an answer."""
        found = self.ask("GET", "/api/tools", server=server)
        return None if found is None else {tool["name"]: tool["description"] for tool in found["tools_by_role"]["default"]}

    # Clients.

    def call(self, stop: threading.Event, again: bool) -> None:
        """Make calls with keys of their own; one whose connection ended is made again with its key, at another server."""
        while not stop.is_set():
            key, tool = uuid.uuid4().hex, f"record_{random.randrange(HOSTS)}"
            answers = self.calls[key] = [self.post("call", name=tool, arguments={}, idempotency_key=key)]
            while answers[-1] is None and again and not stop.wait(0.05):
                answers.append(self.post("call", name=tool, arguments={}, idempotency_key=key))
            stop.wait(0.01)

    def ask_person(self, stop: threading.Event) -> None:
        """Make calls that a person must approve; one whose connection ended is made again in its session."""
        while not stop.is_set():
            token, tool = uuid.uuid4().hex, f"guarded_{random.randrange(HOSTS)}"
            asked = self.asked[token] = Asked()
            body = {"name": tool, "arguments": {"token": token}}
            while not asked.answers or (asked.answers[-1] is None and not stop.wait(0.05)):
                asked.answers.append(self.ask("POST", "/api/tools/call", body, **{"X-Patchbay-Session": token}))

    def decide(self, stop: threading.Event) -> None:
        """Decide what waits at any server: approve three of four, deny the fourth."""
        while not stop.wait(0.02):
            listed = self.ask("GET", "/api/approvals")
            for request in listed["approvals"] if listed is not None else ():
                token = request["arguments"]["token"]
                asked = self.asked.get(token)
                if asked is None:  # of a call of an earlier round that was given up
                    continue
                approve = int(token[0], 16) % 4 > 0
                answer = self.ask("POST", f"/api/approvals/{request['id']}", {"decision": "approve" if approve else "deny"})
                # Without an answer it may have been stored; another person's decision was counted there.
                asked.approvals += approve
                asked.is_denied |= not approve and answer is not None

    # Faults.

    def round(self, kind: str) -> None:
        """Let all clients work through one fault; return when the tools are back at all servers, and all agree."""
        self.faults[kind] += 1
        stop = threading.Event()
        with ThreadPoolExecutor(CALLERS + REGISTRARS + ASKERS + DECIDERS) as threads:
            # Only handlers know a key after their host was killed.
            jobs = [threads.submit(self.call, stop, kind != "kill host") for _ in range(CALLERS)]
            jobs += [threads.submit(each.work, stop) for each in self.registrars]
            jobs += [threads.submit(self.ask_person, stop) for _ in range(ASKERS)]
            deciders = threading.Event()
            deciding = [threads.submit(self.decide, deciders) for _ in range(DECIDERS)]
            try:
                time.sleep(random.uniform(0.1, 0.4))
                began = self.fault(kind)
                self.await_tools()
                self.back.append((kind, time.monotonic() - began))
                time.sleep(0.2)
            finally:
                stop.set()
                for job in jobs:
                    job.result(3 * TIMEOUT)
                deciders.set()
                for job in deciding:
                    job.result(TIMEOUT)
        self.check()

    def fault(self, kind: str, *, spared: int = 0) -> float:
        """Make a fault, but not of the first ``spared`` servers; return when its victim could begin to come back."""
        server, host = random.choice(self.servers[spared:]), random.choice(self.hosts)
        if kind in ("kill server", "kill host"):
            victim = server if kind == "kill server" else host
            victim.kill()
            began = time.monotonic()
            victim.start()
            return began
        if kind == "stop server":
            os.kill(server.child.pid, signal.SIGSTOP)
            try:
                others = [number for number, each in enumerate(self.servers) if each is not server]
                self.await_tools(others)  # which a stopped server does not hold up for long
                time.sleep(self.stopped)
            finally:
                os.kill(server.child.pid, signal.SIGCONT)
        elif kind == "cut sessions":
            execute(self.database, f"SELECT pg_terminate_backend(pid) {SESSIONS}")
        elif kind == "restart PostgreSQL":
            restart_postgres(self.database)
        else:
            children = Path(f"/proc/{server.child.pid}/task/{server.child.pid}/children").read_text().split()
            for pid in children[:1]:
                os.kill(int(pid), signal.SIGKILL)
        return time.monotonic()

    def await_tools(self, servers: list[int] | None = None) -> None:
        """Wait until each plugin's tool can be called at each server."""

        def answers(server: int, number: int) -> bool:
            said = self.post("call", server=server, name=f"record_{number}", arguments={}, idempotency_key=uuid.uuid4().hex)
            return said is not None and said["ok"]

        for server in range(SERVERS) if servers is None else servers:
            for number in range(HOSTS):
                poll_until(lambda: answers(server, number), what=f"record_{number} at server {server}")  # noqa: B023

    # What must hold.

    def check(self) -> None:
        """Compare the servers with each other and with what was acknowledged, and the journal with the answers."""
        until = time.monotonic() + AGREE_SECONDS
        while not self.agree(found := [self.tools(number) for number in range(SERVERS)]):
            assert time.monotonic() < until, (found, self.registrars)
            time.sleep(0.05)
        ran = Counter(self.journal.read_text().split())
        for key, answers in self.calls.items():
            assert ran[key] <= 1, f"a call ran twice for one key: {answers}"
            last = answers[-1]
            if last is not None and (last["ok"] or "did not run" in last["content"]):
                assert last["ok"] == (ran[key] == 1), answers
        for token, asked in self.asked.items():
            assert ran[token] <= asked.approvals, ("an approval was used twice", asked)
            assert not (asked.is_denied and ran[token]), asked
            last = asked.answers[-1]
            assert not (last is not None and last["ok"]) or ran[token], asked
        self.totals["calls"] += len(self.calls)
        self.totals["calls without an answer"] += sum(answers[-1] is None for answers in self.calls.values())
        self.totals["approved runs"] += sum(ran[token] for token in self.asked)
        self.totals["denied"] += sum(each.is_denied for each in self.asked.values())
        self.totals["changes"] = sum(each.changes for each in self.registrars)
        self.calls.clear()
        self.asked.clear()

    def agree(self, found: list[dict[str, str] | None]) -> bool:
        first = found[0]
        return first is not None and all(each == first for each in found) and all(each.agrees(first) for each in self.registrars)
