"""The official SDK's server over HTTP."""

from __future__ import annotations

from contextlib import closing

import pytest

from patchbay.mcp import McpServer
from ports import held_port

from .rig import over_http


@pytest.fixture
def http_server():
    """A server on the official SDK over streamable HTTP, for one test: its tools can be changed."""
    port, holder = held_port()
    with closing(holder), over_http(port):
        yield McpServer(name="sdk", url=f"http://127.0.0.1:{port}/mcp")
