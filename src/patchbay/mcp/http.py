"""The transport to an MCP server at a URL: streamable HTTP, or the older one with server-sent events."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from patchbay.errors import ConfigurationError
from patchbay.mcp.config import McpServer
from patchbay.mcp.limits import MAX_MESSAGE, too_large

_CONNECT_SECONDS: Final = 30.0
_READ_SECONDS: Final = 300.0
"""The longest silence of a stream; each call has its own limit."""


def http_transport(server: McpServer, auth: httpx2.Auth | None = None) -> AbstractAsyncContextManager[Any]:
    """Return the SDK's transport for a server with a URL; what it sends is bounded."""
    if server.transport == "sse":
        return sse_client(server.url, httpx_client_factory=lambda *_, **__: _make_client(server, auth))
    return _streamable(server, auth)


@asynccontextmanager
async def _streamable(server: McpServer, auth: httpx2.Auth | None) -> AsyncIterator[Any]:
    async with (
        _make_client(server, auth) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_MESSAGE) as streams,
    ):
        yield streams


def _make_client(server: McpServer, auth: httpx2.Auth | None) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        headers={**server.headers, "Accept-Encoding": "identity"},  # a small body could become a large one
        timeout=httpx2.Timeout(_CONNECT_SECONDS, read=_READ_SECONDS),
        auth=auth,
        event_hooks={"response": [_bound] if auth is not None else [partial(_check_login, server), _bound]},
    )


async def _check_login(server: McpServer, response: httpx2.Response) -> None:
    """Raise ConfigurationError where the server asks for credentials."""
    if response.status_code == 401:
        await response.aclose()
        raise ConfigurationError(f"it asks for a login, or for other credentials: patchbay mcp login {shlex.quote(server.name)}")


async def _bound(response: httpx2.Response) -> None:
    """Limit the body of a response that is not a stream of events, whose events the SDK limits."""
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        await response.aclose()
        raise httpx2.DecodingError("the server sent a compressed response, which it was not asked for", request=response.request)
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _BoundedStream(response.stream)


class _BoundedStream(httpx2.AsyncByteStream):
    """A body of at most MAX_MESSAGE bytes; raises StreamError at the end of those."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE
        async for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise httpx2.StreamError(too_large().message)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
