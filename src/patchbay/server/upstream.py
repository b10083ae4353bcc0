"""The way to the upstream: its address, the headers that are the operator's, and its failures in our words.

How bytes get there is ``client``'s; what a request or an answer means is not known here. Silence is timed by ``watch``, for the
whole request with one timer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote, urlsplit

from patchbay.errors import InvalidRequestError, PatchbayError, UpstreamError, UpstreamTimeoutError
from patchbay.server.client import (
    Answer,
    BrokenOffError,
    ClientError,
    ConnectError,
    ConnectTimeoutError,
    DisconnectedError,
    HttpClient,
    NotHttpError,
    Origin,
    UnsendableError,
)
from patchbay.server.headers import Headers, OwnHeaders, own_headers
from patchbay.server.settings import ProxySettings

_AS_WRITTEN = "!#$%&'()*+,/:;=?@[]~"
"""What stays as it is in the base URL's path; everything else that is no letter or digit is encoded."""


class Upstream:
    """Opens requests to one base URL. Connections are made as they are needed, in the running loop, and end with ``close``."""

    def __init__(self, settings: ProxySettings) -> None:
        self._base = settings.upstream
        self._connect_timeout = settings.connect_timeout
        given = dict(settings.upstream_headers)
        host = next((given.pop(name) for name in list(given) if name.lower() == "host"), None)
        if settings.upstream_key is not None and not any(name.lower() == "authorization" for name in given):
            given["Authorization"] = "Bearer " + settings.upstream_key
        self.own: OwnHeaders = own_headers(given)
        """The headers that replace the client's of the same names."""
        self._client = HttpClient(Origin(settings.upstream, host=host), connect_timeout=settings.connect_timeout)
        self._path = quote(urlsplit(settings.upstream).path, safe=_AS_WRITTEN).encode()
        self._chat = self._path + b"/chat/completions"

    async def post_chat(self, body: bytes, headers: Headers, query: bytes = b"") -> Answer:
        """Ask for a chat completion and return the answer once its head is there; raises UpstreamError."""
        try:
            return await self._client.request(b"POST", self._chat + (b"?" + query if query else b""), headers, body)
        except ClientError as error:
            raise self.failure(error) from error

    async def open(
        self,
        method: str,
        tail: str,
        query: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes] | None,
        *,
        length: int | None = None,
    ) -> Answer:
        """Send any request below the base URL and return the answer once its head is there.

        ``tail`` is percent-encoded already. ``length`` is that of a body that comes in pieces (None: not known). Raises
        UpstreamError, and what reading the body raised.
        """
        target = (self._path + tail.encode("latin-1", "replace")) or b"/"
        if query:
            target += b"?" + query
        try:
            return await self._client.request(method.encode("latin-1"), target, headers, body, length=length)
        except ClientError as error:
            raise self.failure(error) from error

    def failure(self, error: ClientError) -> PatchbayError:
        """Return what ``error``, raised by the client or by an answer's body, means for who asked."""
        if isinstance(error, UnsendableError):
            return InvalidRequestError(f"The request cannot be passed on: {error}.")
        if isinstance(error, ConnectTimeoutError):
            return UpstreamTimeoutError(f"The upstream {self._base} accepted no connection within {self._connect_timeout:g} s.")
        if isinstance(error, ConnectError):
            return UpstreamError(f"The upstream {self._base} cannot be reached: {error.reason}.")
        if isinstance(error, DisconnectedError):
            return UpstreamError(f"The upstream {self._base} closed the connection without an answer.")
        if isinstance(error, BrokenOffError):
            return UpstreamError(f"The upstream {self._base} broke off its answer.")
        if isinstance(error, NotHttpError):
            return UpstreamError(f"The upstream {self._base} did not answer in HTTP: {error}.")
        return UpstreamError(f"The connection to the upstream {self._base} failed: {error}.")

    async def close(self) -> None:
        """Close the connections. The next request opens a new one."""
        await self._client.close()
