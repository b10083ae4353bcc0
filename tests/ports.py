"""Ports for tests that need a known port before a server listens on it, or after it has closed."""

from __future__ import annotations

import atexit
import socket
import sys


def held_port() -> tuple[int, socket.socket]:
    """Return a free port of 127.0.0.1, and a socket that reserves it until closed.

    A server that listens there meanwhile sets SO_REUSEADDR, as servers do.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port = int(holder.getsockname()[1])
    if sys.platform != "linux":  # elsewhere the port could not be used
        holder.close()
    return port, holder


def kept_port() -> int:
    """Return a port that is held for as long as this process lives."""
    port, holder = held_port()
    atexit.register(holder.close)
    return port
