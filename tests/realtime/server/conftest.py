"""One served process for all tests that need no flags of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from patchbay.testing.realtime import FakeOpenAI

from .rig import Serving, serving


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Serving]:
    with FakeOpenAI(hears=["Hi."] * 9, utterance=4_000) as fake, serving(fake) as server:
        yield server


@pytest.fixture
def shared(shared_server: Serving) -> Iterator[Serving]:
    """A server whose model a test scripts with ``plays``; checks that nothing broke the protocol, and removes the tools."""
    shared_server.plays()
    yield shared_server
    for name in shared_server.http.tools():
        shared_server.http.post("unregister", name=name)
    assert ([], []) == (shared_server.fake.violations, shared_server.fake.unanswered)
