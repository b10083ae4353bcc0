"""OAuth for MCP servers at a URL: the login of a person, and its tokens in encrypted files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shlex
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

import httpx2
from cryptography.fernet import Fernet, InvalidToken
from mcp.client import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.utils import is_valid_client_metadata_url, union_scopes
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import AnyUrl

from patchbay.errors import ConfigurationError, PatchbayError
from patchbay.mcp.config import McpServer, default_file
from patchbay.mcp.files import write_private
from patchbay.mcp.http import http_transport

LOGIN_SECONDS: Final = 300.0
"""Time for a person to log in."""

_MAX_REQUEST: Final = 16 * 1024
_PAGE: Final = b"You are logged in, and can close this page.\n"


class TokenStore:
    """The tokens of one server in a file that is encrypted with the key in ``key`` beside it, both for their owner alone.

    Both files together give access to the tokens: keep the key out of backups of the folder. Raises ConfigurationError.
    """

    def __init__(self, server: McpServer, folder: Path | None = None) -> None:
        self._folder = folder if folder is not None else default_file().with_name("mcp-tokens")
        name = hashlib.sha256(json.dumps([server.name, server.url]).encode()).hexdigest()[:24]
        self._path = self._folder / f"{name}.token"
        self.content: dict[str, Any] = self._load() if self._path.exists() else {}

    @property
    def has_tokens(self) -> bool:
        """Whether there was a login."""
        return "tokens" in self.content

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens."""
        found = self.content.get("tokens")
        return OAuthToken.model_validate(found) if found else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store tokens."""
        self.content["tokens"] = tokens.model_dump(mode="json")
        self.content["expires_at"] = time.time() + tokens.expires_in if tokens.expires_in else None
        self.save()

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return our registration as a client."""
        found = self.content.get("client")
        return OAuthClientInformationFull.model_validate(found) if found else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store our registration as a client."""
        self.content["client"] = client_info.model_dump(mode="json")
        self.save()

    def save(self) -> None:
        """Write the file."""
        write_private(self._path, self._fernet().encrypt(json.dumps(self.content).encode()))

    def _load(self) -> dict[str, Any]:
        fernet = self._fernet()
        try:
            content = json.loads(fernet.decrypt(self._path.read_bytes()))
        except (InvalidToken, ValueError, OSError):
            raise ConfigurationError(f"{self._path}: it cannot be decrypted with the key beside it: log in again.") from None
        return content if isinstance(content, dict) else {}

    def _fernet(self) -> Fernet:
        path = self._folder / "key"
        if not path.exists():
            write_private(path, Fernet.generate_key())
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise ConfigurationError(f"others can read the key of the tokens (mode {mode:04o}): chmod 600 {path}")
        try:
            return Fernet(path.read_bytes().strip())
        except ValueError:
            raise ConfigurationError(f"{path}: this is not a key: remove it, and log in again.") from None

    @property
    def is_current(self) -> bool:
        """Whether the tokens are those of the last login, which may have been in another process."""
        return self._path.exists() and self._load().get("tokens") == self.content.get("tokens")

    def forget(self) -> None:
        """Remove the file."""
        self.content = {}
        self._path.unlink(missing_ok=True)


def stored_auth(server: McpServer) -> OAuthClientProvider | None:
    """Return the authentication by the tokens of an earlier login, which are refreshed; None if there was none."""
    store = TokenStore(server)
    if not store.has_tokens:
        return None

    return _provider(server, store, "http://127.0.0.1/callback")


def newer_auth(server: McpServer, used: httpx2.Auth | None) -> httpx2.Auth | None:
    """Return the authentication by the tokens of a login since ``used`` was made; None if there was none."""
    if isinstance(used, _Provider) and used.store.is_current:
        return None
    return stored_auth(server)


async def login(server: McpServer, show: Callable[[str], None], agree: Callable[[str], bool] = lambda _: False) -> bool:
    """Log in to a server: ``show`` gets the URL to open in a browser. Return False if the server does not require a login.

    ``agree`` gets each other origin that the login leads to, and returns whether requests may be sent there.
    Raises ConfigurationError for a command, TimeoutError after LOGIN_SECONDS, and the SDK's errors.
    """
    if not server.url:
        raise ConfigurationError(f"the MCP server {server.name!r} is a command: only servers with a URL have a login.")
    server = server.expanded()
    store = TokenStore(server)
    scope = store.content.get("scope")
    store.forget()

    async def redirect(url: str) -> None:
        show(url)

    async with _Callback() as callback:
        provider = _provider(server, store, callback.url, redirect=redirect, callback=callback.result, scope=scope)
        provider.agree = agree
        async with asyncio.timeout(LOGIN_SECONDS), Client(http_transport(server, provider), cache=None) as client:
            await client.list_tools()
    if store.has_tokens and (metadata := provider.context.oauth_metadata) is not None:
        store.content["metadata"] = metadata.model_dump(mode="json", exclude_none=True)
        store.save()
    return store.has_tokens


def _provider(
    server: McpServer,
    store: TokenStore,
    redirect_uri: str,
    *,
    redirect: Callable[[str], Awaitable[None]] | None = None,
    callback: Callable[[], Awaitable[AuthorizationCodeResult]] | None = None,
    scope: str | None = None,
) -> _Provider:
    about = OAuthClientMetadata(
        client_name="Patchbay",
        redirect_uris=[AnyUrl(redirect_uri)],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",  # noqa: S106  (no password: the client is public)
    )
    document = server.client_id if is_valid_client_metadata_url(server.client_id) else None
    if server.client_id and document is None:
        store.content["client"] = OAuthClientInformationFull(
            client_id=server.client_id,
            client_secret=server.client_secret or None,
            redirect_uris=about.redirect_uris,
            token_endpoint_auth_method="client_secret_basic" if server.client_secret else "none",
        ).model_dump(mode="json")
    provider = _Provider(
        server.url, about, store, redirect_handler=redirect, callback_handler=callback, client_metadata_url=document
    )
    provider.name, provider.scope = server.name, scope
    provider.context.token_expiry_time = store.content.get("expires_at")
    if found := store.content.get("metadata"):
        provider.context.oauth_metadata = OAuthMetadata.model_validate(found)
    return provider


class _Provider(OAuthClientProvider):
    """The SDK's provider, which asks for ``scope`` too; without a person to ask, it stores the scope for the next login.

    A server's metadata can name any URL: requests to other origins than the server's are sent where a person has agreed.
    """

    name = ""
    scope: str | None = None
    agree: Callable[[str], bool] = staticmethod(lambda _: False)

    @property
    def store(self) -> TokenStore:
        """The file of its tokens."""
        assert isinstance(self.context.storage, TokenStore)
        return self.context.storage

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Drive the flow, and check the origin of each of its requests. Raises ConfigurationError."""
        flow = super().async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                self._check_origin(_origin(outgoing.url))
                outgoing = await flow.asend((yield outgoing))
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    def _check_origin(self, origin: str) -> None:
        known = self.store.content.setdefault("origins", [])
        if origin == _origin(httpx2.URL(self.context.server_url)) or origin in known:
            return
        if not self.agree(origin):
            login = f"patchbay mcp login {shlex.quote(self.name)}"
            raise ConfigurationError(f"its login leads to {origin}, which is not its origin: {login}")
        known.append(origin)

    async def _perform_authorization(self) -> httpx2.Request:
        about = self.context.client_metadata
        if self.context.callback_handler is None:
            if self.store.is_current:
                self.store.content["scope"] = about.scope
                self.store.save()
            raise ConfigurationError(f"its login has ended, or does not allow this: patchbay mcp login {shlex.quote(self.name)}")
        about.scope = union_scopes(about.scope, self.scope)
        return await super()._perform_authorization()


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


class LoginRefusedError(PatchbayError):
    """The person, or the server, refused the login."""


class _Callback:
    """The local page that the browser is redirected to after the login."""

    def __init__(self) -> None:
        self.url = ""
        self._found: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_MAX_REQUEST)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/callback"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def result(self) -> AuthorizationCodeResult:
        """Wait for the browser. Raises LoginRefusedError where the login was refused."""
        found = await self._found
        self._found = asyncio.get_running_loop().create_future()  # for a server that asks again
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                line = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode("latin-1").split(" ")
            parts = urlsplit(line[1] if len(line) == 3 else "")
            given = {name: values[0] for name, values in parse_qs(parts.query).items()}
            is_ours = line[0] == "GET" and parts.path == "/callback" and ("code" in given or "error" in given)
            status, body = (
                (b"200 OK", _PAGE if "code" in given else b"The login was refused.\n") if is_ours else (b"404 Not Found", b"")
            )
            writer.write(b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n" % (status, len(body)))
            writer.write(b"Connection: close\r\n\r\n" + body)
            await writer.drain()
            if is_ours and not self._found.done():
                if "code" in given:
                    self._found.set_result(
                        AuthorizationCodeResult(**{k: given[k] for k in ("code", "state", "iss") if k in given})
                    )
                else:
                    self._found.set_exception(LoginRefusedError(f"the login was refused: {given['error'][:200]}"))
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()
