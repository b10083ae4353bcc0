"""Client of the server's ``/api/tools``.

A refusal is an answer; no answer, or one that cannot be used, is ``ServerUnavailableError``. Both are ordinary: a server may
start later than its plugins, and may reject a tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from patchbay._redaction import Redactor
from patchbay.errors import ConfigurationError, PatchbayError
from patchbay.plugins.protocol import LlmToolRegister
from patchbay.server.http_client import HttpClient
from patchbay.server.origin import ClientError, Origin

_MOST_BYTES = 64 * 1024 * 1024
_SHOWN = 500
_CONNECT_SECONDS = 2.0
_WANTS_TOKEN = "the server wants a token: --token-file FILE (or PATCHBAY_TOKEN_FILE)"  # noqa: S105  (a sentence)


class ServerUnavailableError(PatchbayError, ConnectionError):
    """The server cannot be reached, or its answer cannot be used."""

    code = "server_unavailable"


class NotTrustedError(ServerUnavailableError):
    """The server wants a token, or another one than it was sent."""

    code = "not_trusted"


class WantedTool(LlmToolRegister, frozen=True, kw_only=True):
    """A tool as the plugin registered it, and the address of its calls. The server does not get its ``registration``."""

    callback_url: str

    @property
    def source(self) -> str:
        """The source of all tools of the plugin."""
        return source_of(self.plugin_id)


@dataclass(frozen=True)
class Accepted:
    """The server has registered the tool.

    ``signed``: its calls carry a signature with the secret that was sent. ``roles``: those that have it, if the server says.
    """

    signed: bool = False
    roles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refused:
    """The server rejects the tool. ``wants_token``: it would reject every tool of a plugin."""

    reason: str
    wants_token: bool = False


@dataclass(frozen=True)
class Listing:
    """All tools by role, each as the server lists it. ``instance`` identifies one run of the server (None: it does not say)."""

    tools_by_role: Mapping[str, Sequence[Mapping[str, Any]]]
    instance: str | None = None


class ToolsApi(Protocol):
    """The requests to the server. Each method raises ServerUnavailableError."""

    async def listing(self) -> Listing | None:
        """Return all tools; None where nothing has changed since the last listing."""
        ...

    async def register(self, tool: WantedTool) -> Accepted | Refused:
        """Register a tool, in place of one of its name and source."""
        ...

    async def unregister(self, name: str, *, role: str | None, source: str) -> None:
        """Remove a tool of this source."""
        ...

    async def clear(self, source: str) -> None:
        """Remove all tools of a source."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


class HttpToolsApi:
    """The server at ``url``, over HTTP; ``token`` is called for the bearer token (None: without one), ``timeout`` is in seconds.

    A rejected token is read again for the next request: the server may have a new one. ``secret`` is sent with each
    registration: a server that supports it signs the tools' calls with it, and lets no client without it replace them. With
    ``instance`` the tools are replicas of this name, and others are neither listed nor removed. Raises ConfigurationError for an
    invalid URL.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str = "",
        instance: str = "",
        token: Callable[[], str | None] = lambda: None,
        timeout: float = 5.0,
    ) -> None:
        try:
            parts, origin = urlsplit(url), Origin(url)
        except ValueError as error:  # an impossible port or host name
            hide = Redactor().text
            raise ConfigurationError(f"the server's address {hide(url)!r} cannot be used: {hide(str(error))}.") from None
        if parts.username is not None:
            raise ConfigurationError("the server's address must not hold a user or password: give its token in a file.")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"the server's address must be an http:// URL, not {url!r}.")
        self._base = parts.path.rstrip("/").encode()
        self._client = HttpClient(origin, connect_timeout=min(timeout, _CONNECT_SECONDS))
        self._timeout = timeout
        self._secret = secret
        self._instance = instance
        self._identity = {name: value for name, value in (("secret", secret), ("instance", instance)) if value}
        self._read_token = token
        self._token: str | None = None
        self._token_was_sent = False
        self._is_away = f"the server cannot be reached at {url}"
        self._etag = ""

    async def listing(self) -> Listing | None:
        """Return all tools; None where nothing has changed since the last listing."""
        headers = [(b"If-None-Match", self._etag.encode("latin-1"))] if self._etag else []
        status, body, etag = await self._request(b"GET", b"/api/tools", None, headers)
        if status == 304:
            return None
        tools = body.get("tools_by_role")
        if status == 401:
            raise NotTrustedError(self._token_problem(body))
        if status != 200 or not isinstance(tools, dict):
            raise ServerUnavailableError(f"the request for the list of tools was answered with HTTP {status}: {_reason(body)}")
        self._etag = etag
        rows = {
            str(role): self._own([row for row in each if isinstance(row, dict)])
            for role, each in tools.items()
            if isinstance(each, list)
        }
        return Listing(rows, _instance(body))

    async def register(self, tool: WantedTool) -> Accepted | Refused:
        """Register a tool, in place of one of its name and source."""
        status, body, _ = await self._request(
            b"POST",
            b"/api/tools/register",
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "callback_url": tool.callback_url,
                "role": tool.role,
                "source": tool.source,
                "timeout_seconds": tool.timeout_seconds,
                **({"annotations": tool.annotations} if tool.annotations else {}),
                **self._identity,
            },
        )
        if status == 200 and body.get("ok") is True:
            signed = bool(self._secret) and body.get("secret") == self._secret
            return Accepted(signed=signed, roles=_roles(body))
        if status >= 500 or status in (408, 409, 425, 429):
            raise ServerUnavailableError(f"the registration was answered with HTTP {status}: {_reason(body)}")
        if status == 401 or _is_untrusted(body):
            return Refused(self._token_problem(body), wants_token=True)
        return Refused(_reason(body))

    async def unregister(self, name: str, *, role: str | None, source: str) -> None:
        """Remove a tool of this source."""
        await self._request(
            b"POST", b"/api/tools/unregister", {"name": name, "role": role, "expected_source": source, **self._identity}
        )

    async def clear(self, source: str) -> None:
        """Remove all tools of a source."""
        await self._request(b"POST", b"/api/tools/clear", {"source": source, "role": None, **self._identity})

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _own(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of replicas with this instance, each with its own callback; without one all rows."""
        if not self._instance:
            return rows
        return [{**row, **each} for row in rows for each in row.get("instances", ()) if each.get("instance") == self._instance]

    def _token_problem(self, body: Mapping[str, Any]) -> str:
        return f"the server does not take the token: {_reason(body)}" if self._token_was_sent else _WANTS_TOKEN

    async def _request(
        self, method: bytes, path: bytes, message: Any, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> tuple[int, dict[str, Any], str]:
        """Send a request; return the status, the JSON object of the answer (or an empty one) and its ETag."""
        head = [(b"Accept", b"application/json"), *headers]
        data = None
        if message is not None:
            head.append((b"Content-Type", b"application/json"))
            data = msgspec.json.encode(message)
        if self._token is None:
            try:
                self._token = self._read_token()
            except (PatchbayError, OSError) as error:  # the file may come back
                raise ServerUnavailableError(str(error)) from error
        if self._token is not None:
            head.append((b"Authorization", b"Bearer " + self._token.encode("latin-1", "replace")))
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._client.request(method, self._base + path, head, data)
                try:
                    body = await answer.read_up_to(_MOST_BYTES)
                finally:
                    answer.close()
        except TimeoutError as error:
            raise ServerUnavailableError(f"{self._is_away}: no answer within {self._timeout:g} s") from error
        except ClientError as error:
            raise ServerUnavailableError(f"{self._is_away}: {error}") from error
        if len(body) > _MOST_BYTES:
            raise ServerUnavailableError(f"the answer is longer than {_MOST_BYTES} bytes")
        read = _object(body)
        self._token_was_sent = self._token is not None
        if answer.status in (401, 403) or _is_untrusted(read):
            self._token = None
        return answer.status, read, answer.header(b"etag")


def source_of(plugin_id: str) -> str:
    """Return the source of a plugin's tools."""
    return f"plugin:{plugin_id}"


def _object(body: bytes) -> dict[str, Any]:
    try:
        read = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {"detail": body[:_SHOWN].decode("utf-8", "replace")} if body else {}
    return read if isinstance(read, dict) else {"detail": read}


def _instance(body: Mapping[str, Any]) -> str | None:
    value = body.get("instance_id")
    return value if isinstance(value, str) else None


def _roles(body: Mapping[str, Any]) -> tuple[str, ...]:
    roles = body.get("affected_roles")
    return tuple(map(str, roles)) if isinstance(roles, list) else ()


def _is_untrusted(body: Mapping[str, Any]) -> bool:
    failed = body.get("failed_roles")
    return isinstance(failed, list) and any(isinstance(each, dict) and each.get("code") == "source_reserved" for each in failed)


def _reason(body: Mapping[str, Any]) -> str:
    """Return the reason in an answer: of each role, of each field, or of the whole."""
    parts: list[str] = []
    failed = body.get("failed_roles")
    if isinstance(failed, list):
        parts = [f"{each.get('role')}: {each.get('error')}" for each in failed if isinstance(each, dict)]
    detail = body.get("detail")
    if not parts and isinstance(detail, list):
        parts = [f"{_place(each)}: {each.get('msg')}" for each in detail if isinstance(each, dict)]
    text = "; ".join(parts) or str(body.get("error") or detail or "no reason was given")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _place(detail: Mapping[str, Any]) -> str:
    place = detail.get("loc")
    return ".".join(map(str, place[1:])) if isinstance(place, list) else ""
