"""``POST /api/llm-tools/callback/{plugin_id}/{tool_name}``: the ASGI app that takes the server's calls of plugins' tools.

Calls are answered with 200, and failures are in the body; other statuses are for invalid requests. Arguments and results are
passed on as JSON text.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from patchbay._trace import from_headers
from patchbay.errors import InvalidRequestError
from patchbay.plugins import envelope
from patchbay.plugins.connection import MAX_FRAME_BYTES
from patchbay.plugins.host.calls import InFlightCalls
from patchbay.plugins.protocol import Progress
from patchbay.server.auth import (
    HeaderLists,
    Rejected,
    check_host,
    check_json,
    check_origin,
    check_peer,
    headers_of,
    peer_of,
)
from patchbay.server.http import Receive, ResponseWriter, Send, check_length, declared_length, read_body
from patchbay.server.progress_lines import MAX_LINE_BYTES, MAX_LINES, NDJSON, encode_line, is_accepted, progress_line
from patchbay.server.watchdog import ClientDisconnect, RequestWatchdog

PREFIX: Final = "/api/llm-tools/callback/"
MAX_BODY_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
"""An accepted call always fits into a frame."""
MAX_GRACE: Final = 60
"""Seconds that a call may continue without a caller."""

SIGNATURE: Final = b"x-patchbay-signature"
IDEMPOTENCY: Final = b"idempotency-key"
GRACE: Final = b"x-patchbay-grace"

_JSON_TYPE: Final = (b"content-type", b"application/json")
_NDJSON_HEADERS: Final = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store")]
_MAX_KEY_CHARS: Final = 256
_MAX_PENDING_BYTES: Final = 256 * 1024
"""Of progress for a server that is slow to read; beyond it the oldest lines are dropped."""


@dataclass(frozen=True)
class Target:
    """A tool that can be called, its timeout in seconds, and the secret that its calls are signed with (None: unsigned)."""

    calls: InFlightCalls
    timeout: float
    secret: bytes | None = None


class _Call(msgspec.Struct):
    """The fields of a call's body that are used. ``arguments`` stay text."""

    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    call_id: Any = ""


_decoder = msgspec.json.Decoder(_Call)


class CallbackApp:
    """Answers calls. ``find`` returns the target for a plugin's id and a tool's name, None where the plugin has no such tool.

    With ``remote_name``, the host's name for other machines, their calls are admitted too: ``find`` must require signatures.
    """

    def __init__(self, find: Callable[[str, str], Awaitable[Target | None]], *, remote_name: str | None = None) -> None:
        self._find = find
        self._remote_name = remote_name

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        reply = ResponseWriter(send, [])
        progress = ProgressStream(reply)
        try:
            body = await self._answer(scope, receive, progress)
            if progress.has_begun:
                await progress.finish(body)
            else:
                await reply.whole(200, [_JSON_TYPE], body)
        except (Rejected, InvalidRequestError) as error:
            headers = [_JSON_TYPE, (b"connection", b"close")]
            if error.status == 405:
                headers.append((b"allow", b"POST"))
            await reply.whole(error.status, headers, msgspec.json.encode({"detail": str(error)}))
        except ClientDisconnect:
            pass
        finally:
            progress.close()

    async def _answer(self, scope: Any, receive: Receive, progress: ProgressStream) -> bytes:
        headers = _admit(scope, self._remote_name)
        path: str = scope["path"]
        plugin_id, slash, name = path.removeprefix(PREFIX).partition("/")
        if not path.startswith(PREFIX) or not (plugin_id and slash and name) or "/" in name:
            raise Rejected(404, "not_found", "Not Found")
        if scope["method"] != "POST":
            raise Rejected(405, "method_not_allowed", "Method Not Allowed")
        check_length(declared_length(_single(headers, b"content-length") or None), MAX_BODY_BYTES)
        body = await read_body(receive, MAX_BODY_BYTES)
        target = await self._find(plugin_id, name)
        if target is None:
            return envelope.not_registered(plugin_id, name).encode()
        if target.secret is not None and not _is_signed(_single(headers, SIGNATURE), body, target.secret):
            raise Rejected(403, "not_signed", "Forbidden: the call is not signed by the server that has the tool.")
        try:
            call = _decoder.decode(body)
        except (msgspec.DecodeError, RecursionError):
            raise Rejected(400, "invalid_body", "Invalid body: it must be a JSON object with arguments.") from None
        arguments = bytes(call.arguments)
        keys = headers.get(IDEMPOTENCY, [])
        if len(keys) > 1 or any(len(key) > _MAX_KEY_CHARS for key in keys):
            # A key that was cut or chosen could be that of another call.
            raise Rejected(400, "invalid_key", f"There can be one Idempotency-Key, of at most {_MAX_KEY_CHARS} characters.")
        with RequestWatchdog(receive):  # cancels the call when its caller leaves
            return await target.calls.call(
                name,
                arguments.decode() if arguments[:1] == b"{" else "{}",
                within=target.timeout,
                call_id=call.call_id[:_MAX_KEY_CHARS] if isinstance(call.call_id, str) else "",
                idempotency_key=keys[0].decode("latin-1") if keys else "",
                grace=min(int(seconds), MAX_GRACE) if (seconds := _single(headers, GRACE)[:9]).isdigit() else 0,
                trace=found.headers() if (found := from_headers(scope["headers"])) is not None else None,
                on_progress=progress.add if is_accepted(headers.get(b"accept", ())) else None,
            )


class ProgressStream:
    """A response in lines: starts ``reply`` at the first progress, and writes in a separate task."""

    __slots__ = ("_bytes", "_changed", "_is_over", "_left", "_pending", "_reply", "_task")

    def __init__(self, reply: ResponseWriter) -> None:
        self._reply = reply
        self._left = MAX_LINES
        self._pending: list[bytes] = []
        self._bytes = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    @property
    def has_begun(self) -> bool:
        """Whether there was progress: then the answer is in lines, and ``finish`` has to end it."""
        return self._task is not None

    def add(self, progress: Progress) -> None:
        """Queue a line, unless there were too many or it is too long. Does not raise."""
        if self._left <= 0 or self._is_over:
            return
        line = progress_line(progress.message, progress.fraction, progress.data)
        if len(line) > MAX_LINE_BYTES:
            return
        self._left -= 1
        self._pending.append(line)
        self._bytes += len(line)
        while self._bytes > _MAX_PENDING_BYTES:
            self._bytes -= len(self._pending.pop(0))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write())
        self._changed.set()

    async def finish(self, body: bytes) -> None:
        """Write the queued lines, and the body as the last one. Raises ClientDisconnect."""
        self._is_over = True
        assert self._task is not None
        self._changed.set()
        await self._task
        await self._reply.finish(encode_line(body))

    def close(self) -> None:
        """Write nothing more. May be called at any time, and again."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(_retrieve)

    async def _write(self) -> None:
        await self._reply.send_head(200, _NDJSON_HEADERS)
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._pending:
                lines = b"".join(self._pending)
                self._pending.clear()
                self._bytes = 0
                await self._reply.write(lines)
            if self._is_over:
                return


def _admit(scope: Any, remote_name: str | None) -> HeaderLists:
    """Return the headers of a request that is let in, before its body is read. The rules are the tool server's."""
    headers = headers_of(scope)
    if remote_name is None:
        check_peer(peer_of(scope), headers)
    check_host(headers, (remote_name,) if remote_name is not None else ())
    check_origin(headers)
    if scope["method"] == "POST":
        check_json(headers)
    return headers


def _single(headers: HeaderLists, name: bytes) -> bytes:
    """Return the value of a header that is there exactly once, else b""."""
    values = headers.get(name, [])
    return values[0] if len(values) == 1 else b""


def _is_signed(signature: bytes, body: bytes, secret: bytes) -> bool:
    return hmac.compare_digest(signature, b"sha256=" + hmac.digest(secret, body, "sha256").hex().encode())


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # so that asyncio does not log it


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
