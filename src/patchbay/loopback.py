"""What counts as this machine: addresses and names, read strictly.

What lives here: the one reading of such a host, for those who are asked from it and those who ask it; so it is on the lowest
floor. What does not: sockets, and looking up names.
"""

from __future__ import annotations

import ipaddress
from typing import Final

LOCALHOST: Final = "localhost"

ADDRESSES_OF_LOCALHOST: Final = ("127.0.0.1", "::1")
"""What the name stands for, whatever the system's resolver says (RFC 6761 6.3)."""


def is_loopback_address(host: str) -> bool:
    """Whether ``host`` is written as an address of this machine: 127.0.0.0/8, ``::1``, or one of the former as IPv6."""
    if "%" in host:  # a zone: nothing that a loopback address has
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
    """Whether a connection comes from this machine in the usual way: not from one of the other addresses of 127.0.0.0/8.

    Those are what programs give to containers and namespaces.
    """
    return address.lower().removeprefix("::ffff:") in (*ADDRESSES_OF_LOCALHOST, LOCALHOST)
