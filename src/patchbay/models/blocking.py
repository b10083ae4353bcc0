"""A blocking client's stream, read from an event loop: a thread reads, the loop gets the chunks, and stopping really stops.

A thread that waits for a socket cannot be interrupted, and closing the socket's file descriptor from elsewhere neither wakes it
nor tells the server. Shutting the connection down does both; that is what happens here when the reader goes away.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final

from patchbay.tools.threads import run_in_thread

_AHEAD: Final = 64
"""How many chunks the thread may read ahead: a slow reader holds back the server, not memory."""

_END: Final = object()
_opening: set[asyncio.Task[Any]] = set()


async def open_in_thread(create: Callable[[], Any]) -> Any:
    """Return what ``create`` returns, called in a thread; if the caller is cancelled meanwhile, it is closed when it comes."""
    task = asyncio.get_running_loop().create_task(run_in_thread(create))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        _opening.add(task)
        task.add_done_callback(_close_unwanted)
        raise


async def blocking_chunks(stream: Iterable[Any]) -> AsyncGenerator[Any, None]:
    """Yield the chunks of a blocking ``stream``; closing this ends the stream's connection at once."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[Any] = asyncio.Queue()
    room = threading.Semaphore(_AHEAD)
    stopped = threading.Event()

    def hand_over(item: Any) -> None:
        loop.call_soon_threadsafe(arrived.put_nowait, item)

    def read() -> None:
        try:
            for chunk in stream:
                room.acquire()
                if stopped.is_set():
                    return
                hand_over(chunk)
        except Exception:
            if not stopped.is_set():  # after a stop it is only the connection that was cut
                raise
        finally:
            _close(stream)

    reader = loop.create_task(run_in_thread(read))
    reader.add_done_callback(lambda _reader: arrived.put_nowait(_END))
    try:
        while (chunk := await arrived.get()) is not _END:
            room.release()
            yield chunk
        await reader  # raises what the stream raised
    finally:
        if not reader.done():
            stopped.set()
            room.release()
            _shut_down(stream)
            reader.cancel()


def _close_unwanted(task: asyncio.Task[Any]) -> None:
    _opening.discard(task)
    if not task.cancelled() and task.exception() is None:
        threading.Thread(target=_close, args=(task.result(),), daemon=True).start()


def _close(stream: Any) -> None:
    if (close := getattr(stream, "close", None)) is not None:
        close()


def _shut_down(stream: Any) -> None:
    """Shut the stream's own connection down; one that many streams share (HTTP/2) is left alone."""
    extensions = getattr(getattr(stream, "response", None), "extensions", None) or {}
    if extensions.get("http_version") == b"HTTP/2" or "network_stream" not in extensions:
        return
    connection = extensions["network_stream"].get_extra_info("socket")
    if connection is None:
        return
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # already closed by the other side
        pass
