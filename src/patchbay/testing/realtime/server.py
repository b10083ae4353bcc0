"""A WebSocket server in a thread with a loop of its own, so that tests of every kind can use it. Nothing of models or providers.

What lives here: the thread, the listening socket, how a handshake is refused. What does not: what is said on a connection
(``talk``), and the face that tests see (``fake``).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

_STOP_SECONDS = 10.0
_ANSWER_SECONDS = 10.0

T = TypeVar("T")

Admit: TypeAlias = Callable[[ServerConnection, Request], Response | None]
Handle: TypeAlias = Callable[[ServerConnection], Awaitable[None]]


class LoopbackServer:
    """Listens on a loopback port from ``start`` to ``stop``. ``admit`` may answer a handshake itself, ``handle`` has the rest.

    With ``tls`` it speaks ``wss``.
    """

    def __init__(self, admit: Admit, handle: Handle, *, port: int, name: str, tls: ssl.SSLContext | None = None) -> None:
        self._admit = admit
        self._handle = handle
        self._port = port
        self._name = name
        self._tls = tls
        self._live: set[ServerConnection] = set()

    def start(self) -> tuple[str, int]:
        """Listen, and return host and port. The socket listens before the thread is up, so a client may connect at once."""
        # asyncio turns Nagle's delay off only where the socket says that it is TCP; else each turn would take 40 ms more.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self._port))
        self._socket.listen(128)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name=self._name, daemon=True)
        self._thread.start()
        if not self._ready.wait(_STOP_SECONDS):
            raise RuntimeError(f"The {self._name} did not start.")
        host, port = self._socket.getsockname()
        return host, port

    def stop(self) -> None:
        """Abort all connections and stop the thread. Raises RuntimeError if it does not stop."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_STOP_SECONDS)
        self._socket.close()
        if self._thread.is_alive():
            raise RuntimeError(f"The {self._name} did not stop.")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` in the server's thread, called from any other one, and return what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_ANSWER_SECONDS)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        silent = logging.getLogger("patchbay.testing.realtime.server")
        silent.setLevel(logging.CRITICAL + 1)  # a handshake that is cut on purpose is no news
        async with serve(
            self._serve,
            sock=self._socket,
            ssl=self._tls,
            process_request=self._admit,
            max_size=None,
            ping_interval=None,
            compression=None,
            close_timeout=1,
            logger=silent,
        ):
            self._ready.set()
            await self._over.wait()
            for connection in self._live:
                connection.transport.abort()

    async def _serve(self, connection: ServerConnection) -> None:
        self._live.add(connection)
        try:
            await self._handle(connection)
        finally:
            self._live.discard(connection)
