"""A plugin's worker process: its start, socket, output and end."""

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
"""What is kept of one plugin; the oldest go first."""

Stream = Literal["stdout", "stderr", "log", "host"]
"""``log`` is the plugin's ``logging``, ``host`` what the host has to say of it."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. ``time`` is in seconds since the epoch; ``level`` is a number of ``logging`` where there is one, else 0."""

    time: float
    plugin: str
    stream: Stream
    text: str
    level: int = 0


class LogBook:
    """The last lines of every plugin. Belongs to one event loop."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[LogLine]] = {}
        self._sizes: dict[str, int] = {}
        self._listeners: list[Callable[[LogLine], None]] = []

    def add(self, plugin: str, stream: Stream, text: str, *, level: int = 0, created: float | None = None) -> None:
        """Keep a line, and tell the listeners."""
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
        """Return the last lines of a plugin, or of all of them by their times."""
        if plugin is not None:
            lines = list(self._lines.get(plugin, ()))
        else:
            lines = sorted((line for each in self._lines.values() for line in each), key=lambda line: line.time)
        return lines[-count:] if count > 0 else []

    def subscribe(self, listener: Callable[[LogLine], None]) -> Callable[[], None]:
        """Have ``listener`` called with each new line; call what is returned to end that."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end


MOST_LINE_BYTES: Final = 4096
"""What is longer is cut, and the rest of the line is left out."""

MOST_LINES_AT_ONCE: Final = 500
"""Of one piece of output so many lines are kept; a plugin that prints without end must not cost the host its time."""


class LineReader:
    """``feed`` pieces of a stream, get whole lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that have become complete."""
        first, newline, others = data.partition(b"\n")
        if not newline:
            return self._grow(first)
        lines = self._grow(first)
        if not self._skipping:
            lines.append(_text(self._rest))
        self._rest, self._skipping = b"", False
        whole = others.split(b"\n")
        last = whole.pop()
        left_out = len(whole) - MOST_LINES_AT_ONCE
        if left_out > 0:
            lines.append(f"... ({left_out} lines left out)")
            whole = whole[left_out:]
        lines += [_text(line) if len(line) <= MOST_LINE_BYTES else _cut(line) for line in whole]
        return lines + self._grow(last)

    def close(self) -> list[str]:
        """Return what is left when the stream has ended."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest and not self._skipping else []

    def _grow(self, piece: bytes) -> list[str]:
        """Add to the line that is not complete; one that grows too long is given out now, and its rest is skipped."""
        if self._skipping or not piece:
            return []
        self._rest += piece
        if len(self._rest) <= MOST_LINE_BYTES:
            return []
        line = _cut(self._rest)
        self._rest, self._skipping = b"", True
        return [line]


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def _cut(line: bytes) -> str:
    return f"{line[:MOST_LINE_BYTES].decode('utf-8', 'replace')}... (the rest of the line is left out)"


_FLOOD_BYTES = 256 * 1024
_FLOOD_SECONDS = 0.1
"""What a process prints faster than this is left in its pipe for as long: the host has other plugins to listen to."""
_PIPES_SECONDS = 1.0
"""How long the pipes have to be read to their ends, once the process and its group are gone."""
_NAMES = {1: "stdout", 2: "stderr"}


class PluginProcess:
    """A process that runs the plugin of ``start``; ``open`` it, and wait for ``ended``.

    ``socket`` is a path for its socket, in a folder that nobody else can enter. ``on_message`` is called with all that it says
    after HELLO, ``on_closed`` once when the connection is over, ``on_line`` with a stream's name and each line that it prints.
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
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._hello: asyncio.Future[Connection] = loop.create_future()
        self._exited: asyncio.Future[int] = loop.create_future()
        self._released: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.SubprocessTransport | None = None
        self._server: asyncio.Server | None = None
        self._strangers: set[Connection] = set()

    async def open(self, *, within: float) -> Connection:
        """Start the process, wait until it has shown its token, and say START. Raises PluginError; ``close`` it in any case."""
        self._server = await self._loop.create_unix_server(self._accept, str(self._socket), backlog=8)
        self._socket.chmod(0o600)
        try:
            transport, _ = await self._loop.subprocess_exec(
                lambda: _Pipes(self), *child_command(), start_new_session=True, stdin=-1, stdout=-1, stderr=-1
            )
        except OSError as error:
            raise PluginError(f"the process cannot be started: {error}") from None
        self._transport = transport
        stdin = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
        stdin.write(Bootstrap(address=f"unix:{self._socket}", token=self._token).line())
        watched: tuple[asyncio.Future[Any], ...] = (self._hello, self._exited)
        await asyncio.wait(watched, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        self._close_door()
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
        """Wait until the process is gone, ``within`` seconds (None: for ever), and say whether it is."""
        if self._transport is not None:
            await asyncio.wait({self._exited}, timeout=within)
        return not self.is_running

    def how_it_ended(self) -> str:
        """Say how the process ended: its exit code, or the signal that ended it."""
        if not self._exited.done():
            return "it runs"
        code = self._exited.result()
        if code >= 0:
            return f"exit code {code}"
        with suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}"
        return f"ended by signal {-code}"

    def kill(self) -> None:
        """End the process and all of its group now."""
        if self._transport is not None and not self._exited.done():
            self._kill_group()

    async def close(self) -> None:
        """End what is left of the process, read what it still said, and free everything. May be called at any time, and again."""
        self._close_door()
        self.kill()
        if self.connection is not None:
            self.connection.abort()  # what it has said is heard; a child of it that holds the socket too is not waited for
        transport = self._transport
        if transport is not None:
            await asyncio.wait({self._exited})
            # The pipes end with the last process that holds them; one that has left the group may hold them for ever.
            await asyncio.wait({self._released}, timeout=_PIPES_SECONDS)
            transport.close()

    def _kill_group(self) -> None:
        # The id is ours for as long as a member of the group lives, also after its leader's end.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    # The socket.

    def _accept(self) -> Connection:
        connection = Connection(
            lambda message: self._receive(connection, message),
            lambda _error: self._lost(connection),
            limit=MAX_HELLO_BYTES,
        )
        self._strangers.add(connection)
        return connection

    def _receive(self, connection: Connection, message: Message) -> None:
        if connection is self.connection:
            self._on_message(message)
            return
        shown = message.token if isinstance(message, Hello) and message.version == PROTOCOL_VERSION else ""
        if self.connection is None and hmac.compare_digest(shown.encode(), self._token.encode()):
            self._strangers.discard(connection)
            self.connection = connection
            self._hello.set_result(connection)
        else:
            connection.abort()

    def _lost(self, connection: Connection) -> None:
        self._strangers.discard(connection)
        if connection is self.connection:
            self._on_closed(connection)

    def _close_door(self) -> None:
        """Let nobody in any more."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            self._socket.unlink(missing_ok=True)
        for stranger in tuple(self._strangers):
            stranger.abort()

    # The pipes, for _Pipes.

    def take_output(self, fd: int, lines: list[str]) -> None:
        """Hand on lines."""
        for line in lines:
            self._on_line(_NAMES[fd], line)

    def take_exit(self, code: int) -> None:
        """The process is gone; what it has started and left behind goes too."""
        self._kill_group()
        if not self._exited.done():
            self._exited.set_result(code)

    def take_release(self) -> None:
        """The process is gone, and its pipes were read to their ends."""
        if not self._released.done():
            self._released.set_result(None)


class _Pipes(asyncio.SubprocessProtocol):
    """What asyncio tells of the process; a stream that brings too much at once is not read for a while."""

    def __init__(self, owner: PluginProcess) -> None:
        self._owner = owner
        self._transport: Any = None
        self._readers = {1: LineReader(), 2: LineReader()}
        self._taken = {1: 0, 2: 0}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        process = cast("asyncio.SubprocessTransport", transport)
        self._owner.pid = process.get_pid()  # its end may be told next, and group 0 is our own

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        if self._taken[fd] == 0:
            loop.call_later(_FLOOD_SECONDS, self._begin_anew, fd)
        self._taken[fd] += len(data)
        if self._taken[fd] > _FLOOD_BYTES:
            self._transport.get_pipe_transport(fd).pause_reading()
        self._owner.take_output(fd, self._readers[fd].feed(data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del exc
        if fd in self._readers:
            self._owner.take_output(fd, self._readers[fd].close())

    def process_exited(self) -> None:
        self._owner.take_exit(self._transport.get_returncode())

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._owner.take_release()

    def _begin_anew(self, fd: int) -> None:
        paused = self._taken[fd] > _FLOOD_BYTES
        self._taken[fd] = 0
        pipe = self._transport.get_pipe_transport(fd)
        if paused and pipe is not None and not pipe.is_closing():
            pipe.resume_reading()
