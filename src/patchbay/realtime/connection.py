"""A connection that is ready to talk: opened, greeted, configured with tools, told what was said before.

What lives here: the handshake. What does not: what is said afterwards (``talk``).
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

from patchbay.errors import UpstreamError, UpstreamTimeoutError
from patchbay.loopback import is_this_machine
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.providers.base import ConnectionSetup, Dialect, Frame, Line
from patchbay.realtime.providers.registry import key_for
from patchbay.realtime.server_events import ResponseDone, ServerError, ServerEvent, SessionOpened, SessionUpdated
from patchbay.tools import well_formed

AUDIO_WAITING: Final = 256 * 1024
"""How many bytes may wait to be sent before audio has to wait itself."""

MOST_WAITING: Final = 32 * 1024 * 1024
"""How many bytes may wait at all: a server that takes none of them is as good as gone."""

TAKEN_WITHIN: Final = 20.0
"""Seconds that the server has to take what it is sent, for each ``AUDIO_WAITING`` bytes of it.

The library's own pings do not find out: they wait behind what is not taken.
"""

CLOSING: Final = 2.0
"""Seconds that the server has to agree to the end."""

_TAKES_NOTHING: Final = "the server takes nothing any more"
_AT_ONCE: Final = 64 * 1024
_FRAMES_WAITING: Final = 16
_LONGEST_BODY: Final = 500

_logger = logging.getLogger(__name__)
# The library logs the headers of the opening request, the key among them, where it is asked to log all.
_quiet = logging.getLogger(f"{__name__}.socket")
_quiet.setLevel(logging.INFO)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _NoRedirectConnect(connect):
    """Opens where it was told to and nowhere else: the headers hold a key."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class _Socket(ClientConnection):
    """Lets nothing pile up that the other end does not take: answers to pings are written by the library as they come."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_write_buffer_size() > MOST_WAITING:
            self.transport.abort()


class Connection:
    """An open WebSocket. ``send`` never waits; ``receive`` has one caller at a time.

    ``reason`` says, once it is over, why, and ``was_closed`` whether the server has said so. ``received`` counts bytes.
    """

    def __init__(self, socket: ClientConnection, *, secret: str = "") -> None:
        self._socket = socket
        self._secret = secret
        self._out: deque[bytes] = deque()
        self._waiting = 0
        self._wake: asyncio.Future[None] | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self._ended = False
        self.reason = ""
        self.was_closed = False
        self.received = 0
        self._has_complained = False  # of what is no JSON
        self._writer = asyncio.get_running_loop().create_task(self._write())

    @classmethod
    async def open(cls, url: str, headers: Mapping[str, str], *, seconds: float, max_frame: int, secret: str = "") -> Connection:
        """Open one within ``seconds``. Raises UpstreamError (``upstream_status``: what it answered), UpstreamTimeoutError."""
        place = urlsplit(url)
        server = place.netloc.rpartition("@")[2]  # in front of it may stand a password
        where = f"{place.scheme}://{server}{place.path}"
        kwargs: dict[str, Any] = {"proxy": None} if _is_without_proxy(place.hostname or "") else {}
        if place.scheme == "wss":
            kwargs["ssl"] = trusted()
        try:
            socket = await _NoRedirectConnect(
                url,
                additional_headers=dict(headers),
                compression=None,  # audio does not get smaller, and each connection would keep its own window
                open_timeout=seconds,
                close_timeout=CLOSING,
                max_size=max_frame,
                max_queue=_FRAMES_WAITING,
                logger=_quiet,
                create_connection=_Socket,
                **kwargs,
            )
        except InvalidStatus as error:
            said = _beginning(error.response.body or b"", secret)
            status = error.response.status_code
            raise UpstreamError(
                without(secret, f"The model's server at {where} refused the connection: HTTP {status} {said}".rstrip()),
                upstream_status=status,
                body=said,
            ) from None
        except TimeoutError:
            raise UpstreamTimeoutError(f"The model's server at {where} did not answer within {seconds} s.") from None
        except ssl.SSLCertVerificationError as error:
            raise UpstreamError(
                f"The certificate of the model's server at {where} is not trusted: {error.verify_message.rstrip('.')}. "
                "A private authority's certificate is named by SSL_CERT_FILE."
            ) from None
        except (OSError, WebSocketException, EOFError, ValueError, ImportError) as error:
            what = without(secret, _why(error))
            raise UpstreamError(f"The model's server at {where} cannot be reached: {what}") from None
        return cls(socket, secret=secret)

    def send(self, frames: Iterable[Frame]) -> None:
        """Send frames, in order, behind all that is waiting. Whatever is sent on a connection that is over is lost."""
        if self._ended:
            return
        for frame in frames:
            text = _encoded(frame)
            self._out.append(text)
            self._waiting += len(text)
        if self._waiting > MOST_WAITING:
            self.abort(_TAKES_NOTHING)
        elif self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def room(self) -> None:
        """Wait until there is room for audio, or the connection is over."""
        while self._waiting > AUDIO_WAITING and not self._ended:
            waiter = asyncio.get_running_loop().create_future()
            self._room.append(waiter)
            await waiter

    async def receive(self) -> Any:
        """Return what the server sends next, decoded; what is no JSON is passed over. Raises EOFError when it is over."""
        try:
            while True:
                data = await self._socket.recv(decode=False)
                self.received += len(data)
                try:
                    return _decode(data)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    if not self._has_complained:
                        self._has_complained = True
                        _logger.warning("A model's server sent what is not JSON: %r", _beginning(data, self._secret)[:100])
        except ConnectionClosed as error:
            self.was_closed = error.rcvd is not None
            self._over(without(self._secret, _words(error)))
            raise EOFError(self.reason) from None

    def abort(self, reason: str) -> None:
        """End it without a word."""
        self._over(reason)
        self._socket.transport.abort()

    def hang_up(self, reason: str) -> None:
        """Take nothing more to send; what waits is sent. To be followed by ``close``."""
        self._over(reason, drop=False)

    async def close(self) -> None:
        """End it, with what was waiting sent where that is quick, and leave nothing running."""
        self.hang_up("closed by us")
        try:
            async with asyncio.timeout(CLOSING):
                await self._writer
                # What is still coming has to be read, or the server's own word of the end stays behind it.
                await asyncio.gather(self._socket.close(), self._read_out())
        except (TimeoutError, ConnectionClosed):
            pass
        finally:
            self._writer.cancel()
            self._socket.transport.abort()

    async def _read_out(self) -> None:
        """Read what is of no use any more."""
        while True:
            try:
                await self._socket.recv(decode=False)
            except (ConnectionClosed, ConcurrencyError):
                return

    async def _write(self) -> None:
        """Send what is waiting, as fast as the server takes it; one that takes nothing is given up."""
        out, socket = self._out, self._socket
        try:
            while True:
                while out:
                    size = self._hand_over()
                    if socket.transport.get_write_buffer_size():  # else there is nothing to wait for
                        async with asyncio.timeout(TAKEN_WITHIN * max(1, size / AUDIO_WAITING)):
                            await socket.drain()
                    self._waiting -= size
                    if self._room and self._waiting <= AUDIO_WAITING:
                        self._let_in()
                if self._ended:
                    return
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
        except TimeoutError:
            self.abort(_TAKES_NOTHING)
        except (ConnectionClosed, OSError):
            self._over("the connection broke")

    def _hand_over(self) -> int:
        """Give the socket what is waiting, in pieces of ``_AT_ONCE``; return how much.

        Frames that wait together, as results and the wish for an answer do, are one write, which costs more than a frame does.
        """
        out, protocol = self._out, self._socket.protocol
        if protocol.state is not State.OPEN:
            raise ConnectionResetError
        size = 0
        while out and size < _AT_ONCE:
            text = out.popleft()
            size += len(text)
            protocol.send_text(text)
        self._socket.transport.write(b"".join(protocol.data_to_send()))
        return size

    def _over(self, reason: str, *, drop: bool = True) -> None:
        if not self._ended:
            self._ended = True
            self.reason = reason
        if drop:
            self._out.clear()
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        self._let_in()

    def _let_in(self) -> None:
        while self._room:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)


@cache
def trusted() -> ssl.SSLContext:
    """What Python trusts: the system's certificates, or those of ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``.

    One for all connections: to read them takes milliseconds and a megabyte each time.
    """
    return ssl.create_default_context()


def _encoded(frame: Frame) -> bytes:
    """Return a frame as JSON. Half of a character, which no server can be sent, is replaced."""
    try:
        return _encode(frame)
    except UnicodeEncodeError:
        return well_formed(json.dumps(frame, ensure_ascii=False)).encode()


def _words(error: ConnectionClosed) -> str:
    """How the connection ended, as its last frame says."""
    closed = error.rcvd
    if closed is None:
        return "the connection broke"
    return f"the server closed it: {closed.code} {closed.reason}".rstrip()


def _why(error: Exception) -> str:
    """Return why a server cannot be reached, without the URL of a proxy: its password stands in there."""
    if isinstance(error, ImportError):
        return (
            "the environment names a SOCKS proxy, which needs the package python-socks."
            " Install it, or name the server's host in no_proxy."
        )
    is_of_url = isinstance(error, ValueError) and not isinstance(error, OSError)
    if isinstance(error, InvalidProxy) or (is_of_url and getproxies()):
        return "the environment names a proxy by a URL that is none. Mend it, or name the server's host in no_proxy."
    return str(error) or type(error).__name__


def _beginning(said: bytes | bytearray, secret: str) -> str:
    """Return what a server's words begin with. Cut first, they could end in the midst of the key."""
    return without(secret, said.decode("utf-8", "replace"))[:_LONGEST_BODY]


def _is_without_proxy(host: str) -> bool:
    """Whether a host is one that no proxy leads to: this machine, also by a name that ends in ``.localhost``."""
    return is_this_machine(host) or host.endswith(".localhost")


def without(secret: str, text: str) -> str:
    """Return a server's words without the key that it was given, which some repeat."""
    return text.replace(secret, "[redacted]") if len(secret) >= 8 else text


_MOST_NEWS: Final = 256
"""How much may be told before the session is confirmed: then there is hardly anything to be told of."""


class SetupRefusedError(UpstreamError):
    """A server was reached, and has said no to what a session was to begin with: its tools, or something else."""


@dataclass(eq=False)
class ProviderConnection:
    """A connection, and the language that is spoken on it. ``news`` is what has been heard and not been looked at."""

    connection: Connection
    dialect: Dialect
    secret: str = field(default="", repr=False)
    """The key: servers repeat it in what they say is wrong with it."""
    news: deque[ServerEvent] = field(default_factory=deque)

    async def next(self) -> ServerEvent:
        """Return what the server says next. Raises EOFError when the connection is over."""
        while not self.news:
            self.news.extend(self.dialect.read(await self.connection.receive()))
        news = self.news.popleft()
        if isinstance(news, ServerError):
            said = (news.message, news.code, news.param)
            message, code, param = (without(self.secret, text) for text in said)
            return replace(news, message=message, code=code, param=param)
        if isinstance(news, ResponseDone) and news.reason:
            return replace(news, reason=without(self.secret, news.reason))
        return news


async def open_wire(
    dialect: Dialect,
    settings: RealtimeSettings,
    opening: Callable[[], ConnectionSetup],
    *,
    lines: Callable[[], Sequence[Line]],
    refused: Callable[[ServerError], bool],
) -> ProviderConnection:
    """Open a connection and configure it.

    ``opening`` is asked again where the server has refused something of it and ``refused`` has mended that. ``lines`` are what
    was said until the connection is ready: they are asked for last, and nothing is waited for behind that. Raises UpstreamError
    (NotTakenError where the server says no), UpstreamTimeoutError, ConfigurationError where there is no key.
    """
    limits = settings.limits
    key = key_for(settings, type(dialect))
    connection = await Connection.open(
        dialect.url(), dialect.headers(key), seconds=limits.connect, max_frame=limits.max_frame, secret=key
    )
    wire = ProviderConnection(connection, dialect, key)
    try:
        async with asyncio.timeout(limits.connect + limits.update):
            last = await _configure(wire, opening, lines, refused)
        if said := lines():
            connection.send(dialect.recalling(replace(last, lines=said)))
    except EOFError as error:
        await connection.close()
        kind = SetupRefusedError if connection.was_closed else UpstreamError
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
    refused: Callable[[ServerError], bool],
) -> ConnectionSetup:
    connection, dialect = wire.connection, wire.dialect
    last = opening()
    connection.send(dialect.greeting(replace(last, lines=lines())))
    later: list[ServerEvent] = []
    configured = False
    while not configured:
        news = await wire.next()
        if isinstance(news, SessionOpened):
            if not news.configured:
                last = opening()
                connection.send(dialect.configuring(last))
            configured = news.configured
        elif isinstance(news, SessionUpdated):
            configured = True
        elif isinstance(news, ServerError):
            if not refused(news):
                raise SetupRefusedError(f"The model's server refused the session: {news.message}")
            last = opening()
            connection.send(dialect.configuring(last))
        else:
            later.append(news)
            if len(later) > _MOST_NEWS or connection.received > MOST_WAITING:
                raise UpstreamError("The model's server says more than it may before it has confirmed the session.")
    wire.news.extendleft(reversed(later))
    return last
