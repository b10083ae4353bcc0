"""One answer, as its reader sees it: status, headers, and the body piece by piece as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Answer:
    """What a request got. ``status`` and ``headers`` (lower-case names) are there when ``HttpClient.request`` returns it.

    It has one reader, and is to be closed: where its body was not read to the end, that ends the connection at once.
    """

    __slots__ = (
        "_abort", "_chunks", "_error", "_loop", "_resume", "_sink", "_waiter", "complete", "headers", "status", "unread",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, abort: Callable[[], None]) -> None:
        self._loop = loop
        self._abort: Callable[[], None] | None = abort
        self._resume: Callable[[], None] | None = None
        self._chunks: list[bytes] = []
        self._error: BaseException | None = None
        self._sink: Callable[[bytes], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        """Whether the whole body has arrived. It may not have been read yet."""
        self.unread = 0
        """Bytes that came from the network since the last ``read``."""

    def header(self, name: bytes) -> str:
        """Return the first header of this lower-case name, or the empty string."""
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return ""

    @property
    def content_type(self) -> str:
        """The declared media type, in lower case and without parameters: ``text/event-stream``; empty where none is declared."""
        return self.header(b"content-type").partition(";")[0].strip().lower()

    async def read(self) -> bytes:
        """Return what has arrived of the body since the last call, waiting for something; ``b""`` is its end.

        Raises BrokenOffError where the body ends before it is complete, or what the body of the request raised.
        """
        chunks = self._chunks
        while not chunks:
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            await self._news()
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.unread = 0
        if self._resume is not None:
            resume, self._resume = self._resume, None
            resume()
        return data

    async def pass_to(self, sink: Callable[[bytes], bool]) -> None:
        """Give each piece to ``sink`` as it arrives, within the callback of the network, until it refuses one.

        What it refuses (by False) is for ``read``, as are the end and what ``sink`` raises.
        """
        if self._chunks or self.complete or self._error is not None:
            return
        self._sink = sink
        try:
            await self._news()
        finally:
            self._sink = None

    def close(self) -> None:
        """Let the connection go: at once, where the answer is not complete."""
        if self._abort is not None:
            self._abort()

    # Below: for the connection and the client.

    async def begun(self) -> None:
        """Wait for the head; raises what came instead of it."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._news()

    def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The head is there."""
        self.status = status
        self.headers = headers

    def take(self, chunk: bytes, received: int) -> bool:
        """A piece of the body is there; it took ``received`` bytes on the wire. True: it was passed on at once."""
        sink = self._sink
        if sink is not None:
            try:
                if sink(chunk):
                    return True
            except Exception as error:  # noqa: BLE001 - ``read`` raises it
                self._error = error
            self._sink = None
            if self._error is not None:
                return False
        self._chunks.append(chunk)
        self.unread += received
        return False

    def hold(self, resume: Callable[[], None]) -> None:
        """The connection reads no further; call ``resume`` when what is there was read."""
        self._resume = resume

    def finish(self) -> None:
        """The whole body is there, and the connection is no longer this answer's."""
        self.complete = True
        self._abort = self._resume = None

    def fail(self, error: BaseException) -> None:
        """Nothing more will come, because of ``error``."""
        self._error = self._error or error
        self._abort = self._resume = None
        self.wake()

    def wake(self) -> None:
        """Let the reader look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _news(self) -> asyncio.Future[None]:
        """A future that is done at the next ``wake``."""
        self._waiter = self._loop.create_future()
        return self._waiter
