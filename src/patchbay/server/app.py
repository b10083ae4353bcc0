"""The tool server as an ASGI application: registry, store, lease and dispatcher put together behind the guard.

The proxy with hooks: every chat completion is put to them, and tools that hooks add are carried out here.

What lives here: the way to those who look on and decide (``/api/approvals``, ``/api/events``, ``/api/audit``, ``/api/media``),
behind the guard of the tool server: programs of this machine, with the proxy's key where it has one. All else goes the proxy's
way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI

import patchbay
from patchbay.errors import ConfigurationError
from patchbay.models.options import TextOptions
from patchbay.registrations import RegistrationStore
from patchbay.server.auth import OPENAI_BASE, AccessMiddleware, AsgiApp
from patchbay.server.callback_tool import CallbackDispatcher
from patchbay.server.callbacks import CallbackHealth
from patchbay.server.chat.handler import ToolChatApp, no_upstream
from patchbay.server.chat.turn import ChatSettings
from patchbay.server.governance import Governance
from patchbay.server.http import Receive, Send, find_tail, own_path
from patchbay.server.registrations import RegistrationWriter
from patchbay.server.registry_api import describe_token, make_router
from patchbay.server.registry_models import Health
from patchbay.server.registry_service import RegistryService
from patchbay.server.routing import handle_errors
from patchbay.server.settings import ProxySettings, ToolsSettings
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.registry import DEFAULT_ROLE, RESERVED, Change, ToolRegistry

if TYPE_CHECKING:
    from patchbay.realtime.config import RealtimeSettings
    from patchbay.server.live_sessions.app import LiveSessionsApp


class ToolsApp:
    """A tool server; ``create_tools_app`` makes it. ``managers`` are the roles', for tools of this process and live sessions.

    ``registry`` is whole from the startup of its lifespan on, when what was stored is in it. ``oversight`` has the hooks.
    ``sessions`` is the door of live sessions, None where there is no model for them; only with it are WebSockets spoken.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        managers: dict[str, LLMSessionManager],
        api: FastAPI,
        guard: AccessMiddleware,
        oversight: Governance,
        sessions: LiveSessionsApp | None,
    ) -> None:
        self.registry = registry
        self.managers = managers
        self.api = api
        self.oversight = oversight
        self.sessions = sessions
        self._guard = guard

    @property
    def speaks_websocket(self) -> bool:
        """Whether there is anything to be had by WebSocket."""
        return self.sessions is not None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "lifespan":
            await self.oversight.open()  # also where no lifespan reaches the application: no call goes unasked
        await self._guard(scope, receive, send)

    def stopping(self) -> None:
        """Say that the server is about to stop, before it waits for what is under way."""
        if self.sessions is not None:
            self.sessions.stopping()
        self.oversight.leave()

    async def reload(self) -> str:
        """Read the configuration of hooks and approvals again; return what became of it. Raises ConfigurationError."""
        said = await self.oversight.reload()
        if self.sessions is not None:
            self.sessions.tell_of_hooks()
        return said


def create_tools_app(
    roles: Iterable[str] = (DEFAULT_ROLE,),
    *,
    store: RegistrationStore | str | None = None,
    settings: ToolsSettings | None = None,
    upstream: str | ProxySettings | None = None,
    chat: ChatSettings | None = None,
    realtime: RealtimeSettings | None = None,
    oversight: Governance | None = None,
) -> ToolsApp:
    """Return a tool server for ``roles``. ``store`` (or its URL) is where registrations are kept; None keeps them in memory.

    ``upstream`` is the OpenAI-compatible server (or its base URL) whose models ``/v1`` gives the tools to, as ``chat`` says. Its
    models, and the ``realtime`` one, are those of the sessions at ``/api/sessions/{role}``.
    ``oversight`` has the hooks that every call is put to, whichever way it comes, and ends with the server.
    Where no token is configured the sources of plugins are anybody's, as the seeds' plugin hosts expect; the builtins never are.
    Raises ConfigurationError.
    """
    if chat is not None and upstream is None:
        raise ConfigurationError("chat says how an upstream's models are given tools: it needs an upstream.")
    settings = settings if settings is not None else ToolsSettings()
    oversight = oversight if oversight is not None else Governance()
    lease = CallbackHealth(
        max_failures=settings.max_failures, connect_timeout=settings.connect_timeout, is_watched=settings.lease > 0
    )
    dispatcher = CallbackDispatcher(
        max_result_size=settings.max_result_size,
        connect_timeout=settings.connect_timeout,
        strict_arguments=settings.strict_arguments,
        lease=lease,
        callback_ports=settings.callback_ports,
    )
    registry = lease.registry = ToolRegistry(
        roles,
        dispatcher.tool,
        reserved=RESERVED if settings.token is not None else (),
        needs_secret=settings.needs_secret,
    )
    managers = {role: LLMSessionManager(role, registry) for role in registry.roles}
    lease.tell = partial(_tell_sessions, managers)
    kept = RegistrationStore(store) if isinstance(store, str) else store
    keeper = RegistrationWriter(registry, kept) if kept is not None else None
    door = _chat_door(upstream, registry, chat or ChatSettings(), settings, oversight) if upstream is not None else None
    sessions = _sessions_door(upstream, realtime, chat, managers, oversight)
    desk = RegistryService(registry, managers, lease, keeper, oversight, sync_timeout=settings.sync_timeout)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as ends:  # what was opened is closed, the last first
            ends.push_async_callback(oversight.aclose)
            if keeper is not None:
                await keeper.open()
                ends.push_async_callback(keeper.close)
            await oversight.open()
            ends.push_async_callback(dispatcher.close)
            if door is not None:
                ends.push_async_callback(door.aclose)
            if sessions is not None:
                sessions.tell_of_hooks()
                ends.push_async_callback(sessions.aclose)
            if settings.lease:
                ends.push_async_callback(_ended, asyncio.create_task(lease.watch(settings.lease, dispatcher.keep_only)))
            yield

    api = FastAPI(
        title="Patchbay",
        version=patchbay.__version__,
        summary="The registry of tools: who may call what, and where it answers.",
        lifespan=lifespan,
        docs_url=None,  # those pages load scripts from elsewhere
        redoc_url=None,
    )
    api.include_router(make_router(desk, callback_ports=settings.callback_ports))
    api.add_api_route("/health", partial(_health, desk), response_model=Health, tags=["tools"], summary="Whether all is well")
    oversight.serve_by(api, needs_token=settings.token is not None)
    handle_errors(api)
    describe_token(api)
    guard = AccessMiddleware(_by_path(api, door if door is not None else no_upstream), settings, sockets=sessions)
    return ToolsApp(registry, managers, api, guard, oversight, sessions)


async def _health(desk: RegistryService) -> Health:
    problem = desk.store_problem
    return Health(status="ok" if problem is None else "degraded", problem=problem)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _tell_sessions(managers: Mapping[str, LLMSessionManager], change: Change) -> None:
    for role in change.affected_roles:
        if role in managers:
            managers[role].sync_later()


def _chat_door(
    upstream: str | ProxySettings, registry: ToolRegistry, chat: ChatSettings, settings: ToolsSettings, oversight: Governance
) -> ToolChatApp:
    proxy = upstream if isinstance(upstream, ProxySettings) else ProxySettings(upstream)
    # The guard has bounded the body already, and asked for the token where it must be shown.
    proxy = replace(proxy, base_path=OPENAI_BASE, api_key=None, max_body_size=settings.max_body_size)
    return ToolChatApp(proxy, registry, chat, oversight, token=settings.token)


def _sessions_door(
    upstream: str | ProxySettings | None,
    realtime: RealtimeSettings | None,
    chat: ChatSettings | None,
    managers: Mapping[str, LLMSessionManager],
    oversight: Governance,
) -> LiveSessionsApp | None:
    """The door of sessions, where there is a model for them."""
    if upstream is None and realtime is None:
        return None
    from patchbay.server.live_sessions.app import LiveSessionsApp
    from patchbay.server.live_sessions.protocol import LiveSessionsSettings

    proxy = ProxySettings(upstream) if isinstance(upstream, str) else upstream
    return LiveSessionsApp(managers, oversight, LiveSessionsSettings(realtime=realtime, upstream=proxy, chat=chat))


def _by_path(api: AsgiApp, chat: AsgiApp) -> AsgiApp:
    """Return an application of two, by the path that is asked for."""

    async def serve(scope: Any, receive: Receive, send: Send) -> None:
        is_chat = scope["type"] == "http" and find_tail(own_path(scope), OPENAI_BASE) is not None
        await (chat if is_chat else api)(scope, receive, send)

    return serve


_OURS: Final = tuple(f"/api/{part}" for part in ("approvals", "events", "audit", "media"))


class GovernedProxy(ToolChatApp):
    """The proxy before an upstream, with the hooks of ``oversight``, which ends with it. Raises ConfigurationError."""

    def __init__(self, settings: ProxySettings, options: TextOptions, oversight: Governance) -> None:
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
        self._api = AccessMiddleware(api, guarded)

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
