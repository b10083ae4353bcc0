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

from patchbay._subprocess import describe_exit
from patchbay.errors import PatchbayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_ADDRESS = re.compile(r"https?://\S+")
_STOP_SECONDS = 5.0
_MOST_LINES = 2000
_SERVER_VARIABLES = frozenset(
    {"UPSTREAM_BASE_URL", "UPSTREAM_API_KEY", "PORT", "HOST", "PROXY_API_KEY", "PROXY_LOG_FILE", "MAIN_SERVER_PORT",
     "NEKO_TRUSTED_HOSTS", "NEKO_TRUSTED_ORIGINS"}
)  # fmt: skip


class ChildError(PatchbayError, RuntimeError):
    """A child process ended, or timed out, before it printed its address. ``printed`` is its output."""

    code = "child_failed"

    def __init__(self, problem: str, printed: Sequence[str]) -> None:
        super().__init__(f"{problem}: {''.join(printed).strip() or 'no output.'}")
        self.printed = printed


@dataclass(frozen=True)
class Child:
    """A running server: the first address that it printed, its process, and the last lines of its output."""

    url: str
    process: subprocess.Popen[str]
    printed: list[str]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid


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
        printed: list[str] = []
        found: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def read_to_the_end() -> None:  # so that the pipe never fills up
            assert process.stdout is not None
            for line in process.stdout:
                del printed[: 1 - _MOST_LINES]
                printed.append(line)
                if match := _ADDRESS.search(line):
                    found.put(match[0])
            found.put(None)

        reader = threading.Thread(target=read_to_the_end, name=f"output of {name}", daemon=True)
        reader.start()
        try:
            try:
                url = found.get(timeout=timeout)
            except queue.Empty:
                raise ChildError(f"{name} printed no address within {timeout:g} s", printed) from None
            if url is None:
                raise ChildError(f"{name}: {describe_exit(process.wait(), 'exit status')}", printed)
            yield Child(url, process, printed)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            reader.join(_STOP_SECONDS)
