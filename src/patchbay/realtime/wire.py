"""A connection that is ready to talk: opened, greeted, configured with tools, told what was said before.

What lives here: the handshake. What does not: what is said afterwards (``talk``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from patchbay.errors import UpstreamError, UpstreamTimeoutError
from patchbay.realtime.connection import MOST_WAITING, Connection, without
from patchbay.realtime.dialect import Dialect, Line, Opening
from patchbay.realtime.news import Configured, News, Opened, Refused, ResponseEnded
from patchbay.realtime.settings import RealtimeSettings
from patchbay.realtime.table import key_for

_MOST_NEWS: Final = 256
"""How much may be told before the session is confirmed: then there is hardly anything to be told of."""


class NotTakenError(UpstreamError):
    """A server was reached, and has said no to what a session was to begin with: its tools, or something else."""


@dataclass(eq=False)
class Wire:
    """A connection, and the language that is spoken on it. ``news`` is what has been heard and not been looked at."""

    connection: Connection
    dialect: Dialect
    secret: str = field(default="", repr=False)
    """The key: servers repeat it in what they say is wrong with it."""
    news: deque[News] = field(default_factory=deque)

    async def next(self) -> News:
        """Return what the server says next. Raises EOFError when the connection is over."""
        while not self.news:
            self.news.extend(self.dialect.read(await self.connection.receive()))
        news = self.news.popleft()
        if isinstance(news, Refused):
            said = (news.message, news.code, news.param)
            message, code, param = (without(self.secret, text) for text in said)
            return replace(news, message=message, code=code, param=param)
        if isinstance(news, ResponseEnded) and news.reason:
            return replace(news, reason=without(self.secret, news.reason))
        return news


async def open_wire(
    dialect: Dialect,
    settings: RealtimeSettings,
    opening: Callable[[], Opening],
    *,
    lines: Callable[[], Sequence[Line]],
    refused: Callable[[Refused], bool],
) -> Wire:
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
    wire = Wire(connection, dialect, key)
    try:
        async with asyncio.timeout(limits.connect + limits.update):
            last = await _configure(wire, opening, lines, refused)
        if said := lines():
            connection.send(dialect.recalling(replace(last, lines=said)))
    except EOFError as error:
        await connection.close()
        kind = NotTakenError if connection.was_closed else UpstreamError
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
    wire: Wire,
    opening: Callable[[], Opening],
    lines: Callable[[], Sequence[Line]],
    refused: Callable[[Refused], bool],
) -> Opening:
    connection, dialect = wire.connection, wire.dialect
    last = opening()
    connection.send(dialect.greeting(replace(last, lines=lines())))
    later: list[News] = []
    configured = False
    while not configured:
        news = await wire.next()
        if isinstance(news, Opened):
            if not news.configured:
                last = opening()
                connection.send(dialect.configuring(last))
            configured = news.configured
        elif isinstance(news, Configured):
            configured = True
        elif isinstance(news, Refused):
            if not refused(news):
                raise NotTakenError(f"The model's server refused the session: {news.message}")
            last = opening()
            connection.send(dialect.configuring(last))
        else:
            later.append(news)
            if len(later) > _MOST_NEWS or connection.received > MOST_WAITING:
                raise UpstreamError("The model's server says more than it may before it has confirmed the session.")
    wire.news.extendleft(reversed(later))
    return last
