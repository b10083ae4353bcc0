"""The hosts that callbacks on other machines may have."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from patchbay.errors import ConfigurationError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_-]{1,63})*")
_PRIVILEGED: Final = tuple(
    map(
        ipaddress.ip_network,
        [
            "169.254.0.0/16",
            "fe80::/10",
            "fd00:ec2::254/128",
            "100.100.100.200/32",
            "168.63.129.16/32",
            "192.0.0.192/32",
            "64:ff9b::a9fe:0/112",
        ],
    )
)
"""Link-local networks, and addresses at which clouds give a machine its keys."""


class CallbackHosts:
    """Names, and networks of addresses (``10.0.0.0/8``). Raises ConfigurationError for what is neither.

    A name's addresses are checked when it is connected to: they must be in one of the networks, if there are any, and else must
    not be this machine's own. Addresses that are privileged in their network are allowed only where they are named exactly.
    """

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        self._networks: list[Network] = []
        for host in hosts:
            text = host.strip().strip("[]").rstrip(".").lower()
            try:
                self._networks.append(ipaddress.ip_network(text))
            except ValueError:
                # A name of digits alone would be read as an address, in one of its older forms.
                if not _NAME.fullmatch(text) or text.rpartition(".")[2].isdigit():
                    raise ConfigurationError(
                        f"--callback-hosts {host}: this is neither a host name nor a network: use tools.example.com, 10.0.0.7 "
                        "or 10.0.0.0/8, without a port, and with a network's first address."
                    ) from None
                self._names.add(text)

    def allows(self, host: str) -> bool:
        """Whether a callback may have this host, a name or an address, in its URL."""
        if (address := _address(host)) is not None:
            return self._has(address)
        return host.rstrip(".").lower() in self._names

    def allows_address(self, text: str) -> bool:
        """Whether an address that a name has may be connected to."""
        if (address := _address(text)) is None:
            return False
        if self._networks:
            return self._has(address)
        is_own = address.is_loopback or address.is_unspecified or address.is_multicast
        return not is_own and not any(address in network for network in _PRIVILEGED)

    def _has(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        if any(address in network for network in _PRIVILEGED):
            return ipaddress.ip_network(address) in self._networks
        return any(address in network for network in self._networks)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address, an IPv4 address within IPv6 as what it is; None for a name, and for an address with a zone."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return None if address.scope_id else address.ipv4_mapped or address
    return address
