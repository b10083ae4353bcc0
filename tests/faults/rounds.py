"""Rounds of faults: a process is killed during calls and registrations, and the system must recover.

``Rounds.check`` has the checks after each round.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.rig import BOUND, PATIENCE, Deployment, is_alive, poll_until
from patchbay.registrations import RegistrationStore
from plugins.host_rig import write_plugin

PLUGINS = ("left", "right")
CALLERS = 4
BACK_WITHIN = 60.0 * PATIENCE
"""Seconds until the tools are back. The promise is 5 s on a machine that has time for it; where many tests run at once, starting an
interpreter can take seconds by itself."""

RECORDER = """
import os

@neko_plugin
class Plugin(NekoPluginBase):
    @llm_tool(
        name="{name}_record",
        timeout=10,
        parameters={{"type": "object", "properties": {{"pause": {{"type": "number"}}}}, "required": ["pause"]}},
    )
    async def record(self, *, pause, tool_context):
        fd = os.open({journal!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, tool_context.idempotency_key.encode() + b"\\n")
            os.fsync(fd)
        finally:
            os.close(fd)
        import asyncio
        await asyncio.sleep(pause)
        return tool_context.idempotency_key
"""


@dataclass(frozen=True)
class CallOutcome:
    """What became of a call: ``said`` is the server's answer, None where the connection to it ended without one."""

    key: str
    said: dict[str, Any] | None


@dataclass
class Registrar:
    """Registers and unregisters tools, and records acknowledged changes. ``open`` is the change without a response."""

    deployment: Deployment
    chance: random.Random
    callback_url: str
    acknowledged: dict[str, str] = field(default_factory=dict)
    open: tuple[str, str | None] | None = None

    def work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if self.open is not None:
                name, text = self.open  # an unanswered change is made again until it is answered
            else:
                name = f"x{self.chance.randrange(8)}"
                text = None if name in self.acknowledged and self.chance.random() < 0.4 else uuid.uuid4().hex
            self.open = (name, text)
            try:
                if text is None:
                    answer = self.deployment.post("unregister", name=name)
                else:
                    answer = self.deployment.post("register", name=name, description=text, callback_url=self.callback_url)
            except (OSError, http.client.HTTPException):
                stop.wait(0.05)
                continue
            assert answer["ok"], answer
            assert answer["stored"], answer
            if text is None:
                self.acknowledged.pop(name, None)
            else:
                self.acknowledged[name] = text
            self.open = None
            stop.wait(0.002)

    def may_hold(self) -> list[dict[str, str]]:
        """List the valid contents of the database: acknowledged changes, with and without the open one."""
        if self.open is None:
            return [self.acknowledged]
        name, text = self.open
        other = {key: value for key, value in self.acknowledged.items() if key != name}
        return [self.acknowledged, other if text is None else {**other, name: text}]


class Rounds:
    """Runs rounds in ``folder``; ``seed`` makes the same kills at the same moments, as far as the machine lets it."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self.folder = folder
        self.journal = folder / "journal"
        self.journal.touch()
        self.deployment = Deployment(folder)
        self.chance = random.Random(seed)
        self.answers: list[CallOutcome] = []
        self.kills: Counter[str] = Counter()
        self.back: list[tuple[str, float]] = []
        self.since = time.monotonic()
        """When who was killed last could begin to come back: a plugin at once, the others when they are started again."""
        self.orphans: list[int] = []
        for name in PLUGINS:
            write_plugin(self.deployment.plugins / name, RECORDER.format(name=name, journal=str(self.journal)))
        self.tools = [f"{name}_record" for name in PLUGINS]

    def run(self, count: int) -> None:
        with self.deployment, listening_callback() as url:
            registrar = Registrar(self.deployment, random.Random(self.chance.random()), url)
            self.await_tools("start")
            for number in range(count):
                try:
                    self.round(registrar)
                except BaseException as error:
                    error.add_note(f"in round {number}, after these kills: {dict(self.kills)}")
                    raise
        self.check_database(registrar)

    def round(self, registrar: Registrar) -> None:
        victims = [self.chance.choice(("server", "host", "plugin"))]
        if self.chance.random() < 0.25:
            victims.append(self.chance.choice(("server", "host", "plugin")))
        stop = threading.Event()
        # A caller that lost the server repeats the call with its key. Only handlers know a key after the host has ended.
        again = "host" not in victims
        with ThreadPoolExecutor(CALLERS + 1) as threads:
            registering = threads.submit(registrar.work, stop)
            calling = [threads.submit(self.call, stop, self.chance.random(), again) for _ in range(CALLERS)]
            try:
                for victim in victims:
                    stop.wait(self.chance.uniform(0.0, 0.3))
                    self.kill(victim, registrar)
                self.await_tools(" and ".join(victims))
            finally:
                stop.set()
            registering.result(BOUND)
            for each in calling:
                self.answers += each.result(2 * BOUND)
        self.check()

    # Calls.

    def call(self, stop: threading.Event, seed: float, again: bool) -> list[CallOutcome]:
        """Make one call after the other; each ends with an answer, or with the end of its connection."""
        chance = random.Random(seed)
        answers = []
        while not stop.is_set():
            key = uuid.uuid4().hex
            tool, pause = chance.choice(self.tools), chance.choice((0.0, 0.0, 0.02, 0.2))
            text = self.ask(tool, key, pause)
            while text is None and again and not stop.wait(0.05):
                text = self.ask(tool, key, pause)
            answers.append(CallOutcome(key, text))
            stop.wait(0.01)
        return answers

    def ask(self, tool: str, key: str, pause: float) -> dict[str, Any] | None:
        try:
            status, text = self.deployment.request(
                "POST", "/api/tools/call", {"name": tool, "arguments": {"pause": pause}, "idempotency_key": key}
            )
        except (ConnectionError, http.client.HTTPException):
            return None  # but never a timeout, which would be an unanswered call
        assert 200 == status, text
        return text

    # Kills.

    def kill(self, victim: str, registrar: Registrar) -> None:
        self.kills[victim] += 1
        if victim == "server":
            self.deployment.server.kill()
            self.check_database(registrar)
            self.since = time.monotonic()
            self.deployment.server.start()
        elif victim == "host":
            orphans = [status["pid"] for status in self.deployment.ask(do="list") if status["pid"]]
            self.deployment.host.kill()
            self.since = time.monotonic()
            self.deployment.host.start()
            self.orphans += orphans
        else:
            self.since = time.monotonic()
            name = self.chance.choice(PLUGINS)
            with contextlib.suppress(ProcessLookupError):
                if pid := self.deployment.status(name)["pid"]:
                    os.kill(pid, signal.SIGKILL)

    def await_tools(self, what: str) -> None:
        """Wait until every tool is listed once, and can be called."""

        said: dict[str, Any] | None = None

        def answers(tool: str) -> bool:
            nonlocal said
            said = self.ask(tool, uuid.uuid4().hex, 0.0)
            return said is not None and said["ok"] and self.deployment.names().count(tool) == 1

        for tool in self.tools:
            try:
                poll_until(functools.partial(answers, tool), within=BACK_WITHIN, what=f"{tool} after the end of the {what}")
            except AssertionError as error:
                error.add_note(f"the last call: {said}; the load: {os.getloadavg()}")
                error.add_note(f"the server has: {[row for row in self.deployment.rows() if row['source'] != 'external']}")
                error.add_note(f"the host has: {self.deployment.ask(do='list')}")
                error.add_note("".join(self.deployment.host.child.printed[-20:]))
                raise
        self.back.append((what, time.monotonic() - self.since))

    # What must hold.

    def check(self) -> None:
        ran = Counter(self.journal.read_text().split())
        assert {} == {key: times for key, times in ran.items() if times > 1}, "a handler ran twice for one key"
        for answer in self.answers:
            text = answer.said
            if text is None:
                continue
            if text["ok"]:
                assert (1, answer.key) == (ran[answer.key], text["output"]), answer
            else:
                assert text["code"], answer
                if "did not run" in text["content"]:
                    assert 0 == ran[answer.key], answer
        self.seen = len(ran)
        poll_until(lambda: not any(map(is_alive, self.orphans)), what="the end of the plugins of a host that was killed")
        self.orphans.clear()

    def check_database(self, registrar: Registrar) -> None:
        """Open what a killed server left behind, as the next one will find it."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for file in self.folder.glob("tools.db*"):
            shutil.copy(file, copy)
        with contextlib.closing(sqlite3.connect(copy / "tools.db")) as database:
            assert [("ok",)] == database.execute("PRAGMA integrity_check").fetchall()

        async def load() -> dict[str, str]:
            async with RegistrationStore(f"sqlite:///{copy}/tools.db") as store:
                return {each.name: each.description for each in await store.load() if each.source == "external"}

        held = asyncio.run(load())
        assert held in registrar.may_hold(), json.dumps([held, registrar.acknowledged, registrar.open], indent=1)


@contextlib.contextmanager
def listening_callback() -> Iterator[str]:
    """A callback that is there, and is never called: its tools are neither hidden nor dropped."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(BOUND)
