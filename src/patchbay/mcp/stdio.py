"""The transport to an MCP server that is a child process: one JSON message per line, both ways.

Not the SDK's own, which reads lines of any length, and gives the process our standard error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage
from typing_extensions import override

from patchbay._ratelimit import LogRateLimiter
from patchbay._subprocess import ChildProcess, LineReader, Overlong, describe_exit
from patchbay._text import escape_controls, one_line
from patchbay.mcp.config import McpServer
from patchbay.mcp.limits import MAX_MESSAGE, too_large

_MAX_LOG_LINE: Final = 1024
_READ_BYTES: Final = 64 * 1024
_EXIT_AFTER: Final = 0.5
"""Seconds between the end of a process's output and its exit status, in either order."""
_TERMINATE_AFTER: Final = 2.0
_KILL_AFTER: Final = 2.0
_RESPONSE_ID: Final = re.compile(rb'\A\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15}|"[^"\\]{1,100}")\s*,')

_logger = logging.getLogger(__name__)


class _Stream:
    """Base of the transport's two streams for the SDK: leaving its context closes it."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class _Messages(_Stream):
    """The server's messages, in order, parsed from its output by ``parse``; ends with the output.

    ``output`` pauses the process's pipe while the SDK does not read.
    """

    def __init__(self, parse: Callable[[bytes | Overlong], types.JSONRPCMessage | None]) -> None:
        super().__init__()
        self.output = asyncio.StreamReader()
        self.has_ended = False
        self._lines = LineReader(MAX_MESSAGE)
        self._parse = parse
        self._parsed: deque[SessionMessage] = deque()

    def feed(self, data: bytes) -> None:
        """Receive output; after the end it is dropped."""
        if not self.has_ended:
            self.output.feed_data(data)

    def end(self) -> None:
        """Receive the end of the output."""
        self.has_ended = True
        self.output.feed_eof()

    def close(self) -> None:
        super().close()
        self.end()

    async def receive(self) -> SessionMessage:
        while not self._parsed:
            if not (data := await self.output.read(_READ_BYTES)):
                raise anyio.ClosedResourceError if self.is_closed else anyio.EndOfStream
            parsed = map(self._parse, self._lines.feed(data))
            self._parsed += (SessionMessage(message) for message in parsed if message is not None)
        return self._parsed.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class _Writer(_Stream):
    """Writes messages to the process, and waits while its pipe is full."""

    def __init__(self, process: _ServerProcess) -> None:
        super().__init__()
        self._process = process

    async def send(self, item: SessionMessage) -> None:
        if self.is_closed:
            raise anyio.ClosedResourceError
        pipe = self._process.pipe(0)
        if pipe is None or pipe.is_closing():
            raise anyio.BrokenResourceError
        pipe.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        await self._process.writable.wait()


class _ServerProcess(ChildProcess):
    """The process of a server. ``stderr_tail`` are the last lines that it has logged."""

    def __init__(self, server: McpServer, on_end: Callable[[], object]) -> None:
        super().__init__()
        self._on_end = on_end
        self._output_ended = False
        self._redact = server.redact
        self.messages = _Messages(self._parse)
        self.writable = asyncio.Event()
        self.writable.set()
        self.stderr_tail: deque[str] = deque(maxlen=5)
        self._log_lines = LineReader(_MAX_LOG_LINE)
        self._log = LogRateLimiter(lambda line: _logger.info("mcp %s: %s", server.name, line))

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.messages.output.set_transport(self.pipe(1))

    @override
    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self.messages.feed(data)
            return
        for line in self._log_lines.feed(data):
            self._log_line(line.head[:_MAX_LOG_LINE] if isinstance(line, Overlong) else line)

    @override
    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del exc
        if fd == 1:  # the end of its output is the end of the connection
            self._end()
        self.writable.set()

    @override
    def process_exited(self) -> None:
        super().process_exited()
        self._log.flush()
        self._loop.call_later(_EXIT_AFTER, self._end)  # where a descendant holds its output open

    @override
    def pause_writing(self) -> None:
        self.writable.clear()

    @override
    def resume_writing(self) -> None:
        self.writable.set()

    def _end(self) -> None:
        if self._output_ended:
            return
        self._output_ended = True
        self.messages.end()
        self.writable.set()
        self._on_end()

    def _parse(self, line: bytes | Overlong) -> types.JSONRPCMessage | None:
        """Parse a line; None for an invalid message, which is logged. A response that is too large becomes an error."""
        if isinstance(line, Overlong):
            self._log.log(f"a message of more than {MAX_MESSAGE} bytes is left out")
            found = _RESPONSE_ID.match(line.head)
            if found is None:
                return None
            return types.JSONRPCError(jsonrpc="2.0", id=json.loads(found[1]), error=too_large())
        if not line.strip():
            return None
        try:
            return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            text = self._redact.text(line[:4000].decode("utf-8", "replace"))
            self._log.log(f"its output has a line that is no message: {one_line(text, 200)!r}")
            return None

    def _log_line(self, line: bytes) -> None:
        text = escape_controls(self._redact.text(line.decode("utf-8", "replace").rstrip()))
        if text:
            self.stderr_tail.append(text)
            self._log.log(text)

    async def stop(self) -> None:
        """Close its input; end its group if it does not end by itself, and what its leader has left. Each wait is bounded."""
        self.messages.close()
        if self.is_running and (pipe := self.pipe(1)) is not None:
            with suppress(RuntimeError):  # older versions of uvloop: it was not paused
                pipe.resume_reading()  # so that a process that waits to write can end
        await self.terminate(eof_grace=_TERMINATE_AFTER, term_grace=_KILL_AFTER, kill_grace=_KILL_AFTER)
        self.signal_group()
        if self._transport is not None:
            self._transport.close()
        await asyncio.wait([self.pipes_closed], timeout=_EXIT_AFTER)


@asynccontextmanager
async def stdio_transport(server: McpServer, *, on_end: Callable[[], object]) -> AsyncIterator[tuple[_Messages, _Writer]]:
    """Start a server's command in a process group of its own; yield its streams for the SDK. Raises OSError, ValueError.

    ``on_end`` is called when the process or its output has ended. Its standard error is logged, rate-limited, without
    the server's secrets. Leaving ends the process and its descendants.
    """
    process = _ServerProcess(server, on_end)
    command: Sequence[str] = (server.command, *server.args)
    await process.spawn(command, cwd=Path(server.cwd) if server.cwd else None, env=server.environment())
    writer = _Writer(process)
    try:
        yield process.messages, writer
    except Exception as error:
        if process.messages.has_ended:
            await asyncio.wait([process.exited], timeout=_EXIT_AFTER)
        if process.exited.done():
            raise ServerExitedError(_why_it_ended(process)) from error
        raise
    finally:
        process.messages.close()
        writer.close()
        await _finish(process.stop())


class ServerExitedError(Exception):
    """The process has ended by itself."""


def _why_it_ended(process: _ServerProcess) -> str:
    text = describe_exit(process.exited.result(), "exit status")
    return f"{text}; it wrote: {one_line(' | '.join(process.stderr_tail), 500)}" if process.stderr_tail else text


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work`` to its end, also when this task is cancelled meanwhile; the cancellation comes after it."""
    task = asyncio.ensure_future(work)
    cancelled = False
    with anyio.CancelScope(shield=True):  # (anyio cancels again and again)
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError
