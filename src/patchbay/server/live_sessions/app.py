"""Live sessions over WebSockets: which session a client gets, and who may talk through a role. Pure ASGI.

A role talks through one session at a time. Further clients are rejected (4409), unless they ask to take over: then the new
session is prepared beside the current one (``LLMSessionManager.pending``), replaces it once that is idle, and the other client's
socket closes with 4410.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from patchbay._redaction import Redactor
from patchbay.errors import (
    ConfigurationError,
    InvalidRequestError,
    PatchbayError,
    ToolSyncError,
    UnknownRoleError,
    UpstreamError,
    UpstreamTimeoutError,
)
from patchbay.hooks.process.client import ProcessHook
from patchbay.hooks.registered import RegisteredHook
from patchbay.models.chat_model import ChatRequest, ModelEvent, ModelReply
from patchbay.models.request_record import RequestRecord, token_counts
from patchbay.models.resolve import HostedModel, NotOneModelError, resolve_model
from patchbay.realtime import ChatSession, RealtimeLimits, RealtimeSession
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.providers.registry import NoKeyError, dialect_for, key_for, key_in_environment
from patchbay.server.auth import OPENAI_BASE, Rejected, reject
from patchbay.server.errors import NoWebSocketError
from patchbay.server.governance import Governance
from patchbay.server.http import Receive, is_model_api, own_path
from patchbay.server.live_sessions.bridge import (
    BAD_REQUEST,
    MODEL_FAILED,
    NO_MODEL,
    REPLACED,
    ROLE_BUSY,
    UNKNOWN_ROLE,
    DisconnectWatcher,
    SessionBridge,
    SessionLog,
    Socket,
)
from patchbay.server.live_sessions.protocol import (
    PATH,
    SUBPROTOCOL,
    LiveSessionsSettings,
    NoModelError,
    SessionRequest,
    error_frame,
    parse_session_request,
    realtime_settings,
    role_in,
)
from patchbay.server.request_state import RequestObserver
from patchbay.server.settings import ChatSettings
from patchbay.server.websocket import GONE, STOPPING, CloseInfo, bounded
from patchbay.tools.manager import LiveSession, LLMSessionManager
from patchbay.tools.registry import Change
from patchbay.types import Reply

if TYPE_CHECKING:
    from patchbay.server.chat.agents import AgentModel
    from patchbay.server.live_sessions.bridge import Session

_FLAG: Final = "--realtime-key"
_UNAUTHORIZED: Final = (401, 403)


def check_key(settings: RealtimeSettings, *, is_servers_own: bool) -> None:
    """Raise ConfigurationError where a session would have no key. ``is_servers_own``: its model is that of the flags."""
    try:
        key_for(settings)
    except NoKeyError as error:
        flag = f", or start it with {_FLAG}" if is_servers_own else ""
        raise ConfigurationError(
            f"There is no key for {dialect_for(settings).provider}: set {error.variables} in the server's environment{flag}."
        ) from None


def key_problem(settings: RealtimeSettings) -> str:
    """Return a warning about the key of the server's realtime model, "" if all is well."""
    try:
        check_key(settings, is_servers_own=True)
    except ConfigurationError as error:
        return f"Sessions with {settings.model} will fail. {error}"
    found = key_in_environment(dialect_for(settings))
    if found is None or key_for(settings):
        return ""
    where = (settings.url or "").partition("?")[0]  # the query may hold a secret
    return f"{found[0]} is not sent to {where}: it is for the provider's own servers. {_FLAG} gives a key for this one."


def with_reason(error: UpstreamError, settings: RealtimeSettings) -> UpstreamError:
    """Return the error of a model's server; if no key was sent, it says so."""
    if error.upstream_status not in _UNAUTHORIZED or key_for(settings):
        return error
    return UpstreamError(
        f"{error} (No key was sent: the environment's is for the provider's own servers; patchbay serve {_FLAG} gives another.)",
        upstream_status=error.upstream_status,
        body=error.body,
    )


_LIST_SECONDS: Final = 10.0
"""Seconds for the upstream to list its models."""

_NO_TIMEOUT: Final = 30 * 86_400.0
"""A timeout in place of none: the client needs a number."""


class ObservedModel:
    """The model of a live session, a ChatModel: its finished requests have records."""

    def __init__(
        self, model: HostedModel | AgentModel, observers: Sequence[RequestObserver], *, agent: str, session: str
    ) -> None:
        self.name = model.name
        self._model = model
        self._observers = observers
        self._agent, self._session = agent, session

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer ``request``; see HostedModel."""
        began, end, failure = time.perf_counter(), ModelReply(Reply(None)), None
        try:
            async with aclosing(self._model.respond(request)) as events:
                async for event in events:
                    if isinstance(event, ModelReply):
                        end = event
                    yield event
        except PatchbayError as error:
            failure = error
            raise
        finally:
            for observe in self._observers:
                observe(self._record(request, end, failure, began))

    def _record(self, request: ChatRequest, end: ModelReply, failure: PatchbayError | None, began: float) -> RequestRecord:
        model = self._model
        about: dict[str, Any] = {"id": uuid.uuid4().hex[:12], "tools": len(request.tools)}
        about["calls"] = tuple([call.name for call in end.reply.tool_calls])
        if not isinstance(model, HostedModel):  # the agent has its own tools
            about = {"id": model.turn_id, "tools": model.tools, "calls": tuple(model.calls)}
        return RequestRecord(
            protocol="session",
            agent=self._agent,
            session=self._session,
            time=time.time(),
            model=str(request.parameters.get("model") or model.name or ""),
            stream=request.stream,
            **about,
            **token_counts(end.usage.counts()),
            seconds=time.perf_counter() - began,
            status=failure.status if failure is not None else 200,
            error=Redactor().text(f"{failure.code}: {failure}") if failure is not None else "",
        )


class SessionFactory:
    """Creates sessions; chats share one client of the upstream, which ``aclose`` closes."""

    def __init__(self, governance: Governance, settings: LiveSessionsSettings, observers: Sequence[RequestObserver]) -> None:
        self._governance = governance
        self._settings = settings
        self._observers = observers
        self._chat = settings.chat or ChatSettings()
        self._chat_model: HostedModel | None = None

    def make(self, request: SessionRequest, key: str) -> Session:
        """Return a session as requested, not yet open. Raises ConfigurationError."""
        governance = self._governance
        common: dict[str, Any] = {
            "hooks": governance.hooks,
            "media": governance.media,
            "session_key": key,
            "agent_id": request.role,
            "context": {"inbound": {"channel": "session", "chat_id": key}, "scope": {"role": request.role}},
            "tool_search": self._chat.tool_search(),
        }
        if request.kind == "realtime":
            settings = realtime_settings(request, self._settings)
            own = self._settings.realtime
            assert own is not None
            check_key(settings, is_servers_own=dialect_for(settings) is dialect_for(own))
            return RealtimeSession(settings, **common)
        model: HostedModel | AgentModel
        if self._is_agent(request) and self._settings.agents is not None:
            common["hooks"] = None  # the agent's own runs call them
            model = self._settings.agents.model(request.model, key)
        else:
            model = self._model()
        return ChatSession(
            ObservedModel(model, self._observers, agent=request.role, session=key),
            instructions=request.instructions,
            parameters={"model": request.model} if request.model else None,
            attachments=self._chat.attachments,
            limits=limits_of(self._chat),
            **common,
        )

    async def open(self, session: Session, request: SessionRequest) -> str:
        """Open a session; return its model's name. Raises PatchbayError."""
        if self._is_agent(request):
            await session.connect()
            return request.model
        if not isinstance(session, RealtimeSession):
            # The first import takes a second or more: others are served meanwhile, and it counts against no deadline.
            await asyncio.to_thread(importlib.import_module, "openai")
            await session.connect()
            return request.model or await self._only_model()
        try:
            await session.connect()
        except UpstreamError as error:
            raise with_reason(error, session.settings) from None
        return session.settings.model

    async def aclose(self) -> None:
        """Close the client of the upstream."""
        if self._chat_model is not None:
            await self._chat_model.aclose()

    def _is_agent(self, request: SessionRequest) -> bool:
        agents = self._settings.agents
        return agents is not None and request.kind == "offline" and request.model in agents

    async def _only_model(self) -> str:
        """Return the upstream's only model. Raises UpstreamError, and NoModelError where it has several or names none.

        This is checked before the first message, which would be lost otherwise.
        """
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                return await self._model().only_one()
        except NotOneModelError as error:
            raise NoModelError(f"The upstream {error.found}: say which, ?model=NAME.") from None
        except PatchbayError:  # some are TimeoutErrors of their own
            raise
        except TimeoutError:
            raise UpstreamTimeoutError(f"The upstream did not list its models within {_LIST_SECONDS:g} s.") from None

    def _model(self) -> HostedModel:
        """Return the upstream as a model, shared by all chats: each names the model it means."""
        if self._chat_model is None:
            upstream, options = self._settings.upstream, self._chat.options
            assert upstream is not None
            given = {field.name: getattr(options, field.name) for field in fields(options) if field.name != "tools"}
            model = resolve_model(
                upstream.upstream,
                api_key=upstream.upstream_key,
                headers=upstream.upstream_headers,
                timeout=upstream.upstream_timeout or _NO_TIMEOUT,
                tool_mode=options.tools,
                **{**given, "unknown_tools": "keep"},
            )
            assert isinstance(model, HostedModel)  # as for every URL
            self._chat_model = model
        return self._chat_model


def limits_of(chat: ChatSettings) -> RealtimeLimits:
    """Return the limits of a chat session's turns."""
    limits = RealtimeLimits(max_rounds=chat.max_iterations)
    return limits if chat.max_calls is None else replace(limits, max_calls=chat.max_calls)


_logger = logging.getLogger(__name__)

NO_SUCH_SOCKET: Final = "no_such_socket"
"""The error code of a handshake at another path."""

_MAX_MESSAGE: Final = 1024 * 1024
_MAX_ROLES_NAMED: Final = 10
_MAX_PATH_CHARS: Final = 200


class RoleBusyError(PatchbayError, RuntimeError):
    """The role has another session."""

    code = "role_busy"
    status = 409


class LiveSessionsApp:
    """Serves the sessions of the roles in ``managers``, with their tools and the hooks of ``governance``.

    ``observers`` get the records of requests to chat models.
    """

    def __init__(
        self,
        managers: Mapping[str, LLMSessionManager],
        governance: Governance,
        settings: LiveSessionsSettings,
        *,
        observers: Sequence[RequestObserver] = (),
    ) -> None:
        self._managers = managers
        self._governance = governance
        self._settings = settings
        self._factory = SessionFactory(governance, settings, observers)
        self._bridges: dict[LiveSession, SessionBridge] = {}
        self._serving: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()  # set, and replaced, whenever a role may have become free
        self._is_stopping = False

    async def __call__(self, scope: Any, receive: Receive, send: Callable[[Any], Awaitable[None]]) -> None:
        """Serve one authorized WebSocket scope."""
        if role_in(own_path(scope)) is None:
            await reject(scope, send, _no_such_socket(scope))
            return
        if (await receive())["type"] != "websocket.connect":
            return
        await send(
            {"type": "websocket.accept", "subprotocol": SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None}
        )
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        socket = Socket(send, self._settings.send_timeout)
        receive = bounded(receive, socket, _MAX_MESSAGE)
        watcher = DisconnectWatcher(receive, lambda: serving.cancel())  # noqa: PLW0108  (`serving` is defined below)
        serving = asyncio.get_running_loop().create_task(self._serve(scope, watcher.receive, socket))
        try:
            ending = await serving
        except PatchbayError as error:
            ending = await _send_error(socket, error)
        except asyncio.CancelledError:
            if not watcher.has_left or task.cancelling():  # the drain timeout is over
                await socket.close(STOPPING)
                raise
            ending = GONE
        finally:
            self._serving.discard(task)
            await watcher.close()
        await socket.close(ending)

    def warn_of_unsupported_hooks(self) -> None:
        """Log hooks with parts that realtime models do not support: ``before_llm``, and tools of their own."""
        mounted = self._governance.hooks.mounted if self._settings.realtime is not None else ()
        if names := [each.name for each in mounted if _needs_requests(each)]:
            _logger.warning(
                "Realtime models are sent no requests: before_llm is not called there, and hooks' own tools are not offered. "
                "This concerns %s",
                ", ".join(names),
            )

    def stopping(self) -> None:
        """Prepare for shutdown: accept no sessions, and end each once it is idle."""
        self._is_stopping = True
        self._wake_waiting()
        for bridge in self._bridges.values():
            bridge.end(STOPPING.code, STOPPING.reason, when_idle=True)

    async def aclose(self) -> None:
        """End all sessions, and wait for them."""
        self._is_stopping = True
        self._wake_waiting()
        for bridge in self._bridges.values():
            bridge.end(STOPPING.code, STOPPING.reason)
        if serving := self._serving - {asyncio.current_task()}:
            await asyncio.wait(serving)
        await self._factory.aclose()

    async def _serve(self, scope: Any, receive: Receive, socket: Socket) -> CloseInfo:
        """Serve a client's session until its end. Raises PatchbayError where it cannot have one."""
        role = unquote(role_in(own_path(scope)) or "")
        manager = self._manager(role)
        request = parse_session_request(manager.role, scope.get("query_string", b""), scope["headers"], self._settings)
        socket.binary = request.binary
        await self._wait_for_role(manager, request)
        self._manager(role)  # it may have been removed
        if self._is_stopping:
            return STOPPING
        # No await from here until the session is the role's pending one: other waiting clients check again.
        key = request.session or f"session-{secrets.token_hex(8)}"
        log = SessionLog(request.role, key)
        try:
            ending = await self._run_session(manager, request, key, log, receive, socket)
        except PatchbayError as error:
            log.failed(error)
            raise
        if ending.code == MODEL_FAILED:
            log.ended(ending.reason)
        return ending

    def _manager(self, role: str) -> LLMSessionManager:
        manager = self._managers.get(role)
        if manager is None or role not in manager.registry.roles:
            roles = [name for name, each in self._managers.items() if name in each.registry.roles]
            some = ", ".join(roles[:_MAX_ROLES_NAMED]) + (", ..." if len(roles) > _MAX_ROLES_NAMED else "")
            raise UnknownRoleError(role, f"There is no role {role!r:.100} here, but {some or 'none'} (patchbay serve --roles).")
        return manager

    async def _run_session(
        self,
        manager: LLMSessionManager,
        request: SessionRequest,
        key: str,
        log: SessionLog,
        receive: Receive,
        socket: Socket,
    ) -> CloseInfo:
        """Open the session ``key``, and serve it until its end. Raises PatchbayError where it cannot be opened."""
        session = self._factory.make(request, key)
        bridge = self._bridges[session] = SessionBridge(session, socket, log)  # ends at once if the server stops meanwhile
        unwatch = _watch_role(manager, bridge)
        try:
            await manager.prepare(session)
            model = await self._factory.open(session, request)
            if await self._take_over(manager, session):
                about = {"role": request.role, "kind": request.kind, "model": model, "session": key}
                await socket.send({"type": "ready", **about, "input_rate": session.input_rate})
            return await bridge.run(receive)
        except OSError as error:  # the client has disconnected, or does not read
            if isinstance(error, PatchbayError):
                raise
            return GONE
        finally:
            unwatch()
            del self._bridges[session]
            manager.leave(session)
            self._wake_waiting()
            await session.close()

    async def _wait_for_role(self, manager: LLMSessionManager, request: SessionRequest) -> None:
        """Wait for the role to be free, or for another takeover to finish, within the time limits and until shutdown.

        Raises RoleBusyError.
        """
        settings = self._settings
        try:
            async with asyncio.timeout(settings.swap_wait if request.takeover else settings.free_wait):
                while not self._is_stopping and (
                    (manager.active is not None and not request.takeover) or manager.pending is not None
                ):
                    await self._changed.wait()
        except TimeoutError:
            if request.takeover:
                raise RoleBusyError(f"Another client is taking over the role {manager.role!r}.") from None
            raise RoleBusyError(f"The role {manager.role!r} has a session already; ?takeover=1 takes over from it.") from None

    def _wake_waiting(self) -> None:
        """Wake the clients that wait for a role."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _take_over(self, manager: LLMSessionManager, session: Session) -> bool:
        """Make the pending session the role's active one; return whether it still is open."""
        try:
            try:
                async with asyncio.timeout(self._settings.swap_wait):
                    before = await manager.swap()
            except TimeoutError:
                before = manager.take_over()
        except ConfigurationError:
            if session.is_open:
                raise
            return False
        self._wake_waiting()
        if before is not None and (bridge := self._bridges.get(before)) is not None:
            bridge.end(REPLACED, "another client has taken over")
        return True


def _needs_requests(mounted: RegisteredHook) -> bool:
    hook = mounted.hook
    if isinstance(hook, ProcessHook):  # mounted for requests too, since it may offer tools
        return "llm" in hook.spec.modes or bool(hook.tools)
    return "before_llm" in mounted.methods


def _no_such_socket(scope: Any) -> PatchbayError:
    path = own_path(scope)[:_MAX_PATH_CHARS]
    if is_model_api(path, OPENAI_BASE):
        return NoWebSocketError()
    return Rejected(404, NO_SUCH_SOCKET, f"There is nothing at {path!r}, but sessions at {PATH}ROLE.")


def _watch_role(manager: LLMSessionManager, bridge: SessionBridge) -> Callable[[], None]:
    """End a session with its role; call the result to unsubscribe."""
    loop = asyncio.get_running_loop()

    def on_change(change: Change) -> None:  # in any thread
        if change.action == "remove_role" and manager.role in change.affected_roles:
            loop.call_soon_threadsafe(bridge.end, UNKNOWN_ROLE, "the role was removed")

    return manager.registry.subscribe(on_change)


async def _send_error(socket: Socket, error: PatchbayError) -> CloseInfo:
    """Send an error as a frame: browsers show nothing of a failed handshake."""
    try:
        await socket.send(error_frame(error))
    except OSError:
        return GONE
    return CloseInfo(_code_of(error), str(error))


def _code_of(error: PatchbayError) -> int:
    codes: tuple[tuple[type[PatchbayError], int], ...] = (
        (NoModelError, NO_MODEL),
        (UnknownRoleError, UNKNOWN_ROLE),
        (RoleBusyError, ROLE_BUSY),
        (InvalidRequestError, BAD_REQUEST),
        (ToolSyncError, MODEL_FAILED),
        (ConfigurationError, NO_MODEL),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), MODEL_FAILED)
