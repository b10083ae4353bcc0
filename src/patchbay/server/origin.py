"""The server of a URL: name resolution, connecting to it, and the errors of the HTTP client.

A name may have several addresses, of which some may be dead ("localhost" is ``::1`` first, where few servers listen). They are
tried with staggered starts, and the first that connects wins (RFC 8305). uvloop has no such option.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit


class ClientError(Exception):
    """Base class of the HTTP client's errors."""


class LocalProtocolError(ClientError, ValueError):
    """The request cannot be sent: it would break its framing, or its body has another length than declared."""


class ConnectError(ClientError, ConnectionError):
    """No connection. ``reason`` is the system's: "Connection refused"."""

    def __init__(self, error: OSError) -> None:
        self.reason = _os_error_reason(error)
        super().__init__(self.reason)


class ConnectTimeoutError(ClientError, TimeoutError):
    """No connection within the time limit."""


class DisconnectedError(ClientError, ConnectionError):
    """The connection ended before the head of a response. ``silent``: without a single byte of it."""

    def __init__(self, message: str = "disconnected without an answer", *, silent: bool) -> None:
        super().__init__(message)
        self.silent = silent


class IncompleteResponse(ClientError, ConnectionError):  # noqa: N818  (as http.client.IncompleteRead)
    """The connection ended in the middle of a body, or the body's framing is broken."""


class RemoteProtocolError(ClientError, ValueError):
    """The response is not HTTP/1, or its head is too large."""


def _os_error_reason(error: OSError) -> str:
    if error.errno is not None and error.errno in errno.errorcode and not isinstance(error, ssl.SSLError | socket.gaierror):
        return os.strerror(error.errno)  # asyncio and uvloop word it differently
    return error.strerror or str(error)


_START_INTERVAL = 0.25
"""Seconds between the starts of two attempts."""

_ProtocolT = TypeVar("_ProtocolT", bound=asyncio.Protocol)


class Origin:
    """The server of an http:// or https:// URL. ``host`` is the Host header: the URL's, unless another is given.

    ``addresses`` are used instead of a lookup of the name; of those of a lookup only what ``allows`` allows is connected to.
    """

    __slots__ = ("_addresses", "_allows", "_host", "_is_address", "_options", "_port", "host")

    def __init__(
        self,
        url: str,
        *,
        host: str | None = None,
        tls: ssl.SSLContext | None = None,
        addresses: Sequence[str] = (),
        allows: Callable[[str], bool] | None = None,
    ) -> None:
        parts = urlsplit(url)
        name = parts.hostname or ""
        secure = parts.scheme == "https"
        usual = 443 if secure else 80
        self._host = unquote(name)  # the zone of a link-local address stands behind "%25"
        self._port = parts.port or usual
        if ":" in name:
            name = f"[{self._host.partition('%')[0]}]"
        else:
            name = self._host = name if name.isascii() else name.encode("idna").decode()
        self._is_address = is_address(self._host)
        self._options: dict[str, Any] = {}
        if secure:
            self._options = {"ssl": tls or _default_tls(), "server_hostname": self._host.partition("%")[0]}
        self._addresses = list(addresses)
        self._allows = allows
        self.host = (host or (name if self._port == usual else f"{name}:{self._port}")).encode()

    async def connect(self, make: Callable[[], _ProtocolT], limit: float) -> _ProtocolT:
        """Return a connected protocol created by ``make``. ``limit``: seconds for name resolution, TCP and TLS together.

        Raises ConnectError and ConnectTimeoutError.
        """
        try:
            async with asyncio.timeout(limit):
                addresses = await self._resolve()
                if len(addresses) == 1:
                    return (await self._try(make, addresses[0]))[1]
                return (await self._race(make, addresses))[1]
        except OSError as error:
            if isinstance(error, TimeoutError) and error.errno is None:  # with a number it is the system's, ETIMEDOUT
                raise ConnectTimeoutError(f"not connected within {limit:g} s") from error
            raise ConnectError(error) from error

    async def _resolve(self) -> list[str]:
        """Return the addresses of the host, alternating between the two families."""
        if self._addresses:
            return self._addresses
        if self._is_address:
            return [self._host]
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except UnicodeError as error:  # a label that is empty or too long
            raise OSError(f"invalid host name {self._host!r}") from error
        first = [str(entry[4][0]) for entry in found if entry[0] == found[0][0]]
        other = [str(entry[4][0]) for entry in found if entry[0] != found[0][0]]
        mixed = chain.from_iterable(zip_longest(first, other))
        addresses = list(dict.fromkeys(address for address in mixed if address is not None))
        if self._allows is None or (allowed := [each for each in addresses if self._allows(each)]):
            return addresses if self._allows is None else allowed
        raise OSError(f"{self._host} has the address {addresses[0]}, which --callback-hosts does not allow")

    async def _try(self, make: Callable[[], _ProtocolT], address: str) -> tuple[asyncio.Transport, _ProtocolT]:
        return await asyncio.get_running_loop().create_connection(make, address, self._port, **self._options)

    async def _race(self, make: Callable[[], _ProtocolT], addresses: list[str]) -> tuple[asyncio.Transport, _ProtocolT]:
        loop = asyncio.get_running_loop()
        running: set[asyncio.Task[tuple[asyncio.Transport, _ProtocolT]]] = set()
        left = iter(addresses)
        address = next(left, None)
        failure: BaseException | None = None
        try:
            while running or address is not None:
                if address is not None:
                    running.add(loop.create_task(self._try(make, address)))
                    address = next(left, None)
                done, running = await asyncio.wait(
                    running, timeout=None if address is None else _START_INTERVAL, return_when=asyncio.FIRST_COMPLETED
                )
                for attempt in done:
                    if (error := attempt.exception()) is None:
                        running |= done - {attempt}
                        return attempt.result()
                    failure = failure or error
        finally:
            for attempt in running:
                attempt.add_done_callback(_discard)
                attempt.cancel()
        assert failure is not None
        raise failure


def _discard(attempt: asyncio.Task[tuple[asyncio.Transport, _ProtocolT]]) -> None:
    """Close a connection that came after another had won, and retrieve a failure: asyncio logs unretrieved ones."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result()[0].abort()


def is_address(host: str) -> bool:
    """Whether a host is an address, and no name."""
    if ":" in host:
        return True
    try:
        socket.inet_pton(socket.AF_INET, host)
    except OSError:
        return False
    return True


def _default_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
