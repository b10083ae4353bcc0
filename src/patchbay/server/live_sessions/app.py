"""Live sessions over WebSockets: which session a client gets, and who may talk through a role. Pure ASGI.

A role talks through one session at a time. Further clients are rejected (4409), unless they ask to take over: then the new
session is prepared beside the current one (``LLMSessionManager.pending``), replaces it once that is idle, and the other client's
socket closes with 4410.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from patchbay.errors import (
    ConfigurationError,
    InvalidRequestError,
    PatchbayError,
    ToolSyncError,
    UnknownRoleError,
)
from patchbay.hooks.process.client import ProcessHook
from patchbay.hooks.registered import RegisteredHook
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
from patchbay.server.live_sessions.factory import SessionFactory
from patchbay.server.live_sessions.protocol import (
    PATH,
    SUBPROTOCOL,
    LiveSessionsSettings,
    NoModelError,
    SessionRequest,
    error_frame,
    parse_session_request,
    role_in,
)
from patchbay.server.request_state import RequestObserver
from patchbay.server.turns import TurnStore
from patchbay.server.websocket import GONE, STOPPING, CloseInfo, bounded
from patchbay.tools.manager import LiveSession, LLMSessionManager
from patchbay.tools.registry import Change
from patchbay.types import Message

if TYPE_CHECKING:
    from patchbay.server.live_sessions.bridge import Session
    from patchbay.server.live_sessions.histories import SessionHistories

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

    ``observers`` get the records of requests to chat models, which are turns of ``turns``. ``histories`` are those of sessions
    that clients resume; None: no client can.
    """

    def __init__(
        self,
        managers: Mapping[str, LLMSessionManager],
        governance: Governance,
        settings: LiveSessionsSettings,
        *,
        observers: Sequence[RequestObserver] = (),
        turns: TurnStore | None = None,
        histories: SessionHistories | None = None,
    ) -> None:
        self._managers = managers
        self._histories = histories
        self._governance = governance
        self._settings = settings
        self._factory = SessionFactory(governance, settings, observers, turns or TurnStore())
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
            bridge.end_session(STOPPING.code, STOPPING.reason, when_idle=True)

    async def aclose(self) -> None:
        """End all sessions, and wait for them."""
        self._is_stopping = True
        self._wake_waiting()
        for bridge in self._bridges.values():
            bridge.end_session(STOPPING.code, STOPPING.reason)
        if serving := self._serving - {asyncio.current_task()}:
            await asyncio.wait(serving)
        await self._factory.aclose()
        if self._histories is not None:
            await self._histories.close()

    async def _serve(self, scope: Any, receive: Receive, socket: Socket) -> CloseInfo:
        """Serve a client's session until its end. Raises PatchbayError where it cannot have one."""
        role = unquote(role_in(own_path(scope)) or "")
        manager = self._manager(role)
        request = parse_session_request(manager.role, scope.get("query_string", b""), scope["headers"], self._settings)
        if request.resume and self._histories is None:
            raise InvalidRequestError("No session can be resumed here: the server needs a --store.", param="resume")
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
        histories = self._histories if request.resume else None

        async def save(text: str) -> None:
            asked: list[Message] = [{"role": "user", "content": text}] if text else []
            assert histories is not None
            await histories.save(request.role, key, [*session.history, *asked])

        bridge = SessionBridge(session, socket, log, save if histories is not None else None)
        self._bridges[session] = bridge  # ends at once if the server stops meanwhile
        unwatch = _watch_role(manager, bridge)
        try:
            await manager.prepare(session)
            about: dict[str, Any] = {"role": request.role, "kind": request.kind, "session": key}
            if histories is not None:
                session.restore(history := await histories.load(request.role, key))
                about["history"] = len(history)
            model = await self._factory.open(session, request)
            if await self._take_over(manager, session):
                await socket.send({"type": "ready", **about, "model": model, "input_rate": session.input_rate})
            return await bridge.pass_messages(receive)
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
            bridge.end_session(REPLACED, "another client has taken over")
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
            loop.call_soon_threadsafe(bridge.end_session, UNKNOWN_ROLE, "the role was removed")

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
