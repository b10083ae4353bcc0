"""An answer to a call in lines: what the tool says of its work as it says it, and the result as the last line.

What lives here: when lines are written, and how many wait. What does not: what a line is (``patchbay.server.tools.progress``,
which reads them on the other side), and what a tool may say (``plugins.runtime``).
"""

from __future__ import annotations

import asyncio
from typing import Final

from patchbay.plugins.messages import Progress
from patchbay.server.reply import Reply
from patchbay.server.tools.progress import MOST_LINE_BYTES, MOST_LINES, NDJSON, one_line, progress_line

_WAITING_BYTES: Final = 256 * 1024
"""So much waits for a server that is slow to read; then the oldest of it is dropped: the newest says most."""

_HEADERS: Final = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store")]


class Telling:
    """Begins ``reply`` with the first progress that it hears, and writes in a task of its own: a slow reader holds up nobody."""

    __slots__ = ("_bytes", "_is_over", "_left", "_news", "_reply", "_task", "_waiting")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._left = MOST_LINES
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._news: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    @property
    def has_begun(self) -> bool:
        """Whether there was something to tell: then the answer is in lines, and ``finish`` has to end it."""
        return self._task is not None

    def hear(self, progress: Progress) -> None:
        """Have a line written, if it is none too many and none too long. Does not raise."""
        if self._left <= 0 or self._is_over:
            return
        line = progress_line(progress.message, progress.fraction, progress.data)
        if len(line) > MOST_LINE_BYTES:
            return
        self._left -= 1
        self._waiting.append(line)
        self._bytes += len(line)
        while self._bytes > _WAITING_BYTES:
            self._bytes -= len(self._waiting.pop(0))
        if self._news is None:
            self._news = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._write(self._news))
        self._news.set()

    async def finish(self, body: bytes) -> None:
        """Write what still waits, and the last line. Raises ClientLeftError."""
        self._is_over = True
        assert self._task is not None
        assert self._news is not None
        self._news.set()
        await self._task
        await self._reply.finish(one_line(body))

    def drop(self) -> None:
        """Write nothing more. May be called at any time, and again."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(_look_at)

    async def _write(self, news: asyncio.Event) -> None:
        await self._reply.start(200, _HEADERS)
        while True:
            await news.wait()
            news.clear()
            while self._waiting:
                lines = b"".join(self._waiting)
                self._waiting.clear()
                self._bytes = 0
                await self._reply.write(lines)
            if self._is_over:
                return


def _look_at(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # who left is told of nothing
