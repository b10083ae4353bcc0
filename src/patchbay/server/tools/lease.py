"""Callbacks that are gone: hidden at once, dropped after a while if they are a plugin's, and back when they answer again.

What lives here: the count of connections that failed in a row, and looking after every callback from time to time. What does not:
calling one (``dispatch``). A tool whose process is gone stays registered, and keeps its name, but no model is told of it.

    a connection fails      its tools are hidden; the third time in a row those of ``plugin:*`` are dropped
    a connection succeeds   they are shown
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final, NamedTuple

from patchbay.server.client import ClientError, Origin
from patchbay.server.tools.callback_url import CallbackUrlError, read_callback_url
from patchbay.tools.registry import Change, ToolRegistry

PLUGIN: Final = "plugin:"
"""How the sources begin whose tools are dropped: a plugin's host registers them again when it is back."""

AT_ONCE: Final = 32
"""How many callbacks are looked after at the same time."""

_logger = logging.getLogger(__name__)

Reaches = Callable[["Place", str, float], Awaitable[bool]]


class Place(NamedTuple):
    """Who registered a tool, and where it answers (``scheme://host:port``)."""

    source: str
    origin: str


class Lease:
    """Counts for each place how many connections have failed in a row. For one event loop at a time.

    The registry is given after it was made (``registry``), since its tools are made with this. ``tell`` is called with each
    change that is made here, which no request waits for.
    """

    def __init__(self, *, max_failures: int, connect_timeout: float) -> None:
        self.registry: ToolRegistry | None = None
        self.tell: Callable[[Change], object] | None = None
        self._max_failures = max_failures
        self._connect_timeout = connect_timeout
        self._failures: dict[Place, int] = {}

    def failed(self, place: Place) -> None:
        """Note that a connection failed: refused, or not made in time."""
        assert self.registry is not None
        count = self._failures[place] = self._failures.get(place, 0) + 1
        if count >= self._max_failures and place.source.startswith(PLUGIN):
            self._failures.pop(place, None)
            change = self.registry.clear(place.source, origin=place.origin, inside=True)
            self._made(change, "Nobody answers at %s: the tools of %s there are dropped", place)
        else:
            change = self.registry.hide(place.source, origin=place.origin)
            self._made(change, "Nobody answers at %s: the tools of %s there are hidden", place)

    def reached(self, place: Place) -> None:
        """Note that a connection was made: what was hidden is shown, and failures are counted anew."""
        assert self.registry is not None
        if self._failures.pop(place, None) is not None:
            change = self.registry.show(place.source, origin=place.origin)
            self._made(change, "Somebody answers at %s again: the tools of %s there are back", place)

    def renewed(self, place: Place) -> None:
        """Note that a tool was registered there: it is counted anew, and what is hidden stays so until somebody answers."""
        if place in self._failures:
            self._failures[place] = 0

    def places(self) -> dict[Place, str]:
        """Return where callbacks are, each with one of its URLs."""
        assert self.registry is not None
        return {
            Place(each.source, each.origin): each.callback_url
            for each in self.registry.registrations()
            if each.callback_url is not None and each.origin is not None
        }

    def _made(self, change: Change, message: str, place: Place) -> None:
        if change.changed:
            _logger.warning(message, place.origin, place.source)
            if self.tell is not None:
                self.tell(change)

    async def look(self) -> Collection[str]:
        """Try to connect to every callback, once for each origin; return the origins."""
        places = self.places()
        urls = {place.origin: url for place, url in places.items()}
        slots = asyncio.Semaphore(AT_ONCE)

        async def reached(url: str) -> bool:
            async with slots:
                return await _answers(url, self._connect_timeout)

        found = dict(zip(urls, await asyncio.gather(*map(reached, urls.values())), strict=True))
        still = self.places()
        for place in places:
            if place in still:  # it may have been removed meanwhile
                (self.reached if found[place.origin] else self.failed)(place)
        for place in [each for each in self._failures if each not in still]:
            del self._failures[place]
        return urls.keys()

    async def watch(self, interval: float, looked: Callable[[Collection[str]], Awaitable[None]]) -> None:
        """Look every ``interval`` seconds, for ever, and tell ``looked`` of the origins that there are."""
        while True:
            try:
                await looked(await self.look())
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
