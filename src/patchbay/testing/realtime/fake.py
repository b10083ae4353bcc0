"""FakeRealtime: a provider's WebSocket server on loopback that plays a script and records rule violations."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final, Self, TypeAlias, TypeVar
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.protocol import State

from patchbay.errors import ConfigurationError
from patchbay.testing.realtime.records import FakeState
from patchbay.testing.realtime.script import Faults, Step, as_answers
from patchbay.testing.realtime.session import FakeConnection

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
        """Run ``work`` in the server's thread and return its result; for calls from other threads."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_ANSWER_SECONDS)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        silent = logging.getLogger("patchbay.testing.realtime.fake")
        silent.setLevel(logging.CRITICAL + 1)  # handshakes are cut on purpose
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


_OVER: Final = "The latest connection is over: a client has to connect again first."


class FakeRealtime(FakeState):
    """A provider's realtime server on loopback whose model follows a script; a context manager for sync and async tests.

        with FakeOpenAI([Call("get_weather", {"city": "Rome"}), Quote()]) as fake:
            ...  # a client at fake.url
        assert fake.violations == []
        assert fake.unanswered == []

    Each response is the next step of ``script``; after the last one the model quotes its input (``Quote``). ``api_key`` is the
    accepted key (None: any). ``hears`` are the transcripts of the user's speech, one for each turn. A turn ends where the client
    ends it, and, in a session that detects turns, after each ``utterance`` bytes of audio (None: never). Within ``crossing``
    seconds a client may not have received a frame of the server. ``tls`` is the server's TLS context: then ``url`` begins with
    ``wss``. Raises ValueError for an invalid script.
    """

    provider: ClassVar[str]
    path: ClassVar[str]
    """The path of the WebSocket."""

    _connection_class: ClassVar[type[FakeConnection]]

    def __init__(
        self,
        script: Sequence[Step] = (),
        *,
        faults: Faults | None = None,
        api_key: str | None = None,
        hears: Sequence[str] = (),
        utterance: int | None = None,
        crossing: float = 0.5,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if utterance is not None and utterance < 1:
            raise ConfigurationError(f"An utterance has at least 1 byte, not {utterance!r}.")
        super().__init__(as_answers(script), faults or Faults(), hears=hears, utterance=utterance, crossing=crossing)
        self._api_key = api_key
        self._port = port
        self._tls = tls
        self._connections: list[FakeConnection] = []
        self._server: LoopbackServer | None = None

    def __enter__(self) -> Self:
        self._server = LoopbackServer(self._admit, self._handle, port=self._port, name=f"fake-{self.provider}", tls=self._tls)
        host, port = self._server.start()
        self.address = f"{host}:{port}"
        self.url = f"{'ws' if self._tls is None else 'wss'}://{self.address}{self.path}"
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.stop()

    # Assertions

    @property
    def unasked(self) -> list[str]:
        """Ids of responses whose calls all have results while no further response was requested."""
        return [each.unasked for each in self._connections if each.unasked]

    @property
    def idle(self) -> bool:
        """True if no response is in progress and no result expected, as far as frames have been received."""
        return all(each.idle for each in self._connections)

    def wait_until(self, condition: Callable[[], bool], *, within: float = 60.0) -> None:
        """Wait until a condition on received frames holds. Raises TimeoutError after ``within`` seconds."""
        with self._change:
            if not self._change.wait_for(condition, within):
                raise TimeoutError(f"Not within {within} s; {len(self.frames)} frames came, violations: {self.violations}")

    async def until(self, condition: Callable[[], bool], *, within: float = 60.0) -> None:
        """Wait as ``wait_until`` does, in a coroutine."""
        await asyncio.to_thread(self.wait_until, condition, within=within)

    # Actions on the latest connection, from any thread. They raise RuntimeError if it is closed or there is none.

    def drop(self) -> None:
        """Abort the connection, without a close frame; a closed one may be dropped again."""
        self._now(self._newest().drop())

    def speak(self, text: str) -> None:
        """Speak as the user: the response in progress is interrupted, and the next one begins."""
        self._now(self._latest().user_speaks(text))

    def cancel(self, *call_ids: str) -> None:
        """Cancel calls without a result, all without ``call_ids`` (Gemini)."""
        self._now(self._latest().cancel_calls(call_ids or None))

    def go_away(self, seconds: float) -> None:
        """Announce the end of the connection in ``seconds`` (Gemini), and abort it then."""
        self._now(self._latest().go_away(seconds))

    def send(self, frame: Mapping[str, Any]) -> None:
        """Send a frame unchanged."""
        self._now(self._latest().send(frame))

    def _newest(self) -> FakeConnection:
        if not self._connections:
            raise RuntimeError("No client has connected yet.")
        return self._connections[-1]

    def _latest(self) -> FakeConnection:
        connection = self._newest()
        if connection.socket.state is not State.OPEN:
            raise RuntimeError(_OVER)
        return connection

    def _now(self, work: Coroutine[Any, Any, None]) -> None:
        if self._server is None:
            raise RuntimeError("The fake does not run.")
        try:
            self._server.run(work)
        except ConnectionClosed:
            raise RuntimeError(_OVER) from None

    def _admit(self, socket: ServerConnection, request: Request) -> Response | None:
        self.attempts += 1
        self.changed()
        if self.attempts <= self.faults.refuse:
            if self.faults.refuse_with == "503":
                return socket.respond(HTTPStatus.SERVICE_UNAVAILABLE, "The server is overloaded.\n")
            socket.transport.abort()
            return socket.respond(HTTPStatus.SERVICE_UNAVAILABLE, "")  # not sent: the connection is gone
        address = urlsplit(request.path)
        if not self.serves(address.path):
            self.violate(0, f"connected to {address.path}")
            return socket.respond(HTTPStatus.NOT_FOUND, "Not found.\n")
        key = self.key(request, parse_qs(address.query))
        if not key or (self._api_key is not None and key != self._api_key):
            return socket.respond(HTTPStatus.UNAUTHORIZED, "Incorrect API key provided.\n")
        return None

    def serves(self, path: str) -> bool:
        """True if the WebSocket is at ``path``."""
        return path == self.path

    def key(self, request: Request, query: Mapping[str, list[str]]) -> str:  # noqa: ARG002  (Gemini reads it)
        """Return the key that a client has sent."""
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        return key if scheme == "Bearer" else ""

    async def _handle(self, socket: ServerConnection) -> None:
        self.connections += 1
        connection = self._connection_class(self, socket, self.connections)
        self._connections.append(connection)
        self.tools = []
        self.changed()
        await connection.serve()
        self.changed()
