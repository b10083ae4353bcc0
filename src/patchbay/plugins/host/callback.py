"""``POST /api/llm-tools/callback/{plugin_id}/{tool_name}``: where the server sends the calls of plugins' tools. Raw ASGI.

What lives here: who may ask, the request's body, and the answer's. What does not: carrying out the call (``calls``), and the
bodies of failures (``plugins.envelope``).

A call is answered with 200, whatever becomes of it: its failure is in the body. Other statuses are for what is no call.
Arguments and results are handed on as the JSON text that they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from patchbay.errors import InvalidRequestError, RequestTooLargeError
from patchbay.plugins import envelope
from patchbay.plugins.frames import MAX_FRAME_BYTES
from patchbay.plugins.host.calls import Calls
from patchbay.server.body import Receive, check_length, declared_length, read_body
from patchbay.server.reply import Reply, Send
from patchbay.server.watch import ClientLeftError

PREFIX: Final = "/api/llm-tools/callback/"
MAX_BODY_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
"""What is taken is never longer than what can be sent to a plugin."""

SIGNATURE: Final = b"x-patchbay-signature"
IDEMPOTENCY: Final = b"idempotency-key"

_JSON_TYPE: Final = (b"content-type", b"application/json")
_PEERS: Final = ("127.0.0.1", "::1")
_HOST: Final = re.compile(r"(?i:localhost\.?|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]{1,5})?")
_ORIGIN: Final = re.compile(r"(?i:https?://(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]{1,5})?)")
_FORWARDING: Final = (b"forwarded", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip")
_KEY_CHARS: Final = 256


@dataclass(frozen=True)
class Target:
    """A tool that can be called: where, how long (seconds), and the secret that its calls are signed with (None: unsigned)."""

    calls: Calls
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

    def __init__(self, find: Callable[[str, str], Target | None]) -> None:
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
        try:
            await reply.whole(200, [_JSON_TYPE], await self._answer(scope, receive))
        except _RefusedError as error:
            headers = [_JSON_TYPE, (b"connection", b"close")]
            if error.status == 405:
                headers.append((b"allow", b"POST"))
            await reply.whole(error.status, headers, msgspec.json.encode({"detail": error.detail}))
        except ClientLeftError:
            pass

    async def _answer(self, scope: Any, receive: Receive) -> bytes:
        headers = _admitted(scope)
        path: str = scope["path"]
        plugin_id, slash, name = path.removeprefix(PREFIX).partition("/")
        if not path.startswith(PREFIX) or not (plugin_id and slash and name) or "/" in name:
            raise _RefusedError(404, "Not Found")
        if scope["method"] != "POST":
            raise _RefusedError(405, "Method Not Allowed")
        body = await _body(headers, receive)
        target = self._find(plugin_id, name)
        if target is None:
            return envelope.not_registered(plugin_id, name).encode()
        if target.secret is not None and not _is_genuine(headers.get(SIGNATURE, b""), body, target.secret):
            raise _RefusedError(403, "Forbidden: the call is not signed by the server that has the tool.")
        try:
            call = _decoder.decode(body)
        except (msgspec.DecodeError, RecursionError):
            raise _RefusedError(400, "The body is no call: it must be a JSON object with arguments.") from None
        arguments = bytes(call.arguments)
        key = headers.get(IDEMPOTENCY, b"").decode("latin-1")[:_KEY_CHARS]
        work = target.calls.call(
            name,
            arguments.decode() if arguments[:1] == b"{" else "{}",
            within=target.timeout,
            call_id=call.call_id[:_KEY_CHARS] if isinstance(call.call_id, str) else "",
            idempotency_key=key,
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


async def _body(headers: dict[bytes, bytes], receive: Receive) -> bytes:
    try:
        check_length(declared_length(headers.get(b"content-length")), MAX_BODY_BYTES)
        return await read_body(receive, MAX_BODY_BYTES)
    except RequestTooLargeError as error:
        raise _RefusedError(413, str(error)) from None
    except InvalidRequestError as error:
        raise _RefusedError(400, str(error)) from None


def _admitted(scope: Any) -> dict[bytes, bytes]:
    """Return the headers of a request that may come in, before a byte of its body was read; the rules are the tool server's."""
    peer = (scope.get("client") or ("", 0))[0]
    if peer.lower().removeprefix("::ffff:") not in _PEERS:
        raise _RefusedError(403, "Forbidden: only programs on this machine are let in.")
    headers: dict[bytes, bytes] = {}
    hosts = 0
    for name, value in scope["headers"]:
        if name in _FORWARDING or name.startswith(b"x-forwarded-"):
            raise _RefusedError(403, "Forbidden: this came through a proxy.")
        hosts += name == b"host"
        if name in (b"origin", b"content-type") and name in headers:
            raise _RefusedError(400, "A header that may be there once is there twice.")
        headers[name] = value
    if hosts != 1 or _HOST.fullmatch(headers[b"host"].decode("latin-1")) is None:
        raise _RefusedError(400, "Invalid Host header")
    if b"origin" in headers and _ORIGIN.fullmatch(headers[b"origin"].decode("latin-1")) is None:
        raise _RefusedError(403, "Forbidden: web pages of other sites are not let in.")
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if scope["method"] == "POST" and kind != b"application/json":
        raise _RefusedError(422, "The body must be JSON: send Content-Type: application/json")
    return headers


def _is_genuine(signature: bytes, body: bytes, secret: bytes) -> bool:
    expected = b"sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest().encode()
    return hmac.compare_digest(signature, expected)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
