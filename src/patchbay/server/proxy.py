"""The OpenAI-compatible proxy as an ASGI application: chat completions go through an Exchange, other requests pass through.

Raw ASGI 3 without a framework, since this runs for every request. What needs no body (path, key, declared size) is checked before
a byte of the body is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from patchbay._redaction import Redactor, protect, secret_values
from patchbay.errors import ConfigurationError, InvalidRequestError, PatchbayError, UpstreamError
from patchbay.frontends import DecodedRequest, OpenAIResponses
from patchbay.frontends.base import chosen_function
from patchbay.models.encoder import AnswerEncoder
from patchbay.models.exchange import Exchange
from patchbay.models.wire import encode
from patchbay.server.auth import CONSOLE_API, CONSOLE_PATH, METRICS_PATH, Rejected, check_caller, headers_of, is_below, reject
from patchbay.server.chat.completion import run_chat
from patchbay.server.console_sessions import ConsoleSessions
from patchbay.server.errors import (
    HEALTH_BODY,
    JSON_TYPE,
    NO_RETRY,
    AuthenticationError,
    MethodNotAllowedError,
    NotFoundError,
    NoWebSocketError,
    StoppingError,
    UnguardedError,
    UpstreamStatusError,
    encoded_error_body,
    error_headers,
)
from patchbay.server.frontends import SENT, FrontendRoute, Frontends, chat_scope
from patchbay.server.http import (
    CHAT,
    EVENT_STREAM,
    GEMINI_BASE,
    REQUEST_ID,
    TO_CONSOLE,
    Headers,
    Receive,
    ResponseWriter,
    Send,
    canonical,
    check_length,
    declared_length,
    find_tail,
    is_chat,
    is_token,
    keys_of,
    own_path,
    read_body,
    stream_body,
    wants_page,
)
from patchbay.server.request_log import RequestLog, begin_request, log_error_response, log_requests, method_of
from patchbay.server.request_state import RequestObserver, RequestState
from patchbay.server.response_events import EventTail, error_event
from patchbay.server.settings import ProxySettings
from patchbay.server.turns import TurnStore
from patchbay.server.upstream import Examine, NoUpstream, ProxyRequest, TruncatedResponseError, Upstream, relay
from patchbay.server.watchdog import ClientDisconnect, RequestWatchdog

if TYPE_CHECKING:  # a plain proxy loads neither the executor nor the loop
    from patchbay.server.chat.handler import ToolChat
    from patchbay.server.models_view import LearntModels
    from patchbay.server.responses_socket import ResponsesSockets
    from patchbay.server.turn_archive import TurnArchive

_LOGGED_TYPES = (b"application/json", b"text/")


async def forward_other_path(request: ProxyRequest, tail: str) -> None:
    """Send the request to ``tail`` below the upstream's base, and forward the response. Raises PatchbayError."""
    scope, watch = request.scope, request.watch
    method: str = scope["method"]
    incoming = dict(scope["headers"])
    headers = request.headers_for_upstream()
    sent = request.capture() if incoming.get(b"content-type", b"").lower().startswith(_LOGGED_TYPES) else None
    body, length = None, None
    if b"content-length" in incoming or b"transfer-encoding" in incoming:
        body = await stream_body(request.receive, watch, note=sent.add if sent is not None else None)
        length = declared_length(incoming.get(b"content-length"))
    request.log("upstream_request", method=method, path=tail)
    watch.wait()
    response = await request.upstream.open(method, tail, scope.get("query_string", b""), headers, body, length=length)
    try:
        if sent is not None:
            request.log("upstream_request_body", **sent.fields())
        if response.status >= 400 and method != "HEAD":
            raise (await request.read_rejection(response, chat=False))[1]
        is_text = response.content_type.encode("latin-1").startswith(_LOGGED_TYPES) and not response.coding
        capture = request.capture() if is_text else None
        bodiless = method == "HEAD" or response.status in (204, 304)
        await relay(request, response, capture=capture, bodiless=bodiless)
        request.log("response", status=response.status, path=tail, **(capture.fields() if capture is not None else {}))
    finally:
        response.close()


HEALTH_PATHS = ("/", "/health", "/health/")
"""The paths that need no key."""

_ADMIN_PATHS = ("/api/events", "/api/turns", "/api/usage", "/api/models", "/api/doctor", METRICS_PATH, CONSOLE_API, CONSOLE_PATH)
_ADMIN_STARTS = ("/api/", METRICS_PATH, CONSOLE_PATH)
_logger = logging.getLogger("patchbay.proxy")
_PASSED_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
_UNCHECKED_METHODS = frozenset({"GET", "HEAD", "DELETE"})
"""Methods of requests that pass by hooks: nothing is generated for them."""
_CORS: Headers = [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", b"*")]
_PREFLIGHT: Headers = [
    (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
    (b"access-control-max-age", b"86400"),
]
_DEFAULT_ALLOWED = b"authorization, content-type, openai-organization, openai-project, x-request-id"


def _archive(settings: ProxySettings) -> TurnArchive | None:
    if settings.keep_turns is None or settings.response_store is None:
        return None
    from patchbay.server.turn_archive import TurnArchive  # takes SQLAlchemy

    return TurnArchive(settings.response_store, keep=settings.keep_turns, keeps_content=settings.keep_content)


_Work = Callable[[ProxyRequest], Awaitable[None]]
"""Answers a request that has passed the checks. Raises PatchbayError."""


async def _send_json(make: Callable[[ProxyRequest], Awaitable[bytes]], request: ProxyRequest) -> None:
    await request.reply.whole(200, [JSON_TYPE], await make(request))


class AdminApp(Protocol):
    """The events, the turns and the console, as an ASGI application."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""

    def leave(self) -> None:
        """End the streams of events."""


class ProxyApp:
    """The proxy; create it with ``patchbay.proxy.create_app``. Call ``aclose`` where it is mounted without a lifespan.

    With ``tools`` chat completions may become turns with the tools of a registry and with hooks. Without
    ``has_upstream`` nothing else is answered. ``own_models`` are listed before the upstream's. ``import_admin`` imports and
    returns what makes the application of the console; it is called in a thread, on the first request to it.
    """

    speaks_websocket = True

    def __init__(
        self,
        settings: ProxySettings,
        make_exchange: Callable[..., Exchange[bytes]],
        *,
        tools: ToolChat | None = None,
        learnt: LearntModels | None = None,
        has_upstream: bool = True,
        own_models: Sequence[Mapping[str, Any]] = (),
        import_admin: Callable[[], Callable[[ProxyApp], AdminApp]] | None = None,
    ) -> None:
        self.settings = settings
        self._make_exchange = make_exchange
        self._tools = tools
        self.learnt = tools.learnt if tools is not None else learnt
        self._upstream = Upstream(settings) if has_upstream else NoUpstream(settings)
        secrets = [key for key in (settings.upstream_key, settings.api_key) if key is not None]
        secrets += secret_values(settings.upstream_headers)
        protect(*secrets)
        self._redact = Redactor(secrets)
        self._frontends = Frontends(settings, self._redact.text, own_models, tools.response_runs if tools is not None else None)
        self._tails = frozenset({CHAT, *self._frontends.tails})
        self._request_log: RequestLog | None = None
        if settings.log_file is not None:
            self._request_log = RequestLog(settings.log_file, max_size=settings.max_log_size, redact=self._redact)
        self._common: Headers = _CORS if settings.cors else []
        self._sockets: ResponsesSockets | None = None
        self.turns = TurnStore()
        self.turn_archive = _archive(settings)
        if self.turn_archive is not None:
            self.turns.archive = self.turn_archive.add
        self.observers: list[RequestObserver] = []
        """Called with the record of each finished request to a model. They must neither block nor raise."""
        self.logs_failures = True
        """Whether failed requests to models are logged; False where an observer shows them."""
        self.no_events = ""
        """Why there are no event stream and no console."""
        self.console_sessions = ConsoleSessions()
        self.has_console = all(find_tail(each, settings.base_path) is None for each in _ADMIN_PATHS)
        self.examine: Examine | None = None
        """Examines the upstream for the console; None where this server cannot."""
        self.examination: asyncio.Task[None] | None = None
        """What runs of it, or ran last."""
        self._import_admin = import_admin if self.has_console else None
        self._admin: AdminApp | None = None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] in ("http", "websocket"):
            try:
                check_caller(scope, headers_of(scope), self.settings, any_peer=True, any_origin=self.settings.cors)
            except Rejected as error:
                await reject(scope, send, error, as_openai=True)
                return
            path = scope["path"]
            if self._import_admin is not None and path.startswith(_ADMIN_STARTS) and is_below(path, _ADMIN_PATHS):
                await self._serve_admin(self._import_admin, scope, receive, send)
                return
        await self.serve_admitted(scope, receive, send)

    async def _serve_admin(
        self, import_admin: Callable[[], Callable[[ProxyApp], AdminApp]], scope: Any, receive: Receive, send: Send
    ) -> None:
        """Serve events, turns and the console; the first request imports them."""
        problem = self.no_events
        if self._admin is None and not problem:
            make_admin = await asyncio.to_thread(import_admin)
            try:
                self._admin = self._admin or make_admin(self)
            except ConfigurationError as error:
                problem = str(error)
        if self._admin is None:
            await reject(scope, send, Rejected(409, "no_events", f"This proxy has no events and no console: {problem}"))
        else:
            await self._admin(scope, receive, send)

    async def serve_admitted(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve a scope whose caller was checked."""
        kind = scope["type"]
        if self._tools is not None and kind != "lifespan":
            scope = {**self._tools.read_headers(scope), SENT: scope}
        if kind == "http":
            await self._serve(scope, receive, send, self._common)
        elif kind == "lifespan":
            await self._lifespan(receive, send)
        elif kind == "websocket":
            await self._open_socket(scope, receive, send)
        else:
            raise ValueError(f"unknown ASGI scope {kind!r}")

    @property
    def max_message_size(self) -> int:
        """Maximum bytes of a WebSocket message."""
        return self.settings.max_body_size

    def stopping(self) -> None:
        """Prepare for shutdown, before the server waits for running requests."""
        if self.examination is not None:
            self.examination.cancel()
        if self._sockets is not None:
            self._sockets.stopping()
        if self._admin is not None:
            self._admin.leave()

    async def aclose(self) -> None:
        """Stop responses in the background, close the connections to the upstream, and flush the request log."""
        if self.examination is not None and not self.examination.get_loop().is_closed():
            self.examination.cancel()
            await asyncio.wait([self.examination])
        await self._frontends.close()
        await self._upstream.close()
        if self._tools is not None:
            await self._tools.hidden_turns.close()
        if self.turn_archive is not None:
            await self.turn_archive.aclose()
        if self._request_log is not None:
            await asyncio.to_thread(self._request_log.close)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self._frontends.open()
                    if self.turn_archive is not None:
                        await self.turn_archive.open()
                except PatchbayError as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    raise
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Any, receive: Receive, send: Send, common: Headers) -> None:
        """Answer one request, with an error where that fails."""
        redact = self._redact.including(keys_of(scope))
        request_id = begin_request()
        reply = ResponseWriter(send, [*common, (REQUEST_ID, request_id.encode())], redact)
        state = RequestState(scope, own_path(scope), reply, redact, request_id)
        try:
            await self._answer(state, receive)
        except ClientDisconnect as error:
            if not reply.is_complete:
                self._log_failure(state, error)
        except PatchbayError as error:
            self._log_failure(state, error)
            if self.logs_failures or not state.protocol:
                log_error_response(state.scope, error.status, redact.text(f"{error.code}: {error}"))
            await self._send_error(state, error)
        except asyncio.CancelledError:
            stopping = StoppingError()
            self._log_failure(state, stopping)
            if not reply.started or state.takes_events:
                await self._send_error(state, stopping)
            raise
        except Exception as error:
            _logger.exception("The proxy failed on a request")
            self._log_failure(state, PatchbayError(f"{type(error).__name__}: {error}"))
            failure = PatchbayError("The proxy failed on this request; its operator finds the reason in its output.")
            await self._send_error(state, failure)
        finally:
            if state.protocol:
                state.end(self.observers, self.turns.usage)

    async def _answer(self, state: RequestState, receive: Receive) -> None:
        """Check a request, and answer it. Raises PatchbayError."""
        route = self._frontends.route(state.scope, state.path)
        tail = CHAT if route is not None else await self._answer_without_key(state.scope, state.path, state.reply)
        if tail is None:
            return
        if route is not None:
            state.frontend, state.scope = route.frontend, chat_scope(state.scope)
            state.reply.keep_alive = route.frontend.heartbeat
            state.protocol = route.frontend.protocol if route.wants in ("answer", "compaction") else ""
        scope = state.scope
        chat = scope["method"] == "POST" and is_chat(tail)
        if chat and route is None:
            state.protocol = "chat"
        self._authorize(scope, chat=chat)
        work: _Work | None
        if chat:
            body = await read_body(receive, self.settings.max_body_size)
            self._log_request(state, body=body)
            work = await self._begin(state, body) if route is None else await self._begin_frontend(state, route, body, receive)
        elif route is not None:
            work = partial(_send_json, partial(self._frontends.list_models, route))
        elif (stored := await self._frontends.answer_stored(scope, state.path)) is not None:
            await self._send_stored(stored, receive, state.reply)
            work = None
        elif (list_models := self._frontends.own_list(scope["method"], tail)) is not None:
            work = partial(_send_json, list_models)
        else:
            self._check_passthrough(scope["method"], tail)
            self._log_request(state, passthrough=True)
            work = partial(forward_other_path, tail=tail)
        if work is not None:
            await self._run(state, receive, work)

    async def _begin(self, state: RequestState, body: bytes, encoder: AnswerEncoder[bytes] | None = None) -> _Work:
        """Begin a turn or an exchange for the ``body`` of a chat completion. Raises PatchbayError."""
        if self._tools is not None:
            await self._tools.hidden_turns.load(body)
        turn = state.turn = self.turns.begin(state.id, state.protocol, body, state.redact, state.scope["headers"])
        state.reply.ending = b""
        if self._tools is not None and (chat := self._tools.begin_turn(state.scope, body, encoder)) is not None:
            state.exchange = chat
            turn.model, turn.stream, turn.agent, turn.session = chat.model, chat.client_streams, chat.role, chat.session
            work: _Work = chat.run_turn
        elif self._is_guarded:
            raise UnguardedError(
                "A request with 'functions', or tools other than functions, is", "'tools' of the type 'function'"
            )
        else:
            state.exchange = exchange = self._make_exchange(body, encoder)
            exchange.attempt_log, turn.model, turn.stream = turn, exchange.model, exchange.client_streams
            work = partial(run_chat, exchange=exchange)
        for watcher in self.turns.watchers:
            watcher(turn)
        return work

    async def _begin_frontend(self, state: RequestState, route: FrontendRoute, body: bytes, receive: Receive) -> _Work | None:
        """Begin the work on a front-end's request; None where it is answered already. Raises PatchbayError."""
        frontends, reply = self._frontends, state.reply
        decoded = await frontends.decode(route, body, state.scope)
        chat, encoder = encode(decoded.body), decoded.encoder
        if decoded.is_empty:
            reply.before_end = frontends.storer(encoder, state.scope)
            await reply.send_head(200, EVENT_STREAM)
            await reply.finish(encoder.end_answer())
            return None
        if route.wants == "count":
            sent = self._make_exchange(chat, encoder).request
            return partial(_send_json, partial(frontends.count, route, decoded.body, sent))
        if decoded.hosted:
            self._use_search(decoded, state.scope)
            chat = encode(decoded.body)
        run = partial(self._run_in_background, state.id, state.scope, chat, encoder)
        if (stored := await frontends.begin_response(decoded, run, state.scope)) is not None:
            state.protocol = ""  # the record is that of the work in the background
            await self._send_stored(stored, receive, reply)
            return None
        reply.before_end = frontends.storer(encoder, state.scope)
        return await self._begin(state, chat, encoder)

    def _use_search(self, decoded: DecodedRequest, scope: Any) -> None:
        """Let a registered tool search in the place of the vendor's web search. Raises InvalidRequestError if there is none."""
        tool = None
        if self._tools is not None and "search" in decoded.hosted.lower():
            tool = self._tools.search_tool(scope, decoded.body.get("user"))
        if tool is None:
            raise InvalidRequestError(
                f"{decoded.hosted!r} runs on its vendor's servers only, and the model would invent its results: patchbay serve "
                "--web-search TOOL searches with a registered tool.",
                param="tools",
            )
        if isinstance(decoded.body.get("tool_choice"), dict):
            decoded.body["tool_choice"] = chosen_function(tool)

    async def _run(self, state: RequestState, receive: Receive, work: _Work) -> None:
        """Run ``work`` while its client and upstream are watched. Raises PatchbayError."""
        settings = self.settings
        with RequestWatchdog(receive, silence=settings.upstream_timeout, interval=settings.heartbeat) as watch:
            up, log = self._upstream, self._request_log
            await work(
                ProxyRequest(state.id, state.scope, receive, state.reply, watch, up, settings, state.redact, log, state.turn)
            )

    async def _open_socket(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve a WebSocket; a rejection answers the handshake."""
        from patchbay.server.responses_socket import ResponsesSockets, request_scope

        if self._sockets is None:
            self._sockets = ResponsesSockets(log_requests(self._serve_message), self.settings.max_body_size)
        post = request_scope(scope)
        try:
            self._authorize(chat_scope(post), chat=True)
            if find_tail(own_path(scope), self.settings.base_path) != "/responses":
                raise NoWebSocketError
            self._sockets.check()
        except PatchbayError as error:
            await reject(scope, send, error, as_openai=True)
        else:
            await self._sockets(scope, receive, send)

    async def _serve_message(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request that came as a WebSocket message."""
        await self._serve(scope, receive, send, [])

    async def _send_stored(self, stored: bytes | EventTail, receive: Receive, reply: ResponseWriter) -> None:
        """Send a response as JSON, or its events as they come."""
        if isinstance(stored, bytes):
            await reply.whole(200, [JSON_TYPE], stored)
            return
        await reply.send_head(200, EVENT_STREAM)
        with RequestWatchdog(receive, interval=self.settings.heartbeat) as watch:
            watch.beat(reply.heartbeat)
            watch.wait_elsewhere()
            place = stored.begin
            try:
                while events := await stored.log.read(place):
                    await watch.before_write()
                    await reply.write(b"".join(events))
                    watch.wait_elsewhere()
                    place += len(events)
            except asyncio.CancelledError:  # the server stops: the response, too, ends without another event
                await reply.finish(error_event(place, StoppingError()))
                raise
        await reply.finish()

    async def _run_in_background(
        self, request_id: str, scope: Any, body: bytes, encoder: AnswerEncoder[bytes], send: Send
    ) -> None:
        """Answer a request whose client does not wait, through ``send`` and into ``encoder``. Raises PatchbayError."""
        gone = asyncio.Event()  # never set: no client can disconnect

        async def receive() -> Any:
            await gone.wait()

        redact = self._redact.including(keys_of(scope))
        state = RequestState(scope, "", ResponseWriter(send, []), redact, request_id, protocol=OpenAIResponses.protocol)
        try:
            await self._run(state, receive, await self._begin(state, body, encoder))
        except PatchbayError as error:
            state.failure = error
            raise
        finally:
            state.end(self.observers, self.turns.usage)

    async def _answer_without_key(self, scope: Any, path: str, reply: ResponseWriter) -> str | None:
        """Serve a request that needs no key, and return None; else return its path below the base. Raises NotFoundError."""
        method = scope["method"]
        if method == "OPTIONS":
            await reply.send_head(204, self._preflight(scope["headers"]))
            await reply.finish()
            return None
        if path == "/" and self.has_console and wants_page(scope):
            await reply.whole(302, TO_CONSOLE, b"")
            return None
        if path in HEALTH_PATHS and method in ("GET", "HEAD"):
            await reply.whole(200, [JSON_TYPE], HEALTH_BODY)
            return None
        tail = find_tail(path, self.settings.base_path)
        if tail is None:
            base = self.settings.base_path
            raise NotFoundError(
                f"Not found: {method} {path[:200]}. The API is below {base}: POST {base}{CHAT}, {base}/responses and "
                f"{base}/messages, and Gemini's below {GEMINI_BASE}; any other path below {base}, such as GET {base}/models, is "
                f"passed on to the upstream."
            )
        return tail

    def _authorize(self, scope: Any, *, chat: bool) -> None:
        """Check the key, the method and the declared size, before the body is read. Raises PatchbayError."""
        length = key = None
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = value
            elif name == b"authorization":
                key = value
        if self.settings.api_key is not None:
            scheme, _, token = (key or b"").partition(b" ")
            is_right = is_token(token.strip(), self.settings.api_key) and scheme.lower() == b"bearer"
            if not is_right and (key is not None or not self.console_sessions.admits(scope, headers_of(scope))):
                raise AuthenticationError("Missing or invalid API key.")
        if chat:
            check_length(declared_length(length), self.settings.max_body_size)
        elif scope["method"] not in _PASSED_METHODS:
            raise MethodNotAllowedError(f"The method {scope['method']} is not allowed here.")

    @property
    def _is_guarded(self) -> bool:
        """Whether hooks must see every request to a model."""
        return self._tools is not None and self._tools.has_model_hooks and not self.settings.allow_unguarded

    def _check_passthrough(self, method: str, tail: str) -> None:
        """Raise for another spelling of a path that is served here, and for what hooks would not see."""
        base = self.settings.base_path
        if (meant := canonical(tail)) in self._tails and tail not in self._tails:
            raise NotFoundError(f"Not found: {method} {base}{tail[:200]}. Write it as {base}{meant}.")
        if method not in _UNCHECKED_METHODS and self._is_guarded:
            raise UnguardedError(f"{method} {base}{tail[:200]} is", f"POST {base}{CHAT}, {base}/responses or {base}/messages")

    def _preflight(self, headers: Headers) -> Headers:
        if not self.settings.cors:
            return []
        wanted = [value for name, value in headers if name == b"access-control-request-headers"]
        allowed = b", ".join(wanted) or _DEFAULT_ALLOWED
        return [*_PREFLIGHT, (b"access-control-allow-headers", allowed), (b"vary", b"access-control-request-headers")]

    async def _send_error(self, state: RequestState, error: PatchbayError) -> None:
        """Send an error: as a status where that is possible, else as an event of the stream, else by cutting the connection."""
        reply, exchange = state.reply, state.exchange
        if not reply.started:
            headers: Headers = error_headers(error)
            if getattr(exchange, "has_run", False):  # clients retry by themselves, and the turn's tools would run again
                headers = [*(pair for pair in headers if pair[0] != NO_RETRY[0]), NO_RETRY]
            if isinstance(error, AuthenticationError):
                headers.append((b"www-authenticate", b"Bearer"))
            elif isinstance(error, MethodNotAllowedError):
                headers.append((b"allow", ", ".join(sorted(_PASSED_METHODS)).encode()))
            frontend = state.frontend or self._frontends.owner(state.path)
            status, body = (error.status, encoded_error_body(error)) if frontend is None else frontend.encode_error(error)
            await reply.whole(status, headers, state.redact(body))
        elif reply.finished:
            return
        elif exchange is not None and state.takes_events:
            await reply.finish(state.redact(exchange.error_event(error)))
        else:
            # The server closes the connection, so that no client takes the body for complete.
            raise TruncatedResponseError(str(error)) from error

    def _log_request(self, state: RequestState, **seen: Any) -> None:
        if self._request_log is not None:
            method = method_of(state.scope)
            self._request_log.record("client_request", state.id, redact=state.redact, method=method, path=state.path, **seen)

    def _log_failure(self, state: RequestState, error: PatchbayError) -> None:
        state.failure = error
        if self._request_log is None or isinstance(error, UpstreamStatusError):  # logged with its body already
            return
        event = "upstream_error" if isinstance(error, UpstreamError) else "error"
        self._request_log.record(event, state.id, redact=state.redact, status=error.status, code=error.code, message=str(error))
