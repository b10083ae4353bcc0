"""Real processes: a server, and the programs that register their tools with it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from patchbay.cli.children import Child
from support.processes import listening

EXAMPLES = Path(__file__).parents[2] / "examples"
NODE = shutil.which("node")
BOUND = 60.0
"""Seconds that any wait may take."""


def serving(*flags: str, port: int = 0) -> contextlib.AbstractContextManager[Child]:
    """Run ``patchbay serve``, with a store in memory by default."""
    command = [sys.executable, "-m", "patchbay", "serve", "--port", str(port), "--store", "memory", *flags]
    return listening(command, name="patchbay serve", timeout=BOUND)


class ExampleProgram:
    """A running example; what it says is read as it comes."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        self.errors: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_output, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def says(self, text: str) -> str:
        """Wait for the next line of either output that begins so, and return it."""
        passed: list[str] = []
        while True:
            try:
                passed.append(self._lines.get(timeout=BOUND))
            except queue.Empty:
                raise AssertionError(f"it did not say {text!r}, but {passed}") from None
            if passed[-1].startswith(text):
                return passed[-1]

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return the exit status."""
        self._process.send_signal(how)
        return self._process.wait(BOUND)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(BOUND)
        for reader in self._readers:
            reader.join(BOUND)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.errors.append(line)
            self._lines.put(f"error: {line}")


@contextlib.contextmanager
def running(*command: str) -> Iterator[ExampleProgram]:
    """Run a program while the block runs."""
    with contextlib.closing(ExampleProgram(*command)) as program:
        yield program


def environment() -> dict[str, str]:
    """The environment without what servers and hosts read from it; warnings of Python are errors in it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PATCHBAY_", "NEKO_", "MAIN_SERVER"))}
    return {**kept, "PYTHONWARNINGS": "error"}


def ask(url: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """GET, or POST of JSON; return the status and the JSON that comes back."""
    data = None if body is None else json.dumps(body).encode()
    sent = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, sent), timeout=BOUND) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def tools(server: str) -> dict[str, Any]:
    """The tools of the server's role by name."""
    _, listing = ask(f"{server}/api/tools")
    return {tool["name"]: tool for tool in listing["tools_by_role"]["default"]}


def wait_for_tools(server: str, *names: str) -> dict[str, Any]:
    """Ask again and again until the server has exactly these tools, and return them. It is the host's child that knows, not we."""
    end = time.monotonic() + BOUND
    while sorted(found := tools(server)) != sorted(names):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def call(server: str, name: str, **arguments: Any) -> Any:
    """Carry out one call through the server."""
    status, answer = ask(f"{server}/api/tools/call", {"name": name, "arguments": arguments})
    assert 200 == status, answer
    return answer
