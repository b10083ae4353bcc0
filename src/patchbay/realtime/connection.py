"""One WebSocket to a model's server: JSON frames in and out, bounded, and its opening handshake.

The key is sent in the headers of the opening request only: redirects are not followed, and errors are redacted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConcurrencyError, ConnectionClosed, InvalidProxy, InvalidStatus, WebSocketException
from websockets.protocol import State

from patchbay._redaction import Redactor, protect
from patchbay.errors import UpstreamError, UpstreamTimeoutError
from patchbay.loopback import is_this_machine
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.providers.base import ConnectionSetup, Dialect, Frame, Line
from patchbay.realtime.providers.registry import key_for
from patchbay.realtime.server_events import ResponseDone, ServerError, ServerEvent, SessionOpened, SessionUpdated
from patchbay.tools import well_formed

AUDIO_BUFFER_LIMIT: Final = 256 * 1024
"""Bytes in the send queue above which audio waits."""

SEND_BUFFER_LIMIT: Final = 32 * 1024 * 1024
"""Bytes in the send queue above which the connection is aborted."""

DRAIN_TIMEOUT: Final = 20.0
"""Seconds for the server to accept each ``AUDIO_BUFFER_LIMIT`` bytes.

Pings of the library do not detect a stalled server: they queue behind the data.
"""

CLOSE_TIMEOUT: Final = 2.0
"""Seconds for the closing handshake."""

_STALLED: Final = "the server stopped reading"
_BATCH_BYTES: Final = 64 * 1024
_RECEIVE_QUEUE: Final = 16
_MAX_BODY: Final = 500

_logger = logging.getLogger(__name__)
# At DEBUG level the library logs the headers of the opening request, and so the key.
_quiet = logging.getLogger(f"{__name__}.socket")
_quiet.setLevel(logging.INFO)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _NoRedirectConnect(connect):
    """A connect that does not follow redirects: the headers contain a key."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class _Socket(ClientConnection):
    """A socket that aborts when the peer stops reading: the library queues answers to pings without a bound."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_write_buffer_size() > SEND_BUFFER_LIMIT:
            self.transport.abort()


class WebSocketConnection:
    """An open WebSocket. ``send`` never waits; ``receive`` has one caller at a time.

    After the end, ``reason`` says why, and ``closed_by_server`` whether the server sent a close frame.
    """

    def __init__(self, socket: ClientConnection, *, secret: str = "") -> None:
        self._socket = socket
        self._secret = secret
        self._out: deque[bytes] = deque()
        self._waiting = 0
        self._wake: asyncio.Future[None] | None = None
        self._space_waiters: deque[asyncio.Future[None]] = deque()
        self._ended = False
        self.reason = ""
        self.closed_by_server = False
        self.bytes_received = 0
        self._warned = False  # logged one invalid frame
        self._writer = asyncio.get_running_loop().create_task(self._write())

    @classmethod
    async def open(
        cls, url: str, headers: Mapping[str, str], *, seconds: float, max_frame: int, secret: str = ""
    ) -> WebSocketConnection:
        """Open a WebSocket within ``seconds``. Raises UpstreamError (with ``upstream_status``) or UpstreamTimeoutError."""
        protect(secret)
        place = urlsplit(url)
        server = place.netloc.rpartition("@")[2]  # without user and password
        where = f"{place.scheme}://{server}{place.path}"
        kwargs: dict[str, Any] = {"proxy": None} if _bypasses_proxy(place.hostname or "") else {}
        if place.scheme == "wss":
            kwargs["ssl"] = default_ssl_context()
        try:
            socket = await _NoRedirectConnect(
                url,
                additional_headers=dict(headers),
                compression=None,  # audio does not compress, and each connection would hold a window
                open_timeout=seconds,
                close_timeout=CLOSE_TIMEOUT,
                max_size=max_frame,
                max_queue=_RECEIVE_QUEUE,
                logger=_quiet,
                create_connection=_Socket,
                **kwargs,
            )
        except InvalidStatus as error:
            body = _excerpt(error.response.body or b"", secret)
            status = error.response.status_code
            raise UpstreamError(
                redact(secret, f"The model's server at {where} refused the connection: HTTP {status} {body}".rstrip()),
                upstream_status=status,
                body=body,
            ) from None
        except TimeoutError:
            raise UpstreamTimeoutError(f"The model's server at {where} did not answer within {seconds} s.") from None
        except ssl.SSLCertVerificationError as error:
            raise UpstreamError(
                f"The certificate of the model's server at {where} is not trusted: {error.verify_message.rstrip('.')}. "
                "A private authority's certificate is named by SSL_CERT_FILE."
            ) from None
        except (OSError, WebSocketException, EOFError, ValueError, ImportError) as error:
            what = redact(secret, _connect_error(error))
            raise UpstreamError(f"The model's server at {where} cannot be reached: {what}") from None
        return cls(socket, secret=secret)

    def send(self, frames: Iterable[Frame]) -> None:
        """Queue frames in order. Frames sent after the end are lost."""
        if self._ended:
            return
        for frame in frames:
            text = _encoded(frame)
            self._out.append(text)
            self._waiting += len(text)
        if self._waiting > SEND_BUFFER_LIMIT:
            self.abort(_STALLED)
        elif self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def wait_for_space(self) -> None:
        """Wait until the queue has space for audio, or the connection has ended."""
        while self._waiting > AUDIO_BUFFER_LIMIT and not self._ended:
            waiter = asyncio.get_running_loop().create_future()
            self._space_waiters.append(waiter)
            await waiter

    async def receive(self) -> Any:
        """Return the next decoded frame; invalid JSON is skipped. Raises EOFError at the end."""
        try:
            while True:
                data = await self._socket.recv(decode=False)
                self.bytes_received += len(data)
                try:
                    return _decode(data)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    if not self._warned:
                        self._warned = True
                        _logger.warning("A model's server sent what is not JSON: %r", _excerpt(data, self._secret)[:100])
        except ConnectionClosed as error:
            self.closed_by_server = error.rcvd is not None
            self._mark_ended(redact(self._secret, _close_reason(error)))
            raise EOFError(self.reason) from None

    def abort(self, reason: str) -> None:
        """Close at once, without a close frame."""
        self._mark_ended(reason)
        self._socket.transport.abort()

    def finish_sending(self, reason: str) -> None:
        """Accept no more frames; queued ones are still sent. To be followed by ``close``."""
        self._mark_ended(reason, drop=False)

    async def close(self) -> None:
        """Send what is queued if that is quick, close, and leave nothing running."""
        self.finish_sending("closed by us")
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._writer
                # Incoming frames must be read, or the server's close frame stays behind them.
                await asyncio.gather(self._socket.close(), self._drain_incoming())
        except (TimeoutError, ConnectionClosed):
            pass
        finally:
            self._writer.cancel()
            self._socket.transport.abort()

    async def _drain_incoming(self) -> None:
        while True:
            try:
                await self._socket.recv(decode=False)
            except (ConnectionClosed, ConcurrencyError):
                return

    async def _write(self) -> None:
        """Write queued frames as fast as the server reads; abort if it does not."""
        out, socket = self._out, self._socket
        try:
            while True:
                while out:
                    size = self._write_batch()
                    if socket.transport.get_write_buffer_size():  # else nothing to wait for
                        async with asyncio.timeout(DRAIN_TIMEOUT * max(1, size / AUDIO_BUFFER_LIMIT)):
                            await socket.drain()
                    self._waiting -= size
                    if self._space_waiters and self._waiting <= AUDIO_BUFFER_LIMIT:
                        self._wake_senders()
                if self._ended:
                    return
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
        except TimeoutError:
            self.abort(_STALLED)
        except (ConnectionClosed, OSError):
            self._mark_ended("the connection broke")

    def _write_batch(self) -> int:
        """Write up to ``_BATCH_BYTES`` bytes of queued frames in one call, which costs more than a frame; return the size."""
        out, protocol = self._out, self._socket.protocol
        if protocol.state is not State.OPEN:
            raise ConnectionResetError
        size = 0
        while out and size < _BATCH_BYTES:
            text = out.popleft()
            size += len(text)
            protocol.send_text(text)
        self._socket.transport.write(b"".join(protocol.data_to_send()))
        return size

    def _mark_ended(self, reason: str, *, drop: bool = True) -> None:
        if not self._ended:
            self._ended = True
            self.reason = reason
        if drop:
            self._out.clear()
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        self._wake_senders()

    def _wake_senders(self) -> None:
        while self._space_waiters:
            waiter = self._space_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)


@cache
def default_ssl_context() -> ssl.SSLContext:
    """Return the shared default context (system certificates, ``SSL_CERT_FILE``, ``SSL_CERT_DIR``).

    Shared, because loading the certificates takes milliseconds and a megabyte.
    """
    return ssl.create_default_context()


def _encoded(frame: Frame) -> bytes:
    """Encode a frame as JSON; lone surrogates are replaced."""
    try:
        return _encode(frame)
    except UnicodeEncodeError:
        return well_formed(json.dumps(frame, ensure_ascii=False)).encode()


def _close_reason(error: ConnectionClosed) -> str:
    closed = error.rcvd
    if closed is None:
        return "the connection broke"
    return f"the server closed it: {closed.code} {closed.reason}".rstrip()


def _connect_error(error: Exception) -> str:
    """Describe why a server is unreachable, without the URL of a proxy, which may contain a password."""
    if isinstance(error, ImportError):
        return (
            "the environment names a SOCKS proxy, which needs the package python-socks."
            " Install it, or name the server's host in no_proxy."
        )
    is_of_url = isinstance(error, ValueError) and not isinstance(error, OSError)
    if isinstance(error, InvalidProxy) or (is_of_url and getproxies()):
        return "the environment names a proxy by an invalid URL. Correct it, or name the server's host in no_proxy."
    return str(error) or type(error).__name__


def _excerpt(body: bytes | bytearray, secret: str) -> str:
    """Return the beginning of a server's message. Redacted before it is cut, so that no part of the key remains."""
    return redact(secret, body.decode("utf-8", "replace"))[:_MAX_BODY]


def _bypasses_proxy(host: str) -> bool:
    """True for this machine, also by a name ending in ``.localhost``."""
    return is_this_machine(host) or host.endswith(".localhost")


def redact(secret: str, text: str) -> str:
    """Replace the key in a server's message."""
    return Redactor([secret]).text(text)


_MAX_EARLY_EVENTS: Final = 256
"""Maximum number of events before the session is confirmed."""


class SetupRefusedError(UpstreamError):
    """The server was reached and refused the session's configuration."""


@dataclass(eq=False)
class ProviderConnection:
    """A connection and the dialect spoken on it. ``pending`` are events that were read and not handled yet."""

    connection: WebSocketConnection
    dialect: Dialect
    secret: str = field(default="", repr=False)
    """The key, to redact it in error messages."""
    pending: deque[ServerEvent] = field(default_factory=deque)

    async def next_event(self) -> ServerEvent:
        """Return the next server event. Raises EOFError at the end of the connection."""
        while not self.pending:
            self.pending.extend(self.dialect.read(await self.connection.receive()))
        event = self.pending.popleft()
        if isinstance(event, ServerError):
            texts = (event.message, event.code, event.param)
            message, code, param = (redact(self.secret, text) for text in texts)
            return replace(event, message=message, code=code, param=param)
        if isinstance(event, ResponseDone) and event.reason:
            return replace(event, reason=redact(self.secret, event.reason))
        return event


async def open_connection(
    dialect: Dialect,
    settings: RealtimeSettings,
    opening: Callable[[], ConnectionSetup],
    *,
    lines: Callable[[], Sequence[Line]],
    exclude: Callable[[ServerError], bool],
) -> ProviderConnection:
    """Open a connection and configure the session.

    ``opening`` is called again after the server has refused something and ``exclude`` could leave that out. ``lines`` is called
    last: it returns the history up to the moment when the connection is ready. Raises UpstreamError (SetupRefusedError if the
    server refuses), UpstreamTimeoutError, or ConfigurationError if there is no key.
    """
    limits = settings.limits
    key = key_for(settings, type(dialect))
    connection = await WebSocketConnection.open(
        dialect.url(), dialect.headers(key), seconds=limits.connect, max_frame=limits.max_frame, secret=key
    )
    wire = ProviderConnection(connection, dialect, key)
    try:
        async with asyncio.timeout(limits.connect + limits.update):
            last = await _configure(wire, opening, lines, exclude)
        if history := lines():
            connection.send(dialect.history_frames(replace(last, lines=history)))
    except EOFError as error:
        await connection.close()
        kind = SetupRefusedError if connection.closed_by_server else UpstreamError
        raise kind(f"The model's server ended the connection before it was configured: {error}") from None
    except TimeoutError:
        connection.abort("")
        await connection.close()
        raise UpstreamTimeoutError(
            f"The model's server did not confirm the session within {limits.connect + limits.update} s."
        ) from None
    except BaseException:
        connection.abort("")
        await connection.close()
        raise
    return wire


async def _configure(
    wire: ProviderConnection,
    opening: Callable[[], ConnectionSetup],
    lines: Callable[[], Sequence[Line]],
    exclude: Callable[[ServerError], bool],
) -> ConnectionSetup:
    connection, dialect = wire.connection, wire.dialect
    last = opening()
    connection.send(dialect.setup_frames(replace(last, lines=lines())))
    later: list[ServerEvent] = []
    configured = False
    while not configured:
        event = await wire.next_event()
        if isinstance(event, SessionOpened):
            if not event.configured:
                last = opening()
                connection.send(dialect.configure_frames(last))
            configured = event.configured
        elif isinstance(event, SessionUpdated):
            configured = True
        elif isinstance(event, ServerError):
            if not exclude(event):
                raise SetupRefusedError(f"The model's server refused the session: {event.message}")
            last = opening()
            connection.send(dialect.configure_frames(last))
        else:
            later.append(event)
            if len(later) > _MAX_EARLY_EVENTS or connection.bytes_received > SEND_BUFFER_LIMIT:
                raise UpstreamError("The model's server sent too much before it confirmed the session.")
    wire.pending.extendleft(reversed(later))
    return last
