"""``/mcp``: the tools for MCP clients, by role. The SDK is imported with the first request."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import patchbay
from patchbay.errors import InvalidRequestError, PatchbayError, UnknownRoleError
from patchbay.server.auth import TRUSTED, HeaderLists, Rejected, headers_of, reject, unauthorized
from patchbay.server.chat.handler import SESSION_HEADER, session_of
from patchbay.server.governance import Governance
from patchbay.server.http import Receive, Send
from patchbay.server.settings import ToolsSettings
from patchbay.tools.registry import ToolRegistry
from patchbay.tools.threads import run_in_thread

if TYPE_CHECKING:
    from patchbay.mcp.http_sessions import HttpSessions

PATH: Final = "/mcp"

_NO_RESUMPTION: Final = "Events are not stored, so a stream cannot be resumed: open a new one, without Last-Event-ID."
_NOT_INSTALLED: Final = "MCP needs the official SDK on the server: pip install 'patchbay-tools[mcp]', and start it again."


class McpEndpoint:
    """Serves the tools of the role in ``?role=`` (default: the first) over MCP, behind the AccessMiddleware.

    A server with a token serves only callers that send it. ``extend`` gets each role's server of the SDK before it serves, to add
    prompts, resources and other handlers.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        governance: Governance,
        settings: ToolsSettings,
        extend: Callable[[Any], object] | None = None,
    ) -> None:
        self._registry = registry
        self._governance = governance
        self._settings = settings
        self._extend = extend
        self.shared_secret = b""
        """The secret of several servers, before the first request: each serves the sessions of the others then."""
        self._roles: dict[str, HttpSessions] = {}
        self._starting = asyncio.Lock()
        self._stopped = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        try:
            if self._settings.token is not None and not scope[TRUSTED]:
                raise unauthorized("an MCP client must send the token")
            headers = headers_of(scope)
            session = _session_of(headers)
            if scope["method"] == "GET" and any(headers.get(b"last-event-id", ())):  # the SDK sends no response then
                raise Rejected(405, "no_resumption", _NO_RESUMPTION, headers=((b"allow", b"DELETE, GET, POST"),))
            sessions = await self._sessions_of(self._role_of(scope))
        except PatchbayError as error:
            await reject(scope, send, error)
            return
        await sessions({**scope, "patchbay.session": session}, receive, send)

    def stop(self) -> None:
        """End the streams of notifications, before the server waits for running requests."""
        self._stopped = True
        for sessions in self._roles.values():
            sessions.end_streams()

    async def aclose(self) -> None:
        """End all sessions."""
        self.stop()
        for sessions in self._roles.values():
            await sessions.aclose()

    def _role_of(self, scope: Any) -> str:
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        role = query["role"][0] if "role" in query else next(iter(self._registry.roles), "")
        if role not in self._registry.roles:
            raise UnknownRoleError(role)
        return role

    async def _sessions_of(self, role: str) -> HttpSessions:
        """Return the sessions of a role, which the first request starts. Raises Rejected."""
        async with self._starting:
            if self._stopped:
                raise Rejected(503, "stopping", "The server is stopping.")
            if (found := self._roles.get(role)) is None:
                try:
                    # It takes two seconds, in which other requests are served.
                    await run_in_thread(lambda: import_module("patchbay.mcp.http_sessions"))
                except ModuleNotFoundError as error:
                    if (error.name or "").partition(".")[0] in ("mcp", "mcp_types"):
                        raise Rejected(501, "mcp_not_installed", _NOT_INSTALLED) from None
                    raise
                from patchbay.mcp.http_sessions import HttpSessions
                from patchbay.mcp.server import RegistryServer

                governance = self._governance
                server = RegistryServer(
                    self._registry,
                    role,
                    version=patchbay.__version__,
                    hooks=governance.hooks,
                    media=governance.media,
                    approvals=governance.approvals,
                    extend=self._extend,
                    state_key=self.shared_secret,
                )
                is_shared = bool(self.shared_secret)
                found = HttpSessions(server, max_body_size=self._settings.max_body_size, is_shared=is_shared)
                await found.start()
                self._roles[role] = found
            return found


def _session_of(headers: HeaderLists) -> str:
    """Return the session key of a request's calls: its own header, or a digest of its MCP session. Raises Rejected."""
    if given := headers.get(SESSION_HEADER.lower().encode()):
        try:
            return session_of(given[0])
        except InvalidRequestError as error:
            raise Rejected(422, error.code, str(error)) from None
    if known := headers.get(b"mcp-session-id"):
        return f"mcp-{hashlib.sha256(known[0]).hexdigest()[:16]}"  # the id itself lets its holder use the session
    return ""
