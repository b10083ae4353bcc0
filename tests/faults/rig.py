"""Real ``patchbay serve`` and ``patchbay plugins run`` processes, on ports that they keep, to be killed and started again."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from patchbay.cli.children import Child
from patchbay.plugins.host.control import ask, make_folder
from ports import kept_port
from support.processes import listening

PATIENCE = float(os.environ.get("PATCHBAY_FAULT_PATIENCE", "1"))
"""By how much more these tests wait on a machine that is not to be measured: one that has far more to do than it can."""

BOUND = 90.0 * PATIENCE
"""Seconds; no wait is longer."""

T = TypeVar("T")


class Service:
    """A command that listens at ``port``: killed and started again as often as a test likes."""

    def __init__(self, name: str, *command: str) -> None:
        self.name = name
        self.port = kept_port()
        self._command = [sys.executable, "-m", "patchbay", *command, "--port", str(self.port)]
        self._running = contextlib.ExitStack()
        self.child: Child
        self.said: list[list[str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return when it listens."""
        self.child = self._running.enter_context(listening(self._command, name=self.name, timeout=BOUND))
        self.said.append(self.child.printed)

    def kill(self) -> None:
        """End it with SIGKILL, and return when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child.pid, signal.SIGKILL)
        self._running.close()

    def stop(self) -> None:
        self._running.close()


class Deployment:
    """A server that keeps its tools in a file, and a host of plugins: ``with`` starts both, and ends all that is left of them."""

    def __init__(self, folder: Path, *, roles: str = "ann", serve: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.database = folder / "tools.db"
        self.plugins = folder / "plugins"
        self.plugins.mkdir(exist_ok=True)
        self.server = Service("patchbay serve", "serve", "--roles", roles, "--store", f"sqlite:///{self.database}", *serve)
        self.host = Service("patchbay plugins", "plugins", "run", str(self.plugins), "--server", self.server.url)

    def __enter__(self) -> Self:
        self.server.start()
        self.host.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.host.stop()
        self.server.stop()

    # The server, as its clients see it.

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Make one request on a connection of its own. Raises OSError and HTTPException where the server is gone."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=BOUND)
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, data, {} if data is None else {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def post(self, path: str, **fields: Any) -> Any:
        status, answer = self.request("POST", f"/api/tools/{path}", fields)
        assert 200 == status, answer
        return answer

    def call(self, name: str, *, key: str = "", **arguments: Any) -> Any:
        return self.post("call", name=name, arguments=arguments, **({"idempotency_key": key} if key else {}))

    def rows(self) -> list[dict[str, Any]]:
        """All tools that the server lists, hidden ones too."""
        status, answer = self.request("GET", "/api/tools")
        assert 200 == status, answer
        return [row for rows in answer["tools_by_role"].values() for row in rows]

    def names(self) -> list[str]:
        """List the active tools, with one entry per role."""
        return sorted(row["name"] for row in self.rows() if row.get("state", "active") == "active")

    # The host, as `patchbay plugins` asks it.

    def ask(self, **asked: Any) -> list[dict[str, Any]]:
        return list(ask(make_folder(self.host.port), **asked))

    def status(self, plugin: str) -> dict[str, Any]:
        [status] = [each for each in self.ask(do="list") if each["id"] == plugin]
        return status


def poll_until(holds: Callable[[], T], *, within: float = BOUND, every: float = 0.02, what: str = "it") -> T:
    """Poll every ``every`` seconds until the answer is true, and return it.

    A connection error (a server that is down) counts as no answer yet.
    """
    end = time.monotonic() + within
    last: Any = None
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            last = holds()
            if last:
                return last
        time.sleep(every)
    raise AssertionError(f"{what} did not come within {within:g} s; the last answer was {last!r}")


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
    except OSError:  # no /proc here
        done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return done.stdout.strip()[:1] not in ("", "Z")
