"""The tool server as an ASGI application, and the proxy with hooks."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI
from typing_extensions import override

import patchbay
from patchbay._redaction import protect
from patchbay.errors import ConfigurationError
from patchbay.hooks import HookManager
from patchbay.loopback import machine_name
from patchbay.mcp.config import McpServer, checked
from patchbay.mcp.host import McpHost
from patchbay.mcp.pins import Pins
from patchbay.models.options import TextOptions
from patchbay.registrations import RegistrationStore
from patchbay.server.admin_api import make_events_router
from patchbay.server.auth import CONSOLE_PATH, METRICS_PATH, OPENAI_BASE, AccessMiddleware, AsgiApp, is_below, sign_with
from patchbay.server.callback_hosts import CallbackHosts
from patchbay.server.callback_tool import CallbackDispatcher
from patchbay.server.chat.handler import ToolChat, no_upstream
from patchbay.server.console_api import (
    ConsoleFacts,
    ConsolePages,
    make_console_router,
    make_models_router,
    make_turns_router,
    make_usage_router,
)
from patchbay.server.console_sessions import ConsoleSessions
from patchbay.server.doctor_api import make_doctor_router
from patchbay.server.event_stream import EventStream
from patchbay.server.governance import Governance
from patchbay.server.http import TO_CONSOLE, Receive, ResponseWriter, Send, is_model_api, own_path, wants_page
from patchbay.server.mcp_endpoint import PATH as MCP_PATH
from patchbay.server.mcp_endpoint import McpEndpoint
from patchbay.server.metrics import MetricSources, Restarts, make_metrics_router
from patchbay.server.proxy import ProxyApp
from patchbay.server.registrations import RegistrationWriter
from patchbay.server.registry_api import describe, make_router
from patchbay.server.registry_models import Health
from patchbay.server.registry_service import RegistryService
from patchbay.server.routing import handle_errors
from patchbay.server.settings import ChatSettings, ProxySettings, ToolsSettings
from patchbay.server.tools_api import ToolViews, make_tools_router
from patchbay.server.turns import TurnStore
from patchbay.server.usage import UsageCounters
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.registry import DEFAULT_ROLE, MCP_SOURCES, RESERVED, Change, ToolRegistry

if TYPE_CHECKING:  # not needed by a server without live sessions
    from patchbay.agents import BaseAgent
    from patchbay.agents.durable import DurableRuns
    from patchbay.realtime.config import RealtimeSettings
    from patchbay.server.chat.agents import ServedAgents
    from patchbay.server.live_sessions.app import LiveSessionsApp


_NO_UPSTREAM: Final = "http://upstream.invalid/v1"
"""In the settings of a server whose only models are agents."""

_ADMIN_PARTS: Final = ("approvals", "events", "audit", "media", "turns", "usage", "models", "doctor", "console")
_ADMIN_PATHS: Final = (CONSOLE_PATH, METRICS_PATH, *(f"/api/{part}" for part in _ADMIN_PARTS))


@dataclass(eq=False, repr=False)
class ToolsApp:
    """A tool server; create it with ``create_tools_app``. ``managers`` are for tools of this process and live sessions, by role.

    ``registry`` is complete once the lifespan has started, which restores what was stored. ``sessions`` serves live sessions; it
    is None where there is no model for them, and no WebSockets are spoken then.
    """

    registry: ToolRegistry
    managers: dict[str, LLMSessionManager]
    governance: Governance
    sessions: LiveSessionsApp | None
    mcp_host: McpHost
    _settings: ToolsSettings
    _proxy: ProxyApp | None
    _agents: ServedAgents | None
    _durable: DurableRuns | None
    _dispatcher: CallbackDispatcher
    _writer: RegistrationWriter | None
    _mcp: McpEndpoint
    _read_servers: Callable[[], Iterable[McpServer]] | None
    _beside: Callable[[], AbstractAsyncContextManager[object]]

    def __post_init__(self) -> None:
        self.api = _make_api(
            lambda _api: self._running(), summary="The registry of tools: who may call what, and where it answers."
        )
        self.restarts: dict[str, Restarts] = {"mcp": lambda: self.mcp_host.restarts}
        """What metrics show of parts that are started again."""
        sockets = self._serve if self.sessions is not None else None
        console = self._console = ConsoleSessions()
        self._middleware = AccessMiddleware(self._serve, self._settings, has_signed_in=console.admits, sockets=sockets)

    @property
    def speaks_websocket(self) -> bool:
        """Whether WebSockets are served."""
        return self.sessions is not None

    @property
    def max_message_size(self) -> int:
        """Maximum bytes of a WebSocket message; live sessions have a smaller limit of their own."""
        return self._proxy.max_message_size if self._proxy is not None else 0

    @property
    def proxy(self) -> ProxyApp | None:
        """The proxy that serves the models; None without an upstream."""
        return self._proxy

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "lifespan":
            await self.governance.open()  # also where no lifespan reaches the application: no call runs without its hooks
        await self._middleware(scope, receive, send)

    async def _serve(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve a scope that the middleware has admitted."""
        kind = scope["type"]
        app: AsgiApp = self.api
        if kind != "lifespan":
            path = own_path(scope)
            is_model = is_model_api(path, OPENAI_BASE)
            if is_model and self._proxy is not None:
                app = self._proxy.serve_admitted
            elif kind == "websocket" and self.sessions is not None:
                app = self.sessions
            elif is_model or (path == "/" and scope["method"] == "HEAD"):
                app = self._proxy.serve_admitted if self._proxy is not None else no_upstream
            elif path == MCP_PATH:
                app = self._mcp
            elif is_below(path, (CONSOLE_PATH,)):
                app = _PAGES
            elif path == "/" and wants_page(scope):
                app = _redirect_to_console
        await app(scope, receive, send)

    def add_console(self, upstream: ProxySettings | None) -> None:
        """Add the console's routes."""
        token = self._settings.token
        turns = self._proxy.turns if self._proxy is not None else TurnStore()
        address = upstream.upstream if upstream is not None else None
        path = OPENAI_BASE if self._proxy is not None else None
        facts = ConsoleFacts("serve", address, token, path, lambda: [*self.registry.roles], self.governance.approvals)
        self.governance.hooks.recorders.append(turns.add_call)
        self.governance.hooks.hook_recorders.append(turns.add_hook)
        archive = self._proxy.turn_archive if self._proxy is not None else None
        sources = MetricSources(turns, self.governance.events, self.governance, archive, self.restarts)
        tools = ToolViews(turns, registry=self.registry, mcp=self.mcp_host, upstream=address)
        _add_console_routes(self.api, facts, self._console, sources, tools)
        _add_model_routes(self.api, self._proxy, turns.usage, needs_token=token is not None)

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        """Start the parts of the server, and close them in reverse order."""
        async with contextlib.AsyncExitStack() as cleanup:
            cleanup.push_async_callback(self.governance.aclose)
            if self._writer is not None:
                await self._writer.open()
                cleanup.push_async_callback(self._writer.close)
                if secret := self._writer.shared_secret:
                    token = (self._settings.token or "").encode()  # another token ends all sign-ins
                    self._console.key = hmac.digest(secret, b"console " + token, "sha256")
                    self._mcp.shared_secret = hmac.digest(secret, b"mcp", "sha256")
                    sign_with(hmac.digest(secret, b"media", "sha256"))
            await self.governance.open()
            cleanup.push_async_callback(self._dispatcher.close)
            cleanup.push_async_callback(self.mcp_host.aclose)
            await self.mcp_host.start(wait=False)
            if self._agents is not None:
                cleanup.push_async_callback(self._agents.aclose)
            if self._durable is not None:
                cleanup.push_async_callback(self._durable.aclose)
                await self._durable.start()
            if self._proxy is not None:
                cleanup.push_async_callback(self._proxy.aclose)
            if self.sessions is not None:
                self.sessions.warn_of_unsupported_hooks()
                cleanup.push_async_callback(self.sessions.aclose)
            cleanup.push_async_callback(self._mcp.aclose)
            if lease := self._settings.lease:
                checks = asyncio.create_task(self._dispatcher.health.check_forever(lease))
                cleanup.push_async_callback(_cancel, checks)
            await cleanup.enter_async_context(self._beside())
            yield

    def stopping(self) -> None:
        """Prepare for shutdown, before the server waits for running requests."""
        if self.sessions is not None:
            self.sessions.stopping()
        if self._proxy is not None:
            self._proxy.stopping()
        if self._durable is not None:
            self._durable.stop()
        self._mcp.stop()
        self.governance.stop()

    def problem(self) -> str:
        """Return why the server is not ready, "" if it is.

        With a database that servers share it is ready while that is away: the others would be as little.
        """
        writer = self._writer
        return "" if writer is None or writer.shared_id else writer.problem or ""

    async def reload(self) -> str:
        """Read the configuration of hooks, approvals and MCP servers again; return a summary. Raises ConfigurationError."""
        servers = None if self._read_servers is None else checked(self._read_servers())  # raises before anything is changed
        is_configured = self.governance.settings.config is not None
        done = [await self.governance.reload()] if is_configured or servers is None else []
        if servers is not None:
            done.append(await self.mcp_host.update(servers))
        if self.sessions is not None:
            self.sessions.warn_of_unsupported_hooks()
        return "; ".join(filter(None, done)) or "nothing"


def create_tools_app(
    roles: Iterable[str] = (DEFAULT_ROLE,),
    *,
    store: RegistrationStore | str | None = None,
    settings: ToolsSettings | None = None,
    upstream: str | ProxySettings | None = None,
    chat: ChatSettings | None = None,
    realtime: RealtimeSettings | None = None,
    governance: Governance | None = None,
    mcp_servers: Iterable[McpServer] | Callable[[], Iterable[McpServer]] = (),
    mcp_pins: Pins | None = None,
    extend_mcp: Callable[[Any], object] | None = None,
    agents: Iterable[BaseAgent] = (),
    durable: DurableRuns | None = None,
    beside: Callable[[RegistryService], AbstractAsyncContextManager[object]] | None = None,
) -> ToolsApp:
    """Return a tool server for ``roles``.

    ``store`` (or its URL) keeps the registrations, and responses of the Responses API; None keeps them in memory. ``upstream`` is
    the OpenAI-compatible server (or its base URL) whose models are given the tools at ``/v1``, as ``chat`` says. Sessions at
    ``/api/sessions/{role}`` use its models and the ``realtime`` one. ``governance`` has the hooks of every call, and is closed
    with the server. The tools of ``mcp_servers`` are registered while it runs, with ``mcp_pins`` by accepted definitions; where
    they are a function that returns the servers, SIGHUP calls it again. Without a token anyone may use the sources of plugins, as
    N.E.K.O's plugin hosts expect, but never those of builtins and MCP servers. ``extend_mcp`` gets the official SDK's server of
    each role at ``/mcp`` before it serves, to add prompts, resources and other handlers. ``agents`` are further models, beside
    those of the upstream or without one; their sessions are in ``store``. ``durable`` has durable runs of the agents, at
    ``/api/agents``. ``beside`` makes what runs as long as
    the server, and is closed before any other part. Raises ConfigurationError.
    """
    if chat is not None and upstream is None:
        raise ConfigurationError("chat says how an upstream's models are given tools: it needs an upstream.")
    settings = settings or ToolsSettings()
    governance = governance or Governance()
    protect(settings.token)
    dispatcher = CallbackDispatcher(settings)
    health = dispatcher.health
    reserved = RESERVED if settings.token is not None else (MCP_SOURCES,)
    store = RegistrationStore(store) if isinstance(store, str) else store
    is_shared = store is not None and store.is_shared
    registry = health.registry = ToolRegistry(
        roles,
        dispatcher.tool,
        combine=dispatcher.combine,
        machine=machine_name() if is_shared else "",
        reserved=reserved,
        needs_secret=settings.needs_secret,
    )
    managers = {role: LLMSessionManager(role, registry) for role in registry.roles}
    health.on_change = partial(_sync_sessions, managers)
    writer = RegistrationWriter(registry, store) if store is not None else None
    if is_shared:
        health.is_shared = True
        registry.subscribe(lambda change: _sync_sessions(managers, change) if change.action == "apply_stored" else None)
    read_servers = mcp_servers if callable(mcp_servers) else None
    mcp_host = McpHost(
        mcp_servers() if callable(mcp_servers) else mcp_servers, registry, on_change=health.on_change, pins=mcp_pins
    )
    upstream = ProxySettings(upstream) if isinstance(upstream, str) else upstream
    store_url = store.database.url.render_as_string(hide_password=False) if store is not None else None
    agents = tuple(agents)
    served = _serve_agents(agents, governance, store_url, durable)
    proxy = None
    if upstream is not None or served is not None:
        proxied = upstream or ProxySettings(_NO_UPSTREAM)
        # The middleware has limited the body already, and checked the token where one is required.
        proxied = replace(
            proxied,
            base_path=OPENAI_BASE,
            api_key=None,
            max_body_size=settings.max_body_size,
            response_store=proxied.response_store or store_url,
            keep_turns=settings.keep_turns,
            keep_content=settings.keep_content,
        )
        chat_settings = chat or ChatSettings()
        hidden_turns = None
        if store_url is not None:
            from patchbay.server.chat.hidden_turn_database import DatabaseHiddenTurns

            hidden_turns = DatabaseHiddenTurns(store_url, **chat_settings.hidden_turn_limits)
        tools = ToolChat(
            proxied.upstream, registry, chat_settings, governance, token=settings.token, agents=served, hidden_turns=hidden_turns
        )
        models = served.models if served is not None else ()
        proxy = ProxyApp(proxied, tools.make_exchange, tools=tools, has_upstream=upstream is not None, own_models=models)
        governance.events.watch(proxy.observers, proxy.turns.watchers)
    sessions = _make_sessions(managers, governance, realtime, upstream, chat, served, proxy, store_url)
    endpoint = McpEndpoint(registry, governance, settings, extend_mcp)
    service = RegistryService(registry, managers, health, writer, governance, sync_timeout=settings.sync_timeout)
    run_beside = contextlib.nullcontext if beside is None else partial(beside, service)
    app = ToolsApp(
        registry,
        managers,
        governance,
        sessions,
        mcp_host,
        settings,
        proxy,
        served,
        durable,
        dispatcher,
        writer,
        endpoint,
        read_servers,
        run_beside,
    )
    _add_routes(app.api, service, settings, health.hosts)
    governance.add_routes(app.api, needs_token=settings.token is not None)
    if durable is not None:
        from patchbay.server.runs_api import add_durable_agents, make_runs_router

        add_durable_agents(durable, agents, governance)
        app.api.include_router(make_runs_router(durable, needs_token=settings.token is not None))
    app.add_console(upstream)
    return app


def _serve_agents(
    agents: tuple[BaseAgent, ...], governance: Governance, store: str | None, durable: DurableRuns | None
) -> ServedAgents | None:
    """Return the agents as models, None without any. Raises ConfigurationError."""
    if not agents:
        return None
    from patchbay.agents import DatabaseSessionService
    from patchbay.server.chat.agents import ServedAgents

    if durable is not None:
        return ServedAgents(agents, governance, durable.sessions, durable)
    return ServedAgents(agents, governance, DatabaseSessionService(store) if store is not None else None)


def _make_sessions(
    managers: Mapping[str, LLMSessionManager],
    governance: Governance,
    realtime: RealtimeSettings | None,
    upstream: ProxySettings | None,
    chat: ChatSettings | None,
    agents: ServedAgents | None,
    proxy: ProxyApp | None,
    store: str | None,
) -> LiveSessionsApp | None:
    """Return what serves live sessions; None where there is no model for them."""
    if upstream is None and realtime is None and agents is None:
        return None
    from patchbay.server.live_sessions.app import LiveSessionsApp
    from patchbay.server.live_sessions.protocol import LiveSessionsSettings

    settings = LiveSessionsSettings(realtime=realtime, upstream=upstream, chat=chat, agents=agents)
    observers, turns = (proxy.observers, proxy.turns) if proxy is not None else ((), None)
    histories = None
    if store is not None:
        from patchbay.server.live_sessions.histories import SessionHistories

        histories = SessionHistories(store)
    return LiveSessionsApp(managers, governance, settings, observers=observers, turns=turns, histories=histories)


def _add_routes(api: FastAPI, service: RegistryService, settings: ToolsSettings, hosts: CallbackHosts) -> None:
    """Add the registry's routes and the health check, and describe the token."""

    async def check_health() -> Health:
        problem = service.store_problem
        return Health(status="ok" if problem is None else "degraded", problem=problem)

    api.include_router(make_router(service, callback_ports=settings.callback_ports, callback_hosts=hosts))
    health_route: dict[str, Any] = {"operation_id": "check_health", "tags": ["tools"], "summary": "Whether all is well"}
    api.add_api_route("/health", check_health, response_model=Health, **health_route)
    handle_errors(api)
    describe(api, has_callback_hosts=bool(settings.callback_hosts))


def _make_api(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]], **options: Any) -> FastAPI:
    # The pages of documentation load scripts from other sites.
    return FastAPI(title="Patchbay", version=patchbay.__version__, lifespan=lifespan, docs_url=None, redoc_url=None, **options)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _sync_sessions(managers: Mapping[str, LLMSessionManager], change: Change) -> None:
    for role in change.affected_roles:
        if role in managers:
            managers[role].sync_later()


class GovernedProxy(ProxyApp):
    """The proxy with the hooks of ``governance``, which is closed with it, and the admin API. Raises ConfigurationError.

    The admin API and the console are for this machine, with the proxy's key where it has one.
    """

    def __init__(
        self, settings: ProxySettings, options: TextOptions, governance: Governance, *, max_identical_client_calls: int = 0
    ) -> None:
        chat = ChatSettings(options, max_identical_client_calls=max_identical_client_calls)
        tools = ToolChat(settings.upstream, ToolRegistry(), chat, governance)
        super().__init__(settings, tools.make_exchange, tools=tools)
        self._governance = governance
        governance.events.watch(self.observers, self.turns.watchers)
        try:
            access = _admin_access(settings)
        except ConfigurationError as error:
            raise ConfigurationError(f"with hooks the proxy's key is also that of those who approve calls: {error}") from None
        self.api = _make_api(self._governed, openapi_url=None)  # whose path may be the upstream's
        governance.add_routes(self.api, needs_token=settings.api_key is not None)
        governance.hooks.recorders.append(self.turns.add_call)
        governance.hooks.hook_recorders.append(self.turns.add_hook)
        self._middleware = _console_of(
            self, self.api, access, MetricSources(self.turns, governance.events, governance, self.turn_archive)
        )

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        kind = scope["type"]
        if kind == "lifespan" or (kind == "http" and is_below(own_path(scope), _ADMIN_PATHS)):
            await self._middleware(scope, receive, send)
            return
        await self._governance.open()
        await super().__call__(scope, receive, send)

    async def aclose(self) -> None:
        """Close the connections to the upstream, and the hooks."""
        await super().aclose()
        await self._governance.aclose()

    @override
    def stopping(self) -> None:
        super().stopping()
        self._governance.stop()

    async def reload(self) -> str:
        """Read the configuration of hooks and approvals again; return a summary. Raises ConfigurationError."""
        return await self._governance.reload()

    @contextlib.asynccontextmanager
    async def _governed(self, _api: FastAPI) -> AsyncIterator[None]:
        try:
            await self._governance.open()
            yield
        finally:
            await self.aclose()


class ProxyAdmin:
    """The events, the turns and the console of a proxy without hooks, for this machine and with the proxy's key.

    An ASGI application. Raises ConfigurationError for a key that is too short for it.
    """

    def __init__(self, proxy: ProxyApp) -> None:
        access = _admin_access(proxy.settings)
        self._stream = EventStream(HookManager())
        self._stream.watch(proxy.observers, proxy.turns.watchers)
        api = _make_api(lambda _api: contextlib.nullcontext(), openapi_url=None)
        api.include_router(make_events_router(self._stream, needs_token=proxy.settings.api_key is not None))
        self._middleware = _console_of(proxy, api, access, MetricSources(proxy.turns, self._stream, archive=proxy.turn_archive))
        self.leave = self._stream.leave

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._middleware(scope, receive, send)


def _add_console_routes(
    api: FastAPI, facts: ConsoleFacts, sessions: ConsoleSessions, sources: MetricSources, tools: ToolViews
) -> None:
    """Add the routes of the console, the turns, the tools, the usage and the metrics."""
    turns, archive, needs_token = sources.turns, sources.archive, facts.token is not None
    api.include_router(make_console_router(facts, sessions, turns, archive))
    api.include_router(make_turns_router(turns, facts.approvals, archive, needs_token=needs_token))
    api.include_router(make_tools_router(tools, needs_token=needs_token))
    api.include_router(make_usage_router(turns.usage, needs_token=needs_token))
    api.include_router(make_metrics_router(sources, needs_token=needs_token))


def _add_model_routes(api: FastAPI, proxy: ProxyApp | None, usage: UsageCounters, *, needs_token: bool) -> None:
    """Add the routes of what is known of the models, and of the examinations of their server."""
    api.include_router(make_models_router(usage, proxy.learnt if proxy is not None else None, needs_token=needs_token))
    if proxy is not None:
        api.include_router(make_doctor_router(proxy, needs_token=needs_token))


def _console_of(proxy: ProxyApp, api: FastAPI, access: ToolsSettings, sources: MetricSources) -> AccessMiddleware:
    """Add the console's routes to the admin API of a proxy; return the application that serves it, with the pages."""
    settings = proxy.settings
    approvals = sources.governance.approvals if sources.governance is not None else None
    facts = ConsoleFacts("proxy", settings.upstream, settings.api_key, settings.base_path, approvals=approvals)
    _add_console_routes(api, facts, proxy.console_sessions, sources, ToolViews(proxy.turns))
    _add_model_routes(api, proxy, proxy.turns.usage, needs_token=facts.token is not None)
    handle_errors(api)

    async def serve(scope: Any, receive: Receive, send: Send) -> None:
        is_page = scope["type"] == "http" and is_below(own_path(scope), (CONSOLE_PATH,))
        await (_PAGES if is_page else api)(scope, receive, send)

    return AccessMiddleware(serve, access, has_signed_in=proxy.console_sessions.admits)


_PAGES: Final = ConsolePages()


async def _redirect_to_console(_scope: Any, _receive: Receive, send: Send) -> None:
    await ResponseWriter(send, []).whole(302, TO_CONSOLE, b"")


def _admin_access(settings: ProxySettings) -> ToolsSettings:
    """Return who may use the admin API of a proxy. Raises ConfigurationError for a key that is too short for it."""
    return ToolsSettings(token=settings.api_key, allowed_hosts=settings.allowed_hosts, allowed_origins=settings.allowed_origins)
