"""MCP at standard input and output: a server of this process, or a bridge to one at a URL."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import anyio
import httpx2
import mcp_types as types
from mcp.client.streamable_http import streamable_http_client
from mcp.server.stdio import stdio_server
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.message import ClientMessageMetadata, SessionMessage

from patchbay._subprocess import Overlong, read_lines
from patchbay.mcp.limits import MAX_MESSAGE
from patchbay.mcp.server import RegistryServer

_CONNECT_SECONDS: Final = 10.0
_READ_SECONDS: Final = 300.0
"""The longest silence of the server, which sends a comment every 15 seconds."""


async def serve_stdio(server: RegistryServer) -> None:
    """Serve until standard input ends, or SIGTERM comes. Standard output is standard error from then on.

    What tools have printed is still in the buffer of ``sys.stdout``, and they may print more at the exit of the process.
    """
    async with _until_sigterm():
        try:
            async with _standard_streams() as (incoming, outgoing):
                await server.sdk.run(incoming, outgoing, server.sdk.create_initialization_options())
        finally:
            os.dup2(2, 1)


async def bridge_stdio(url: str, headers: Mapping[str, str]) -> None:
    """Pass messages between standard input and output and the MCP server at ``url`` until either ends, or SIGTERM comes.

    Raises an ExceptionGroup of httpx2 errors where the server cannot be reached.
    """
    timeout = httpx2.Timeout(_CONNECT_SECONDS, read=_READ_SECONDS)
    async with (
        _until_sigterm(),
        httpx2.AsyncClient(headers=dict(headers), timeout=timeout, trust_env=False) as http,
        streamable_http_client(url, http_client=http, max_sse_event_size=MAX_MESSAGE) as (from_server, to_server),
        _standard_streams() as (from_client, to_client),
        anyio.create_task_group() as tasks,
    ):
        headers_of = RequestHeaders()

        async def forward() -> None:
            async for message in from_client:
                if isinstance(message, SessionMessage):  # what is not JSON-RPC has no answer
                    metadata = ClientMessageMetadata(headers=headers_of.sent(message.message))
                    await to_server.send(SessionMessage(message.message, metadata))
            tasks.cancel_scope.cancel()

        async def back() -> None:
            async for message in from_server:
                if isinstance(message, SessionMessage):
                    headers_of.received(message.message)
                    await to_client.send(SessionMessage(message.message))
            tasks.cancel_scope.cancel()

        tasks.start_soon(forward)
        tasks.start_soon(back)


@asynccontextmanager
async def _until_sigterm() -> AsyncIterator[None]:
    """Leave the body at SIGTERM as at its end. At Ctrl-C ``asyncio.run`` cancels it and raises KeyboardInterrupt."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    except asyncio.CancelledError:
        if not is_over:
            raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@asynccontextmanager
async def _standard_streams() -> AsyncIterator[Any]:
    """Yield the SDK's streams on standard input and output, whose reading ends at once when it is cancelled.

    Reading by the SDK itself would end with the next line. Meanwhile file descriptor 0 is the null device, so that tools and
    their processes do not read the client's messages.
    """
    private = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        async with stdio_server(stdin=cast("anyio.AsyncFile[str]", _lines(private))) as streams:
            try:
                yield streams
            finally:
                streams[1].close()  # the SDK's task that writes waits for that
    finally:
        os.dup2(private, 0)  # ``private`` stays open: the thread may read it


async def _lines(descriptor: int) -> AsyncIterator[str]:
    async for line in read_lines(descriptor, MAX_MESSAGE):
        yield (line.head if isinstance(line, Overlong) else line).decode("utf-8", "replace")


class RequestHeaders:
    """The HTTP headers that repeat parts of the messages of one client, from the messages alone, in both eras."""

    def __init__(self) -> None:
        self._version = ""
        self._asked: dict[types.RequestId, str] = {}
        self._arguments: dict[str, dict[tuple[str, ...], str]] = {}

    def sent(self, message: types.JSONRPCMessage) -> dict[str, str]:
        """Return the headers of a message of the client."""
        params: dict[str, Any] = dict(getattr(message, "params", None) or {})
        if isinstance(message, types.JSONRPCRequest) and message.method in ("initialize", "tools/list"):
            self._asked[message.id] = message.method
        version = (params.get("_meta") or {}).get(types.PROTOCOL_VERSION_META_KEY)
        if not isinstance(message, types.JSONRPCRequest) or not isinstance(version, str):
            return {MCP_PROTOCOL_VERSION_HEADER: self._version} if self._version else {}
        headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: message.method}
        name = params.get(NAME_BEARING_METHODS.get(message.method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
            if message.method == "tools/call" and (found := self._arguments.get(name)):
                headers |= mcp_param_headers(found, params.get("arguments") or {})
        return headers

    def received(self, message: types.JSONRPCMessage) -> None:
        """Read the version of a session, and the arguments that headers repeat, from an answer of the server."""
        if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError) or message.id is None:
            return
        method = self._asked.pop(message.id, "")
        if not isinstance(message, types.JSONRPCResponse):
            return
        if method == "initialize":
            self._version = str(message.result.get("protocolVersion", ""))
        for each in message.result.get("tools", ()) if method == "tools/list" else ():
            schema = each.get("inputSchema")
            if find_invalid_x_mcp_header(schema) is None and (found := x_mcp_header_map(schema)):
                self._arguments[each["name"]] = found
