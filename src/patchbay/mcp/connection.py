"""The connection to one MCP server: one task owns it, starts it, follows its list of tools, and reconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Literal, TypeVar

import mcp_types as types
from mcp.client import Client, ClientRequestContext, IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from patchbay._backoff import Backoff
from patchbay._ratelimit import LogRateLimiter
from patchbay._redaction import protect
from patchbay._text import escape_controls, one_line
from patchbay._trace import trace_headers
from patchbay.errors import PatchbayError
from patchbay.mcp.config import McpServer
from patchbay.mcp.elicitation import ask_person, current_call
from patchbay.mcp.http import http_transport
from patchbay.mcp.limits import REFUSED, TOO_LARGE
from patchbay.mcp.listing import OnInvalid, describe_invalid, list_tools
from patchbay.mcp.stdio import ServerExitedError, stdio_transport
from patchbay.mcp.tools import McpCallError

State = Literal["starting", "ready", "idle", "down", "closed"]
T = TypeVar("T")

_FIRST_DELAY: Final = 0.5
_LONGEST_DELAY: Final = 60.0
_STABLE: Final = 30.0
"""Seconds after which, as after a call that was answered, the end of a connection counts as a first failure."""
_WAIT_FOR_START: Final = 10.0
"""Seconds that a call waits for a connection that is starting."""
_RELIST_INTERVAL: Final = 0.2
"""Minimum seconds between two requests for the list of tools."""
PING_INTERVAL: Final = 30.0
"""Seconds between pings of a server over HTTP with a session, whose end no stream shows."""
_PING_SECONDS: Final = 10.0
_SESSION_GONE: Final = frozenset({"session terminated", "session not found"})
"""Messages for a session that the server does not know: the SDK's for HTTP 404, and those of servers."""
_NOT_RUN: Final = frozenset({types.METHOD_NOT_FOUND, types.INVALID_PARAMS, types.PARSE_ERROR, REFUSED})
"""Codes of errors after which a tool has not begun. (INVALID_REQUEST is also the SDK's for a tool that asks where it cannot.)"""

_logger = logging.getLogger(__name__)


class McpConnection:
    """The connection to ``server``. ``on_tools`` gets the server's tools whenever it has listed them, ``on_down`` its end.

    ``on_invalid`` gets the name of each tool whose definition breaks the protocol, and why. The server's questions are put to a
    person (``patchbay.mcp.elicitation``). Calls may come from any event loop; the connection belongs to the one that called
    ``start_connecting``. ``problem`` says why it is not ready.
    """

    def __init__(
        self,
        server: McpServer,
        *,
        on_tools: Callable[[tuple[types.Tool, ...]], object],
        on_down: Callable[[], object],
        on_invalid: OnInvalid,
    ) -> None:
        self.server = server
        self.state: State = "starting"
        self.problem = ""
        self.restarts = 0
        """How often it was made again after its end."""
        self.client: Client | None = None
        self._on_tools = on_tools
        self._on_down = on_down
        self._on_invalid = on_invalid
        self._contexts: dict[object, Context] = {}  # of the running calls, in order
        self._loop = asyncio.get_running_loop()
        self._settled = asyncio.Event()  # ready, or the first attempt has failed
        self._ready = asyncio.Event()
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._starting: asyncio.Timeout | None = None
        self._relist = self._ended = self._answered = False
        self._last_call = 0.0
        self._log = LogRateLimiter(lambda line: _logger.info("mcp %s: %s", server.name, line))
        self._redact = server.redact
        self._owner: asyncio.Task[None] | None = None

    def start_connecting(self) -> None:
        """Begin to connect."""
        self._owner = self._loop.create_task(self._own(), name=f"mcp {self.server.name}")

    @property
    def running_calls(self) -> int:
        """The number of calls that wait for the server."""
        return len(self._contexts)

    @property
    def is_alive(self) -> bool:
        """Whether its task runs: it does not outlive its event loop."""
        return self._owner is not None and not self._owner.done() and self._loop.is_running()

    async def wait_started(self) -> None:
        """Wait until it is ready, or the first attempt has failed; no longer than its time limit."""
        await self._in_its_loop(self._settled.wait())

    async def aclose(self) -> None:
        """End the connection, and the server's process."""
        if self.is_alive:
            await self._in_its_loop(self._end_owner())
        self.state = "closed"

    async def _end_owner(self) -> None:
        assert self._owner is not None
        self._closing.set()
        self._wake.set()
        if self._starting is not None and not self._starting.expired():
            self._starting.reschedule(self._loop.time())
        await asyncio.wait([self._owner])

    async def _in_its_loop(self, work: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def call(self, name: str, arguments: dict[str, Any], on_progress: ProgressFnT) -> types.CallToolResult:
        """Call a tool by its own name. Cancelling this cancels the call at the server. Raises McpCallError."""
        meta: Any = trace_headers() or None
        return await self.request(
            lambda client: client.call_tool(name, arguments, progress_callback=on_progress, meta=meta), name
        )

    async def request(self, send: Callable[[Client], Awaitable[T]], name: str) -> T:
        """Send a request when the connection is ready. Raises McpCallError; ``name`` is the tool's in errors."""
        if not self.is_alive:
            raise self._error(name, "it is closed", "no")
        return await self._in_its_loop(self._request(send, name))

    async def _request(self, send: Callable[[Client], Awaitable[T]], name: str) -> T:
        key = object()
        self._contexts[key] = copy_context()
        try:
            client = self.client if self.client is not None else await self._wait_for_client(name)
            try:
                result = await send(client)
            except MCPError as error:
                if error.message.lower().rstrip(".") not in _SESSION_GONE:
                    raise
                self._forget(client)  # the server has restarted, and did not look at the request
                result = await send(await self._wait_for_client(name))
            self._answered = True
            return result
        except MCPError as error:
            raise self._failure(error, name) from None
        except ValidationError as error:
            raise self._error(name, f"it sent something invalid: {describe_invalid(error)}", "yes") from None
        finally:
            del self._contexts[key]
            self._last_call = self._loop.time()

    async def _wait_for_client(self, name: str) -> Client:
        self._wake.set()  # an idle one starts again
        try:
            async with asyncio.timeout(_WAIT_FOR_START):
                await self._ready.wait()
        except TimeoutError:
            pass
        if self.client is None:
            raise self._error(name, f"it is not connected{f': {self.problem}' if self.problem else ''}", "no")
        return self.client

    def _forget(self, client: Client) -> None:
        if self.client is client:
            self.client = None
            self._ready.clear()
            self._end()

    def _failure(self, error: MCPError, name: str) -> McpCallError:
        if error.code == types.CONNECTION_CLOSED:
            self._end()  # (not every transport notices by itself)
            return self._error(name, "the connection ended during the call", "unknown")
        if error.code == REFUSED:
            _logger.warning("The MCP server %r refused a call of %r: %s", self.server.name, name, escape_controls(error.message))
        ran: Literal["no", "yes", "unknown"] = "no" if error.code in _NOT_RUN else "yes" if error.code == TOO_LARGE else "unknown"
        return self._error(name, one_line(error.message, 1000).rstrip("."), ran)

    def _error(self, name: str, what: str, ran: Literal["no", "yes", "unknown"]) -> McpCallError:
        return McpCallError(f"the MCP server {self.server.name!r} failed: {what}", tool_name=name, ran=ran)

    # The owner

    async def _own(self) -> None:
        backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY, healthy_after=_STABLE)
        while not self._closing.is_set():
            began, self._answered = self._loop.time(), False
            try:
                await self._live()
                self.problem = "" if self.state == "idle" else "the connection has ended"
            except Exception as error:  # noqa: BLE001  (any error ends this connection alone)
                self.problem = self._redact.text(describe_failure(error, self.server))
            self.client = self._starting = None
            self._ready.clear()
            if self._closing.is_set():
                break
            if self.state == "idle":
                await self._sleep(None)
                continue
            self.state = "down"
            self._on_down()
            if self._answered:
                backoff.reset()
            delay = backoff.fail(lasted=self._loop.time() - began)
            _logger.warning(
                "The MCP server %r is not connected: %s; next attempt in %.1f s", self.server.name, self.problem, delay
            )
            self._settled.set()
            await self._sleep(delay)
            self.restarts += not self._closing.is_set()
        self._on_down()
        self._settled.set()

    async def _sleep(self, seconds: float | None) -> None:
        """Wait; calls end the wait of an idle connection, a close ends each."""
        deadline = None if seconds is None else self._loop.time() + seconds
        while not self._closing.is_set() and (deadline is None or self._loop.time() < deadline):
            try:
                async with asyncio.timeout_at(deadline):
                    await self._wake.wait()
            except TimeoutError:
                return
            self._wake.clear()
            if deadline is None:
                return

    async def _live(self) -> None:
        """Connect, list the tools, and stay until the connection ends, is idle for too long, or is closed."""
        self.state = "starting"
        async with asyncio.timeout(self.server.start_timeout) as starting, self._connect(starting) as client:
            tools = await list_tools(client, self._on_invalid)
            client.session.validate_tool_result = _accept_result  # type: ignore[method-assign]
            starting.reschedule(None)
            self._starting = None
            self.client, self.state, self.problem = client, "ready", ""
            self._last_call = self._loop.time()
            self._on_tools(tools)
            self._ready.set()
            self._settled.set()
            following = asyncio.create_task(self._follow(client))
            try:
                await self._stay(client)
            finally:
                self.client = None
                self._ready.clear()
                following.cancel()
                await asyncio.wait([following])

    async def _stay(self, client: Client) -> None:
        has_session = bool(self.server.url) and client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
        while not (self._closing.is_set() or self._ended):
            idle = self._idle_in()
            try:
                async with asyncio.timeout(min(idle or PING_INTERVAL, PING_INTERVAL) if has_session else idle):
                    await self._wake.wait()
            except TimeoutError:
                if self._idle_in() == 0:
                    self.state = "idle"
                    return
                if has_session and not await _is_there(client):
                    return
            self._wake.clear()
            if self._relist and not self._closing.is_set():
                self._relist = False
                async with asyncio.timeout(self.server.start_timeout):
                    self._on_tools(await list_tools(client, self._on_invalid))
                await asyncio.sleep(_RELIST_INTERVAL)

    def _idle_in(self) -> float | None:
        """Return the seconds until the connection is idle for too long; None for never."""
        limit = self.server.idle_timeout
        if not limit:
            return None
        return limit if self.running_calls else max(0.0, self._last_call + limit - self._loop.time())

    def _connect(self, starting: asyncio.Timeout) -> AbstractAsyncContextManager[Client]:
        server = self.server.expanded()
        protect(*server.secrets)
        self._redact = server.redact
        self._starting = starting
        self._ended = self._relist = False
        if server.command:
            transport: AbstractAsyncContextManager[Any] = stdio_transport(server, on_end=self._end)
        else:
            from patchbay.mcp.login import newer_auth, stored_auth  # not needed for commands

            transport = http_transport(server, stored_auth(server), newer_auth=partial(newer_auth, server))
        return Client(
            transport,
            cache=None,
            message_handler=self._on_message,
            logging_callback=self._on_log,
            elicitation_callback=self._ask,
            client_info=types.Implementation(name="patchbay", version=version("patchbay-tools")),
        )

    def _end(self) -> None:
        """Note that the connection has ended: the owner reconnects."""
        self._ended = True
        self._wake.set()

    def _list_again(self) -> None:
        self._relist = True
        self._wake.set()

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._list_again()

    async def _on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        self._log.log(f"{params.level}: {escape_controls(one_line(self._redact.text(str(params.data)), 500))}")

    async def _ask(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Put a question of the server to a person.

        Before 2026-07-28 it does not say which call it belongs to: that is the last one which has begun.
        """
        del context
        if current_call.get(None) is None and self._contexts:
            last = next(reversed(self._contexts.values()))
            return await asyncio.create_task(ask_person(self.server, params), context=last.copy())
        return await ask_person(self.server, params)

    async def _follow(self, client: Client) -> None:
        """Follow changes of the list, where the server announces them on request (since 2026-07-28)."""
        capability = client.server_capabilities.tools
        backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
        while capability is not None and capability.list_changed:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    backoff.reset()
                    async for _ in changes:
                        self._list_again()
            except ListenNotSupportedError:
                return  # it announces them by itself
            except MCPError as error:
                if error.code == types.METHOD_NOT_FOUND:
                    return
            except (SubscriptionLost, TimeoutError):
                pass
            await asyncio.sleep(backoff.fail())
            self._list_again()  # for what was missed


async def _accept_result(name: str, result: types.CallToolResult) -> None:
    """Replace the SDK's check of structured content, which runs the server's patterns without a limit: McpTool has its own."""


async def _is_there(client: Client) -> bool:
    """Whether a server answers a ping; an error is an answer, unless it is about the connection or the session."""
    try:
        async with asyncio.timeout(_PING_SECONDS):
            await client.session.send_ping()
    except MCPError as error:
        return error.code != types.CONNECTION_CLOSED and error.message.lower().rstrip(".") not in _SESSION_GONE
    except TimeoutError:
        return False
    return True


def describe_failure(error: BaseException, server: McpServer) -> str:
    """Return why a connection has failed, on one line, with the way out where it is known."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, PatchbayError | ServerExitedError):
        return escape_controls(str(error))
    if isinstance(error, TimeoutError):
        return f"it was not ready within {server.start_timeout:g} s"
    if isinstance(error, FileNotFoundError) and server.command:
        return (
            f"there is no command {server.command!r}, or no folder {server.cwd!r}"
            if server.cwd
            else f"no command {server.command!r}"
        )
    if isinstance(error, ValidationError):
        return f"it sent something invalid: {describe_invalid(error)}"
    if isinstance(error, MCPError):
        return escape_controls(one_line(error.message, 500))
    return escape_controls(one_line(f"{type(error).__name__}: {error}", 500))
