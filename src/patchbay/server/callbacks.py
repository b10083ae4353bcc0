"""Callback URLs, which must lead to this machine or to allowed hosts, and health checks of the callbacks behind them.

    a connection fails      its tools are hidden; at the third in a row those of ``plugin:*`` are dropped
    a connection succeeds   they are shown
    none for a day          instances are removed of which another one can be reached

A tool whose process is gone stays registered and keeps its name, but models do not see it. Only some of the dead origins are
checked at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

from patchbay.loopback import ADDRESSES_OF_LOCALHOST, LOCALHOST, is_loopback_address
from patchbay.server.callback_hosts import CallbackHosts
from patchbay.server.origin import ClientError, Origin, is_address
from patchbay.server.settings import ToolsSettings
from patchbay.tools.registry import Change, ToolRegistry

NO_HOSTS: Final = CallbackHosts()
_DEFAULT_PORTS = {"http": 80, "https": 443}
_UNESCAPED = "%/:?#[]@!$&'()*+,;=-._~"
"""Characters of a request target that are not percent-encoded."""


class CallbackUrlError(ValueError):
    """A URL that is not allowed as a callback; the message is for the caller that registers the tool."""


@dataclass(frozen=True)
class CallbackUrl:
    """A validated URL. It leads to this machine (an address, or ``localhost``, which is never looked up) or to an allowed host.

    ``origin`` is ``scheme://host:port``, ``addresses`` are the only ones to connect to, ``target`` is that of the request line.
    A name has no addresses: those that it has at each connection are checked then.
    """

    origin: str
    port: int
    addresses: tuple[str, ...]
    target: bytes
    is_here: bool = True


def read_callback_url(url: str, hosts: CallbackHosts | None = NO_HOSTS) -> CallbackUrl:
    """Validate and parse a URL. ``hosts`` are those allowed on other machines, None for any. Raises CallbackUrlError."""
    parts, port = _split(url)
    if parts.scheme not in _DEFAULT_PORTS:
        raise CallbackUrlError(f"callback_url must begin with http:// or https://, not {parts.scheme!r}")
    host = parts.hostname
    if not host:
        raise CallbackUrlError("callback_url has no host")
    is_here = host == LOCALHOST or is_loopback_address(host)
    if not is_here and hosts is not None and not hosts.allows(host):
        raise CallbackUrlError(
            f"callback_url must lead to this machine (127.0.0.0/8, ::1 or localhost), not to {host!r}, unless the server is "
            "started with --callback-hosts and that host's name, address or network"
        )
    if "@" in parts.netloc:
        raise CallbackUrlError("callback_url must not contain a user or a password")
    if port == 0:
        raise CallbackUrlError("callback_url has a port that cannot be connected to: 0")
    port = port if port is not None else _DEFAULT_PORTS[parts.scheme]
    netloc = f"[{host}]" if ":" in host else host
    target = quote(parts.path or "/", safe=_UNESCAPED) + (f"?{quote(parts.query, safe=_UNESCAPED)}" if parts.query else "")
    addresses = ADDRESSES_OF_LOCALHOST if host == LOCALHOST else (host,) if is_address(host) else ()
    return CallbackUrl(f"{parts.scheme}://{netloc}:{port}", port, addresses, target.encode(), is_here)


def check_port(callback: CallbackUrl, *, own: Collection[int], allowed: Collection[int] | None) -> None:
    """Raise CallbackUrlError for a port of this server (``own``), and for one outside ``allowed`` if that is given."""
    if callback.port in own and callback.is_here:
        raise CallbackUrlError(f"callback_url has this server's own port, {callback.port}")
    if allowed is not None and callback.port not in allowed:
        raise CallbackUrlError(f"callback_url has the port {callback.port}, which is not allowed for callbacks here")


def _split(url: str) -> tuple[SplitResult, int | None]:
    # urlsplit takes line breaks and tabs out of a URL, and browsers read a backslash as a slash: others would see another URL.
    if "\\" in url or url != url.strip() or any(ord(char) < 32 or ord(char) == 127 for char in url):
        raise CallbackUrlError("callback_url contains a control character, a backslash, or blanks around it")
    try:
        parts = urlsplit(url)
        _ = parts.hostname
    except ValueError as error:
        raise CallbackUrlError(f"callback_url cannot be read: {error}") from None
    try:
        return parts, parts.port
    except ValueError:
        raise CallbackUrlError("callback_url has an invalid port: use 1 to 65535") from None


PLUGIN_PREFIX: Final = "plugin:"
"""Prefix of sources whose tools are dropped: a plugin's host registers them again when it is back."""

MAX_CONCURRENT_CHECKS: Final = 32
"""Maximum concurrent checks."""

MAX_DEAD_CHECKED: Final = 100
"""Maximum dead origins per check."""

GONE_SECONDS: Final = 24 * 3600.0
"""Seconds without a connection after which an instance is removed, if another one of its tool can be reached."""

HIDDEN_SECONDS: Final = 30.0
"""Seconds for which tools are hidden where callbacks are not checked."""

_logger = logging.getLogger(__name__)


class CallbackEndpoint(NamedTuple):
    """The source of a tool, and its callback's origin (``scheme://host:port``)."""

    source: str
    origin: str


class CallbackHealth:
    """Counts failed connections in a row per endpoint, and hides or drops tools. For one event loop at a time.

    ``registry`` is set after construction, since its tools need this. ``on_change`` is called with each change made here. Without
    checks (``lease`` 0), hidden tools are shown again after HIDDEN_SECONDS. Where other servers have the same tools
    (``is_shared``), nothing is dropped: they may reach what this one does not.
    """

    def __init__(self, settings: ToolsSettings) -> None:
        self.registry: ToolRegistry
        self.on_change: Callable[[Change], object] | None = None
        self.is_shared = False
        self.hosts = CallbackHosts(settings.callback_hosts)
        self._max_failures = settings.max_failures
        self._connect_timeout = settings.connect_timeout
        self._is_watched = settings.lease > 0
        self._failures: dict[CallbackEndpoint, int] = {}  # the one that has failed longest ago first
        self._failing_since: dict[CallbackEndpoint, float] = {}

    def failed(self, endpoint: CallbackEndpoint) -> None:
        """Count a failed connection: refused, or not made in time."""
        count = self._failures.pop(endpoint, 0) + 1
        self._failures[endpoint] = count
        self._failing_since.setdefault(endpoint, time.monotonic())
        if count >= self._max_failures and endpoint.source.startswith(PLUGIN_PREFIX) and not self.is_shared:
            del self._failures[endpoint]
            change = self.registry.clear(endpoint.source, origin=endpoint.origin, inside=True)
            self._report(change, "Callback %s unreachable; dropping tools of %s", endpoint)
        elif count == 1 or not self._is_watched:  # else they are hidden already, and hiding is a walk through the registry
            change = self.registry.hide(endpoint.source, origin=endpoint.origin)
            self._report(change, "Callback %s unreachable; hiding tools of %s", endpoint)
            if change.changed and not self._is_watched:
                asyncio.get_running_loop().call_later(HIDDEN_SECONDS, self._show_again, endpoint)

    def _show_again(self, endpoint: CallbackEndpoint) -> None:
        change = self.registry.show(endpoint.source, origin=endpoint.origin)
        self._report(change, "Callback %s is not checked; showing tools of %s again", endpoint)

    def succeeded(self, endpoint: CallbackEndpoint) -> None:
        """Reset the count, and show hidden tools."""
        self._failing_since.pop(endpoint, None)
        if self._failures.pop(endpoint, None) is not None:
            change = self.registry.show(endpoint.source, origin=endpoint.origin)
            self._report(change, "Callback %s reachable again; showing tools of %s", endpoint)

    def is_failing(self, endpoint: CallbackEndpoint) -> bool:
        """Whether the last connection failed. Without checks its end is not noticed, and each call tries again."""
        return self._is_watched and bool(self._failures.get(endpoint))

    def renewed(self, endpoint: CallbackEndpoint) -> None:
        """Reset the count for a new registration; hidden tools stay hidden until a connection succeeds."""
        if endpoint in self._failures:
            self._failures[endpoint] = 0
            self._failing_since.pop(endpoint, None)

    def endpoints(self) -> dict[CallbackEndpoint, str]:
        """Return the endpoints of all callbacks that can be reached from this machine, each with one of its URLs."""
        return {
            CallbackEndpoint(each.source, each.origin): each.callback_url
            for each in self.registry.registrations()
            if each.callback_url is not None and each.origin is not None and each.machine in ("", self.registry.machine)
        }

    def _report(self, change: Change, message: str, endpoint: CallbackEndpoint) -> None:
        if change.changed:
            _logger.warning(message, endpoint.origin, endpoint.source)
            if self.on_change is not None:
                self.on_change(change)

    async def check(self) -> None:
        """Try to connect to every origin that is not known to be dead, and to the dead ones that have waited longest."""
        endpoints = self.endpoints()
        urls = {endpoint.origin: url for endpoint, url in endpoints.items()}
        dead = dict.fromkeys(each.origin for each, failures in self._failures.items() if failures and each in endpoints)
        due = [each for each in urls if each not in dead] + list(dead)[:MAX_DEAD_CHECKED]
        slots = asyncio.Semaphore(MAX_CONCURRENT_CHECKS)

        async def reached(url: str) -> bool:
            async with slots:
                return await is_reachable(url, self._connect_timeout, self.hosts)

        found = dict(zip(due, await asyncio.gather(*(reached(urls[origin]) for origin in due)), strict=True))
        still = self.endpoints()
        for endpoint in endpoints:
            if endpoint in still and endpoint.origin in found:  # it may have been removed meanwhile
                (self.succeeded if found[endpoint.origin] else self.failed)(endpoint)
                await asyncio.sleep(0)  # thousands may die together: other tasks run meanwhile
        for endpoint in [each for each in self._failures if each not in still]:
            del self._failures[endpoint]
        self._failing_since = {each: since for each, since in self._failing_since.items() if each in still}
        self._remove_gone()

    def _remove_gone(self) -> None:
        """Remove instances that have not been reachable for GONE_SECONDS, of tools with another one that is.

        Where another server does reach it, its host registers it again.
        """
        until = time.monotonic() - GONE_SECONDS
        if not (gone := {each for each, since in self._failing_since.items() if since <= until}):
            return
        replicas = [
            (CallbackEndpoint(each.source, each.origin or ""), each)
            for each in self.registry.registrations()
            if each.instance and each.machine in ("", self.registry.machine)
        ]
        living = {(each.role, each.name) for endpoint, each in replicas if endpoint not in self._failing_since}
        for endpoint, each in replicas:
            if endpoint in gone and (each.role, each.name) in living:
                change = self.registry.unregister(
                    each.name, each.role, expected_source=each.source, instance=each.instance, inside=True
                )
                self._report(change, "Callback %s unreachable for a day; removing instances of %s", endpoint)

    async def check_forever(self, interval: float) -> None:
        """Check every ``interval`` seconds, forever."""
        while True:
            try:
                await self.check()
            except Exception:
                _logger.exception("The health check of callbacks failed")
            await asyncio.sleep(interval)


async def is_reachable(url: str, limit: float, hosts: CallbackHosts = NO_HOSTS) -> bool:
    """Return whether a TCP connection to a callback can be made. Nothing is sent on it."""
    try:
        callback = read_callback_url(url, hosts)
    except CallbackUrlError:
        return False
    # Only TCP: a TLS handshake for each check would cost its server much more.
    origin = origin_of(callback, hosts, f"http://{callback.origin.partition('://')[2]}")
    with contextlib.suppress(ClientError):
        (await origin.connect(_Closing, limit)).transport.close()
        return True
    return False


def origin_of(callback: CallbackUrl, hosts: CallbackHosts, url: str = "") -> Origin:
    """Return where to connect for a callback (``url``: instead of its own), at allowed addresses alone."""
    return Origin(url or callback.origin, addresses=callback.addresses, allows=hosts.allows_address)


class _Closing(asyncio.Protocol):
    """A connection made only for a check."""

    transport: asyncio.BaseTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
