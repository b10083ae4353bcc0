"""HTTP client of a Patchbay server: JSON and server-sent events, with the standard library alone."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from patchbay._redaction import Redactor
from patchbay.errors import ConfigurationError, PatchbayError

_EXAMPLE: Final = "http://127.0.0.1:48911"
SECONDS: Final = 15.0
STREAM_SECONDS: Final = 60.0
"""Read timeout of a stream; the server sends comments more often."""

_MAX_BODY: Final = 64 * 1024 * 1024
_MAX_LINE: Final = 4 * 1024 * 1024


class ServerRefusedError(PatchbayError, RuntimeError):
    """The server rejected a request. ``is_transient``: a retry may succeed; ``server_code``: the server's error code."""

    code = "server_refused"
    exit_status = 1

    def __init__(self, message: str, *, is_transient: bool, server_code: str = "") -> None:
        super().__init__(message)
        self.is_transient = is_transient
        self.server_code = server_code


class ServerUnavailableError(PatchbayError, ConnectionError):
    """The server is unreachable, or its response is invalid. ``hint`` is the way out."""

    code = "server_unavailable"
    exit_status = 1
    hint = ""


class ServerClient:
    """Client of the server at ``url``; sends the token of ``token_file`` to it alone. Raises ConfigurationError."""

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            raise ConfigurationError(f"Invalid server URL {Redactor().text(url)!r}: use a base URL such as {_EXAMPLE}.")
        if parts.username is not None:
            raise ConfigurationError(f"The server URL has no user and no password: use {_EXAMPLE} and --token-file.")
        self.url = url.rstrip("/").removesuffix("/v1")  # as a proxy prints its address
        self._token: str | None = None
        if token_file is not None:
            from patchbay.server.settings import read_token

            self._token = read_token(token_file.expanduser())
        # No proxy from the environment: the server is local, or named explicitly.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)

    @property
    def headers(self) -> dict[str, str]:
        """Authorization header, if there is a token."""
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}

    def read(
        self,
        path: str,
        parameters: Iterable[tuple[str, str]] = (),
        *,
        missing: str,
        body: Mapping[str, Any] | None = None,
        method: str | None = None,
        timeout: float | None = SECONDS,
    ) -> dict[str, Any]:
        """Request a JSON object: GET, POST with a ``body``, or ``method``. ``missing`` explains a 404. Raises Server...Error.

        ``timeout`` None waits until the server has answered.
        """
        with self._open(path, parameters, missing=missing, timeout=timeout, body=body, method=method) as response:
            try:
                found = json.loads(response.read(_MAX_BODY))
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise self.unavailable(error) from None
        if not isinstance(found, dict):
            raise ServerUnavailableError(f"{self.url} is not a Patchbay server.")
        return found

    def events(self, path: str, parameters: Iterable[tuple[str, str]], *, last_id: str, missing: str) -> Events:
        """Open a stream of server-sent events after ``last_id``. Raises Server...Error."""
        response = self._open(path, parameters, missing=missing, timeout=STREAM_SECONDS, last_id=last_id)
        kind = response.headers.get_content_type()
        if kind != "text/event-stream":
            response.close()
            raise ServerRefusedError(f"{missing} (The response is {kind}.)", is_transient=False)
        return Events(self, response)

    def _open(
        self,
        path: str,
        parameters: Iterable[tuple[str, str]],
        *,
        missing: str,
        timeout: float | None,
        last_id: str = "",
        body: Mapping[str, Any] | None = None,
        method: str | None = None,
    ) -> http.client.HTTPResponse:
        query = urllib.parse.urlencode(list(parameters))
        request = urllib.request.Request(  # noqa: S310  (http and https only: see above)
            f"{self.url}{path}{'?' if query else ''}{query}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **self.headers},
            method=method,
        )
        if last_id:
            request.add_header("Last-Event-ID", last_id)
        try:
            opened: http.client.HTTPResponse = self._opener.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            with error:
                message, code = _explain(error, missing)
                raise ServerRefusedError(message, is_transient=error.code >= 500, server_code=code) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self.unavailable(error) from None
        return opened

    def unavailable(self, error: Exception) -> ServerUnavailableError:
        """Wrap a network error."""
        reason: object = error.reason if isinstance(error, urllib.error.URLError) else error
        reason = getattr(reason, "strerror", None) or reason
        return unreachable(self.url, reason or type(error).__name__)


def unreachable(url: str, reason: object) -> ServerUnavailableError:
    """Return the error for a server that does not respond."""
    error = ServerUnavailableError(f"No response from {url}: {reason}")
    error.hint = "Start `patchbay serve`, or use --server"
    return error


class Events:
    """An open stream of server-sent events. ``last_id`` is the id of the last event."""

    def __init__(self, client: ServerClient, response: http.client.HTTPResponse) -> None:
        self._client = client
        self._response = response
        self.last_id = ""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each event's data until the stream ends. Raises ServerUnavailableError."""
        data: list[bytes] = []
        try:
            while line := self._response.readline(_MAX_LINE):
                name, _, value = line.rstrip(b"\r\n").partition(b":")
                value = value.removeprefix(b" ")
                if name == b"data":
                    data.append(value)
                elif name == b"id":
                    self.last_id = value.decode("ascii", "replace")
                elif not name and not value and not line.startswith(b":") and data:
                    event = json.loads(b"\n".join(data))
                    data = []
                    if isinstance(event, dict):
                        yield event
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._client.unavailable(error) from None

    def close(self) -> None:
        """Close the response."""
        self._response.close()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for the named server alone."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def _explain(error: urllib.error.HTTPError, missing: str) -> tuple[str, str]:
    """Return the message and the code of an error response."""
    try:
        body = json.loads(error.read(_MAX_BODY))
    except (OSError, http.client.HTTPException, ValueError):
        body = None
    fields = body if isinstance(body, dict) else {}
    detail, code = fields.get("detail"), fields.get("error_code") or fields.get("code")
    if error.code == 404 and not code:
        detail = missing
    if not isinstance(detail, str):
        detail = f"The server refused the request (HTTP {error.code})."
    if error.code == 401:
        detail += " Use --token-file."
    return detail, code if isinstance(code, str) else ""
