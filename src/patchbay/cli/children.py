"""Server processes that a command starts, waits for, and always stops."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchbay.errors import PatchbayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_ADDRESS = re.compile(r"https?://\S+")
_STOP_SECONDS = 5.0
_SERVER_VARIABLES = frozenset(
    {"UPSTREAM_BASE_URL", "UPSTREAM_API_KEY", "PORT", "HOST", "PROXY_API_KEY", "PROXY_LOG_FILE", "MAIN_SERVER_PORT",
     "NEKO_TRUSTED_HOSTS", "NEKO_TRUSTED_ORIGINS"}
)  # fmt: skip


class ChildError(PatchbayError, RuntimeError):
    """A child process ended, or timed out, before it printed its address."""

    code = "child_failed"


@dataclass(frozen=True)
class Child:
    """A running server: the first address that it printed, its process id, and its output so far."""

    url: str
    pid: int
    printed: list[str]


@contextmanager
def listening(
    command: Sequence[str],
    *,
    name: str,
    timeout: float = 30.0,
    start: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
) -> Iterator[Child]:
    """Run a server during the block.

    Raises ChildError, with the output, if no address is printed within ``timeout`` seconds. Its standard input closes when this
    process ends. It does not inherit server settings from the environment. ``start`` starts it, with the options of Popen.
    """
    environment = {
        key: value for key, value in os.environ.items() if key not in _SERVER_VARIABLES and not key.startswith("PATCHBAY_")
    }
    with start(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        output = _Output(process, name)
        try:
            yield Child(output.address(timeout), process.pid, output.printed)
        finally:
            _stop(process)
            output.join(_STOP_SECONDS)


class _Output(threading.Thread):
    """Reads the output of a child to the end, so that its pipe never fills up."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        super().__init__(name=f"output of {name}", daemon=True)
        self._process = process
        self._child = name
        self.printed: list[str] = []
        self._found: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.printed.append(line)
            if match := _ADDRESS.search(line):
                self._found.put(match[0])
        self._found.put(None)

    def address(self, timeout: float) -> str:
        try:
            address = self._found.get(timeout=timeout)
        except queue.Empty:
            raise ChildError(f"{self._child} printed no address within {timeout:g} s: {self._text()}") from None
        if address is None:
            raise ChildError(f"{self._child} ended with code {self._process.wait()}: {self._text()}")
        return address

    def _text(self) -> str:
        return "".join(self.printed).strip() or "no output."


def _stop(process: subprocess.Popen[str]) -> None:
    """Terminate a process, and kill it if it does not end."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
