"""The messages between a plugin worker and its host, their framing, and the connection that carries them."""

from __future__ import annotations

import asyncio
import ipaddress
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

CANCEL_GRACE: Final = 0.2
"""Seconds that a tool which was stopped is waited for; within what is between the first two clocks of a call of 5 s or more."""

MAX_TIMEOUT: Final = 300.0
"""The longest that a call may take, in seconds."""

DEFAULT_TIMEOUT: Final = 30.0
"""How long a call may take where nobody said."""


def tool_deadline(timeout: float) -> float:
    """Return after how many seconds the plugin stops the tool."""
    return timeout - min(0.5, timeout / 10)


def host_deadline(timeout: float) -> float:
    """Return after how many seconds the host answers for a plugin that has not."""
    return timeout - min(0.25, timeout / 20)


PROTOCOL_VERSION: Final = 1
"""Says which messages there are. Host and plugin must be of the same one: both come from one installation."""

ENTRY_PREFIX: Final = "__llm_tool__"
"""A tool ``name`` is triggered as the entry ``__llm_tool__name``."""

STARTUP_ID: Final = "__plugin_startup__"
"""The ``req_id`` of the startup's result."""

ToolStateName: TypeAlias = Literal["pending", "active", "refused", "stale"]
"""``pending``: not registered yet. ``active``: a model can call it. ``refused``: the server will not have it. ``stale``: it was
active, and the server has lost it; the host is registering it again."""

StopReason: TypeAlias = Literal["stop", "reload"]
StartReason: TypeAlias = Literal["start", "restart", "reload"]


class _Message(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One message. Fields that are not known are passed over."""


class Ack(_Message, frozen=True, tag="ACK"):
    """All messages up to the one with this ``id`` have arrived. It has no id of its own (0), and is not acknowledged."""

    id: int


class Hello(_Message, frozen=True, tag="HELLO"):
    """The plugin's first message. The host must compare ``token`` in constant time, and take it once."""

    version: int
    token: str
    pid: int


class Start(_Message, frozen=True, tag="START"):
    """The host's answer to HELLO: which plugin to run.

    ``entry`` is ``module:Class`` in ``folder`` ("" for the import path alone). ``config`` stands for the folder's ``plugin.toml``
    (None: that is read). ``reason`` is handed to the startup hook, which has ``startup_timeout`` seconds; after a startup that
    failed the tools are registered all the same unless ``startup_failure`` is "fail": then the process ends. ``grace`` is how
    many seconds the plugin has to end in when the host is gone.
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
    """How the startup hook ended; the tools are registered after this. ``hooks`` are the lifecycle ids that the plugin has."""

    status: Literal["ready", "failed"]
    startup_error: str | None = None
    hooks: tuple[str, ...] = ()
    req_id: str = STARTUP_ID


class LlmToolRegister(_Message, frozen=True, tag="LLM_TOOL_REGISTER"):
    """A tool that models may call from now on. ``registration`` tells it from an earlier one of the same name."""

    plugin_id: str
    name: str
    description: str
    parameters: dict[str, Any]
    timeout_seconds: float
    role: str | None = None
    annotations: dict[str, bool] = {}
    registration: int = 0


class LlmToolUnregister(_Message, frozen=True, tag="LLM_TOOL_UNREGISTER"):
    """The tool is no more."""

    plugin_id: str
    name: str
    role: str | None = None
    registration: int = 0


class LlmToolState(_Message, frozen=True, tag="LLM_TOOL_STATE"):
    """What became of a registration, each time it changes; ``reason`` says why, where the server gave one."""

    name: str
    state: ToolStateName
    reason: str = ""
    registration: int = 0


class Trigger(_Message, frozen=True, tag="TRIGGER"):
    """Carry out one call. It is answered by one RESULT, whatever happens, as long as the process lives.

    ``args`` is the JSON text of the arguments. ``timeout`` is the limit in seconds that the caller was promised (None: the
    tool's own); the plugin ends the tool a little earlier (``deadlines``), and never later than the tool's own limit.
    ``run_id`` is for CANCEL_RUN, ``call_id`` and ``idempotency_key`` are for the tool: given again, they say it is the same call.
    """

    req_id: str
    entry_id: str
    args: str = "{}"
    timeout: float | None = None
    run_id: str = ""
    call_id: str = ""
    idempotency_key: str = ""


class Progress(_Message, frozen=True, tag="PROGRESS"):
    """What a running tool says of its work; dropped where the host is slow to read. ``data`` is JSON text."""

    req_id: str
    message: str | None = None
    fraction: float | None = None
    data: str | None = None


class Result(_Message, frozen=True, tag="RESULT"):
    """The one answer to a TRIGGER, FREEZE, UNFREEZE or CONFIG_UPDATE.

    ``data`` is JSON text: for a TRIGGER the whole body of the callback's answer (``envelope``), to be sent on unread. ``error``
    is the short name of what went wrong, None where ``success``. ``ran`` is False where no handler was reached: the same call
    may be carried out when it comes again.
    """

    req_id: str
    success: bool
    data: bytes = b""
    error: str | None = None
    ran: bool = True


class CancelRun(_Message, frozen=True, tag="CANCEL_RUN"):
    """Stop the calls whose ``run_id`` or ``req_id`` this is. They are answered, as cancelled."""

    run_id: str


class Freeze(_Message, frozen=True, tag="FREEZE"):
    """Refuse calls until UNFREEZE; give those under way ``drain`` seconds (None: let them be); then run the freeze hook."""

    req_id: str
    drain: float | None = None


class Unfreeze(_Message, frozen=True, tag="UNFREEZE"):
    """Run the unfreeze hook; calls are taken again."""

    req_id: str


class ConfigUpdate(_Message, frozen=True, tag="CONFIG_UPDATE"):
    """The configuration is ``config`` now (None: as ``plugin.toml`` says now); if that is new, the config_change hook is run."""

    req_id: str
    config: dict[str, Any] | None = None


class Ping(_Message, frozen=True, tag="PING"):
    """Nothing but something to acknowledge: a plugin that does not is blocked."""


class Stop(_Message, frozen=True, tag="STOP"):
    """End: calls under way have ``drain`` seconds to end by themselves, the hooks after that ``grace`` seconds together."""

    reason: StopReason = "stop"
    drain: float = 0.0
    grace: float = 5.0


class Log(_Message, frozen=True, tag="LOG"):
    """One record of the plugin's ``logging``. Dropped where the host is slow to read; ``dropped`` says how many were."""

    level: int
    logger: str
    message: str
    created: float
    dropped: int = 0


class Crash(_Message, frozen=True, tag="CRASH"):
    """The plugin could not be loaded, or its process ends by a mistake; the last message.

    ``lasts``: it will be so as long as the plugin's files are as they are, so it is of no use to start it again.
    """

    error: str
    traceback: str = ""
    lasts: bool = False


FromPlugin: TypeAlias = Ack | Hello | StartupResult | LlmToolRegister | LlmToolUnregister | Progress | Result | Log | Crash
FromHost: TypeAlias = Ack | Start | Trigger | CancelRun | LlmToolState | Freeze | Unfreeze | ConfigUpdate | Ping | Stop
Message: TypeAlias = FromPlugin | FromHost


BOOTSTRAP_MAX_BYTES: Final = 4096


class Bootstrap(msgspec.Struct, frozen=True, kw_only=True):
    """``address`` is ``unix:PATH`` or ``tcp:127.0.0.1:PORT``, ``token`` is what HELLO shows."""

    address: str
    token: str
    version: int = PROTOCOL_VERSION

    def __repr__(self) -> str:
        return f"Bootstrap({self.address!r})"

    @property
    def path(self) -> str | None:
        """The path of a Unix domain socket, None for TCP."""
        kind, _, rest = self.address.partition(":")
        return rest if kind == "unix" else None

    @property
    def host_and_port(self) -> tuple[str, int]:
        """The address for TCP. Raises PluginError for one that is not on this machine."""
        kind, _, rest = self.address.partition(":")
        host, _, port = rest.rpartition(":")
        try:
            if kind == "tcp" and ipaddress.ip_address(host.strip("[]")).is_loopback:
                return host.strip("[]"), int(port)
        except ValueError:
            pass
        raise PluginError(f"{self.address!r} is no address of a host on this machine.")

    def line(self) -> bytes:
        """Return the line for the process's standard input; leave the pipe open behind it."""
        return msgspec.json.encode(self) + b"\n"


def read_bootstrap(fd: int) -> Bootstrap:
    """Read the line from a file descriptor. Raises PluginError for anything else that comes, or an end without it."""
    data = b""
    while b"\n" not in data and len(data) < BOOTSTRAP_MAX_BYTES:
        piece = os.read(fd, BOOTSTRAP_MAX_BYTES)
        if not piece:
            break
        data += piece
    try:
        read = msgspec.json.decode(data.partition(b"\n")[0], type=Bootstrap)
    except msgspec.DecodeError:
        raise PluginError("This process is started by a plugin host, which says where it is on standard input.") from None
    if read.version != PROTOCOL_VERSION:
        raise PluginError(f"The host speaks version {read.version} of the protocol, and this process {PROTOCOL_VERSION}.")
    return read


def child_command() -> list[str]:
    """Return the command of a plugin's process. Start it in a session of its own, its standard input a pipe."""
    return [sys.executable, "-P", "-m", "patchbay.plugins.worker"]


MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""The longest message that either side takes."""

MAX_HELLO_BYTES: Final = 4096
"""The longest message that is taken from one who has not shown the token yet."""

_LENGTH: Final = struct.Struct(">I")
_KEPT: Final = 64 * 1024
"""How much of what was read may stand in the buffer before it is cleared away."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, Message])


def encode(number: int, message: Message) -> bytes:
    """Return one frame. Raises FrameError for a message that msgpack cannot express, or that is too long."""
    try:
        body = _encoder.encode((number, message))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FrameError(f"{type(message).__name__} cannot be sent: {error}") from None
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"{type(message).__name__} cannot be sent: {len(body)} bytes are more than {MAX_FRAME_BYTES}.")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Frames out of a stream, however it is cut: ``feed`` what arrives, then ``read`` until it returns None.

    ``limit`` (bytes of one message) may be changed between two reads. Once a read has raised FrameError every further one does.
    """

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._start = 0
        self._error: str | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take what has arrived."""
        if self._error is None:
            self._buffer += data

    def read(self) -> tuple[int, Message] | None:
        """Return the next number and message; None if more has to arrive first. Raises FrameError."""
        if self._error is not None:
            raise FrameError(self._error)
        start = self._start + _LENGTH.size
        if len(self._buffer) < start:
            self._tidy()
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._start)
        if length > self.limit:
            raise self._broken(f"A message of {length} bytes is longer than {self.limit}.")
        if len(self._buffer) < start + length:
            self._tidy()
            return None
        with memoryview(self._buffer) as view:
            try:
                frame = _decoder.decode(view[start : start + length])
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                raise self._broken(f"Not a message: {error}") from None
        self._start = start + length
        return frame

    def close(self) -> None:
        """Say that nothing more will arrive. Raises FrameError if a message was cut off."""
        if self._error is None and len(self._buffer) > self._start:
            raise self._broken("The last message was cut off.")

    def _tidy(self) -> None:
        if self._start == len(self._buffer) or self._start > _KEPT:
            del self._buffer[: self._start]
            self._start = 0

    def _broken(self, why: str) -> FrameError:
        self._error = why
        return FrameError(why)


class Channel:
    """One end of a conversation: what is sent gets its number, what arrives is checked to be the next.

    ``sent`` is the number of the last message that was sent, ``acknowledged`` that of the last one the other side has. ``limit``
    is as for FrameReader.
    """

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.reader = FrameReader(limit=limit)
        self.sent = 0
        self.acknowledged = 0
        self._received = 0
        self._told = 0

    def send(self, message: Message) -> bytes:
        """Return the bytes of a message. Raises FrameError, and the message has no number then."""
        data = encode(self.sent + 1, message)
        self.sent += 1
        return data

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take what has arrived."""
        self.reader.feed(data)

    def receive(self) -> Message | None:
        """Return the next message, None if there is none yet. ACKs are taken note of and not returned. Raises FrameError."""
        while (frame := self.reader.read()) is not None:
            number, message = frame
            if isinstance(message, Ack):
                self._acknowledge(number, message.id)
                continue
            if number != self._received + 1:
                raise FrameError(f"Message {number} came after message {self._received}.")
            self._received = number
            return message
        return None

    def acknowledge(self) -> bytes:
        """Return the bytes that acknowledge all that was received; none if the other side was told already."""
        if self._told == self._received:
            return b""
        self._told = self._received
        return encode(0, Ack(id=self._received))

    def _acknowledge(self, number: int, up_to: int) -> None:
        if number != 0 or not self.acknowledged <= up_to <= self.sent:
            raise FrameError(f"Message {up_to} was acknowledged, but the last one sent is {self.sent}.")
        self.acknowledged = up_to


DROP_ABOVE: Final = 1024 * 1024
"""How many bytes may wait to be sent before what may be dropped is."""
_ACKNOWLEDGE_WITHIN: Final = 0.02
"""Seconds that the side that asks may take to acknowledge: a plugin that ends waits for it."""
_PIECE: Final = 256 * 1024
_PIECES: Final = 16
"""More than a kernel keeps of a side that is gone; one that lives could go on for ever."""

MOST_HELD: Final = 64 * 1024 * 1024
"""How many bytes may arrive while the other side reads nothing of what it was sent, so that none of them is handed on."""

_logger = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """Sends messages, and hands on those that arrive, one after the other; made for ``create_unix_connection`` and its like.

    ``on_message`` is called with each message, ``on_close`` once, with what ended the connection (None: the other side closed it,
    or ``close`` was called). ``limit`` is the longest message that is taken (bytes), to be raised by ``trust`` when the other
    side has shown who it is. What is sent to a connection that is closed goes nowhere. Belongs to one event loop.

    ``asks``: this is the side that asks. What had arrived when the connection ended is handed on all the same, and what it has to
    acknowledge waits a little for a message to travel with. The side that is asked must not begin what it can tell nobody of, and
    has to acknowledge a call before it begins it.
    """

    def __init__(
        self,
        on_message: Callable[[Message], None],
        on_close: Callable[[Exception | None], None],
        *,
        limit: int = MAX_FRAME_BYTES,
        asks: bool = False,
    ) -> None:
        self._asks = asks
        self._acknowledging: asyncio.TimerHandle | None = None
        self._on_message = on_message
        self._on_close = on_close
        self._channel = Channel(limit=limit)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Message] = deque()
        self._is_full = False
        self._held = 0
        self._error: Exception | None = None
        self._deliveries: list[tuple[int, asyncio.Future[None]]] = []
        self.is_closed = False
        self.was_heard_out = False
        """Whether all that the other side has ever sent was read, its acknowledgements too. Not known before the end."""

    def send(self, message: Message) -> int:
        """Send a message and return its number. Raises FrameError for one that cannot be sent; the connection goes on."""
        data = self._channel.send(message)
        self._write(self._channel.acknowledge() + data)
        return self._channel.sent

    def offer(self, message: Message) -> bool:
        """Send a message that may be dropped, and say whether it was sent: not where too much is waiting already."""
        if self._transport is None or self._transport.get_write_buffer_size() > DROP_ABOVE:
            return False
        try:
            self.send(message)
        except FrameError:
            return False
        return True

    def trust(self) -> None:
        """Take messages of any length that is allowed from now on."""
        self._channel.reader.limit = MAX_FRAME_BYTES

    async def delivered(self) -> bool:
        """Wait until all that was sent until now has arrived; False if the connection was closed before."""
        number = self._channel.sent
        if not self.is_closed and self._channel.acknowledged < number:
            waiter = asyncio.get_running_loop().create_future()
            self._deliveries.append((number, waiter))
            await waiter
        return self._channel.acknowledged >= number

    @property
    def acknowledged(self) -> int:
        """The number of the last message that has arrived at the other side."""
        return self._channel.acknowledged

    def close(self) -> None:
        """Close when all that was sent is on its way."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, error: Exception | None = None) -> None:
        """Close now."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)  # a host may run on uvloop, whose transports are no subclass
        self._transport.set_write_buffer_limits(high=0)  # so that "full" means: something is not with the kernel yet

    def data_received(self, data: bytes) -> None:
        """Read all that has arrived, acknowledge it, hand it on."""
        if self._error is not None:
            return
        if self._is_full:
            self._held += len(data)
            if self._held > MOST_HELD:
                self.abort(FrameError("The other side says much and reads nothing."))
                return
        error = self._take(data)
        if not self._asks:
            self._write(self._channel.acknowledge())
        elif self._acknowledging is None:
            self._acknowledging = asyncio.get_running_loop().call_later(_ACKNOWLEDGE_WITHIN, self._acknowledge)
        self._settle_deliveries()
        self._hand_on()
        if error is not None:
            self.abort(error)

    def pause_writing(self) -> None:
        """Hand nothing on until what was sent is with the kernel."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Go on."""
        self._is_full = False
        self._held = 0
        self._hand_on()

    def eof_received(self) -> None:
        """The other side has closed, and nothing that it sent is left."""
        self.was_heard_out = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell of the end, when all that has arrived before it was read."""
        if not self.was_heard_out and self._error is None:
            self._hear_out()
        self.is_closed = True
        if self._acknowledging is not None:
            self._acknowledging.cancel()
        if self._asks:
            self._hand_on_all()
        self._waiting.clear()
        if isinstance(exc, OSError):
            exc = None  # how a side that was killed closes
        if self._error is None and exc is None:
            try:
                self._channel.reader.close()
            except FrameError as cut:
                exc = cut
        self._settle_deliveries()
        self._on_close(self._error or exc)

    def _hand_on(self) -> None:
        while self._waiting and not self._is_full and not self.is_closed:
            self._deliver(self._waiting.popleft())

    def _deliver(self, message: Message) -> None:
        try:
            self._on_message(message)
        except Exception:
            _logger.exception("A %s could not be taken", type(message).__name__)

    def _hand_on_all(self) -> None:
        while self._waiting:
            self._deliver(self._waiting.popleft())

    def _take(self, data: bytes) -> FrameError | None:
        """Read what has arrived into messages; return what is wrong with it."""
        self._channel.feed(data)
        try:
            while (message := self._channel.receive()) is not None:
                self._waiting.append(message)
        except FrameError as broken:
            return broken
        return None

    def _hear_out(self) -> None:
        """Read what the other side had sent before it closed. A write to it that fails ends the transport, whatever is unread.

        Without this a plugin that acknowledged a call and was killed would be taken for one that had not begun it. Its test:
        test_what_the_other_side_said_before_its_end_is_heard_though_a_write_fails_first.
        """
        transport = self._transport
        connection = None if transport is None else transport.get_extra_info("socket")
        if connection is None:
            return
        try:
            for _ in range(_PIECES):
                data = os.read(connection.fileno(), _PIECE)
                if not data:
                    self.was_heard_out = True
                    return
                self._error = self._take(data)
                if self._error is not None:
                    return
        except OSError:  # the other side lives, or the system knows no such reading: it was not heard out
            return

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _acknowledge(self) -> None:
        self._acknowledging = None
        self._write(self._channel.acknowledge())

    def _settle_deliveries(self) -> None:
        left = []
        for number, waiter in self._deliveries:
            if not self.is_closed and self._channel.acknowledged < number:
                left.append((number, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._deliveries = left
