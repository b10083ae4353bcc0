"""What several modules of these tests stand on."""

from __future__ import annotations

import pytest

from .serving import serving


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server for tests that leave nothing that waits in it."""
    with serving(tmp_path_factory.mktemp("shared")) as running:
        yield running
