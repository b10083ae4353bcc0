"""Client of the server of ``served``, which it starts and stops."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.processes import Process

SERVED = Path(__file__).with_name("served.py")
TOKEN = "0123456789abcdef-token"
BOUND = 60.0


@dataclass
class Server:
    """A running server."""

    process: Process
    url: str
    token: str | None
    folder: Path
    runs: list[threading.Thread] = field(default_factory=list)

    def ask(self, method: str, path: str, body: Any = None, *, token: str | None = "") -> tuple[int, Any]:
        """Return status and body. The token is sent unless another one, or None, is given."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=BOUND)
        token = self.token if token == "" else token
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}
        try:
            connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def run(self, path: str, outcomes: list[Any] | None = None, *, session: str = "s1") -> None:
        """Make a call in a thread; its result is appended to ``outcomes``."""

        def work() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):  # the server was stopped
                result = self.ask("POST", f"/run?session={session}", {"path": path})[1]
                if outcomes is not None:
                    outcomes.append(result)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.runs.append(thread)

    def pending(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the pending requests once there are ``count``."""
        until = time.monotonic() + BOUND
        while len(found := self.ask("GET", "/api/approvals")[1]["approvals"]) != count:
            assert time.monotonic() < until, found
            time.sleep(0.01)
        return found

    def awaited(self, request_id: str) -> None:
        """Wait until a run waits for this request."""
        until = time.monotonic() + BOUND
        while not self.ask("GET", f"/api/approvals/{request_id}")[1]["approval"]["awaited"]:
            assert time.monotonic() < until
            time.sleep(0.01)

    def decide(self, request_id: str, decision: str, **more: Any) -> tuple[int, Any]:
        return self.ask("POST", f"/api/approvals/{request_id}", {"decision": decision, **more})

    def ran(self) -> list[str]:
        """Return the paths that the tool has deleted."""
        return ran(self.folder)

    def reset(self) -> None:
        """Stop all calls, and forget every request."""
        assert self.ask("POST", "/reset")[0] == 200
        self.ended()
        self.runs.clear()

    def ended(self) -> None:
        """Wait for the end of all calls."""
        for thread in self.runs:
            thread.join(BOUND)
            assert not thread.is_alive()

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(BOUND)

    def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        self.process.terminate()
        return self.process.wait(BOUND)


@contextlib.contextmanager
def serving(
    folder: Path, *, database: str | None = None, token: str | None = None, port: int = 0, dies: str = ""
) -> Iterator[Server]:
    """Run a server over a database of the folder; its tool writes into ``log`` there. ``port`` 0 is a free one.

    ``dies`` names the moment at which it ends as by ``kill -9`` (``served``).
    """
    database = database if database is not None else f"sqlite:///{folder / 'approvals.db'}"
    command = [sys.executable, str(SERVED), database, str(folder / "log"), str(port), *([token] if token else [])]
    with (folder / "stderr").open("ab") as stderr:
        process = Process(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, "DIES": dies})
    try:
        assert process.stdout is not None
        yield Server(process, process.stdout.readline().strip(), token, folder)
    finally:
        process.kill()
        process.communicate(timeout=BOUND)


def ran(folder: Path) -> list[str]:
    """Return the paths that the tool has deleted."""
    log = folder / "log"
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []
