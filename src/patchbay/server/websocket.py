"""The server's end of an accepted WebSocket, over ASGI: writes within a bounded time, messages of a bounded size."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from patchbay.server.http import Receive

_CLOSE_SECONDS: Final = 2.0
"""Seconds for a client to read its close frame: shutdown waits for it."""

_MAX_REASON_BYTES: Final = 120
"""Maximum bytes of a close reason."""

GOING_AWAY: Final = 1001
TOO_LARGE: Final = 1009


@dataclass(frozen=True)
class CloseInfo:
    """Why a socket closes. Code 0: the client has disconnected, and no close frame is sent."""

    code: int
    reason: str = ""


GONE: Final = CloseInfo(0)
STOPPING: Final = CloseInfo(GOING_AWAY, "the server stops")


class SocketWriter:
    """The sending side of an accepted socket. A client has ``seconds`` to read each message."""

    def __init__(self, send: Callable[[Any], Awaitable[None]], seconds: float) -> None:
        self._send = send
        self._seconds = seconds

    async def send_text(self, text: str) -> None:
        """Send a text message. Raises TimeoutError, and OSError where the client has disconnected."""
        await self._send_message({"type": "websocket.send", "text": text})

    async def send_bytes(self, data: bytes) -> None:
        """Send a binary message. Raises as ``send_text``."""
        await self._send_message({"type": "websocket.send", "bytes": data})

    async def close(self, ending: CloseInfo) -> None:
        """Close the socket with its reason."""
        if ending.code:
            reason = ending.reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
            with contextlib.suppress(OSError):  # (TimeoutError is one) the client may have closed it by now
                closing = {"type": "websocket.close", "code": ending.code, "reason": reason}
                await self._send_message(closing, seconds=min(self._seconds, _CLOSE_SECONDS))

    async def _send_message(self, message: Any, *, seconds: float | None = None) -> None:
        try:
            async with asyncio.timeout(seconds or self._seconds):
                await self._send(message)
        except RuntimeError:  # uvicorn has closed it already: a frame was too long, or no ping was answered
            raise ConnectionResetError from None


def bounded(receive: Receive, socket: SocketWriter, limit: int) -> Receive:
    """Return a ``receive`` for messages of up to ``limit`` characters or bytes; a longer one closes the socket.

    The server's own limit is that of the path with the largest messages.
    """

    async def receive_bounded() -> Any:
        message = await receive()
        if message["type"] == "websocket.receive" and len(message.get("text") or message.get("bytes") or "") > limit:
            await socket.close(CloseInfo(TOO_LARGE, f"a message is larger than {limit} bytes"))
            return {"type": "websocket.disconnect", "code": TOO_LARGE}
        return message

    return receive_bounded
