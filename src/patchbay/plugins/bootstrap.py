"""How a plugin's process learns where its host is: one line of JSON on its standard input.

What lives here: that line, and the command that starts the process. What does not: what is said then (``messages``).

Not the command line and not the environment: other users can read the one, and the other is handed on to every process that a
plugin starts. The pipe stays open as long as the host lives, and its end is how a plugin that is stuck learns that it is alone.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from typing import Final

import msgspec

from patchbay.plugins.errors import PluginError
from patchbay.plugins.messages import PROTOCOL_VERSION

MOST_BYTES: Final = 4096


class Bootstrap(msgspec.Struct, frozen=True, kw_only=True):
    """``address`` is ``unix:PATH`` or ``tcp:127.0.0.1:PORT``, ``token`` is what HELLO shows."""

    address: str
    token: str
    version: int = PROTOCOL_VERSION

    def __repr__(self) -> str:
        return f"Bootstrap({self.address!r})"

    @property
    def path(self) -> str | None:
        """The path of a Unix domain socket, None for TCP."""
        kind, _, rest = self.address.partition(":")
        return rest if kind == "unix" else None

    @property
    def host_and_port(self) -> tuple[str, int]:
        """The address for TCP. Raises PluginError for one that is not on this machine."""
        kind, _, rest = self.address.partition(":")
        host, _, port = rest.rpartition(":")
        try:
            if kind == "tcp" and ipaddress.ip_address(host.strip("[]")).is_loopback:
                return host.strip("[]"), int(port)
        except ValueError:
            pass
        raise PluginError(f"{self.address!r} is no address of a host on this machine.")

    def line(self) -> bytes:
        """Return the line for the process's standard input; leave the pipe open behind it."""
        return msgspec.json.encode(self) + b"\n"


def read_bootstrap(fd: int) -> Bootstrap:
    """Read the line from a file descriptor. Raises PluginError for anything else that comes, or an end without it."""
    data = b""
    while b"\n" not in data and len(data) < MOST_BYTES:
        piece = os.read(fd, MOST_BYTES)
        if not piece:
            break
        data += piece
    try:
        read = msgspec.json.decode(data.partition(b"\n")[0], type=Bootstrap)
    except msgspec.DecodeError:
        raise PluginError("This process is started by a plugin host, which says where it is on standard input.") from None
    if read.version != PROTOCOL_VERSION:
        raise PluginError(f"The host speaks version {read.version} of the protocol, and this process {PROTOCOL_VERSION}.")
    return read


def child_command() -> list[str]:
    """Return the command of a plugin's process. Start it in a session of its own, its standard input a pipe."""
    return [sys.executable, "-P", "-m", "patchbay.plugins.child"]
