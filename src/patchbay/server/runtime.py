"""Runs an ASGI application under uvicorn, in one process or in several workers.

A stop (SIGTERM, Ctrl-C) drains: running requests finish within the drain timeout; a second signal ends at once. With workers, a
parent holds one socket per worker on the shared port (SO_REUSEPORT): the kernel spreads the connections, and what arrives while a
dead worker is replaced waits in its socket's queue. POSIX only.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from patchbay._backoff import Backoff
from patchbay._ratelimit import LogRateLimiter
from patchbay._redaction import Redactor
from patchbay._text import plural
from patchbay.database import prepare_databases
from patchbay.errors import ConfigurationError, PatchbayError
from patchbay.server.http import ResponseWriter
from patchbay.server.request_log import CURRENT_REQUEST, AsgiApp, log_requests
from patchbay.server.settings import LogFormat, ServeOptions, Verbosity
from patchbay.server.telemetry import check_telemetry, sending_traces

_HEAD_SECONDS: Final = 10.0


class HeadTimeoutProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a deadline for each request's head: ``head_seconds`` after it, or the connection, began.

    uvicorn limits only the idle time between two requests: connections that send nothing, or a head byte by byte, would stay
    until the process has no file descriptors left.
    """

    head_seconds = _HEAD_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the deadline of the first head."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.head_seconds, transport.close)

    def on_headers_complete(self) -> None:
        """End the deadline."""
        self._stop_waiting()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Start a deadline with the first bytes of another head."""
        super().data_received(data)
        # A connection that has become a WebSocket has another protocol.
        if self._deadline is None and self.cycle is not None and self.cycle.response_complete and self in self.connections:
            self._deadline = self.loop.call_later(self.head_seconds, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the deadline."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _unsupported_upgrade_warning(self) -> None:
        """Suppress the warning: the application itself rejects WebSockets that it does not serve."""

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


_KEEP_ALIVE = 75
_uvicorn_logger = logging.getLogger("uvicorn.error")
_server_logger = logging.getLogger("patchbay.server")
_BACKLOG = 2048
_MAX_MESSAGE = 1024 * 1024
_PING = 20.0

_NOTICE_SECONDS: Final = 0.3
"""Seconds for requests that end with the notice of the stop, before the others are counted."""
_CUT_OFF_SECONDS: Final = 1.0
"""Seconds for requests that are cancelled."""

HEALTHZ: Final = "/healthz"
_PROBES: Final = (HEALTHZ, "/readyz")

_NO_DRAIN_SECONDS: Final = 0.01
"""Seconds for a drain of 0: uvicorn would skip it, and with it what happens at its end."""


LEVELS: Final[dict[Verbosity, int]] = {"quiet": logging.ERROR, "normal": logging.INFO, "verbose": logging.DEBUG}


def listen_on(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a bound socket. ``shared``: several sockets on one port (SO_REUSEPORT). Raises ConfigurationError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host!r}: {error.strerror}.") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        if not shared:
            # A port in use is often detected only here.
            listener.listen(_BACKLOG)
        listener.setblocking(False)  # noqa: FBT003 - positional only
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"cannot listen on {host} port {port}: {(error.strerror or str(error)).lower()}.") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the http:// address at which programs on this machine reach a bound socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  (which is no name of a server: see check_host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(
    app: AsgiApp,
    listener: socket.socket,
    *,
    drain_timeout: int,
    ready: Callable[[], None],
    still_wanted: Callable[[], bool] | None = None,
    signals: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM),
    drain_delay: int = 0,
) -> None:
    """Serve ``app`` on ``listener`` until one of ``signals``, then drain. Calls ``ready`` once requests are served.

    ``/healthz`` and ``/readyz`` are answered for anyone who can connect, and not logged: 200 while the process serves, and while
    the application is ready. The method ``problem()`` of an application says why it is not, "" if it is.

    The signal handlers stay installed: a signal that comes while the process ends must not become its exit status.
    ``still_wanted`` is called once a second; False starts the drain. If requests are running then, a line on stderr says so.

    WebSockets are served for an application with ``speaks_websocket``: pinged every 20 s, messages of up to 1 MiB, or up to its
    ``max_message_size`` bytes. Its method ``stopping()`` is called before the drain, its coroutine ``reload()`` at SIGHUP; it
    returns a summary for the log. Raises the PatchbayError that keeps ``app`` from starting.
    """
    lifespan = _ServedApp(app)

    async def look() -> None:
        if still_wanted is not None and not still_wanted():
            server.should_exit = True

    seconds: Any = drain_timeout or _NO_DRAIN_SECONDS
    server = _Server(
        uvicorn.Config(
            lifespan,
            interface="asgi3",
            log_config=None,
            access_log=False,
            lifespan="on",
            loop="auto",
            http=HeadTimeoutProtocol,
            ws=cast("Any", _websocket_protocol) if getattr(app, "speaks_websocket", False) else "none",
            ws_max_size=max(_MAX_MESSAGE, getattr(app, "max_message_size", 0)),
            ws_ping_interval=_PING,
            ws_ping_timeout=_PING,
            ws_per_message_deflate=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=seconds,
            callback_notify=look if still_wanted is not None else None,
            timeout_notify=1,
        ),
        ready,
        signals,
        app,
        lifespan,
        drain_delay,
    )
    _settle_collector()
    quiet = _ShutdownLogFilter(server, lifespan)
    _uvicorn_logger.addFilter(quiet)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    except SystemExit:
        if lifespan.failure is not None:
            raise lifespan.failure from None
        raise
    finally:
        _uvicorn_logger.removeFilter(quiet)


def _websocket_protocol(**options: Any) -> asyncio.Protocol:
    """Return the protocol of an upgraded connection; the first one imports it."""
    from patchbay.server.sockets import WebSocketProtocol

    return WebSocketProtocol(**options)


class _ServedApp:
    """The application, and the answers to probes; a PatchbayError at its startup is kept in ``failure``, and not logged."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = log_requests(app)
        self._find_problem: Callable[[], str] = getattr(app, "problem", str)
        self.failure: PatchbayError | None = None
        self.is_stopping = False

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        if scope["type"] == "lifespan":
            return self._live(scope, receive, send)
        if scope["path"] in _PROBES and scope.get("method") in ("GET", "HEAD"):
            return self._answer_probe(scope["path"], send)
        return self._app(scope, receive, send)

    async def _answer_probe(self, path: str, send: Any) -> None:
        """Answer a probe. No request arrives before the application has started."""
        problem = "" if path == HEALTHZ else "The server is stopping." if self.is_stopping else self._find_problem()
        body = {"status": "unavailable", "problem": problem} if problem else {"status": "ok"}
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        await ResponseWriter(send, []).whole(503 if problem else 200, headers, json.dumps(body).encode())

    async def _live(self, scope: Any, receive: Any, send: Any) -> None:
        started = False

        async def forward(message: Any) -> None:
            nonlocal started
            if not message["type"].endswith(".failed"):  # its text is a traceback: uvicorn logs the one of what is raised
                started = True
                await send(message)

        try:
            await self._app(scope, receive, forward)
        except PatchbayError as error:
            if not started:
                self.failure = error
            raise
        except asyncio.CancelledError:  # stopped by a second signal
            pass


def _settle_collector() -> None:
    """Configure the garbage collector for a server's heap.

    What is loaded by now lives as long as the process: it is frozen, so that it is not walked, nor its pages copied in a worker.
    The rest is small, so full passes are cheap and may be frequent; by default finished requests could pile up to 15 MB.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # measures what is left: a full pass waits for a quarter of what the last one saw
    gc.set_threshold(700, 10, 3)


class _Server(uvicorn.Server):
    """A uvicorn server with a ``ready`` callback, reload at SIGHUP, and exit status 0 after a signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        ready: Callable[[], None],
        signals: tuple[signal.Signals, ...],
        app: object,
        served: _ServedApp,
        drain_delay: int,
    ) -> None:
        super().__init__(config)
        self._served = served
        self._drain_delay = drain_delay
        self._is_cut_off = asyncio.Event()
        self._notify_app: Callable[[], object] | None = getattr(app, "stopping", None)
        self._reload_app: Callable[[], Coroutine[Any, Any, str]] | None = getattr(app, "reload", None)
        self._reloading: asyncio.Task[None] | None = None
        self._ready = ready
        self._signals = signals
        self._is_over = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self._reload_app is not None and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        self._ready()

    def _reload(self) -> None:
        if self._reloading is None or self._reloading.done():  # one reload at a time
            self._reloading = asyncio.get_running_loop().create_task(self._reloaded())

    async def _reloaded(self) -> None:
        assert self._reload_app is not None
        try:
            summary = await self._reload_app()
        except PatchbayError as error:
            _server_logger.warning("The configuration was not reloaded: %s", error)
        except Exception:
            _server_logger.exception("The configuration could not be reloaded")
        else:
            _server_logger.warning("The configuration was reloaded: %s", summary)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._served.is_stopping = True
        if self._drain_delay:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_cut_off.wait(), self._drain_delay)
        if self._notify_app is not None:
            self._notify_app()
        seconds = int(self.config.timeout_graceful_shutdown or 0)
        if seconds and self.server_state.tasks:  # streams of events end with the notice, and are not waited for
            await asyncio.wait(set(self.server_state.tasks), timeout=_NOTICE_SECONDS)
        if seconds and (count := len(self.server_state.tasks)) and not self.force_exit:
            running = f"{plural(count, 'request')} running, up to {seconds} s"
            if _logs_json():
                _server_logger.warning("stopping: %s", running)
            else:
                print(f"stopping: {running}; press Ctrl-C again to stop at once", file=sys.stderr, flush=True)  # noqa: T201
        await super().shutdown(sockets=sockets)
        if self.force_exit:  # uvicorn leaves it out, and what is not stored yet would be lost
            await self.lifespan.shutdown()

    async def _wait_tasks_to_complete(self) -> None:
        try:
            await super()._wait_tasks_to_complete()
        except asyncio.CancelledError:  # the drain timeout is over
            self._cut_off()
            raise
        finally:
            if self._is_cut_off.is_set() and self.server_state.tasks:  # to answer and record what they did
                await asyncio.wait(set(self.server_state.tasks), timeout=_CUT_OFF_SECONDS)

    def _cut_off(self) -> None:
        """Cancel running tasks, which uvicorn would wait for.

        Clients that read can still be sent an error; connections of those that do not are aborted.
        """
        self._is_cut_off.set()
        for connection in list(self.server_state.connections):
            if connection.transport.get_write_buffer_size():
                connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install the signal handlers, and keep them: see ``run_server``."""
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            self._is_over = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, end at the second. Another Ctrl-C during cleanup exits at once."""
        del frame
        if self.force_exit or self._is_over:
            if sig == signal.SIGINT:
                os._exit(0)
        elif self.should_exit:
            self.force_exit = True
            asyncio.get_running_loop().call_soon_threadsafe(self._cut_off)
        self.should_exit = True


_DRAIN_TIMEOUT: Final = "Cancel %s running task(s)"
"""The beginning of uvicorn's error after the drain timeout, when ``_cut_off`` has cancelled all tasks."""


class _ShutdownLogFilter(logging.Filter):
    """Drops uvicorn's log of startup failures that are reported otherwise, and of the shutdown's cancellations."""

    def __init__(self, server: uvicorn.Server, lifespan: _ServedApp) -> None:
        super().__init__()
        self._server = server
        self._lifespan = lifespan

    def filter(self, record: logging.LogRecord) -> bool:
        if self._lifespan.failure is not None:
            return False
        if not self._server.should_exit:
            return True
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, asyncio.CancelledError) and not str(record.msg).startswith(_DRAIN_TIMEOUT)


_NO_KEYS: Final = Redactor()


class _RedactingFormatter(logging.Formatter):
    """Formats failures of an upstream or client on one line, bugs with their traceback, and redacts keys.

    The id of the request that a line is about stands at its end.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        line = super().formatMessage(record)
        return f"{line} [{request}]" if (request := CURRENT_REQUEST.get()) else line

    def format(self, record: logging.LogRecord) -> str:
        return _NO_KEYS.text(super().format(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name is logging's
        error = ei[1]
        if isinstance(error, PatchbayError | asyncio.CancelledError):
            return f"  {type(error).__name__}: {error}"
        return super().formatException(ei)


class _JsonFormatter(_RedactingFormatter):
    """Formats a record as an object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        members = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _NO_KEYS.text(record.getMessage()),
        }
        if request := CURRENT_REQUEST.get():
            members["id"] = request
        if record.exc_info and record.exc_info[0] is not None:
            members["error"] = _NO_KEYS.text(self.formatException(record.exc_info)).strip()
        return json.dumps(members)


class _RateLimitedHandler(logging.StreamHandler[Any]):
    """Writes to stderr. Lines below ERROR are rate-limited: clients cause them, and choose what they quote.

    Not limited are records with ``is_bounded``: their logger limits the number of them, and logs none again.
    """

    def __init__(self, log_format: LogFormat) -> None:
        super().__init__()
        if log_format == "json":
            self.setFormatter(_JsonFormatter())
            self._limit = LogRateLimiter(self._write, count_dropped='{{"level": "warning", "lines_left_out": {}}}'.format)
        else:
            self.setFormatter(_RedactingFormatter("%(asctime)s %(levelname)s %(message)s"))
            self._limit = LogRateLimiter(self._write)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if record.levelno < logging.ERROR and not getattr(record, "is_bounded", False):
                self._limit.log(line)
            else:
                self._write(line)
        except Exception:  # noqa: BLE001  (logging must not fail)
            self.handleError(record)

    def _write(self, line: str) -> None:
        self.stream.write(line + self.terminator)
        self.flush()


def _logs_json() -> bool:
    """Return whether the log on stderr is JSON."""
    return any(isinstance(each.formatter, _JsonFormatter) for each in logging.getLogger("patchbay").handlers)


def log_to_stderr(level: int = logging.WARNING, log_format: LogFormat = "text") -> None:
    """Show the log of Patchbay from ``level`` on, and warnings of the libraries that log what users can mend, on stderr."""
    handler = _RateLimitedHandler(log_format)
    libraries = ("uvicorn.error", "mcp", "opentelemetry")
    for name, lowest in (*((name, logging.WARNING) for name in libraries), ("patchbay", logging.NOTSET)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(max(level, lowest))
        logger.propagate = False


_proxy_logger = logging.getLogger("patchbay.proxy")
_EARLY_DEATH_SECONDS = 2.0
_MAX_EARLY_DEATHS = 3


def serve(
    make_app: Callable[[int], AsgiApp],
    options: ServeOptions,
    *,
    ready: Callable[[str], None],
) -> int:
    """Serve until stopped; return the exit status. Raises ConfigurationError where the address cannot be bound.

    ``make_app`` is called in the process that serves, with the worker's number from 0 on; ``ready`` once, with the URL, when
    requests are served. Raises the PatchbayError that keeps one process from starting.
    """
    check_telemetry(options)
    log_to_stderr(LEVELS[options.log], options.log_format)
    # Python's handlers end before the process: a late signal would become its exit status.
    for number in (signal.SIGTERM, signal.SIGINT):
        atexit.register(signal.signal, number, signal.SIG_IGN)
    if options.workers == 1:  # else each opens its own
        prepare_databases()
    listener = listen_on(options.host, options.port)
    if options.workers == 1:
        url = url_of(listener)
        with contextlib.closing(listener), sending_traces(options):
            run_server(
                make_app(0),
                listener,
                drain_timeout=options.drain_timeout,
                drain_delay=options.drain_delay,
                ready=lambda: ready(url),
            )
        return 0
    # The first socket proved that the port is free, which a shared one cannot; its number may be a random one.
    port: int = listener.getsockname()[1]
    listener.close()
    listeners = [listen_on(options.host, port, shared=True) for _ in range(options.workers)]
    return _Workers(make_app, listeners, options, ready).run()


class _Workers:
    """The parent of the workers: restarts those that end, and forwards a stop to all.

    Not uvicorn's own workers: each would load the program anew, and outlive a parent that was killed.
    """

    def __init__(
        self,
        make_app: Callable[[int], AsgiApp],
        listeners: list[socket.socket],
        options: ServeOptions,
        ready: Callable[[str], None],
    ) -> None:
        self._make_app = make_app
        self._listeners = listeners
        self._options = options
        self._ready = ready
        self._places: dict[multiprocessing.process.BaseProcess, tuple[int, float]] = {}
        """The running workers, each with its place and when it was started."""
        self._stopping = False

    def run(self) -> int:
        """Start the workers, wait until all have ended, and return the exit status."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        for place in range(len(self._listeners)):
            self._start(place, ready=self._ready if place == 0 else None)  # the first worker announces
        failed = False
        ends = Backoff(0.0, 0.0, retries=_MAX_EARLY_DEATHS - 1, healthy_after=_EARLY_DEATH_SECONDS)
        while self._places:
            multiprocessing.connection.wait([worker.sentinel for worker in self._places])
            for worker in [worker for worker in self._places if worker.exitcode is not None]:
                place, started = self._places.pop(worker)
                if self._stopping:
                    continue
                ends.fail(lasted=time.monotonic() - started)
                if ends.is_exhausted:
                    _proxy_logger.error("Workers end at once (status %s); giving up.", worker.exitcode)
                    failed = True
                    self._stop()
                else:
                    _proxy_logger.error("A worker ended (status %s); starting another.", worker.exitcode)
                    self._start(place)
        return 1 if failed else 0

    def _stop(self, *_signal: object) -> None:
        self._stopping = True
        for listener in self._listeners:  # the workers' own copies are theirs to close
            listener.close()
        for worker in list(self._places):
            worker.terminate()

    def _start(self, place: int, ready: Callable[[str], None] | None = None) -> None:
        worker = multiprocessing.get_context("fork").Process(target=self._work, args=(place, os.getpid(), ready))
        worker.start()
        self._places[worker] = place, time.monotonic()
        if self._stopping:  # a stop came while it was started
            worker.terminate()

    def _work(self, place: int, parent: int, ready: Callable[[str], None] | None) -> None:
        """Run a worker."""
        # Ctrl-C reaches the whole process group; the parent forwards the stop.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._stopping:
            return
        listener = self._listeners[place]
        for other in self._listeners:
            if other is not listener:
                other.close()
        url = url_of(listener)
        try:
            with sending_traces(self._options):
                run_server(
                    self._make_app(place),
                    listener,
                    drain_timeout=self._options.drain_timeout,
                    drain_delay=self._options.drain_delay,
                    ready=lambda: ready(url) if ready is not None else None,
                    still_wanted=lambda: os.getppid() == parent,
                    signals=(signal.SIGTERM,),
                )
        except Exception:
            _proxy_logger.exception("A worker failed")  # without keys, unlike the traceback of multiprocessing
            sys.exit(1)
