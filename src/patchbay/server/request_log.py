"""The proxy's request log, and log lines for rejected and for finished requests.

The request log holds one JSON object per line, append-only, bounded in size, written by a thread: the event loop only queues.
When FILE is full it becomes FILE.1, so both together stay within the limit. A file belongs to one process: see ``worker_file``.
Entries that are dropped because the disk is too slow are counted in the file.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from patchbay._ratelimit import LogRateLimiter
from patchbay._redaction import Redactor
from patchbay._text import one_line, printable
from patchbay.errors import ConfigurationError
from patchbay.server.http import REQUEST_ID, own_path

CAPTURE_LIMIT = 1024 * 1024
"""Maximum bytes of a streamed body in an entry."""
_QUEUE_LIMIT = 32 * 1024 * 1024
_OVERHEAD = 512
_BATCH = 256
_MODE = 0o600
_proxy_logger = logging.getLogger("patchbay.proxy")

_Entry = tuple[float, str, str, Redactor, dict[str, Any]]


CURRENT_REQUEST: Final[ContextVar[str]] = ContextVar("patchbay.current_request", default="")
"""The id of the request that this context answers, "" outside of one: that of its turn, and its ``x-request-id``."""

_numbers = itertools.count(1)
_prefix = ""


def begin_request() -> str:
    """Return a new id, which is the context's from now on."""
    global _prefix  # noqa: PLW0603  (made with the first request: each worker has its own)
    if not _prefix:
        _prefix = os.urandom(4).hex()
    request_id = f"{_prefix}-{next(_numbers)}"
    CURRENT_REQUEST.set(request_id)
    return request_id


def with_request_id(send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """Begin a request, and return ``send`` with its id among the headers of the response."""
    header = (REQUEST_ID, begin_request().encode())

    async def send_with_id(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), header]}
        await send(message)

    return send_with_id


class BodyCapture:
    """Collects the beginning of a streamed body for the log."""

    __slots__ = ("_pieces", "size", "truncated")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0
        self.truncated = False

    def add(self, piece: bytes) -> None:
        """Append ``piece`` up to the limit."""
        free = CAPTURE_LIMIT - self.size
        if len(piece) > free:
            self.truncated = True
            piece = piece[:free]
        if piece:
            self._pieces.append(piece)
            self.size += len(piece)

    def fields(self) -> dict[str, Any]:
        """Return the fields of an entry: ``body``, and ``truncated`` where it is incomplete."""
        fields: dict[str, Any] = {"body": b"".join(self._pieces)}
        if self.truncated:
            fields["truncated"] = True
        return fields


def worker_file(path: str, place: int) -> str:
    """Return the log file of a worker: ``path`` for the first one, ``path-2`` for the second, and so on."""
    return f"{path}-{place + 1}" if place else path


class RequestLog:
    """An open log. ``max_size`` limits FILE and FILE.1 together, in bytes. Raises ConfigurationError for an unusable file."""

    def __init__(self, path: str | Path, *, max_size: int, redact: Redactor) -> None:
        self._path = Path(path)
        self._old = self._path.with_name(self._path.name + ".1")
        self._half = max_size // 2
        self._redact = redact
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Each counter has one writer and needs no lock: queued and dropped are the loop's, taken and reported the thread's.
        self._queued = self._taken = 0
        self._dropped = self._reported = 0
        if self._path.exists() and not self._path.is_file():
            raise ConfigurationError(f"the log file {str(self._path)!r} is not a regular file.")
        try:
            self._open().close()
        except OSError as error:
            raise ConfigurationError(f"the log file {str(self._path)!r} cannot be written: {error.strerror}.") from None

    def record(self, event: str, request: str, *, redact: Redactor | None = None, **fields: Any) -> None:
        """Queue an entry; never blocks. Bytes are bodies, and embedded as JSON where they are JSON.

        ``redact`` knows the secrets of the request, too.
        """
        size = _OVERHEAD + sum(len(value) for value in fields.values() if isinstance(value, bytes | str))
        if self._queued - self._taken + size > _QUEUE_LIMIT:
            self._dropped += 1
            return
        if self._thread is None:  # not earlier: a server may fork its workers after the log is created
            self._thread = threading.Thread(target=self._run, name="patchbay-request-log", daemon=True)
            self._thread.start()
        self._queued += size
        self._queue.put((time.time(), event, request, redact or self._redact, fields))

    def close(self, limit: float = 5.0) -> None:
        """Write what is queued, for at most ``limit`` seconds, and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join(limit)

    # Run by the thread.

    def _run(self) -> None:
        last = False
        while not last:
            batch = [self._queue.get()]
            while len(batch) < _BATCH and batch[-1] is not None:
                try:
                    batch.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            last = batch[-1] is None
            lines = [self._line(entry) for entry in batch if entry is not None]
            dropped = self._dropped
            if dropped > self._reported:
                lines.append(self._line((time.time(), "dropped", "", self._redact, {"entries": dropped - self._reported})))
                self._reported = dropped
            try:
                self._write(lines)
            except OSError as error:
                self._reported -= len(lines)  # they count as dropped, which is written when the disk is back
                _proxy_logger.warning("The log file %s cannot be written: %s", self._path, error)

    def _line(self, entry: _Entry) -> bytes:
        moment, event, request, redact, fields = entry
        self._taken += _OVERHEAD + sum(len(value) for value in fields.values() if isinstance(value, bytes | str))
        members: dict[str, Any] = {"time": datetime.fromtimestamp(moment, UTC).isoformat(), "event": event}
        if request:
            members["request"] = request
        for name, value in fields.items():
            if isinstance(value, bytes):
                members[name] = _embed(redact(value))
            elif isinstance(value, str):
                members[name] = redact.text(value)
            else:
                members[name] = value
        line = msgspec.json.encode(members) + b"\n"
        if len(line) > self._half:
            return self._line((moment, event, request, redact, {"omitted": len(line)}))
        return line

    def _write(self, lines: list[bytes]) -> None:
        """Append the lines, rotating the file where it is full."""
        file = self._open()
        try:
            for line in lines:
                if file.tell() + len(line) > self._half:
                    file.close()
                    self._path.replace(self._old)
                    file = self._open()
                file.write(line)
        finally:
            file.close()

    def _open(self) -> BinaryIO:
        """Open or create the file, for this user alone."""
        file = open(self._path, "ab", opener=lambda path, flags: os.open(path, flags, _MODE))  # noqa: SIM115
        os.fchmod(file.fileno(), _MODE)
        return file


def _embed(body: bytes) -> msgspec.Raw | str:
    """Return a body as a JSON value: compact JSON with its digits unchanged, or text."""
    try:
        body.decode()
        return msgspec.Raw(msgspec.json.format(body, indent=-1))
    except (ValueError, RecursionError):
        return body.decode("utf-8", "backslashreplace")


_MAX_LINE_CHARS: Final = 500
_MAX_PATH_CHARS: Final = 200

_logger = logging.getLogger(__name__)


_rejections = LogRateLimiter(lambda line: _logger.warning("%s", line))


def log_rejection(text: str) -> None:
    """Log one line about a rejected request, rate-limited for the whole process: clients can cause any number of them."""
    _rejections.log(printable(one_line(text, _MAX_LINE_CHARS)))


def log_error_response(scope: Mapping[str, Any], status: int, reason: str) -> None:
    """Log an error response as ``log_rejection`` does. ``reason`` must not contain a secret."""
    client = scope.get("client")
    path = own_path(scope)[:_MAX_PATH_CHARS]
    log_rejection(f"{method_of(scope)} {path} from {client[0] if client else '?'}: HTTP {status}, {reason}")


METHOD: Final = "patchbay.method"
"""The scope's key for the method that logs show, where a request did not come as one of HTTP."""

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]
_access_logger = logging.getLogger("patchbay.server.requests")
_RECORDED: Final = "patchbay.recorded"


def mark_recorded(scope: Mapping[str, Any]) -> None:
    """Note that a request has a record, and needs no line of ``log_requests``."""
    scope.get("state", {})[_RECORDED] = True  # of all copies of this scope


def method_of(scope: Mapping[str, Any]) -> str:
    """Return a request's method for logs."""
    return str(scope.get(METHOD, scope["method"]))


def log_requests(app: AsgiApp) -> AsgiApp:
    """Return ``app`` with a line per finished HTTP request, where the log shows them: client, method, path, status, seconds.

    Requests that have a record are left out.
    """
    if not _access_logger.isEnabledFor(logging.DEBUG):
        return app

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0

        async def note_status(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, note_status)
        finally:
            client = scope.get("client")
            path = printable(own_path(scope)[:200])
            seconds = time.perf_counter() - began
            if not scope.get("state", {}).get(_RECORDED):
                _access_logger.debug(
                    "%s %s %s %s %.3f s", client[0] if client else "?", method_of(scope), path, status or "-", seconds
                )

    return serve
