"""Where a tool may be called back: on this machine, and nowhere that a name or a trick of notation could lead to.

What lives here: the rule, and what a request to such a URL needs. What does not: any request. A URL that passed cannot come to
mean another machine later: it holds an address, or ``localhost``, which is never looked up.

Callbacks that are gone: hidden at once, dropped after a while if they are a plugin's, and back when they answer again.

What lives here: the count of connections that failed in a row, and looking after every callback from time to time. What does not:
calling one (``dispatch``). A tool whose process is gone stays registered, and keeps its name, but no model is told of it.

    a connection fails      its tools are hidden; the third time in a row those of ``plugin:*`` are dropped
    a connection succeeds   they are shown

An origin that stays dead is looked at less and less often, and only so many of the dead ones at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

from patchbay.loopback import ADDRESSES_OF_LOCALHOST, LOCALHOST, is_loopback_address
from patchbay.server.origin import ClientError, Origin
from patchbay.tools.registry import Change, ToolRegistry

_USUAL_PORTS = {"http": 80, "https": 443}
_KEPT = "%/:?#[]@!$&'()*+,;=-._~"
"""What stands in a request's target as it is. All else is written with percent signs."""


class CallbackUrlError(ValueError):
    """A URL that no tool may be called back at; its message says why, for whoever registers the tool."""


@dataclass(frozen=True)
class CallbackUrl:
    """A URL that was checked. ``origin`` is its ``scheme://host:port``; ``addresses`` are all that may be connected to.

    ``target`` is what stands in the request line.
    """

    origin: str
    port: int
    addresses: tuple[str, ...]
    target: bytes


def read_callback_url(url: str) -> CallbackUrl:
    """Check a URL and take it apart; raises CallbackUrlError."""
    parts, port = _split(url)
    if parts.scheme not in _USUAL_PORTS:
        raise CallbackUrlError(f"callback_url must begin with http:// or https://, not {parts.scheme!r}")
    host = parts.hostname
    if not host:
        raise CallbackUrlError("callback_url has no host")
    if host != LOCALHOST and not is_loopback_address(host):
        raise CallbackUrlError(f"callback_url must lead to this machine (127.0.0.0/8, ::1 or localhost), not to {host!r}")
    if "@" in parts.netloc:
        raise CallbackUrlError("callback_url must not hold a user or a password")
    if port == 0:
        raise CallbackUrlError("callback_url has a port that cannot be connected to: 0")
    port = port if port is not None else _USUAL_PORTS[parts.scheme]
    shown = f"[{host}]" if ":" in host else host
    target = quote(parts.path or "/", safe=_KEPT) + (f"?{quote(parts.query, safe=_KEPT)}" if parts.query else "")
    addresses = ADDRESSES_OF_LOCALHOST if host == LOCALHOST else (host,)
    return CallbackUrl(f"{parts.scheme}://{shown}:{port}", port, addresses, target.encode())


def check_port(callback: CallbackUrl, *, own: Collection[int], allowed: Collection[int] | None) -> None:
    """Raise CallbackUrlError for a port of this server (``own``), and, where a list is given, for one that is not ``allowed``."""
    if callback.port in own:
        raise CallbackUrlError(f"callback_url has this server's own port, {callback.port}")
    if allowed is not None and callback.port not in allowed:
        raise CallbackUrlError(f"callback_url has the port {callback.port}, which callbacks may not have here")


def _split(url: str) -> tuple[SplitResult, int | None]:
    # urlsplit takes line breaks and tabs out of a URL, and browsers read a backslash as a slash: others would see another URL.
    if "\\" in url or url != url.strip() or any(ord(char) < 32 or ord(char) == 127 for char in url):
        raise CallbackUrlError("callback_url holds a control character, a backslash, or blanks around it")
    try:
        parts = urlsplit(url)
        _ = parts.hostname
    except ValueError as error:
        raise CallbackUrlError(f"callback_url cannot be read: {error}") from None
    try:
        return parts, parts.port
    except ValueError:
        raise CallbackUrlError("callback_url has a port that is no number from 1 to 65535") from None


PLUGIN: Final = "plugin:"
"""How the sources begin whose tools are dropped: a plugin's host registers them again when it is back."""

AT_ONCE: Final = 32
"""How many callbacks are looked after at the same time."""

DEAD_AT_ONCE: Final = 100
"""How many origins that are known to be dead are looked after in one look."""

REST: Final = 15
"""How many looks may pass until a dead origin is looked after again."""

UNWATCHED: Final = 30.0
"""Seconds for which tools are hidden where nobody looks whether their callback is back."""

_logger = logging.getLogger(__name__)


class CallbackEndpoint(NamedTuple):
    """Who registered a tool, and where it answers (``scheme://host:port``)."""

    source: str
    origin: str


@dataclass(slots=True)
class _DeadOrigin:
    """An origin that did not answer: how often in a row, and the number of the look that it is due in."""

    failures: int = 0
    next_look: int = 0


class CallbackHealth:
    """Counts for each place how many connections have failed in a row. For one event loop at a time.

    The registry is given after it was made (``registry``), since its tools are made with this. ``tell`` is called with each
    change that is made here, which no request waits for. Where nobody will ``watch`` (``is_watched``), what is hidden is shown
    again after UNWATCHED.
    """

    def __init__(self, *, max_failures: int, connect_timeout: float, is_watched: bool = True) -> None:
        self.registry: ToolRegistry | None = None
        self.on_change: Callable[[Change], object] | None = None
        self._max_failures = max_failures
        self._connect_timeout = connect_timeout
        self._is_watched = is_watched
        self._failures: dict[CallbackEndpoint, int] = {}
        self._dead: dict[str, _DeadOrigin] = {}
        self._looks = 0

    def failed(self, place: CallbackEndpoint) -> None:
        """Note that a connection failed: refused, or not made in time."""
        assert self.registry is not None
        count = self._failures[place] = self._failures.get(place, 0) + 1
        if count >= self._max_failures and place.source.startswith(PLUGIN):
            self._failures.pop(place, None)
            change = self.registry.clear(place.source, origin=place.origin, inside=True)
            self._made(change, "Nobody answers at %s: the tools of %s there are dropped", place)
        elif count == 1 or not self._is_watched:  # else they are hidden already, and hiding is a walk through the registry
            change = self.registry.hide(place.source, origin=place.origin)
            self._made(change, "Nobody answers at %s: the tools of %s there are hidden", place)
            if change.changed and not self._is_watched:
                asyncio.get_running_loop().call_later(UNWATCHED, self._try_again, place)

    def _try_again(self, place: CallbackEndpoint) -> None:
        assert self.registry is not None
        change = self.registry.show(place.source, origin=place.origin)
        self._made(change, "Nobody looks after %s: the tools of %s there are shown again", place)

    def succeeded(self, place: CallbackEndpoint) -> None:
        """Note that a connection was made: what was hidden is shown, and failures are counted anew."""
        assert self.registry is not None
        self._dead.pop(place.origin, None)
        if self._failures.pop(place, None) is not None:
            change = self.registry.show(place.source, origin=place.origin)
            self._made(change, "Somebody answers at %s again: the tools of %s there are back", place)

    def renewed(self, place: CallbackEndpoint) -> None:
        """Note that a tool was registered there: it is counted anew, and what is hidden stays so until somebody answers."""
        self._dead.pop(place.origin, None)
        if place in self._failures:
            self._failures[place] = 0

    def endpoints(self) -> dict[CallbackEndpoint, str]:
        """Return where callbacks are, each with one of its URLs."""
        assert self.registry is not None
        return {
            CallbackEndpoint(each.source, each.origin): each.callback_url
            for each in self.registry.registrations()
            if each.callback_url is not None and each.origin is not None
        }

    def _made(self, change: Change, message: str, place: CallbackEndpoint) -> None:
        if change.changed:
            _logger.warning(message, place.origin, place.source)
            if self.on_change is not None:
                self.on_change(change)

    async def check(self) -> Collection[str]:
        """Try to connect to every callback whose turn it is, once for each origin; return all origins."""
        places = self.endpoints()
        urls = {place.origin: url for place, url in places.items()}
        self._looks += 1
        now = self._due(urls)
        slots = asyncio.Semaphore(AT_ONCE)

        async def reached(url: str) -> bool:
            async with slots:
                return await _answers(url, self._connect_timeout)

        found = dict(zip(now, await asyncio.gather(*(reached(urls[origin]) for origin in now)), strict=True))
        still = self.endpoints()
        for origin, is_there in found.items():
            if not is_there:
                dead = self._dead.setdefault(origin, _DeadOrigin())
                dead.failures += 1
                dead.next_look = self._looks + min(2 ** max(dead.failures - self._max_failures, 0), REST)
        for place in places:
            if place in still and place.origin in found:  # it may have been removed meanwhile
                (self.succeeded if found[place.origin] else self.failed)(place)
                await asyncio.sleep(0)  # where thousands die together, others have their turn meanwhile
        for place in [each for each in self._failures if each not in still]:
            del self._failures[place]
        origins = {place.origin for place in still}
        self._dead = {origin: dead for origin, dead in self._dead.items() if origin in origins}
        return urls.keys()

    def _due(self, origins: Collection[str]) -> list[str]:
        """Return the origins to look after now: those not known to be dead, and the dead that have waited longest."""
        due = [(dead.next_look, each) for each in origins if (dead := self._dead.get(each)) and dead.next_look <= self._looks]
        return [each for each in origins if each not in self._dead] + [each for _, each in sorted(due)[:DEAD_AT_ONCE]]

    async def run(self, interval: float, looked: Callable[[Collection[str]], Awaitable[None]]) -> None:
        """Look every ``interval`` seconds, for ever, and tell ``looked`` of the origins that there are."""
        while True:
            try:
                await looked(await self.check())
            except Exception:
                _logger.exception("The callbacks could not be looked after")
            await asyncio.sleep(interval)


async def _answers(url: str, limit: float) -> bool:
    """Whether a connection to a callback can be made. Nothing is sent on it."""
    try:
        callback = read_callback_url(url)
    except CallbackUrlError:
        return False
    # Only as far as TCP goes: a handshake of TLS for each look would cost its server much more.
    origin = Origin(f"http://{callback.origin.partition('://')[2]}", addresses=callback.addresses)
    with contextlib.suppress(ClientError):
        protocol = await origin.connect(_Closing, limit)
        protocol.close()
        return True
    return False


class _Closing(asyncio.Protocol):
    """A connection that is only made to see whether it can be."""

    _transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
