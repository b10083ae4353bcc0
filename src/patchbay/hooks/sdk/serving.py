"""The loop between a Hook and its host: JSON-RPC lines on standard streams, with threads for the author's functions.

Streams are read and written as bytes, independent of the locale. Replies are written whole, in order of completion. Standard
output belongs to the protocol: what the process prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO, Final

from patchbay.hooks.process.protocol import INVALID_PARAMS, METHOD_NOT_FOUND, SERVER_ERROR
from patchbay.hooks.sdk.hook import Hook, UnknownMethodError
from patchbay.tools.threads import start_in_thread

_GRACE: Final = 1.5
"""Seconds that calls in progress may take after the host has closed our input; it waits two."""

_MAX_EVENTS: Final = 1000

_SMALLER: Final = "return an image or a file as a patchbay.Attachment, or set max_line_bytes in the hook's entry"

_MAX_MESSAGE: Final = 500
"""How many characters of an error are sent: the host shows no more."""


class Server:
    """Serves one Hook: feed ``serve`` with lines; ``write`` gets each reply as a line, from any thread, one at a time."""

    def __init__(self, hook: Hook, write: Callable[[bytes], object]) -> None:
        self._hook = hook
        self._write = write
        self._lock = threading.Lock()
        self._idle = threading.Condition()
        self._running = 0
        self._events: queue.Queue[Mapping[str, Any]] = queue.Queue(_MAX_EVENTS)
        self._has_observer = False

    def serve(self, lines: Iterable[bytes]) -> None:
        """Answer requests to the end of the lines, then wait briefly for those in progress."""
        for line in lines:
            self._receive(line)
        with self._idle:
            self._idle.wait_for(lambda: self._running == 0, timeout=_GRACE)

    def _receive(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            _complain(f"a line that is no JSON: {error}")
            return
        if not isinstance(message, dict) or not isinstance(method := message.get("method"), str):
            _complain("a line that is no request")
            return
        request_id, params = message.get("id"), message.get("params")
        if params is not None and not isinstance(params, dict):
            if request_id:
                self._reply(request_id, error=(INVALID_PARAMS, f"the params of {method} must be an object"))
            return
        params = params or {}
        if not request_id:
            self._handle_notification(method, params)
        elif self._hook.asks(method):
            with self._idle:
                self._running += 1
            try:
                start_in_thread(lambda: self._work(request_id, method, params))
            except RuntimeError:  # out of threads: answer here, and block
                self._work(request_id, method, params)
        else:
            self._answer(request_id, method, params)

    def _work(self, request_id: Any, method: str, params: Mapping[str, Any]) -> None:
        try:
            self._answer(request_id, method, params)
        except BaseException as error:  # noqa: BLE001  (sys.exit() ends the hook's thread, not the call)
            self._reply(request_id, error=(SERVER_ERROR, type(error).__name__))
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def _answer(self, request_id: Any, method: str, params: Mapping[str, Any]) -> None:
        try:
            self._reply(request_id, self._hook.answer(method, params))
        except UnknownMethodError as error:
            self._reply(request_id, error=(METHOD_NOT_FOUND, str(error)))
        except Exception as error:  # noqa: BLE001  (an author's function may raise anything)
            traceback.print_exc(file=sys.stderr)
            self._reply(request_id, error=(SERVER_ERROR, f"{type(error).__name__}: {error}"))

    def _reply(self, request_id: Any, result: Any = None, *, error: tuple[int, str] | None = None) -> None:
        payload: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id}
        if error is None:
            payload["result"] = result
        else:
            payload["error"] = {"code": error[0], "message": error[1][:_MAX_MESSAGE]}
        line = json.dumps(payload, allow_nan=False, separators=(",", ":")).encode()
        if len(line) > self._hook.line_limit and error is None:
            words = f"the answer has {len(line)} bytes, and the host reads {self._hook.line_limit}: {_SMALLER}"
            self._reply(request_id, error=(SERVER_ERROR, words))
            return
        with self._lock:
            try:
                self._write(line + b"\n")
            except OSError:
                pass  # the host is gone: our input will end too

    def _handle_notification(self, method: str, params: Mapping[str, Any]) -> None:
        if method not in ("hook.runtime_event", "hook.event"):
            return
        if not self._has_observer:
            self._has_observer = True
            start_in_thread(self._observe)
        try:
            self._events.put_nowait(params)
        except queue.Full:
            pass  # dropped, as at the host

    def _observe(self) -> None:
        while True:
            params = self._events.get()
            try:
                self._hook.observe(params)
            except BaseException:  # noqa: BLE001  (as above; sys.exit() ends this event alone)
                traceback.print_exc(file=sys.stderr)


def serve(hook: Hook) -> None:
    """Serve a hook on the standard streams of the process."""
    if sys.stdin is not None and sys.stdin.isatty():
        sys.stderr.write("This is a hook: a host starts it and talks to it. To try it: patchbay hooks doctor COMMAND\n")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    requests, replies = _detach_streams()
    try:
        Server(hook, lambda line: _write_all(replies, line)).serve(iter(requests.readline, b""))
    except KeyboardInterrupt:
        sys.exit(130)


def _detach_streams() -> tuple[BinaryIO, int]:
    """Return standard input and the descriptor of standard output, and detach them from the rest of the process.

    Output that is still buffered goes to standard error.
    """
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.flush()
    sys.stdout = sys.stderr
    reconfigure = getattr(sys.stderr, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    return requests, replies


def _write_all(descriptor: int, line: bytes) -> None:
    left = memoryview(line)
    while left:
        left = left[os.write(descriptor, left) :]


def _complain(words: str) -> None:
    sys.stderr.write(f"patchbay: the host sent {words}\n")
