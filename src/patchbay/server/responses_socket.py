"""OpenAI Responses over WebSockets: each ``response.create`` message is served as a POST, one message per event.

The protocol: https://developers.openai.com/api/docs/guides/websocket-mode. A connection's responses are made one at a
time, also those of different streams (``stream_id``).
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.frontends.base import read_object
from patchbay.models.error_bodies import error_body
from patchbay.models.wire import decode, encode
from patchbay.server.frontends import CONNECTION
from patchbay.server.http import Headers, Receive, Send
from patchbay.server.request_log import METHOD, AsgiApp
from patchbay.server.stored_responses import MAX_STREAM_IDS, ConnectionResponses, connection_cache
from patchbay.server.websocket import GOING_AWAY, GONE, STOPPING, CloseInfo, SocketWriter

MAX_AGE: Final = 3600.0
"""Maximum seconds of a connection, as at OpenAI."""
MAX_CONNECTIONS: Final = 1000
MAX_WAITING: Final = 16
"""Maximum messages of a connection that wait for an earlier response."""

_SEND_SECONDS: Final = 30.0
_POLICY_VIOLATION: Final = 1008
_EXPIRED: Final = CloseInfo(GOING_AWAY, "the connection has reached its age limit")
_SLOW: Final = CloseInfo(_POLICY_VIOLATION, "the client does not read")
_STREAM_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_OF_HANDSHAKE: Final = frozenset({b"connection", b"upgrade"})
_NOT_FOR_EVENTS: Final = frozenset({b"content-type", b"content-length"})

_Fields = dict[str, msgspec.Raw]
_decode_fields: Final = msgspec.json.Decoder(_Fields).decode


class TooManyConnectionsError(PatchbayError):
    """The maximum of connections is reached."""

    code = "too_many_connections"
    status = 503
    retryable = True


class ConnectionLimitError(InvalidRequestError):
    """The connection has reached its age limit."""

    code = "websocket_connection_limit_reached"


class InvalidStreamIdError(InvalidRequestError):
    """A ``stream_id`` is not valid."""

    code = "invalid_stream_id"


class StreamLimitError(InvalidRequestError):
    """The connection has too many streams."""

    code = "websocket_stream_limit_reached"


class TooManyMessagesError(PatchbayError):
    """Too many messages wait for an earlier response."""

    code = "too_many_messages"
    kind = "invalid_request_error"
    status = 429


class ResponsesSockets:
    """Serves the WebSockets of one proxy. ``serve`` answers HTTP requests; messages of up to ``most_bytes`` together may wait."""

    def __init__(self, serve: AsgiApp, most_bytes: int) -> None:
        self._serve = serve
        self._most_bytes = most_bytes
        self._responses = connection_cache()
        self._numbers = itertools.count()
        self._connections: set[_Connection] = set()
        self._is_stopping = False

    def check(self) -> None:
        """Raise TooManyConnectionsError where no other connection may be opened."""
        if self._is_stopping or len(self._connections) >= MAX_CONNECTIONS:
            raise TooManyConnectionsError(f"This server stops, or has {MAX_CONNECTIONS} connections already. Try again later.")

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve the WebSocket of a handshake that was checked."""
        if (await receive())["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept"})
        socket = SocketWriter(send, _SEND_SECONDS)
        responses = ConnectionResponses(self._responses, next(self._numbers))
        connection = _Connection(request_scope(scope) | {CONNECTION: responses}, self._serve, socket, self._most_bytes)
        self._connections.add(connection)
        ending = STOPPING
        try:
            ending = await connection.run(receive)
        finally:
            self._connections.discard(connection)
            responses.close()
            await socket.close(ending)

    def stopping(self) -> None:
        """Accept no connections, and end each after its running response."""
        self._is_stopping = True
        for connection in self._connections:
            connection.end(STOPPING)


def request_scope(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scope of a POST with the headers of a handshake."""
    headers: Headers = [
        pair for pair in scope["headers"] if pair[0] not in _OF_HANDSHAKE and not pair[0].startswith(b"sec-websocket-")
    ]
    return {**scope, "type": "http", "method": "POST", METHOD: "WS", "headers": headers}


class _Connection:
    """One connection: ``run`` answers its messages in order, and notices meanwhile that the client leaves."""

    def __init__(self, scope: dict[str, Any], serve: AsgiApp, socket: SocketWriter, most_bytes: int) -> None:
        self._scope = scope
        self._serve = serve
        self._socket = socket
        self._most_bytes = most_bytes
        self._responses: ConnectionResponses = scope[CONNECTION]
        self._waiting: deque[str | None] = deque()
        """The messages to be answered; None for one that is not text."""
        self._waiting_size = 0
        self._stream_ids: set[str] = set()
        self._changed = asyncio.Event()
        self._gone = asyncio.Event()
        self._ending: CloseInfo | None = None

    def end(self, ending: CloseInfo) -> None:
        """End the connection, after the response that is running."""
        self._ending = self._ending or ending
        self._changed.set()

    async def run(self, receive: Receive) -> CloseInfo:
        """Answer messages until the end, and return it."""
        loop = asyncio.get_running_loop()
        reader = loop.create_task(self._read(receive))
        age = loop.call_later(MAX_AGE, self.end, _EXPIRED)
        try:
            while self._ending is None:
                self._changed.clear()
                if self._waiting:
                    text = self._waiting.popleft()
                    self._waiting_size -= len(text or "")
                    await self._answer(text)
                else:
                    await self._changed.wait()
            if self._ending is _EXPIRED:
                minutes = int(MAX_AGE / 60)
                why = f"This WebSocket has reached its age limit ({minutes} minutes): open another one to go on."
                await self._send_error(ConnectionLimitError(why))
        except OSError:
            assert self._ending is not None  # _send has noted it
        finally:
            age.cancel()
            reader.cancel()
            await asyncio.wait({reader})
        return self._ending

    async def _read(self, receive: Receive) -> None:
        """Queue messages until the client leaves."""
        try:
            while (message := await receive())["type"] != "websocket.disconnect":
                text: str | None = message.get("text")
                size = len(text or "")
                if len(self._waiting) >= MAX_WAITING or (self._waiting and self._waiting_size + size > self._most_bytes):
                    await self._send_error(
                        TooManyMessagesError("Too many messages wait already: read the answers to them first.")
                    )
                    continue
                self._waiting.append(text)
                self._waiting_size += size
                self._changed.set()
        except OSError:
            pass  # the client has left
        self._gone.set()
        self.end(GONE)

    async def _answer(self, text: str | None) -> None:
        """Answer one message. Raises OSError where the client has left."""
        stream_id: str | None = None
        try:
            fields = _read_fields(text)
            stream_id = self._stream_id(fields)
            body, previous = _request_body(fields)
        except InvalidRequestError as error:
            await self._send_error(error, stream_id)
            return
        latest = self._responses.latest
        try:
            await self._serve(self._scope, self._request(body), _EventSender(self._send, stream_id))
        except PatchbayError as error:  # a stream that is cut within an event
            await self._send_error(error, stream_id)
        if previous is not None and self._responses.latest == latest:
            self._responses.forget(previous)

    def _stream_id(self, fields: _Fields) -> str | None:
        """Remove and return the ``stream_id`` of a message. Raises InvalidRequestError."""
        stream_id = _pop(fields, "stream_id")
        if stream_id is None:
            return None
        if not isinstance(stream_id, str) or _STREAM_ID.fullmatch(stream_id) is None:
            raise InvalidStreamIdError("'stream_id' must be 1 to 256 letters, digits, '_', '-' and '.'.", param="stream_id")
        if stream_id not in self._stream_ids and len(self._stream_ids) >= MAX_STREAM_IDS:
            why = (
                f"This WebSocket has {MAX_STREAM_IDS} different 'stream_id's already: use one of them, or open another WebSocket."
            )
            raise StreamLimitError(why, param="stream_id")
        self._stream_ids.add(stream_id)
        return stream_id

    def _request(self, body: bytes) -> Receive:
        """The ``receive`` of a request: its body, and the disconnect of the client."""
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            if (message := next(messages, None)) is not None:
                return message
            await self._gone.wait()
            return {"type": "http.disconnect"}

        return receive

    async def _send_error(self, error: PatchbayError, stream_id: str | None = None) -> None:
        await self._send(_error_event(error.status, error_body(error)["error"]), stream_id)

    async def _send(self, event: bytes, stream_id: str | None) -> None:
        """Send an event. Raises OSError where the client has left, or does not read."""
        if stream_id is not None:
            event = b'{"stream_id":"%s",%s' % (stream_id.encode(), event[1:])
        try:
            await self._socket.send_text(event.decode())
        except OSError as error:
            self._gone.set()
            self.end(_SLOW if isinstance(error, TimeoutError) else GONE)
            raise


class _EventSender:
    """The ASGI ``send`` of one response: writes each of its events as a message, and an error response as an ``error`` event."""

    def __init__(self, send: Callable[[bytes, str | None], Awaitable[None]], stream_id: str | None) -> None:
        self._send = send
        self._stream_id = stream_id
        self._start: Mapping[str, Any] = {}
        self._body = b""

    async def __call__(self, message: Mapping[str, Any]) -> None:
        """Send an ASGI message of the response."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._body += message.get("body", b"")
        if (b"content-type", b"text/event-stream; charset=utf-8") in self._start["headers"]:
            *events, self._body = self._body.split(b"\n\n")
            for event in events:
                _, _, data = event.partition(b"data: ")
                if data:  # else a comment for proxies on the way: a socket has pings
                    await self._send(data, self._stream_id)
        elif not message.get("more_body", False):
            error = msgspec.json.decode(self._body)["error"]
            headers = {
                name.decode("latin-1"): value.decode("latin-1")
                for name, value in self._start["headers"]
                if name not in _NOT_FOR_EVENTS
            }
            await self._send(_error_event(self._start["status"], error | {"headers": headers}), self._stream_id)


def _error_event(status: int, error: Mapping[str, Any]) -> bytes:
    return encode({"type": "error", "status": status, "error": error})


def _read_fields(text: str | None) -> _Fields:
    """Return the members of a message, as raw JSON. Raises InvalidRequestError."""
    if text is None:
        raise InvalidRequestError("Send text messages: binary ones mean nothing here.")
    try:
        return _decode_fields(text)
    except (ValueError, RecursionError):  # also of lone surrogates, which a POST may have
        return {name: msgspec.Raw(encode(value)) for name, value in read_object(text.encode()).items()}


def _request_body(fields: _Fields) -> tuple[bytes, str | None]:
    """Return the body of the POST for a message, and its ``previous_response_id``. Raises InvalidRequestError."""
    if (kind := _pop(fields, "type")) != "response.create":
        raise InvalidRequestError(f"Unknown type of message {kind!r:.100}: send 'response.create'.", param="type")
    if _pop(fields, "background") is True:
        raise InvalidRequestError("'background' is for POST requests: leave it out.", param="background")
    previous = decode(bytes(fields.get("previous_response_id", b"null")))
    return encode({**fields, "stream": True}), previous if isinstance(previous, str) else None


def _pop(fields: _Fields, name: str) -> Any:
    return decode(bytes(fields.pop(name, b"null")))
