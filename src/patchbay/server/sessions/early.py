"""What a client says before its session is there, and that it goes away.

What lives here: messages that are kept until somebody takes them. What does not: what they mean (``frames``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from patchbay.server.body import Receive

_MOST: Final = 8
"""How many messages are heard before their session is there. The rest waits in the socket, and so does that the client goes."""


class Early:
    """Hears ``receive`` until it is itself asked for messages; ``left`` is called once, if the client goes away before that."""

    def __init__(self, receive: Receive, left: Callable[[], object]) -> None:
        self.has_left = False
        self._receive = receive
        self._left = left
        self._said: deque[Any] = deque()
        self._hearing: asyncio.Task[None] | None = asyncio.get_running_loop().create_task(self._hear())

    async def receive(self) -> Any:
        """Return the next message, the early ones first."""
        await self.close()
        return self._said.popleft() if self._said else await self._receive()

    async def close(self) -> None:
        """Hear nothing by itself any more."""
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            hearing.cancel()
            await asyncio.wait({hearing})

    async def _hear(self) -> None:
        while len(self._said) < _MOST:
            message = await self._receive()
            self._said.append(message)
            if message["type"] == "websocket.disconnect":
                self.has_left = True
                self._left()
                return
