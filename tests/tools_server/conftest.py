"""A tool server with the roles ann and ben, that keeps nothing."""

from __future__ import annotations

import pytest

from tools_server.rig import serving


@pytest.fixture
def server():
    with serving() as running:
        yield running
