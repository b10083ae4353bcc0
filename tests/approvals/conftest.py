"""Fixtures of several modules of this folder."""

from __future__ import annotations

import pytest

from .serving import serving


@pytest.fixture(scope="session")
def running(tmp_path_factory):
    """The server of ``server``."""
    with serving(tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture
def server(running):
    """A running server, without requests. A test that stops it starts one of its own by ``serving``."""
    running.reset()
    return running
