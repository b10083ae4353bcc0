"""What commands ask of a server over HTTP: answers in JSON, and server-sent events. Nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from patchbay.errors import ConfigurationError, PatchbayError

SECONDS: Final = 15.0
QUIET_SECONDS: Final = 60.0
"""How long a stream may be quiet: the server sends a comment more often than that."""

_MOST: Final = 64 * 1024 * 1024
_LONGEST_LINE: Final = 4 * 1024 * 1024


class ServerRefusedError(PatchbayError, RuntimeError):
    """The server did not do it, and said why. ``may_pass``: it may do it later; ``said`` is the server's own code."""

    code = "server_refused"

    def __init__(self, message: str, *, may_pass: bool, said: str = "") -> None:
        super().__init__(message)
        self.may_pass = may_pass
        self.said = said


class ServerGoneError(PatchbayError, ConnectionError):
    """The server is not there, or its answer is none."""

    code = "server_unavailable"


class ServerClient:
    """Asks the server at ``url``, showing the token of ``token_file`` to it and to no other. Raises ConfigurationError."""

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            raise ConfigurationError(f"{url!r} is no server's address: write http://127.0.0.1:48911.")
        self.url = url.rstrip("/")
        self._token: str | None = None
        if token_file is not None:
            from patchbay.server.tools.settings import read_token

            self._token = read_token(token_file.expanduser())
        # No proxy of the environment: the server is on this machine, or named on purpose.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)

    @property
    def headers(self) -> dict[str, str]:
        """What shows the token, where there is one."""
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}

    def read(
        self,
        path: str,
        parameters: Iterable[tuple[str, str]] = (),
        *,
        missing: str,
        body: Mapping[str, Any] | None = None,
        method: str | None = None,
    ) -> dict[str, Any]:
        """Return what is there, an object; with ``body`` the answer to it, with ``method`` ("DELETE") what that came to.

        ``missing`` says what it means if there is nothing. Raises Server...Error.
        """
        with self._open(path, parameters, missing=missing, timeout=SECONDS, body=body, method=method) as answer:
            try:
                found = json.loads(answer.read(_MOST))
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise self._gone(error) from None
        if not isinstance(found, dict):
            raise ServerGoneError(f"What answered at {self.url} is no Patchbay server.")
        return found

    def events(self, path: str, parameters: Iterable[tuple[str, str]], *, last_id: str, missing: str) -> Events:
        """Open a stream of events. Raises Server...Error."""
        answer = self._open(path, parameters, missing=missing, timeout=QUIET_SECONDS, last_id=last_id)
        kind = answer.headers.get_content_type()
        if kind != "text/event-stream":
            answer.close()
            raise ServerRefusedError(f"{missing} (It answered with {kind}.)", may_pass=False)
        return Events(self, answer)

    def _open(
        self,
        path: str,
        parameters: Iterable[tuple[str, str]],
        *,
        missing: str,
        timeout: float,
        last_id: str = "",
        body: Mapping[str, Any] | None = None,
        method: str | None = None,
    ) -> http.client.HTTPResponse:
        query = urllib.parse.urlencode(list(parameters))
        asked = urllib.request.Request(  # noqa: S310  (http and https only: see above)
            f"{self.url}{path}{'?' if query else ''}{query}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **self.headers},
            method=method,
        )
        if last_id:
            asked.add_header("Last-Event-ID", last_id)
        try:
            opened: http.client.HTTPResponse = self._opener.open(asked, timeout=timeout)
        except urllib.error.HTTPError as error:
            with error:
                why, said = _why(error, missing)
                raise ServerRefusedError(why, may_pass=error.code >= 500, said=said) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._gone(error) from None
        return opened

    def _gone(self, error: Exception) -> ServerGoneError:
        reason: object = error.reason if isinstance(error, urllib.error.URLError) else error
        reason = getattr(reason, "strerror", None) or reason
        return ServerGoneError(f"No answer from {self.url}: {reason or type(error).__name__}")


class Events:
    """An open stream of server-sent events, to be closed. ``last_id`` is the id of the last one that was read."""

    def __init__(self, client: ServerClient, answer: http.client.HTTPResponse) -> None:
        self._client = client
        self._answer = answer
        self.last_id = ""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each event's data, until the server ends the stream. Raises ServerGoneError."""
        data: list[bytes] = []
        try:
            while line := self._answer.readline(_LONGEST_LINE):
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
            raise self._client._gone(error) from None  # noqa: SLF001  (they are one)

    def close(self) -> None:
        """Read no more."""
        self._answer.close()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The token is shown to the server that was named, and to no other."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def _why(error: urllib.error.HTTPError, missing: str) -> tuple[str, str]:
    """Return why something was refused: in words, and the server's own code."""
    try:
        read = json.loads(error.read(_MOST))
    except (OSError, http.client.HTTPException, ValueError):
        read = None
    told = read if isinstance(read, dict) else {}
    detail, said = told.get("detail"), told.get("error_code")
    if error.code == 404 and not said:
        detail = missing
    if not isinstance(detail, str):
        detail = "it was refused"
    if error.code == 401:
        detail += " Give it by --token-file."
    return f"{detail} (HTTP {error.code})", said if isinstance(said, str) else ""
