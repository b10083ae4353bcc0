"""A server of a test, as a process of its own, and a client for it. The process prints its URL when it listens."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.processes import Process

BOUND = 60.0
"""Seconds; no wait is longer."""


@dataclass
class Served:
    """A running server."""

    process: Process
    url: str
    token: str | None
    folder: Path

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @contextlib.contextmanager
    def open(
        self, method: str, path: str, body: Any = None, *, token: str | None = "", headers: Any = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Return the response after its head. The token is sent unless another one, or None, is given."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=BOUND)
        token = self.token if token == "" else token
        sent = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        with contextlib.closing(connection):
            connection.request(method, path, data, sent)
            with connection.getresponse() as response:
                yield response

    def ask(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """Return status and body; a body that is bytes is sent as it is."""
        with self.open(method, path, body, **options) as response:
            return response.status, json.loads(response.read())

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        self.process.kill()
        self.process.wait(BOUND)

    def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        self.process.terminate()
        return self.process.wait(BOUND)


@contextlib.contextmanager
def serve_script(
    script: Path, *arguments: str, folder: Path, token: str | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """Run ``script ARGUMENTS [TOKEN]``; its standard error is appended to ``stderr`` in the folder."""
    command = [sys.executable, str(script), *arguments, *([token] if token else [])]
    with (folder / "stderr").open("ab") as stderr:
        process = Process(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, **(environment or {})})
    try:
        assert process.stdout is not None
        yield Served(process, process.stdout.readline().strip(), token, folder)
    finally:
        process.kill()
        process.communicate(timeout=BOUND)


def wait_for(happens: Callable[[], Any]) -> Any:
    """Wait until the condition is true, and return its value."""
    end = time.monotonic() + BOUND
    while not (found := happens()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found
