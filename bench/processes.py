"""Processes under measurement: start one, wait until it answers, read the CPU time and memory of its whole tree, stop it.

Only processes started here are ever signalled, and by their id. Linux only: it reads /proc and the per-process CPU clocks.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.places import UnavailableError

_LIBC = ctypes.CDLL(None, use_errno=True)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STOP_LIMIT = 10.0


@dataclass(frozen=True)
class Running:
    """One started server. ``ready_seconds`` is the time from its spawn to its first 200."""

    pid: int
    port: int
    ready_seconds: float

    def cpu_seconds(self) -> float:
        """User and system time so far, of the process and all that descend from it, to the nanosecond.

        The per-process clock, not /proc's ticks: ticks are 10 ms wide, a thousand requests through nginx.
        """
        return sum(map(cpu_clock, tree(self.pid)))

    def rss_megabytes(self) -> float:
        """Resident memory of the tree in 10^6 bytes. Pages that two processes share count twice."""
        return sum(map(rss_bytes, tree(self.pid))) / 1e6


def tree(pid: int) -> list[int]:
    """The process and everything that descends from it."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
            except OSError:  # ended while we looked
                continue
            # The command name is in brackets and may contain any character, so count from the last bracket.
            children[int(stat.rpartition(")")[2].split()[1])].append(int(entry.name))
    found = [pid]
    for known in found:
        found.extend(children[known])
    return found


def cpu_clock(pid: int) -> float:
    """Seconds of user and system time so far of one process, its threads included; 0 for one that is no more."""
    clock = ctypes.c_int()
    if _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        return 0.0  # ended while we looked
    try:
        return time.clock_gettime(clock.value)
    except OSError:
        return 0.0


def rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def free_port() -> int:
    """Find a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started(argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``argv`` until the block ends; what it prints goes to ``log``, beside which it works."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**_usual(), **(env or {})},
            cwd=log.parent,
        )
        try:
            yield process
        finally:
            _stop(process)


@contextmanager
def server(
    argv: Sequence[str],
    *,
    port: int,
    ready_path: str,
    log: Path,
    env: Mapping[str, str] | None = None,
    limit: float = 90.0,
) -> Iterator[Running]:
    """Run ``argv`` until the block ends; raises UnavailableError with its last words when it never answers 200.

    ``limit`` is in seconds. What the server prints goes to ``log``.
    """
    start = time.perf_counter()
    with started(argv, log=log, env=env) as process:
        while not _answers(port, ready_path):
            if process.poll() is not None or time.perf_counter() - start > limit:
                state = "did not become ready" if process.returncode is None else "ended"
                raise UnavailableError(
                    f"{Path(argv[0]).name} {state}: {last_words(log)} (all of it: {log.name} in {log.parent.name})"
                )
            time.sleep(0.005)
        yield Running(process.pid, port, time.perf_counter() - start)


def last_words(log: Path) -> str:
    """The last line that says anything: of a traceback, the error."""
    return next((line for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), "nothing")[-300:]


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    family = tree(process.pid)[1:]
    process.terminate()
    try:
        process.wait(_STOP_LIMIT)
    except subprocess.TimeoutExpired:
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.kill()
        process.wait()


def _usual() -> dict[str, str]:
    """The environment, but for what would have every process compile its sources again: a user's Python keeps them."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
