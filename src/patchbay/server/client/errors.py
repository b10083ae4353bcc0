"""What can go wrong between a request and the end of its answer. Plain facts: who reports them words them."""

from __future__ import annotations

import errno
import os
import socket
import ssl


class ClientError(Exception):
    """The root of what this client raises by itself."""


class UnsendableError(ClientError, ValueError):
    """The request itself cannot be sent: its head would break its frame, or its body has another length than declared."""


class ConnectError(ClientError, ConnectionError):
    """No connection. ``reason`` is the system's word for it: "Connection refused"."""

    def __init__(self, error: OSError) -> None:
        self.reason = _reason(error)
        super().__init__(self.reason)


class ConnectTimeoutError(ClientError, TimeoutError):
    """No connection in time."""


class DisconnectedError(ClientError, ConnectionError):
    """The connection ended before the head of an answer was there. ``silent``: not a byte of one had come."""

    def __init__(self, message: str = "disconnected without an answer", *, silent: bool) -> None:
        super().__init__(message)
        self.silent = silent


class BrokenOffError(ClientError, ConnectionError):
    """The connection ended in the middle of an answer's body, or the body's frame is broken."""


class NotHttpError(ClientError, ValueError):
    """What came is not an HTTP/1 answer, or its head is larger than allowed."""


def _reason(error: OSError) -> str:
    if error.errno is not None and error.errno in errno.errorcode and not isinstance(error, ssl.SSLError | socket.gaierror):
        return os.strerror(error.errno)  # asyncio and uvloop word it differently
    return error.strerror or str(error)
