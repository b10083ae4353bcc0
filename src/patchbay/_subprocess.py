"""Child processes over asyncio: a session of their own, lines in bounded memory, signals to the whole group."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast

T = TypeVar("T")

BASE_ENVIRONMENT: Final = (
    "HOME", "LANG", "LANGUAGE", "LC_*", "LOGNAME", "PATH", "PYTHON*", "SHELL", "SSL_CERT_*", "TERM", "TMPDIR", "TZ", "USER",
    "VIRTUAL_ENV", "XDG_*",
)  # fmt: skip
"""The variables that hooks, plugins and MCP servers inherit, by name or pattern: none of them holds a secret."""


def inherited(patterns: Iterable[str] = BASE_ENVIRONMENT) -> dict[str, str]:
    """Return the variables of this process that a child inherits."""
    return {name: value for name, value in os.environ.items() if any(fnmatchcase(name, each) for each in patterns)}


HEAD: Final = 4096
"""Bytes kept of a line that is too long."""

_READ_BYTES: Final = 64 * 1024
_READ_AHEAD: Final = 16
"""Reads whose lines wait for a slow consumer; then the thread waits."""


@dataclass(frozen=True, slots=True)
class Overlong:
    """The first bytes of a line that exceeds the limit."""

    head: bytes


class LineReader:
    """Splits a byte stream into lines: ``feed`` pieces, get complete lines. ``limit`` is in bytes without the newline.

    A line that is too long is returned as soon as it is, by its head, and skipped to its end.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | Overlong]:
        """Return the lines that have become complete, without newlines, or too long."""
        first, newline, others = data.partition(b"\n")
        if not newline:
            return self._extend(first)
        lines = self._extend(first)
        if not self._skipping:
            lines.append(bytes(self._rest))
        self._rest.clear()
        self._skipping = False
        if others:
            *whole, last = others.split(b"\n")
            lines += [line if len(line) <= self._limit else Overlong(line[:HEAD]) for line in whole]
            lines += self._extend(last)
        return lines

    def close(self) -> list[bytes | Overlong]:
        """Return the last line, if the stream did not end with a newline."""
        rest = bytes(self._rest)
        self._rest.clear()
        return [rest] if rest else []

    def _extend(self, piece: bytes) -> list[bytes | Overlong]:
        if self._skipping or not piece:
            return []
        if len(self._rest) + len(piece) <= self._limit:
            self._rest += piece
            return []
        head = bytes(self._rest[:HEAD]) + piece[: max(0, HEAD - len(self._rest))]
        self._rest = bytearray()  # not clear(): that would keep the memory
        self._skipping = True
        return [Overlong(head)]


async def read_lines(descriptor: int, limit: int) -> AsyncIterator[bytes | Overlong]:
    """Yield the lines of a file, a pipe or a terminal, of at most ``limit`` bytes each.

    A daemon thread reads, because a read of standard input cannot be cancelled; the process does not wait for it at exit. It uses
    ``os.read``, since the lock of a buffered reader would block the exit.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Queue[list[bytes | Overlong] | None] = asyncio.Queue(_READ_AHEAD)

    def put(lines: list[bytes | Overlong] | None) -> None:
        waiting: Coroutine[Any, Any, None] = found.put(lines)
        try:
            asyncio.run_coroutine_threadsafe(waiting, loop).result()
        except RuntimeError:  # the loop is closed
            waiting.close()
            raise

    def read() -> None:
        reader = LineReader(limit)
        with suppress(RuntimeError, CancelledError):  # the loop has ended
            with suppress(OSError):  # there is no such file
                while data := os.read(descriptor, _READ_BYTES):
                    put(reader.feed(data))
                put(reader.close())
            put(None)

    threading.Thread(target=read, name=f"lines of descriptor {descriptor}", daemon=True).start()
    while (lines := await found.get()) is not None:
        for line in lines:
            yield line


class PendingRequests(Generic[T]):
    """Requests to a child process that wait for their replies, by number: 1, 2, 3, ... The first reply of each wins."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[T]] = {}
        self._last = 0

    def next_number(self) -> int:
        """Return the number of a new request."""
        self._last += 1
        return self._last

    async def wait_for(self, number: int) -> T:
        """Return the reply to a request. Raises the error that it was resolved with."""
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            return await reply
        finally:
            del self._waiting[number]

    def resolve(self, number: int | None, reply: T | Exception) -> bool:
        """Set the reply to a request, or its error; return whether it waited for one."""
        waiting = None if number is None else self._waiting.get(number)
        if waiting is None or waiting.done():
            return False
        if isinstance(reply, Exception):
            waiting.set_exception(reply)
        else:
            waiting.set_result(reply)
        return True

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """Fail every request, each with a new error."""
        for number in self._waiting:
            self.resolve(number, error())


class ChildProcess(asyncio.SubprocessProtocol):
    """A child process with three pipes that leads its own session, so that its descendants end with it.

    ``exited`` has the return code; ``pipes_closed`` is done when all of its pipes have ended. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self.pid = 0
        self._loop = loop = asyncio.get_running_loop()
        self._transport: asyncio.SubprocessTransport | None = None
        self.exited: asyncio.Future[int] = loop.create_future()
        self.pipes_closed: asyncio.Future[None] = loop.create_future()

    async def spawn(self, command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        """Start the process. Raises OSError, ValueError."""
        # uvloop leaves the child a second descriptor of each of its streams, so that closing one would go unnoticed.
        extra: dict[str, Any] = {"preexec_fn": _close_extra} if type(self._loop).__module__.startswith("uvloop") else {}
        await self._loop.subprocess_exec(
            lambda: self, *command, stdin=-1, stdout=-1, stderr=-1, cwd=cwd, env=env, start_new_session=True, **extra
        )

    @property
    def is_running(self) -> bool:
        """Whether there is a process that has not exited."""
        return self._transport is not None and not self.exited.done()

    def pipe(self, fd: int) -> Any:
        """Return the transport of a standard stream, None once it is closed."""
        assert self._transport is not None
        return self._transport.get_pipe_transport(fd)

    def signal_group(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the process and its descendants."""
        # The id is ours for as long as a member of the group lives, also after its leader's end.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def terminate(self, *, eof_grace: float, term_grace: float, kill_grace: float) -> None:
        """Close its input, then send its group SIGTERM after ``eof_grace`` seconds, and SIGKILL ``term_grace`` later.

        Returns when it has exited. One that is stuck in the kernel is left behind after ``kill_grace``.
        """
        if (stdin := self.pipe(0)) is not None:
            stdin.close()
        for grace, number in ((eof_grace, signal.SIGTERM), (term_grace, signal.SIGKILL)):
            await asyncio.wait({self.exited}, timeout=grace)
            if self.exited.done():
                return
            self.signal_group(number)
        await asyncio.wait({self.exited}, timeout=kill_grace)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement asyncio.SubprocessProtocol."""
        self._transport = cast("asyncio.SubprocessTransport", transport)  # uvloop's is not a subclass
        self.pid = self._transport.get_pid()  # its exit may be reported next, and group 0 is our own

    def process_exited(self) -> None:
        """Implement asyncio.SubprocessProtocol: what the process has started and left behind ends too."""
        assert self._transport is not None
        self.signal_group()
        if not self.exited.done():
            self.exited.set_result(self._transport.get_returncode() or 0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.SubprocessProtocol."""
        del exc
        if not self.pipes_closed.done():
            self.pipes_closed.set_result(None)


def _close_extra() -> None:
    """Close all inherited descriptors but the standard streams; runs in the child before exec."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208  (as little as possible is done there)
        with suppress(OSError, ValueError):
            if (descriptor := int(name)) > 2:
                os.set_inheritable(descriptor, False)  # noqa: FBT003  (it takes no names)


def describe_exit(code: int, word: str) -> str:
    """Return ``word`` and the exit code, or the signal that ended the process: "ended by SIGKILL"."""
    if code >= 0:
        return f"{word} {code}"
    with suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}"
    return f"ended by signal {-code}"
