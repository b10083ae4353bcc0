"""The proxy with hooks: every chat completion is put to them, and tools that hooks add are carried out here.

What lives here: the way to those who look on and decide (``/api/approvals``, ``/api/events``, ``/api/audit``, ``/api/media``),
behind the guard of the tool server: programs of this machine, with the proxy's key where it has one. All else goes the proxy's
way.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from fastapi import FastAPI

import patchbay
from patchbay.errors import ConfigurationError
from patchbay.models.options import TextOptions
from patchbay.server.body import Receive
from patchbay.server.oversight import Oversight
from patchbay.server.reply import Send
from patchbay.server.routes import own_path
from patchbay.server.settings import ProxySettings
from patchbay.server.tools.api import handle_errors
from patchbay.server.tools.chat.door import ChatDoor
from patchbay.server.tools.chat.settings import ChatSettings
from patchbay.server.tools.guard import Guard
from patchbay.server.tools.settings import ToolsSettings
from patchbay.tools.registry import ToolRegistry

_OURS: Final = tuple(f"/api/{part}" for part in ("approvals", "events", "audit", "media"))


class GovernedProxy(ChatDoor):
    """The proxy before an upstream, with the hooks of ``oversight``, which ends with it. Raises ConfigurationError."""

    def __init__(self, settings: ProxySettings, options: TextOptions, oversight: Oversight) -> None:
        super().__init__(settings, ToolRegistry(), ChatSettings(options), oversight)
        try:
            guarded = ToolsSettings(token=settings.api_key)
        except ConfigurationError as error:
            raise ConfigurationError(f"with hooks the proxy's key is also that of those who approve calls: {error}") from None
        api = FastAPI(
            title="Patchbay",
            version=patchbay.__version__,
            lifespan=self._lifespan,
            docs_url=None,  # those pages load scripts from elsewhere
            redoc_url=None,
            openapi_url=None,  # its path may be the upstream's
        )
        oversight.serve_by(api, needs_token=settings.api_key is not None)
        handle_errors(api)
        self._api = Guard(api, guarded)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        kind = scope["type"]
        if kind == "lifespan" or (kind == "http" and _is_ours(own_path(scope))):
            await self._api(scope, receive, send)
            return
        if kind == "http":
            await self._oversight.open()
        await super().__call__(scope, receive, send)

    async def aclose(self) -> None:
        """End the hooks, and close the connections to the upstream."""
        await super().aclose()
        await self._oversight.aclose()

    def stopping(self) -> None:
        """Say that the server is about to stop, before it waits for what is under way."""
        self._oversight.leave()

    async def reload(self) -> str:
        """Read the configuration of hooks and approvals again; return what became of it. Raises ConfigurationError."""
        return await self._oversight.reload()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _api: FastAPI) -> AsyncIterator[None]:
        try:
            await self._oversight.open()
            yield
        finally:
            await self.aclose()


def _is_ours(path: str) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in _OURS)
