"""``POST /api/llm-tools/callback/{plugin_id}/{tool_name}``: the ASGI app that takes the server's calls of plugins' tools."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from patchbay.errors import InvalidRequestError, RequestTooLargeError
from patchbay.plugins import envelope
from patchbay.plugins.host.calls import InFlightCalls
from patchbay.plugins.protocol import MAX_FRAME_BYTES, Progress
from patchbay.server.body import Receive, check_length, declared_length, read_body
from patchbay.server.reply import Reply, Send
from patchbay.server.tools.admission import (
    HeaderLists,
    NotAdmittedError,
    check_host,
    check_json,
    check_origin,
    check_peer,
    headers_of,
    peer_of,
)
from patchbay.server.tools.progress import MOST_LINE_BYTES, MOST_LINES, NDJSON, is_accepted, one_line, progress_line
from patchbay.server.watch import ClientLeftError

_WAITING_BYTES: Final = 256 * 1024
"""So much waits for a server that is slow to read; then the oldest of it is dropped: the newest says most."""

_HEADERS: Final = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store")]


class ProgressStream:
    """Begins ``reply`` with the first progress that it hears, and writes in a task of its own: a slow reader holds up nobody."""

    __slots__ = ("_bytes", "_is_over", "_left", "_news", "_reply", "_task", "_waiting")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._left = MOST_LINES
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._news: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    @property
    def has_begun(self) -> bool:
        """Whether there was something to tell: then the answer is in lines, and ``finish`` has to end it."""
        return self._task is not None

    def hear(self, progress: Progress) -> None:
        """Have a line written, if it is none too many and none too long. Does not raise."""
        if self._left <= 0 or self._is_over:
            return
        line = progress_line(progress.message, progress.fraction, progress.data)
        if len(line) > MOST_LINE_BYTES:
            return
        self._left -= 1
        self._waiting.append(line)
        self._bytes += len(line)
        while self._bytes > _WAITING_BYTES:
            self._bytes -= len(self._waiting.pop(0))
        if self._news is None:
            self._news = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._write(self._news))
        self._news.set()

    async def finish(self, body: bytes) -> None:
        """Write what still waits, and the last line. Raises ClientLeftError."""
        self._is_over = True
        assert self._task is not None
        assert self._news is not None
        self._news.set()
        await self._task
        await self._reply.finish(one_line(body))

    def drop(self) -> None:
        """Write nothing more. May be called at any time, and again."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(_look_at)

    async def _write(self, news: asyncio.Event) -> None:
        await self._reply.start(200, _HEADERS)
        while True:
            await news.wait()
            news.clear()
            while self._waiting:
                lines = b"".join(self._waiting)
                self._waiting.clear()
                self._bytes = 0
                await self._reply.write(lines)
            if self._is_over:
                return


def _look_at(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # who left is told of nothing


PREFIX: Final = "/api/llm-tools/callback/"
MAX_BODY_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
"""What is taken is never longer than what can be sent to a plugin."""

SIGNATURE: Final = b"x-patchbay-signature"
IDEMPOTENCY: Final = b"idempotency-key"
GRACE: Final = b"x-patchbay-grace"
MAX_GRACE: Final = 60
"""Seconds that a call may go on without a caller."""

_JSON_TYPE: Final = (b"content-type", b"application/json")
_KEY_CHARS: Final = 256


@dataclass(frozen=True)
class Target:
    """A tool that can be called: where, how long (seconds), and the secret that its calls are signed with (None: unsigned)."""

    calls: InFlightCalls
    timeout: float
    secret: bytes | None = None


class _Call(msgspec.Struct):
    """What of a call's body is read. ``arguments`` stay text."""

    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    call_id: Any = ""


class _RefusedError(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


_decoder = msgspec.json.Decoder(_Call)


class CallbackApp:
    """Answers calls. ``find`` gives the target for a plugin's id and a tool's name, None where the plugin has no such tool."""

    def __init__(self, find: Callable[[str, str], Awaitable[Target | None]]) -> None:
        self._find = find

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        reply = Reply(send, [])
        telling = ProgressStream(reply)
        try:
            body = await self._answer(scope, receive, telling)
            if telling.has_begun:
                await telling.finish(body)
            else:
                await reply.whole(200, [_JSON_TYPE], body)
        except _RefusedError as error:
            headers = [_JSON_TYPE, (b"connection", b"close")]
            if error.status == 405:
                headers.append((b"allow", b"POST"))
            await reply.whole(error.status, headers, msgspec.json.encode({"detail": error.detail}))
        except ClientLeftError:
            pass
        finally:
            telling.drop()

    async def _answer(self, scope: Any, receive: Receive, telling: ProgressStream) -> bytes:
        headers = _admitted(scope)
        path: str = scope["path"]
        plugin_id, slash, name = path.removeprefix(PREFIX).partition("/")
        if not path.startswith(PREFIX) or not (plugin_id and slash and name) or "/" in name:
            raise _RefusedError(404, "Not Found")
        if scope["method"] != "POST":
            raise _RefusedError(405, "Method Not Allowed")
        body = await _body(headers, receive)
        target = await self._find(plugin_id, name)
        if target is None:
            return envelope.not_registered(plugin_id, name).encode()
        if target.secret is not None and not _is_genuine(_only(headers, SIGNATURE), body, target.secret):
            raise _RefusedError(403, "Forbidden: the call is not signed by the server that has the tool.")
        try:
            call = _decoder.decode(body)
        except (msgspec.DecodeError, RecursionError):
            raise _RefusedError(400, "The body is no call: it must be a JSON object with arguments.") from None
        arguments = bytes(call.arguments)
        keys = headers.get(IDEMPOTENCY, [])
        if len(keys) > 1 or any(len(key) > _KEY_CHARS for key in keys):
            # A key that was cut or chosen could be that of another call.
            raise _RefusedError(400, f"There can be one Idempotency-Key, of at most {_KEY_CHARS} characters.")
        work = target.calls.call(
            name,
            arguments.decode() if arguments[:1] == b"{" else "{}",
            within=target.timeout,
            call_id=call.call_id[:_KEY_CHARS] if isinstance(call.call_id, str) else "",
            idempotency_key=keys[0].decode("latin-1") if keys else "",
            grace=min(int(seconds), MAX_GRACE) if (seconds := _only(headers, GRACE)[:9]).isdigit() else 0,
            on_progress=telling.hear if is_accepted(headers.get(b"accept", ())) else None,
        )
        return await _unless_left(work, receive)


async def _unless_left(work: Any, receive: Receive) -> bytes:
    """Do the work; cancel it when the caller leaves, and raise ClientLeftError then."""
    loop = asyncio.get_running_loop()
    doing = loop.create_task(work)
    leaving = loop.create_task(_left(receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            result: bytes = doing.result()
            return result
        raise ClientLeftError("The caller left before its answer.")
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.wait({doing, leaving})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(headers: HeaderLists, receive: Receive) -> bytes:
    try:
        check_length(declared_length(_only(headers, b"content-length") or None), MAX_BODY_BYTES)
        return await read_body(receive, MAX_BODY_BYTES)
    except RequestTooLargeError as error:
        raise _RefusedError(413, str(error)) from None
    except InvalidRequestError as error:
        raise _RefusedError(400, str(error)) from None


def _admitted(scope: Any) -> HeaderLists:
    """Return the headers of a request that may come in, before a byte of its body was read; the rules are the tool server's."""
    headers = headers_of(scope)
    try:
        check_peer(peer_of(scope), headers)
        check_host(headers)
        check_origin(headers)
        if scope["method"] == "POST":
            check_json(headers)
    except NotAdmittedError as error:
        said = f"Forbidden: {error}." if error.status == 403 else str(error)
        raise _RefusedError(error.status, said) from None
    return headers


def _only(headers: HeaderLists, name: bytes) -> bytes:
    """Return the one header of this name; what is there twice says nothing."""
    values = headers.get(name, [])
    return values[0] if len(values) == 1 else b""


def _is_genuine(signature: bytes, body: bytes, secret: bytes) -> bool:
    expected = b"sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest().encode()
    return hmac.compare_digest(signature, expected)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
