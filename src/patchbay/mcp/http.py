"""The transport to an MCP server at a URL: streamable HTTP, or the older one with server-sent events."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.inbound import MCP_METHOD_HEADER

from patchbay._text import json_object, one_line
from patchbay.errors import ConfigurationError
from patchbay.mcp.config import McpServer
from patchbay.mcp.limits import MAX_MESSAGE, REFUSED, too_large

_CONNECT_SECONDS: Final = 30.0
_READ_SECONDS: Final = 300.0
"""The longest silence of a stream; each call has its own limit."""
_REFUSALS: Final = (401, 403)


NewerAuth = Callable[[httpx2.Auth | None], httpx2.Auth | None]
"""Returns the authentication of a login since the given one was made; None if there was none."""


def http_transport(
    server: McpServer, auth: httpx2.Auth | None = None, *, newer_auth: NewerAuth = lambda _: None
) -> AbstractAsyncContextManager[Any]:
    """Return the SDK's transport for a server with a URL; what it sends is bounded.

    A request that is refused (HTTP 401, 403) is sent again where ``newer_auth`` has one, else its error has the code REFUSED.
    """
    if server.transport == "sse":
        return sse_client(server.url, httpx_client_factory=lambda *_, **__: _HttpClient(server, auth, newer_auth))
    return _streamable(server, auth, newer_auth)


@asynccontextmanager
async def _streamable(server: McpServer, auth: httpx2.Auth | None, newer_auth: NewerAuth) -> AsyncIterator[Any]:
    async with (
        _HttpClient(server, auth, newer_auth) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_MESSAGE) as streams,
    ):
        yield streams


class _HttpClient(httpx2.AsyncClient):
    """Turns refusals into errors of their own request, where the SDK would end the connection or lose the reason."""

    def __init__(self, server: McpServer, auth: httpx2.Auth | None, newer_auth: NewerAuth) -> None:
        super().__init__(
            headers={**server.headers, "Accept-Encoding": "identity"},  # a small body could become a large one
            timeout=httpx2.Timeout(_CONNECT_SECONDS, read=_READ_SECONDS),
            auth=auth,
            event_hooks={"response": [_bound]},
        )
        self._login = f"patchbay mcp login {shlex.quote(server.name)}"
        self._newer_auth = newer_auth

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request, and again where there was a login meanwhile."""
        response = await self._send(request, options)
        if response.status_code in _REFUSALS and (newer := self._newer_auth(self.auth)) is not None:
            self.auth = newer
            response = await self._send(request, options)
        return response

    async def _send(self, request: httpx2.Request, options: dict[str, Any]) -> httpx2.Response:
        is_first = request.headers.get(MCP_METHOD_HEADER) == "server/discover"
        try:
            response = await super().send(request, **options)
        except ConfigurationError as error:  # of the login
            if is_first:
                raise
            return _refusal(request, 403, str(error))
        if response.status_code not in _REFUSALS:
            return response
        reason = await _reason(response)
        is_unknown = response.status_code == 401
        words = f"it asks for a login, or for other credentials: {self._login}" if is_unknown else "it does not allow this"
        words = f"{words} ({reason})" if reason else words
        if is_first and is_unknown:
            # The SDK would answer an error with the handshake of the older era, whose error hides this one.
            raise ConfigurationError(words)
        return _refusal(request, response.status_code, words)


def _refusal(request: httpx2.Request, status: int, message: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": REFUSED, "message": message}}
    return httpx2.Response(status, json=error, request=request)


async def _reason(response: httpx2.Response) -> str:
    """Return what an error's body says: a message of JSON-RPC, or a description of OAuth. Closes the response."""
    try:
        is_json = response.headers.get("content-type", "").lower().startswith("application/json")
        content = json_object((await response.aread()).decode("utf-8", "replace")) if is_json else None
    except httpx2.StreamError:
        content = None
    finally:
        await response.aclose()
    content = content or {}
    inner = content.get("error")
    found = inner.get("message") if isinstance(inner, dict) else content.get("error_description")
    return one_line(found, 300) if isinstance(found, str) else ""


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
