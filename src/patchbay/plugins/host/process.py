"""A plugin's worker process: its start, socket, output and end; and the log book for what plugins print and log.

The process leads a session of its own, so that what it starts ends with it. It gets the host's address and a token on its
standard input, which stays open: its end tells the worker that the host is gone.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from patchbay._redaction import Redactor, values_of_environment
from patchbay._subprocess import ChildProcess, LineReader, Overlong, describe_exit, inherited
from patchbay._text import plural
from patchbay.plugins.connection import MAX_HELLO_BYTES, MessageConnection
from patchbay.plugins.errors import PluginError
from patchbay.plugins.protocol import PROTOCOL_VERSION, Bootstrap, Hello, Message, Start, child_command

MOST_LINES: Final = 2000
MOST_CHARS: Final = 512 * 1024
"""Bounds of one plugin's log; the oldest lines are dropped first."""
MOST_LINE_BYTES: Final = 4096
"""The rest of a longer line is left out."""
MOST_LINES_AT_ONCE: Final = 500
"""Lines kept of one read of output, the last ones: endless output must not take all of the host's time."""

_FLOOD_BYTES = 256 * 1024
_FLOOD_SECONDS = 0.1
"""Reading pauses for so long after so many bytes."""
PIPES_SECONDS: Final = 1.0
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
    """The last lines of every plugin, without the values of ``env``, their environment. For one event loop."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._redact = Redactor(values_of_environment(env or {}))
        self._lines: dict[str, deque[LogLine]] = {}
        self._sizes: dict[str, int] = {}
        self._listeners: list[Callable[[LogLine], None]] = []

    def add(self, plugin: str, stream: Stream, text: str, *, level: int = 0, created: float | None = None) -> None:
        """Keep a line, and call the listeners."""
        text = self._redact.text(text)
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


class OutputReader:
    """Decodes a stream of output into text lines, bounded in length and in number: ``feed`` pieces, get complete lines."""

    def __init__(self) -> None:
        self._reader = LineReader(MOST_LINE_BYTES)

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that have become complete."""
        lines = self._reader.feed(data)
        left_out = len(lines) - MOST_LINES_AT_ONCE - 1
        if left_out <= 0:
            return [_decode(line) for line in lines]
        return [_decode(lines[0]), f"... ({plural(left_out, 'line')} left out)", *map(_decode, lines[1 + left_out :])]

    def close(self) -> list[str]:
        """Return what is left at the end of the stream."""
        return [_decode(line) for line in self._reader.close()]


def _decode(line: bytes | Overlong) -> str:
    if isinstance(line, Overlong):
        return f"{line.head.decode('utf-8', 'replace')}... (the rest of the line is left out)"
    return line.removesuffix(b"\r").decode("utf-8", "replace")


class PluginProcess(ChildProcess):
    """A process that runs the plugin of ``start``: ``open`` it, and wait until it has ``ended``.

    ``socket`` is a path in a folder that no other user can enter. ``on_message`` is called with every message after HELLO,
    ``on_closed`` once when the connection has ended, ``on_line`` with the stream's name and each line of output. ``env`` is added
    to the few variables of ours that it inherits.
    """

    def __init__(
        self,
        start: Start,
        *,
        socket: Path,
        on_message: Callable[[Message], None],
        on_closed: Callable[[MessageConnection], None],
        on_line: Callable[[str, str], None],
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._env = env or {}
        self.connection: MessageConnection | None = None
        self._start = start
        self._socket = socket
        self._on_message = on_message
        self._on_closed = on_closed
        self._on_line = on_line
        self._token = secrets.token_hex(32)
        self._hello: asyncio.Future[MessageConnection] = self._loop.create_future()
        self._server: asyncio.Server | None = None
        self._unknown: set[MessageConnection] = set()  # connections without a HELLO
        self._readers = {1: OutputReader(), 2: OutputReader()}
        self._recent_bytes = {1: 0, 2: 0}

    async def open(self, *, within: float) -> MessageConnection:
        """Start the process, wait for its HELLO, and send START. Raises PluginError; ``close`` it in any case."""
        self._server = await self._loop.create_unix_server(self._accept, str(self._socket), backlog=8)
        self._socket.chmod(0o600)
        try:
            await self.spawn(child_command(), env={**inherited(), **self._env})
        except OSError as error:
            raise PluginError(f"the process cannot be started: {error}") from None
        stdin = self.pipe(0)
        stdin.write(Bootstrap(address=f"unix:{self._socket}", token=self._token).line())
        watched: tuple[asyncio.Future[Any], ...] = (self._hello, self.exited)
        await asyncio.wait(watched, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        self._close_socket()
        if not self._hello.done():
            if self.exited.done():
                raise PluginError(f"the process ended before it was there: {self.how_it_ended()}")
            raise PluginError(f"the process was not there within {within:g} s")
        connection = self._hello.result()
        connection.trust()
        connection.send(self._start)
        return connection

    async def ended(self, *, within: float | None = None) -> bool:
        """Wait until the process is gone, ``within`` seconds (None: for ever), and return whether it is."""
        if self._transport is not None:
            await asyncio.wait({self.exited}, timeout=within)
        return not self.is_running

    def how_it_ended(self) -> str:
        """Return the exit code, or the signal that ended the process, as text."""
        if not self.exited.done():
            return "it runs"
        return describe_exit(self.exited.result(), "exit code")

    async def close(self) -> None:
        """Kill what is left of the process and its group, read its last output, and free everything. May be called again."""
        self._close_socket()
        if self.is_running:
            self.signal_group()
        if self.connection is not None:
            self.connection.abort()  # what it has sent is read; a child of it that holds the socket too is not waited for
        if self._transport is not None:
            await asyncio.wait({self.exited})
            # The pipes end with the last process that holds them; one that has left the group may hold them for ever.
            await asyncio.wait({self.pipes_closed}, timeout=PIPES_SECONDS)
            self._transport.close()

    # The socket.

    def _accept(self) -> MessageConnection:
        connection = MessageConnection(
            lambda message: self._receive(connection, message), lambda _error: self._on_lost(connection), limit=MAX_HELLO_BYTES
        )
        self._unknown.add(connection)
        return connection

    def _receive(self, connection: MessageConnection, message: Message) -> None:
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

    def _on_lost(self, connection: MessageConnection) -> None:
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

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Implement asyncio.SubprocessProtocol."""
        if self._recent_bytes[fd] == 0:
            self._loop.call_later(_FLOOD_SECONDS, self._resume, fd)
        self._recent_bytes[fd] += len(data)
        if self._recent_bytes[fd] > _FLOOD_BYTES:
            self.pipe(fd).pause_reading()
        for line in self._readers[fd].feed(data):
            self._on_line(_STREAMS[fd], line)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Implement asyncio.SubprocessProtocol."""
        del exc
        if fd in self._readers:
            for line in self._readers[fd].close():
                self._on_line(_STREAMS[fd], line)

    def _resume(self, fd: int) -> None:
        paused = self._recent_bytes[fd] > _FLOOD_BYTES
        self._recent_bytes[fd] = 0
        pipe = self.pipe(fd)
        if paused and pipe is not None and not pipe.is_closing():
            pipe.resume_reading()
