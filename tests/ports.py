"""Ports for tests that need to know one before anybody listens on it, or again when nobody does any more."""

from __future__ import annotations

import socket
import sys

_held: list[socket.socket] = []


def held_port() -> tuple[int, socket.socket]:
    """Return a port of 127.0.0.1 where nobody listens, and a socket: until it is closed the system gives the port to nobody else.

    Who listens there meanwhile sets SO_REUSEADDR, as servers do.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port = int(holder.getsockname()[1])
    if sys.platform != "linux":  # elsewhere nobody could listen there
        holder.close()
    return port, holder


def kept_port() -> int:
    """Return a port that is held for as long as this process lives."""
    port, holder = held_port()
    _held.append(holder)
    return port
