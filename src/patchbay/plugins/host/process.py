"""A plugin's worker process: its start, socket, output and end; and the log book for what plugins print and log.

The process leads a session of its own, so that what it starts ends with it. It gets the host's address and a token on its
standard input, which stays open: its end tells the worker that the host is gone.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from patchbay.plugins.errors import PluginError
from patchbay.plugins.protocol import (
    MAX_HELLO_BYTES,
    PROTOCOL_VERSION,
    Bootstrap,
    Connection,
    Hello,
    Message,
    Start,
    child_command,
)

MOST_LINES: Final = 2000
MOST_CHARS: Final = 512 * 1024
"""What is kept of one plugin's log; the oldest lines go first."""
MOST_LINE_BYTES: Final = 4096
"""The rest of a longer line is left out."""
MOST_LINES_AT_ONCE: Final = 500
"""Of one piece of output; the last are kept. Endless output must not cost the host its time."""

_FLOOD_BYTES = 256 * 1024
_FLOOD_SECONDS = 0.1
"""Output beyond this rate stays in the pipe for as long."""
_PIPES_SECONDS = 1.0
"""For reading the pipes to their ends, once the process and its group are gone."""
_STREAMS = {1: "stdout", 2: "stderr"}

Stream = Literal["stdout", "stderr", "log", "host"]
"""``log`` is the plugin's ``logging``, ``host`` what the host reports about it."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. ``time`` is in seconds since the epoch; ``level`` is a number of ``logging`` where there is one, else 0."""

    time: float
    plugin: str
    stream: Stream
    text: str
    level: int = 0


class LogBook:
    """The last lines of every plugin. For one event loop."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[LogLine]] = {}
        self._sizes: dict[str, int] = {}
        self._listeners: list[Callable[[LogLine], None]] = []

    def add(self, plugin: str, stream: Stream, text: str, *, level: int = 0, created: float | None = None) -> None:
        """Keep a line, and call the listeners."""
        line = LogLine(time.time() if created is None else created, plugin, stream, text, level)
        lines = self._lines.setdefault(plugin, deque())
        lines.append(line)
        size = self._sizes.get(plugin, 0) + len(text)
        while len(lines) > MOST_LINES or (size > MOST_CHARS and len(lines) > 1):
            size -= len(lines.popleft().text)
        self._sizes[plugin] = size
        for listener in tuple(self._listeners):
            listener(line)

    def last(self, plugin: str | None = None, count: int = MOST_LINES) -> list[LogLine]:
        """Return the last lines of a plugin, or of all of them by time."""
        if plugin is not None:
            lines = list(self._lines.get(plugin, ()))
        else:
            lines = sorted((line for each in self._lines.values() for line in each), key=lambda line: line.time)
        return lines[-count:] if count > 0 else []

    def subscribe(self, listener: Callable[[LogLine], None]) -> Callable[[], None]:
        """Call ``listener`` with each new line, until the returned function is called."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe


class LineReader:
    """Splits a stream of bytes into lines, bounded in length and in number: ``feed`` pieces, get whole lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that have become complete."""
        first, newline, others = data.partition(b"\n")
        lines = self._extend(first)
        if not newline:
            return lines
        if not self._skipping:
            lines.append(_decode(self._rest))
        self._rest, self._skipping = b"", False
        whole = others.split(b"\n")
        last = whole.pop()
        left_out = len(whole) - MOST_LINES_AT_ONCE
        if left_out > 0:
            lines.append(f"... ({left_out} lines left out)")
            whole = whole[left_out:]
        lines += [_decode(line) if len(line) <= MOST_LINE_BYTES else _cut(line) for line in whole]
        return lines + self._extend(last)

    def close(self) -> list[str]:
        """Return what is left at the end of the stream."""
        rest, self._rest = self._rest, b""
        return [_decode(rest)] if rest and not self._skipping else []

    def _extend(self, piece: bytes) -> list[str]:
        """Add to the incomplete line; one that grows too long is returned now, and its rest is skipped."""
        if self._skipping or not piece:
            return []
        self._rest += piece
        if len(self._rest) <= MOST_LINE_BYTES:
            return []
        line = _cut(self._rest)
        self._rest, self._skipping = b"", True
        return [line]


def _decode(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def _cut(line: bytes) -> str:
    return f"{line[:MOST_LINE_BYTES].decode('utf-8', 'replace')}... (the rest of the line is left out)"


class PluginProcess(asyncio.SubprocessProtocol):
    """A process that runs the plugin of ``start``: ``open`` it, and wait until it has ``ended``.

    ``socket`` is a path in a folder that no other user can enter. ``on_message`` is called with every message after HELLO,
    ``on_closed`` once when the connection has ended, ``on_line`` with the stream's name and each line of output.
    """

    def __init__(
        self,
        start: Start,
        *,
        socket: Path,
        on_message: Callable[[Message], None],
        on_closed: Callable[[Connection], None],
        on_line: Callable[[str, str], None],
    ) -> None:
        self.pid = 0
        self.connection: Connection | None = None
        self._start = start
        self._socket = socket
        self._on_message = on_message
        self._on_closed = on_closed
        self._on_line = on_line
        self._token = secrets.token_hex(32)
        self._loop = loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[Connection] = loop.create_future()
        self._exited: asyncio.Future[int] = loop.create_future()
        self._pipes_closed: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.SubprocessTransport | None = None
        self._server: asyncio.Server | None = None
        self._unknown: set[Connection] = set()  # connections without a HELLO
        self._readers = {1: LineReader(), 2: LineReader()}
        self._recent_bytes = {1: 0, 2: 0}

    async def open(self, *, within: float) -> Connection:
        """Start the process, wait for its HELLO, and send START. Raises PluginError; ``close`` it in any case."""
        self._server = await self._loop.create_unix_server(self._accept, str(self._socket), backlog=8)
        self._socket.chmod(0o600)
        try:
            transport, _ = await self._loop.subprocess_exec(
                lambda: self, *child_command(), start_new_session=True, stdin=-1, stdout=-1, stderr=-1
            )
        except OSError as error:
            raise PluginError(f"the process cannot be started: {error}") from None
        self._transport = transport
        stdin = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
        stdin.write(Bootstrap(address=f"unix:{self._socket}", token=self._token).line())
        watched: tuple[asyncio.Future[Any], ...] = (self._hello, self._exited)
        await asyncio.wait(watched, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        self._close_socket()
        if not self._hello.done():
            if self._exited.done():
                raise PluginError(f"the process ended before it was there: {self.how_it_ended()}")
            raise PluginError(f"the process was not there within {within:g} s")
        connection = self._hello.result()
        connection.trust()
        connection.send(self._start)
        return connection

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._transport is not None and not self._exited.done()

    async def ended(self, *, within: float | None = None) -> bool:
        """Wait until the process is gone, ``within`` seconds (None: for ever), and return whether it is."""
        if self._transport is not None:
            await asyncio.wait({self._exited}, timeout=within)
        return not self.is_running

    def how_it_ended(self) -> str:
        """Return the exit code, or the signal that ended the process, as text."""
        if not self._exited.done():
            return "it runs"
        code = self._exited.result()
        if code >= 0:
            return f"exit code {code}"
        with suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}"
        return f"ended by signal {-code}"

    async def close(self) -> None:
        """Kill what is left of the process and its group, read its last output, and free everything. May be called again."""
        self._close_socket()
        if self.is_running:
            self._kill_group()
        if self.connection is not None:
            self.connection.abort()  # what it has sent is read; a child of it that holds the socket too is not waited for
        if self._transport is not None:
            await asyncio.wait({self._exited})
            # The pipes end with the last process that holds them; one that has left the group may hold them for ever.
            await asyncio.wait({self._pipes_closed}, timeout=_PIPES_SECONDS)
            self._transport.close()

    def _kill_group(self) -> None:
        # The id is ours for as long as a member of the group lives, also after its leader's end.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    # The socket.

    def _accept(self) -> Connection:
        connection = Connection(
            lambda message: self._receive(connection, message), lambda _error: self._on_lost(connection), limit=MAX_HELLO_BYTES
        )
        self._unknown.add(connection)
        return connection

    def _receive(self, connection: Connection, message: Message) -> None:
        if connection is self.connection:
            self._on_message(message)
            return
        token = message.token if isinstance(message, Hello) and message.version == PROTOCOL_VERSION else ""
        if self.connection is None and hmac.compare_digest(token.encode(), self._token.encode()):
            self._unknown.discard(connection)
            self.connection = connection
            self._hello.set_result(connection)
        else:
            connection.abort()

    def _on_lost(self, connection: Connection) -> None:
        self._unknown.discard(connection)
        if connection is self.connection:
            self._on_closed(connection)

    def _close_socket(self) -> None:
        """Accept no more connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            self._socket.unlink(missing_ok=True)
        for connection in tuple(self._unknown):
            connection.abort()

    # asyncio.SubprocessProtocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement asyncio.SubprocessProtocol."""
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self.pid = self._transport.get_pid()  # its exit may be reported next, and group 0 is our own

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Implement asyncio.SubprocessProtocol."""
        if self._recent_bytes[fd] == 0:
            self._loop.call_later(_FLOOD_SECONDS, self._resume, fd)
        self._recent_bytes[fd] += len(data)
        if self._recent_bytes[fd] > _FLOOD_BYTES:
            self._pipe(fd).pause_reading()
        for line in self._readers[fd].feed(data):
            self._on_line(_STREAMS[fd], line)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Implement asyncio.SubprocessProtocol."""
        del exc
        if fd in self._readers:
            for line in self._readers[fd].close():
                self._on_line(_STREAMS[fd], line)

    def process_exited(self) -> None:
        """Implement asyncio.SubprocessProtocol: what the process has started and left behind ends too."""
        self._kill_group()
        assert self._transport is not None
        code = self._transport.get_returncode()
        if not self._exited.done():
            self._exited.set_result(0 if code is None else code)

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.SubprocessProtocol."""
        del exc
        if not self._pipes_closed.done():
            self._pipes_closed.set_result(None)

    def _pipe(self, fd: int) -> Any:
        assert self._transport is not None
        return self._transport.get_pipe_transport(fd)

    def _resume(self, fd: int) -> None:
        paused = self._recent_bytes[fd] > _FLOOD_BYTES
        self._recent_bytes[fd] = 0
        pipe = self._pipe(fd)
        if paused and pipe is not None and not pipe.is_closing():
            pipe.resume_reading()
