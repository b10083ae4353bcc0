"""Addresses and names of this machine, parsed strictly, without lookups."""

from __future__ import annotations

import hashlib
import ipaddress
import socket
from pathlib import Path
from typing import Final

LOCALHOST: Final = "localhost"

ADDRESSES_OF_LOCALHOST: Final = ("127.0.0.1", "::1")
"""The addresses of the name, whatever the system's resolver says (RFC 6761 6.3)."""


def is_loopback_address(host: str) -> bool:
    """Whether ``host`` is written as an address of this machine: 127.0.0.0/8, ``::1``, or one of the former as IPv6."""
    if "%" in host:  # a zone, which no loopback address has
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_this_machine(host: str) -> bool:
    """Whether ``host`` is a loopback address, or ``localhost`` in any case."""
    return host.lower() == LOCALHOST or is_loopback_address(host)


def is_local_peer(address: str) -> bool:
    """Whether a connection comes from this machine, except for the other addresses of 127.0.0.0/8, which containers may have."""
    return address.lower().removeprefix("::ffff:") in (*ADDRESSES_OF_LOCALHOST, LOCALHOST)


def machine_name() -> str:
    """Return a name that only this machine has: its host name, and a digest of its id if it has one."""
    try:
        machine = Path("/etc/machine-id").read_bytes().strip()
    except OSError:
        machine = b""
    return f"{socket.gethostname()}-{hashlib.sha256(b'patchbay' + machine).hexdigest()[:8]}"
