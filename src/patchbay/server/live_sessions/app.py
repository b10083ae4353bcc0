"""Names the flags and variables that give the key of a realtime model, for messages of the server.

The rule which key a session is opened with is ``patchbay.realtime.providers.registry.key_for``.

Sessions as clients ask for them: made, and opened with a model that is known by its name.

What lives here: the server's settings and what a client wants, put together. What does not: whose turn it is (``door``), and what
a query may say (``asked``).

The door of sessions: whose turn it is at a role, and what becomes of the session that a client asks for. Pure ASGI.

What does not live here: which session that is, and how it is opened (``making``).

A role talks through one session at a time. Who comes while there is one is turned away (4409), unless it asks to take over: then
its session is prepared beside the other (``LLMSessionManager.pending``), takes over when that one is idle, and the other client's
socket ends with 4410.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

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
from patchbay.models.resolve import HostedModel, NotOneModelError, resolve_model
from patchbay.realtime import ChatSession, RealtimeLimits, RealtimeSession
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.providers.registry import NoKeyError, dialect_for, key_for, key_in_environment
from patchbay.server.auth import Rejected, reject_websocket
from patchbay.server.chat.turn import ChatSettings
from patchbay.server.governance import Governance
from patchbay.server.http import Receive, own_path
from patchbay.server.live_sessions.bridge import (
    BAD_REQUEST,
    GONE,
    MODEL_FAILED,
    NO_MODEL,
    REPLACED,
    ROLE_BUSY,
    STOPPING,
    UNKNOWN_ROLE,
    CloseInfo,
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
from patchbay.tools.manager import LiveSession, LLMSessionManager
from patchbay.tools.registry import Change

if TYPE_CHECKING:
    from patchbay.server.live_sessions.bridge import Session

_FLAG: Final = "--realtime-key"
_REFUSALS: Final = (401, 403)


def check_key(settings: RealtimeSettings, *, is_servers_own: bool) -> None:
    """Raise ConfigurationError where a session would have no key. ``is_servers_own``: its model is the one of the flags."""
    try:
        key_for(settings)
    except NoKeyError as error:
        flag = f", or start it with {_FLAG}" if is_servers_own else ""
        raise ConfigurationError(
            f"There is no key for {dialect_for(settings).provider}: set {error.variables} in the server's environment{flag}."
        ) from None


def at_start(settings: RealtimeSettings) -> str:
    """Return what a server should say of the key of its realtime model when it starts, "" for nothing."""
    try:
        check_key(settings, is_servers_own=True)
    except ConfigurationError as error:
        return f"Sessions with {settings.model} will fail. {error}"
    found = key_in_environment(dialect_for(settings))
    if found is None or key_for(settings):
        return ""
    where = (settings.url or "").partition("?")[0]  # what is behind it may be a secret
    return f"{found[0]} is not sent to {where}: it is for the provider's own servers. {_FLAG} gives a key for this one."


def with_reason(error: UpstreamError, settings: RealtimeSettings) -> UpstreamError:
    """Return the refusal of a model's server; one that nobody showed a key to says so."""
    if error.upstream_status not in _REFUSALS or key_for(settings):
        return error
    return UpstreamError(
        f"{error} (No key was sent: the environment's is for the provider's own servers; patchbay serve {_FLAG} gives another.)",
        upstream_status=error.upstream_status,
        body=error.body,
    )


_NAMES: Final = 10.0
"""How long the upstream has to name its models (seconds)."""

_NO_END: Final = 30 * 86_400.0
"""How long an upstream may be silent that may be as long as it likes (seconds): its client knows a number alone."""


class SessionFactory:
    """Makes the sessions of a server; chats share one client of the upstream, which ``aclose`` closes."""

    def __init__(self, governance: Governance, settings: LiveSessionsSettings) -> None:
        self._governance = governance
        self._settings = settings
        self._chat = settings.chat or ChatSettings()
        self._chat_model: HostedModel | None = None

    def make(self, asked: SessionRequest, key: str) -> Session:
        """Return a session as it was asked for, not open yet. Raises ConfigurationError."""
        governance = self._governance
        context = {"inbound": {"channel": "session", "chat_id": key}, "scope": {"role": asked.role}}
        if asked.kind == "realtime":
            settings = realtime_settings(asked, self._settings)
            own = self._settings.realtime
            assert own is not None
            check_key(settings, is_servers_own=dialect_for(settings) is dialect_for(own))
            return RealtimeSession(
                settings, hooks=governance.hooks, media=governance.media, session_key=key, agent_id=asked.role, context=context
            )
        return ChatSession(
            self._model(),
            hooks=governance.hooks,
            media=governance.media,
            instructions=asked.instructions,
            parameters={"model": asked.model} if asked.model else None,
            attachments=self._chat.attachments,
            limits=limits_of(self._chat),
            session_key=key,
            agent_id=asked.role,
            context=context,
        )

    async def open(self, session: Session, asked: SessionRequest) -> str:
        """Open a session; return its model's name. Raises PatchbayError."""
        if not isinstance(session, RealtimeSession):
            # The first time that takes a second or more: the others are served meanwhile, and it counts against no deadline.
            await asyncio.to_thread(importlib.import_module, "openai")
            await session.connect()
            return asked.model or await self._only_model()
        try:
            await session.connect()
        except UpstreamError as error:
            raise with_reason(error, session.settings) from None
        return session.settings.model

    async def aclose(self) -> None:
        """Close the client of the upstream."""
        if self._chat_model is not None:
            await self._chat_model.aclose()

    async def _only_model(self) -> str:
        """Return the one model of the upstream. Raises UpstreamError, and NoModelError where it has several or names none.

        Before anything is said: who hears of it with the first answer has said that in vain.
        """
        try:
            async with asyncio.timeout(_NAMES):
                return await self._model().only_one()
        except NotOneModelError as error:
            raise NoModelError(f"The upstream {error.found}: say which, ?model=NAME.") from None
        except PatchbayError:  # some are TimeoutErrors of their own
            raise
        except TimeoutError:
            raise UpstreamTimeoutError(f"The upstream did not name its models within {_NAMES:g} s.") from None

    def _model(self) -> HostedModel:
        """The upstream as a model, one for all chats: each says which of its models it means."""
        if self._chat_model is None:
            upstream, options = self._settings.upstream, self._chat.options
            assert upstream is not None
            given = {field.name: getattr(options, field.name) for field in fields(options) if field.name != "tools"}
            model = resolve_model(
                upstream.upstream,
                api_key=upstream.upstream_key,
                headers=upstream.upstream_headers,
                timeout=upstream.upstream_timeout or _NO_END,
                tool_mode=options.tools,
                **{**given, "unknown_tools": "keep"},
            )
            assert isinstance(model, HostedModel)  # as one is that is named by its URL
            self._chat_model = model
        return self._chat_model


def limits_of(chat: ChatSettings) -> RealtimeLimits:
    """Return how far a turn of a chat may go: as far as one of its own does, where the server says nothing of it."""
    limits = RealtimeLimits(max_rounds=chat.max_iterations)
    return limits if chat.max_calls is None else replace(limits, max_calls=chat.max_calls)


_logger = logging.getLogger(__name__)

_STOPPING: Final = CloseInfo(STOPPING, "the server stops")

NO_SUCH_SOCKET: Final = "no_such_socket"
"""The code of the answer to a handshake at any other path."""

_SHOWN: Final = 10
_PATH_SHOWN: Final = 200


class NoSuchRoleError(UnknownRoleError):
    """The role does not exist; these do."""

    def __init__(self, role: str, roles: Sequence[str]) -> None:
        super().__init__(role)
        some = ", ".join(roles[:_SHOWN]) + (", ..." if len(roles) > _SHOWN else "")
        self.args = (f"There is no role {role!r:.100} here, but {some or 'none'} (patchbay serve --roles).",)


class RoleBusyError(PatchbayError, RuntimeError):
    """The role talks through another session."""

    code = "role_busy"
    status = 409


class LiveSessionsApp:
    """Serves the sessions of the roles in ``managers``; each has its role's tools, and the hooks of ``governance``."""

    def __init__(self, managers: Mapping[str, LLMSessionManager], governance: Governance, settings: LiveSessionsSettings) -> None:
        self._managers = managers
        self._governance = governance
        self._settings = settings
        self._maker = SessionFactory(governance, settings)
        self._held: dict[LiveSession, SessionBridge] = {}
        self._serving: set[asyncio.Task[Any]] = set()
        self._waiting: dict[asyncio.Future[None], None] = {}  # those who wait for a role to be free, in the order they came
        self._is_stopping = False

    async def __call__(self, scope: Any, receive: Receive, send: Callable[[Any], Awaitable[None]]) -> None:
        """Serve one ASGI scope of a WebSocket whose client may come in."""
        if role_in(own_path(scope)) is None:
            await reject_websocket(scope, send, _no_such_socket(scope))
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
        early = DisconnectWatcher(receive, lambda: serving.cancel())  # noqa: PLW0108  (`serving` is defined below)
        serving = asyncio.get_running_loop().create_task(self._serve(scope, early.receive, socket))
        try:
            ending = await serving
        except PatchbayError as error:
            ending = await _refuse(socket, error)
        except asyncio.CancelledError:
            if not early.has_left or task.cancelling():  # it had its time
                await socket.end(_STOPPING)
                raise
            ending = GONE
        finally:
            self._serving.discard(task)
            await early.close()
        await socket.end(ending)

    def warn_of_unsupported_hooks(self) -> None:
        """Log which hooks have a part that a realtime model has nothing of: what they do to requests, and tools of their own."""
        mounted = self._governance.hooks.mounted if self._settings.realtime is not None else ()
        if names := [each.name for each in mounted if _is_for_requests(each)]:
            _logger.warning(
                "Realtime models are sent no requests: before_llm is not asked there, and hooks' own tools are not offered. "
                "This concerns %s",
                ", ".join(names),
            )

    def stopping(self) -> None:
        """Say that the server is about to stop: no session begins, and each ends when what is under way in it has."""
        self._is_stopping = True
        self._tell_waiting()
        for held in self._held.values():
            held.end(_STOPPING.code, _STOPPING.reason, when_idle=True)

    async def aclose(self) -> None:
        """End all sessions, and wait until they have ended."""
        self._is_stopping = True
        self._tell_waiting()
        for held in self._held.values():
            held.end(_STOPPING.code, _STOPPING.reason)
        if serving := self._serving - {asyncio.current_task()}:
            await asyncio.wait(serving)
        await self._maker.aclose()

    async def _serve(self, scope: Any, receive: Receive, socket: Socket) -> CloseInfo:
        """Hold a session for a client until its end. Raises PatchbayError where there is none to be had."""
        role = unquote(role_in(own_path(scope)) or "")
        manager = self._manager(role)
        asked = parse_session_request(manager.role, scope.get("query_string", b""), scope["headers"], self._settings)
        socket.binary = asked.binary
        await self._free(manager, asked)
        self._manager(role)  # which may be no more by now
        if self._is_stopping:
            return _STOPPING
        # Nothing is waited for from here until the session is the role's pending one: whoever else was told of it looks again.
        key = asked.session or f"session-{secrets.token_hex(8)}"
        log = SessionLog(asked.role, key)
        try:
            ending = await self._hold(manager, asked, key, log, receive, socket)
        except PatchbayError as error:
            log.failed(error)
            raise
        if ending.code == MODEL_FAILED:
            log.ended(ending.reason)
        return ending

    def _manager(self, role: str) -> LLMSessionManager:
        manager = self._managers.get(role)
        if manager is None or role not in manager.registry.roles:
            raise NoSuchRoleError(role, [name for name, each in self._managers.items() if name in each.registry.roles])
        return manager

    async def _hold(
        self,
        manager: LLMSessionManager,
        asked: SessionRequest,
        key: str,
        log: SessionLog,
        receive: Receive,
        socket: Socket,
    ) -> CloseInfo:
        """Open the session ``key``, and hold it until its end. Raises PatchbayError where it cannot be opened."""
        session = self._maker.make(asked, key)
        held = self._held[session] = SessionBridge(
            session, socket, log
        )  # which ends at once if the server is told to stop meanwhile
        unwatch = _watch_role(manager, held)
        try:
            await manager.prepare(session)
            model = await self._maker.open(session, asked)
            if await self._take_over(manager, session):
                about = {"role": asked.role, "kind": asked.kind, "model": model, "session": key}
                await socket.tell({"type": "ready", **about, "input_rate": session.input_rate})
            return await held.run(receive)
        except OSError as error:  # the client has gone, or takes nothing
            if isinstance(error, PatchbayError):
                raise
            return GONE
        finally:
            unwatch()
            self._left(manager, session)
            await session.close()

    async def _free(self, manager: LLMSessionManager, asked: SessionRequest) -> None:
        """Wait a moment for the role to be free, or for who takes it over to have done so; no longer than the server runs.

        Raises RoleBusyError.
        """
        settings = self._settings
        try:
            async with asyncio.timeout(settings.swap_wait if asked.takeover else settings.free_wait):
                while not self._is_stopping and (
                    (manager.active is not None and not asked.takeover) or manager.pending is not None
                ):
                    changed = asyncio.get_running_loop().create_future()
                    self._waiting[changed] = None
                    try:
                        await changed
                    finally:
                        del self._waiting[changed]
        except TimeoutError:
            if asked.takeover:
                raise RoleBusyError(f"Another client is taking over the role {manager.role!r}.") from None
            raise RoleBusyError(f"The role {manager.role!r} has a session already; ?takeover=1 takes over from it.") from None

    def _left(self, manager: LLMSessionManager, session: Session) -> None:
        """Take a session out of its role."""
        self._held.pop(session, None)
        manager.leave(session)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Let those look again who wait for a role to be free."""
        for each in self._waiting:
            if not each.done():
                each.set_result(None)

    async def _take_over(self, manager: LLMSessionManager, session: Session) -> bool:
        """Have the pending session talk for the role; return whether it does. One that has ended by now says itself why."""
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
        self._tell_waiting()
        if before is not None and (held := self._held.get(before)) is not None:
            held.end(REPLACED, "another client has taken over")
        return True


def _is_for_requests(mounted: RegisteredHook) -> bool:
    hook = mounted.hook
    if isinstance(hook, ProcessHook):  # which is mounted for requests for the sake of tools that it may offer, too
        return "llm" in hook.spec.modes or bool(hook.tools)
    return "before_llm" in mounted.methods


def _no_such_socket(scope: Any) -> Rejected:
    path = own_path(scope)[:_PATH_SHOWN]
    return Rejected(404, {"detail": f"There is nothing at {path!r}, but sessions at {PATH}ROLE.", "error_code": NO_SUCH_SOCKET})


def _watch_role(manager: LLMSessionManager, held: SessionBridge) -> Callable[[], None]:
    """Have a session end with its role; call what is returned to end the watch."""
    loop = asyncio.get_running_loop()

    def look(change: Change) -> None:  # in some thread
        if change.action == "remove_role" and manager.role in change.affected_roles:
            loop.call_soon_threadsafe(held.end, UNKNOWN_ROLE, "the role is no more")

    return manager.registry.subscribe(look)


async def _refuse(socket: Socket, error: PatchbayError) -> CloseInfo:
    """Say why there is no session: a browser sees nothing of a handshake that fails."""
    try:
        await socket.tell(error_frame(error))
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
