"""One connection of a fake: frames in and out, the faults of the wire, and what goes on beside. Nothing of what frames mean.

What lives here: reading, sending, aborting. What does not: what is said (``talk``), and the listening socket (``server``).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

if TYPE_CHECKING:
    from patchbay.testing.realtime.fake import FakeRealtime

_BARRIER_SECONDS = 2.0
_FRAGMENT = 7
"""Bytes of a fragment: odd, so that cuts fall within characters."""


class Line(ABC):
    """A connection, numbered from 1, ``alive`` until it has ended."""

    def __init__(self, fake: FakeRealtime, socket: ServerConnection, number: int) -> None:
        self.fake = fake
        self.socket = socket
        self.number = number
        self.alive = True
        self._taking = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._noise = itertools.cycle(self.noise()) if fake.faults.noise else None
        self._sent = 0

    @abstractmethod
    async def greet(self) -> None:
        """Send what the server says first."""

    @abstractmethod
    async def take(self, frame: dict[str, Any]) -> None:
        """Take a frame of the client."""

    @abstractmethod
    def noise(self) -> list[dict[str, Any]]:
        """Return frames that mean nothing."""

    @abstractmethod
    def closed(self) -> None:
        """The connection is gone."""

    async def serve(self) -> None:
        """Speak until the connection ends."""
        try:
            await self.greet()
            while True:
                async with asyncio.timeout(self.fake.faults.idle):
                    message = await self.socket.recv()
                await self._taken(message)
        except ConnectionClosed:
            pass
        except TimeoutError:
            await self.socket.close(1001, "The session was idle for too long.")
        finally:
            self.alive = False
            for task in self._tasks:
                task.cancel()
            self.closed()

    async def _taken(self, message: str | bytes) -> None:
        try:
            frame = json.loads(message)
        except ValueError:
            frame = None
        if not isinstance(frame, dict):
            self.violate(f"a message that is not a JSON object: {message[:80]!r}")
            await self.refuse_message()
            return
        self._taking = True
        try:
            self.fake.note(self.number, frame)
            await self.take(frame)
        finally:
            self._taking = False
        self.fake.changed()

    async def refuse_message(self) -> None:
        """Answer a message that is no JSON object."""
        await self.socket.close(1007, "Invalid JSON payload received.")

    async def send(self, frame: Mapping[str, Any], *, fragments: bool = False) -> None:
        """Send a frame, and noise now and then."""
        if self._noise is not None:
            self._sent += 1
            if self._sent % 3 == 0:
                await self.socket.send(json.dumps(next(self._noise)))
        text = json.dumps(frame, ensure_ascii=False)
        if fragments:
            data = text.encode()
            pieces = [data[start : start + _FRAGMENT] for start in range(0, len(data), _FRAGMENT)]
            await self.socket.send(pieces, text=True)
        else:
            await self.socket.send(text)
        self.fake.changed()

    async def send_all(self, frames: Iterable[Mapping[str, Any]]) -> None:
        """Send frames one after another."""
        for frame in frames:
            await self.send(frame)

    def abort(self) -> None:
        """End the connection at once, without a close frame."""
        self.socket.transport.abort()

    async def drop(self) -> None:
        """Abort, and wait until it is over: what is sent from now on fails."""
        self.abort()
        await self.socket.wait_closed()

    async def kill(self) -> None:
        """Abort once what was sent has arrived at the client's end of the connection."""
        try:
            async with asyncio.timeout(_BARRIER_SECONDS):
                await (await self.socket.ping())
        except (TimeoutError, ConnectionClosed):
            pass
        await self.drop()

    def violate(self, text: str) -> None:
        """Record what the client must not do."""
        self.fake.book.violate(self.number, text)
        self.fake.changed()

    @property
    def busy(self) -> bool:
        """Whether a frame is being taken, or something goes on beside."""
        return self._taking or bool(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside what is read, until the connection ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._is_done)

    def _is_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.violate(f"the fake itself is wrong: {error!r}")
        self.fake.changed()
