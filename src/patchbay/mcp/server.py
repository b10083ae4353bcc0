"""A registry's tools of one role as an MCP server, for any transport and both eras of the protocol.

A call is a turn of its own with one executor, hooks, approvals and audit, as everywhere else. Import this module on first use:
the SDK takes two seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError

from patchbay._text import one_line
from patchbay._trace import TRACE, exporter, from_headers, parse
from patchbay.errors import ApprovalConflictError, HiddenToolError, UnknownRoleError
from patchbay.executor import Executor, ToolExecution
from patchbay.hooks import HookManager, HookScope
from patchbay.mcp.call_results import CallResult, call_result, describe_tool, error_result
from patchbay.tools.context import AgentScope, Progress
from patchbay.tools.output import KINDS
from patchbay.tools.registry import DEFAULT_ROLE, Change, Snapshot, ToolRegistry
from patchbay.types import ToolCall

if TYPE_CHECKING:
    from mcp.server.connection import Connection
    from mcp.server.context import ServerRequestContext
    from mcp.server.models import InitializationOptions

    from patchbay.approvals import ApprovalRequest, ApprovalService
    from patchbay.media import MediaStore

MAX_CALLS: Final = 1000
"""Calls that may run at the same time, in all sessions of a role; further ones fail at once."""

MAX_CALL_SECONDS: Final = 3600.0
"""The time limit of tools without one: a client may be gone without closing its connection."""

MAX_LISTENERS: Final = 1000
"""Streams of changes (``subscriptions/listen``) that may be open at the same time."""

WAITING_INTERVAL: Final = 10.0
"""Seconds between two progress notifications of a call that waits for approval; clients give up after 60 without one."""

SESSION: Final = "patchbay.session"
"""The key of an ASGI scope for the session key of its calls."""

MAX_QUESTION: Final = 4000
"""The most characters of a question to a client's user, which has all arguments; about longer ones none is asked."""

_NO_FIELDS: Final[dict[str, Any]] = {"type": "object", "properties": {}}
_WAITING: Final = "Waiting for a person to approve this call."
_SETTLE_SECONDS: Final = 0.05
_SEND_SECONDS: Final = 5.0
_STEP: Final = 0.001

_logger = logging.getLogger(__name__)

Extend = Callable[["Server[Any]"], object]
"""Adds a program's handlers to a new server: prompts, resources, completions."""


class RegistryServer:
    """The tools of ``role`` as an MCP server; ``sdk`` is the official SDK's server, for a transport to run.

    ``hooks``, ``media`` and ``approvals`` are those of the calls. ``extend`` gets ``sdk`` before it serves. ``session`` is the
    session key of calls that come with none in their request's scope (``SESSION``). ``state_key`` protects what a client keeps
    between two requests of an exchange; servers that share clients have it in common, by default it is random.

    Tools get the SDK's context of the request as ``tool_context.invocation_context``, and may return results of the SDK's types,
    or raise its MCPError. The context's ``lifespan_context["subscriptions"]`` takes changes of what ``extend`` has added.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        role: str = DEFAULT_ROLE,
        *,
        version: str = "",
        hooks: HookManager | None = None,
        media: MediaStore | None = None,
        approvals: ApprovalService | None = None,
        extend: Extend | None = None,
        session: str = "",
        state_key: bytes = b"",
    ) -> None:
        self.role = role
        self._registry = registry
        self._hooks = hooks
        self._media = media
        self._approvals = approvals
        if approvals is not None:
            approvals.accept_decisions("mcp")
        self._session = session
        self._bus = InMemorySubscriptionBus()
        self._listeners = ListenHandler(self._bus, max_subscriptions=MAX_LISTENERS)
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._changed = asyncio.Event()
        self._calls: dict[str, _RunningCall] = {}
        self._listed: tuple[Snapshot, dict[str, types.Tool]] | None = None
        self.sdk: Server[Any] = _SdkServer(
            "patchbay",
            version=version,
            title="Patchbay",
            lifespan=self._running,
            get_tool_input_schema=lambda name: found.input_schema if (found := self._definitions().get(name)) else None,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._listeners,
        )
        self.sdk.add_notification_handler("notifications/initialized", types.NotificationParams, self._initialized)
        self.sdk.middleware.append(
            RequestStateBoundary(RequestStateSecurity(keys=[state_key or secrets.token_bytes(32)]), default_audience="patchbay")
        )
        if extend is not None:
            extend(self.sdk)

    def end_streams(self) -> None:
        """End the streams of changes; running calls go on."""
        self._listeners.close()

    # Tools

    def _definitions(self) -> dict[str, types.Tool]:
        snapshot = self._registry.snapshot(self.role)
        if self._listed is None or self._listed[0] is not snapshot:
            self._listed = snapshot, {name: describe_tool(tool) for name, tool in snapshot.tools.items() if tool.offered}
        return self._listed[1]

    async def _list_tools(
        self, _context: ServerRequestContext[Any, Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(self._definitions().values()))

    async def _call_tool(self, context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams) -> CallResult:
        snapshot = self._registry.snapshot(self.role)
        if (tool := snapshot.tools.get(params.name)) is None:
            if params.name in snapshot.hidden:
                hidden = HiddenToolError(params.name)
                return error_result(hidden.for_model, code=hidden.code)
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name:.100}")
        if len(self._calls) >= MAX_CALLS:
            return error_result(
                "Error: too many calls are running here. It did not run; call it again later.", code="too_many_calls"
            )
        try:
            arguments = json.dumps(params.arguments or {}, allow_nan=False)
        except (ValueError, RecursionError):
            return error_result("Error: the arguments are not JSON. It did not run; fix them and call it again.", code="not_json")
        call = ToolCall(f"mcp_{secrets.token_hex(8)}", params.name, arguments)
        if exporter() is not None:
            request = context.request
            TRACE.set(parse(dict(params.meta or {})) or (from_headers(request.scope["headers"]) if request is not None else None))
        hooks, media = self._hooks, self._media
        executor = Executor([tool], tool_timeout=MAX_CALL_SECONDS, max_result_chars=None, hooks=hooks, media=media)
        run = executor.begin_run(
            agent_scope=AgentScope(invocation_context=context), scope=self._scope_of(context), attachments=KINDS
        )
        running = self._calls[call.id] = _RunningCall(context, self._approvals)
        batch = run.start_batch([call])
        execution: ToolExecution | None = None
        try:
            while (event := await batch.next_event()) is not None:
                if isinstance(event, ToolExecution):
                    execution = event
                else:
                    await running.report(event.progress)
        finally:
            with anyio.CancelScope(shield=True):  # a cancelled request stops its tool, and waits for that
                await batch.stop()
                await running.aclose()
            del self._calls[call.id]
        assert execution is not None
        if isinstance(execution.error, MCPError):
            raise execution.error
        return await call_result(execution, tool, media)

    def _scope_of(self, context: ServerRequestContext[Any, Any]) -> HookScope:
        session = context.request.scope.get(SESSION, "") if context.request is not None else self._session
        inbound = {"channel": "mcp", "sender_id": _client_of(context)}
        return HookScope(
            self.role,
            f"mcp-{secrets.token_hex(6)}",
            session_key=session,
            context={"inbound": inbound, "scope": {"role": self.role}},
        )

    # Notifications

    @asynccontextmanager
    async def _running(self, _sdk: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        """Announce changes of the list, and calls that wait for approval, while the server runs."""
        loop = asyncio.get_running_loop()

        def changed(_change: Change) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._changed.set)

        unsubscribe = self._registry.subscribe(changed)
        tasks = [asyncio.create_task(self._announce_changes())]
        if self._approvals is not None:
            tasks.append(asyncio.create_task(self._follow_approvals(self._approvals)))
        try:
            yield {"subscriptions": self._bus}
        finally:
            unsubscribe()
            self.end_streams()
            for task in tasks:
                task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait(tasks)

    async def _initialized(self, context: ServerRequestContext[Any, Any], _params: types.NotificationParams) -> None:
        """Remember a connection of the handshake era, whose client gets changes without asking."""
        self._connections.add(context.session._connection)  # noqa: SLF001  (handlers are given no other way to it)

    async def _announce_changes(self) -> None:
        """Send one notification for all changes that come together."""
        revision = self._revision()
        while True:
            await self._changed.wait()
            await asyncio.sleep(_SETTLE_SECONDS)
            self._changed.clear()
            if revision == (revision := self._revision()):
                continue
            await self._bus.publish(ToolsListChanged())
            sending = [asyncio.create_task(each.send_tool_list_changed()) for each in self._connections]
            if sending:
                _, late = await asyncio.wait(sending, timeout=_SEND_SECONDS)
                for each in late:  # a client that does not read
                    each.cancel()

    def _revision(self) -> int:
        try:
            return self._registry.snapshot(self.role).revision
        except UnknownRoleError:
            return -1

    async def _follow_approvals(self, approvals: ApprovalService) -> None:
        while True:
            async for request in approvals.watch():
                if (call := self._calls.get(request.call_id)) is not None:
                    call.follow(request)
            await asyncio.sleep(1.0)  # it ends a reader that is too slow


class _SdkServer(Server[Any]):
    """The SDK's server, which also says in its handshake that the list of tools may change."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *options: Any, **more: Any
    ) -> InitializationOptions:
        changes = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(changes, *options, **more)


def _client_of(context: ServerRequestContext[Any, Any]) -> str:
    """Return the client's name and version, "" if it does not say."""
    about = context.session.client_params
    return one_line(f"{about.client_info.name} {about.client_info.version}", 200) if about is not None else ""


class _RunningCall:
    """A running call: sends its client increasing progress numbers, and the question whether it may run.

    The numbers are percentages once the tool has reported a fraction.
    """

    def __init__(self, context: ServerRequestContext[Any, Any], approvals: ApprovalService | None) -> None:
        self._context = context
        self._approvals = approvals
        self._value = -_STEP
        self._total: float | None = None
        self._waiting: list[asyncio.Task[None]] = []

    async def report(self, progress: Progress) -> None:
        """Send progress; does nothing if the client did not ask for it."""
        percent = 0.0
        if progress.fraction is not None:
            percent, self._total = 100 * progress.fraction, 100.0
        self._value = max(percent if progress.fraction is not None else 0.0, self._value + _STEP)
        await self._context.session.report_progress(self._value, self._total, progress.message)

    def follow(self, request: ApprovalRequest) -> None:
        """Report a pending approval to the client, and ask its user where the rule allows that; stop once it is decided."""
        if request.state != "pending":
            for task in self._waiting:
                task.cancel()
        elif not self._waiting:
            self._waiting.append(asyncio.create_task(self._keep_waiting()))
            if "mcp" in request.who and self._approvals is not None:
                self._waiting.append(asyncio.create_task(self._ask_user(request, self._approvals)))

    async def aclose(self) -> None:
        """Stop waiting for approval."""
        for task in self._waiting:
            task.cancel()
        if self._waiting:
            await asyncio.wait(self._waiting)

    async def _keep_waiting(self) -> None:
        while True:
            await self.report(Progress(_WAITING))
            await asyncio.sleep(WAITING_INTERVAL)

    async def _ask_user(self, request: ApprovalRequest, approvals: ApprovalService) -> None:
        """Ask the client's user by a form without fields; where the client cannot, others decide."""
        session, able = self._context.session, self._context.session.client_capabilities
        verdict: Literal["approve", "deny"] = "deny"
        reason = "its MCP client cannot ask its user"
        facts = f" ({json.dumps(dict(request.facts), default=str)})" if request.facts else ""
        text = f"May the tool {one_line(request.tool, 100)} run with {request.arguments}{facts}?"
        if session.can_send_request and able is not None and able.elicitation is not None and len(text) <= MAX_QUESTION:
            try:
                answer = await session.elicit_form(text, _NO_FIELDS, related_request_id=self._context.request_id)
            except MCPError as error:
                _logger.warning("A client could not ask its user about a call: %s", one_line(str(error), 200))
            else:
                verdict = "approve" if answer.action == "accept" else "deny"
                reason = f"the user's answer was {answer.action}"
        if reason.startswith("its") and request.who != ("mcp",):
            return
        with suppress(ApprovalConflictError):  # decided elsewhere meanwhile
            client = _client_of(self._context)
            await approvals.decide(request.id, verdict, reason=reason, by=client, channel="mcp", digest=request.digest)
