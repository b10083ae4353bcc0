"""Which names and addresses are this machine's."""

from __future__ import annotations

import pytest

from patchbay.loopback import is_local_peer, is_loopback_address, is_this_machine


@pytest.mark.parametrize(
    ("host", "is_address", "is_here", "is_peer"),
    [
        ("127.0.0.1", True, True, True),
        ("::1", True, True, True),
        ("::ffff:127.0.0.1", True, True, True),
        ("127.8.8.8", True, True, False),
        ("LocalHost", False, True, True),
        ("::1%lo", False, False, False),
        ("127.1", False, False, False),
        ("10.0.0.1", False, False, False),
        ("localhost.example", False, False, False),
        ("", False, False, False),
    ],
)
def test_addresses_and_the_name_are_read_strictly(host, is_address, is_here, is_peer):
    assert (is_address, is_here, is_peer) == (is_loopback_address(host), is_this_machine(host), is_local_peer(host))
