"""The messages between a plugin worker and its host, their framing, and the connection that carries them.

    worker -> host   HELLO, STARTUP_RESULT, LLM_TOOL_REGISTER, LLM_TOOL_UNREGISTER, BEGUN, PROGRESS, RESULT, LOG, PONG, CRASH
    host -> worker   START, TRIGGER, CANCEL_RUN, LLM_TOOL_STATE, FREEZE, UNFREEZE, CONFIG_UPDATE, PING, STOP

A frame is a length of four bytes and one message as msgpack. Message types have the names of N.E.K.O's host where it has them.
JSON that neither side needs to read (``Trigger.args``, ``Result.data``) travels as text, so that no number loses a digit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from patchbay.plugins.errors import FrameError, PluginError

PROTOCOL_VERSION: Final = 2
"""Host and worker must speak the same version: both come from one installation."""

ENTRY_PREFIX: Final = "__llm_tool__"
"""A tool ``name`` is triggered as the entry ``__llm_tool__name``."""

STARTUP_ID: Final = "__plugin_startup__"
"""The ``req_id`` of the startup's result."""

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""The longest message that either side accepts."""
MAX_HELLO_BYTES: Final = 4096
"""The longest message that is accepted before HELLO has shown the token."""
DROP_ABOVE: Final = 1024 * 1024
"""Above so many unsent bytes, messages that may be dropped are."""
MAX_UNSENT: Final = 128 * 1024 * 1024
"""Above so many unsent bytes the connection is closed: the other side does not read."""

CANCEL_GRACE: Final = 0.2
"""Seconds that a cancelled tool is waited for; less than the gap between the first two deadlines of a call of 5 s or more."""
MAX_TIMEOUT: Final = 300.0
"""The longest timeout of a tool, in seconds."""
DEFAULT_TIMEOUT: Final = 30.0
"""The timeout of a tool that sets none, in seconds."""

_BOOTSTRAP_BYTES: Final = 4096
_LENGTH: Final = struct.Struct(">I")
_COMPACT_ABOVE: Final = 64 * 1024
_READ_BYTES: Final = 256 * 1024
_MAX_READS: Final = 16
"""Maximum reads from a closed connection: more than a kernel buffers, and a bound for a peer that keeps sending."""

_logger = logging.getLogger(__name__)

ToolStateName: TypeAlias = Literal["pending", "active", "refused", "stale"]
"""``pending``: not registered yet. ``active``: a model can call it. ``refused``: the server rejects it. ``stale``: it was active,
the server has lost it, and the host registers it again."""

StopReason: TypeAlias = Literal["stop", "reload"]
StartReason: TypeAlias = Literal["start", "restart", "reload"]


def tool_deadline(timeout: float) -> float:
    """Return after how many seconds the worker stops a tool.

    Three nested deadlines (worker, host, server), so that the innermost reports the timeout and a model gets one error.
    """
    return timeout - min(0.5, timeout / 10)


def host_deadline(timeout: float) -> float:
    """Return after how many seconds the host answers for a worker that has not."""
    return timeout - min(0.25, timeout / 20)


class _Message(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One message. Unknown fields are ignored."""


class Hello(_Message, frozen=True, tag="HELLO"):
    """The worker's first message. The host compares ``token`` in constant time, and accepts it once."""

    version: int
    token: str
    pid: int


class Start(_Message, frozen=True, tag="START"):
    """The host's answer to HELLO: which plugin to run.

    ``entry`` is ``module:Class`` in ``folder`` ("": on the import path). ``config`` replaces the folder's ``plugin.toml`` (None:
    read it). The startup hook gets ``reason`` and ``startup_timeout`` seconds; after a failed startup the tools are registered
    anyway unless ``startup_failure`` is "fail": then the worker exits. ``grace``: seconds to end in when the host is gone.
    """

    plugin_id: str
    entry: str
    folder: str = ""
    config: dict[str, Any] | None = None
    reason: StartReason = "start"
    startup_timeout: float = 10.0
    startup_failure: Literal["warn", "fail", "ignore"] = "warn"
    grace: float = 5.0
    log_level: int = 20


class StartupResult(_Message, frozen=True, tag="STARTUP_RESULT"):
    """The result of the startup hook; tools are registered after it. ``hooks``: the lifecycle ids that the plugin handles."""

    status: Literal["ready", "failed"]
    startup_error: str | None = None
    hooks: tuple[str, ...] = ()
    req_id: str = STARTUP_ID


class LlmToolRegister(_Message, frozen=True, tag="LLM_TOOL_REGISTER"):
    """A tool that models may call from now on. ``registration`` distinguishes it from an earlier one of the same name."""

    plugin_id: str
    name: str
    description: str
    parameters: dict[str, Any]
    timeout_seconds: float
    role: str | None = None
    annotations: dict[str, bool] = {}
    registration: int = 0


class LlmToolUnregister(_Message, frozen=True, tag="LLM_TOOL_UNREGISTER"):
    """The tool is removed."""

    plugin_id: str
    name: str
    role: str | None = None
    registration: int = 0


class LlmToolState(_Message, frozen=True, tag="LLM_TOOL_STATE"):
    """The new state of a registration; ``reason`` as the server gave it."""

    name: str
    state: ToolStateName
    reason: str = ""
    registration: int = 0


class Trigger(_Message, frozen=True, tag="TRIGGER"):
    """Run one call. The worker answers BEGUN before the handler runs, and exactly one RESULT as long as it lives.

    ``args`` is the JSON text of the arguments. ``timeout`` is what the caller was promised in seconds (None: the tool's own); the
    worker stops the tool a little earlier, and never later than the tool's own limit. ``run_id`` is for CANCEL_RUN. ``call_id``
    and ``idempotency_key`` are passed to the tool: the same values mean the same call.
    """

    req_id: str
    entry_id: str
    args: str = "{}"
    timeout: float | None = None
    run_id: str = ""
    call_id: str = ""
    idempotency_key: str = ""


class Begun(_Message, frozen=True, tag="BEGUN"):
    """The call may have begun. A call without one, of a worker whose socket was read to its end, did not run."""

    req_id: str


class Progress(_Message, frozen=True, tag="PROGRESS"):
    """Progress of a running tool; dropped where the host is slow to read. ``data`` is JSON text."""

    req_id: str
    message: str | None = None
    fraction: float | None = None
    data: str | None = None


class Result(_Message, frozen=True, tag="RESULT"):
    """The answer to a TRIGGER, FREEZE, UNFREEZE or CONFIG_UPDATE.

    ``data`` is JSON text: for a TRIGGER the whole body of the callback's answer (``envelope``). ``error`` is the short name of
    what failed, None on success. ``ran`` is False where no handler was reached: the same call may run when it comes again.
    """

    req_id: str
    success: bool
    data: bytes = b""
    error: str | None = None
    ran: bool = True


class CancelRun(_Message, frozen=True, tag="CANCEL_RUN"):
    """Cancel the calls with this ``run_id`` or ``req_id``. They are answered, as cancelled."""

    run_id: str


class Freeze(_Message, frozen=True, tag="FREEZE"):
    """Refuse calls until UNFREEZE, give those in flight ``drain`` seconds (None: let them run), then run the freeze hook."""

    req_id: str
    drain: float | None = None


class Unfreeze(_Message, frozen=True, tag="UNFREEZE"):
    """Run the unfreeze hook; then accept calls again."""

    req_id: str


class ConfigUpdate(_Message, frozen=True, tag="CONFIG_UPDATE"):
    """The configuration is now ``config`` (None: as ``plugin.toml`` says); the config_change hook runs if it differs."""

    req_id: str
    config: dict[str, Any] | None = None


class Ping(_Message, frozen=True, tag="PING"):
    """To be answered by PONG: a worker that does not answer is blocked."""


class Pong(_Message, frozen=True, tag="PONG"):
    """The answer to a PING."""


class Stop(_Message, frozen=True, tag="STOP"):
    """Exit: calls in flight have ``drain`` seconds, then all hooks together ``grace`` seconds."""

    reason: StopReason = "stop"
    drain: float = 0.0
    grace: float = 5.0


class Log(_Message, frozen=True, tag="LOG"):
    """One record of the plugin's ``logging``; dropped where the host is slow to read. ``dropped`` counts those lost before it."""

    level: int
    logger: str
    message: str
    created: float
    dropped: int = 0


class Crash(_Message, frozen=True, tag="CRASH"):
    """The plugin cannot be loaded; the last message. ``lasts``: a restart cannot help as long as its files are as they are."""

    error: str
    traceback: str = ""
    lasts: bool = False


FromWorker: TypeAlias = (
    Hello | StartupResult | LlmToolRegister | LlmToolUnregister | Begun | Progress | Result | Log | Pong | Crash
)
FromHost: TypeAlias = Start | Trigger | CancelRun | LlmToolState | Freeze | Unfreeze | ConfigUpdate | Ping | Stop
Message: TypeAlias = FromWorker | FromHost

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return one frame. Raises FrameError for a message that msgpack cannot express, or that is too long."""
    try:
        body = _encoder.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FrameError(f"{type(message).__name__} cannot be sent: {error}") from None
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"{type(message).__name__} cannot be sent: {len(body)} bytes are more than {MAX_FRAME_BYTES}.")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Decodes messages from a stream, however it is split: ``feed`` bytes, then ``read`` until it returns None.

    ``limit`` (bytes of one message) may change between two reads. After a FrameError every further ``read`` raises it.
    """

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._start = 0
        self._error = ""

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append received bytes."""
        if not self._error:
            self._buffer += data

    def read(self) -> Message | None:
        """Return the next message, None if it is not complete yet. Raises FrameError."""
        if self._error:
            raise FrameError(self._error)
        start = self._start + _LENGTH.size
        length = _LENGTH.unpack_from(self._buffer, self._start)[0] if len(self._buffer) >= start else 0
        if length > self.limit:
            raise self._failed(f"A message of {length} bytes is longer than {self.limit}.")
        if len(self._buffer) < start + length:
            if self._start == len(self._buffer) or self._start > _COMPACT_ABOVE:
                del self._buffer[: self._start]
                self._start = 0
            return None
        with memoryview(self._buffer) as view:
            try:
                message: Message = _decoder.decode(view[start : start + length])
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                raise self._failed(f"Not a message: {error}") from None
        self._start = start + length
        return message

    def close(self) -> None:
        """Mark the end of the stream. Raises FrameError if a message was cut off."""
        if not self._error and len(self._buffer) > self._start:
            raise self._failed("The last message was cut off.")

    def _failed(self, reason: str) -> FrameError:
        self._error = reason
        return FrameError(reason)


class Connection(asyncio.Protocol):
    """One end of the socket: sends messages and passes on received ones in order. For one event loop.

    ``on_message`` is called with each message, ``on_close`` once, with what ended the connection (None: closed by either side).
    ``limit`` is the longest accepted message in bytes, until ``trust``. Messages sent after the end are discarded.

    ``is_worker``: answers each TRIGGER by BEGUN, and passes it on only when BEGUN is with the kernel; until then nothing is read.
    The host's end passes on everything, also what is left in the socket when the connection ends.
    """

    def __init__(
        self,
        on_message: Callable[[Message], None],
        on_close: Callable[[Exception | None], None],
        *,
        limit: int = MAX_FRAME_BYTES,
        is_worker: bool = False,
    ) -> None:
        self._is_worker = is_worker
        self._on_message = on_message
        self._on_close = on_close
        self._reader = FrameReader(limit=limit)
        self._transport: asyncio.Transport | None = None
        self._inbox: deque[Message] = deque()
        self._is_full = False
        self._error: Exception | None = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.was_read_to_end = False
        """Whether everything that the other side has ever sent was read. False until the connection has ended."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._closed.done()

    def send(self, message: Message) -> None:
        """Send a message. Raises FrameError for one that cannot be encoded; the connection stays usable."""
        self._write(encode(message))

    def offer(self, message: Message) -> bool:
        """Send a message that may be dropped, and return whether it was sent."""
        if self._transport is None or self._transport.get_write_buffer_size() > DROP_ABOVE:
            return False
        try:
            self.send(message)
        except FrameError:
            return False
        return True

    def trust(self) -> None:
        """Accept messages up to the maximum length from now on."""
        self._reader.limit = MAX_FRAME_BYTES

    async def close(self, *, within: float = 0.0) -> None:
        """Close when all that was sent is with the kernel; wait ``within`` seconds for that."""
        if self._transport is not None:
            self._transport.close()
            await asyncio.wait({self._closed}, timeout=within)

    def abort(self, error: Exception | None = None) -> None:
        """Close now."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)  # a host may run on uvloop, whose transports are no subclass
        self._transport.set_write_buffer_limits(high=0)  # "full" means: something is not with the kernel yet

    def data_received(self, data: bytes) -> None:
        """Implement asyncio.Protocol."""
        if self._error is not None:
            return
        error = self._decode(data)
        if self._is_worker:
            self._write(b"".join([encode(Begun(req_id=each.req_id)) for each in self._inbox if type(each) is Trigger]))
        self._deliver()
        if error is not None:
            self.abort(error)

    def pause_writing(self) -> None:
        """Implement asyncio.Protocol."""
        self._is_full = True
        if self._is_worker and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Implement asyncio.Protocol."""
        self._is_full = False
        if self._is_worker and self._transport is not None:
            self._deliver()
            if not self._is_full:
                self._transport.resume_reading()

    def eof_received(self) -> None:
        """Implement asyncio.Protocol."""
        self.was_read_to_end = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.Protocol."""
        if not self._is_worker:
            if not self.was_read_to_end and self._error is None:
                self._read_to_end()
            self._deliver()
        self._inbox.clear()
        self._closed.set_result(None)
        self._transport = None
        error = self._error or (None if isinstance(exc, OSError) else exc)  # an OSError is how a killed peer closes
        if error is None:
            try:
                self._reader.close()
            except FrameError as cut:
                error = cut
        self._on_close(error)

    def _write(self, data: bytes) -> None:
        if not data or self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._is_full and self._transport.get_write_buffer_size() > MAX_UNSENT:
            self.abort(FrameError(f"The other side does not read: {MAX_UNSENT} bytes wait for it."))

    def _decode(self, data: bytes) -> FrameError | None:
        self._reader.feed(data)
        try:
            while (message := self._reader.read()) is not None:
                self._inbox.append(message)
        except FrameError as error:
            return error
        return None

    def _deliver(self) -> None:
        while self._inbox:
            if self._is_worker and (self._is_full or self._transport is None or self._transport.is_closing()):
                return
            message = self._inbox.popleft()
            try:
                self._on_message(message)
            except Exception:
                _logger.exception("Handling a %s failed", type(message).__name__)

    def _read_to_end(self) -> None:
        """Read what the other side sent before it closed: a failed write ends the transport before everything is read.

        Without this, a call whose BEGUN is unread would be reported as not run. Its test:
        test_messages_sent_before_the_end_are_read_despite_a_failed_write.
        """
        connection = None if self._transport is None else self._transport.get_extra_info("socket")
        if connection is None:
            return
        try:
            for _ in range(_MAX_READS):
                data = os.read(connection.fileno(), _READ_BYTES)
                self.was_read_to_end = not data
                if data:
                    self._error = self._decode(data)
                if not data or self._error is not None:
                    return
        except OSError:  # the other side is alive, or the platform does not support this
            return


class Bootstrap(Struct, frozen=True, kw_only=True):
    """The host's address and token for a worker: one line of JSON on its standard input.

    Not on the command line, which other users can read, nor in the environment, which child processes inherit. ``address`` is
    ``unix:PATH``; HELLO shows ``token``. The pipe stays open: its end tells that the host is gone.
    """

    address: str
    token: str
    version: int = PROTOCOL_VERSION

    def __repr__(self) -> str:
        return f"Bootstrap({self.address!r})"

    @property
    def path(self) -> str:
        """The path of the host's Unix domain socket. Raises PluginError for another address."""
        kind, _, path = self.address.partition(":")
        if kind != "unix":
            raise PluginError(f"{self.address!r} is not the address of a host on this machine.")
        return path

    def line(self) -> bytes:
        """Return the line for the worker's standard input."""
        return msgspec.json.encode(self) + b"\n"


def read_bootstrap(fd: int) -> Bootstrap:
    """Read the line from a file descriptor. Raises PluginError for anything else, and for an end without it."""
    data = b""
    while b"\n" not in data and len(data) < _BOOTSTRAP_BYTES:
        piece = os.read(fd, _BOOTSTRAP_BYTES)
        if not piece:
            break
        data += piece
    try:
        bootstrap = msgspec.json.decode(data.partition(b"\n")[0], type=Bootstrap)
    except msgspec.DecodeError:
        raise PluginError("This process is started by a plugin host, which gives its address on standard input.") from None
    if bootstrap.version != PROTOCOL_VERSION:
        raise PluginError(f"The host speaks version {bootstrap.version} of the protocol, this process {PROTOCOL_VERSION}.")
    return bootstrap


def child_command() -> list[str]:
    """Return the command of a worker. Start it in a new session, its standard input a pipe."""
    return [sys.executable, "-P", "-m", "patchbay.plugins.worker"]
