"""The process that runs one plugin: ``python -m patchbay.plugins.worker``, started by a host.

It ends on STOP, when the host is gone (its socket or the worker's standard input is closed), or on SIGTERM; always within a grace
time. ``runtime`` is the plugin without the process.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from patchbay.plugins.connection import MessageConnection
from patchbay.plugins.errors import PluginError
from patchbay.plugins.manifest import load_class
from patchbay.plugins.protocol import (
    PROTOCOL_VERSION,
    Bootstrap,
    Crash,
    Hello,
    Log,
    Message,
    Ping,
    Pong,
    Start,
    Stop,
    read_bootstrap,
)
from patchbay.plugins.runtime import PluginRuntime
from patchbay.tools.results import describe, well_formed

HOST_GONE_CODE: Final = 70
"""The exit code of a worker whose host is gone."""
MAX_RECORDS: Final = 500
RECORDS_SECONDS: Final = 0.1
"""At most so many log records are sent in so many seconds: more would cost the host time that other plugins need."""

_START_SECONDS: Final = 30.0
"""For the host to accept the connection and send START."""
_DELIVERY_SECONDS: Final = 2.0
"""For the last messages to leave."""
_EXIT_SECONDS: Final = 2.0
"""For the interpreter to exit once the plugin has stopped."""
_MAX_RECORD_CHARS: Final = 32 * 1024
_MAX_TRACEBACK_CHARS: Final = 16 * 1024
_MAX_TRACEBACK_FRAMES: Final = 5
_OWN_FOLDER: Final = str(Path(__file__).parent) + os.sep
_LASTING: Final = (SyntaxError, ImportError, NameError, AttributeError, TypeError, ValueError, PluginError)
"""Errors in the plugin's source. Others (a missing file, an unreachable server) may be gone at the next start."""

_logger = logging.getLogger("patchbay.plugins.worker")


class HostHandler(logging.Handler):
    """Sends log records to the host by ``offer``, which returns False for a dropped one and None where the host is gone.

    The next record that is sent says how many were dropped. Without a host, records go to standard error. From any thread.
    """

    def __init__(self, offer: Callable[[Log], bool | None]) -> None:
        super().__init__()
        self._offer = offer
        self._dropped = 0
        self._window_start = 0.0
        self._in_window = 0
        self._formatter = logging.Formatter("%(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record. Never raises."""
        try:
            now = time.monotonic()
            if now - self._window_start > RECORDS_SECONDS:
                self._window_start, self._in_window = now, 0
            self._in_window += 1
            if self._in_window > MAX_RECORDS:
                self._dropped += 1
                return
            text = well_formed(self._formatter.format(record))
            if len(text) > _MAX_RECORD_CHARS:
                text = f"{text[:_MAX_RECORD_CHARS]}... ({len(text)} characters)"
            message = Log(level=record.levelno, logger=record.name, message=text, created=record.created, dropped=self._dropped)
            sent = self._offer(message)
            if sent is None:
                print(f"{record.levelname} {record.name}: {text}", file=sys.stderr)  # noqa: T201  (there is no host to log it)
            self._dropped = self._dropped + 1 if sent is False else 0
        except Exception:  # noqa: BLE001  (as logging's own handlers: a record must not break the code that logs it)
            self.handleError(record)


class ParentWatchdog:
    """A thread that calls ``on_gone`` when the other end of ``fd`` is closed, and ends the process ``grace`` seconds later.

    A thread, because the plugin may block the event loop; a pipe, because the kernel closes it however the host ends. ``grace``
    may be set while the host is there.
    """

    def __init__(self, fd: int, on_gone: Callable[[], None]) -> None:
        self.grace = 5.0
        self._fd = fd
        self._on_gone = on_gone

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._watch, name="patchbay-host-watch", daemon=True).start()

    def _watch(self) -> None:
        with suppress(OSError):
            while os.read(self._fd, 1024):
                pass
        _exit_within(self.grace, HOST_GONE_CODE, first=_kill_group)
        self._on_gone()


def _exit_within(seconds: float, code: int, *, first: Callable[[], object] = lambda: None) -> None:
    """Exit in ``seconds`` despite threads, atexit functions and endless loops; call ``first`` before."""

    def exit_now() -> None:
        first()
        os._exit(code)

    timer = threading.Timer(seconds, exit_now)
    timer.daemon = True
    timer.start()


def _kill_group() -> None:
    """Kill this process and what it has started, if it leads its process group."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)


def _crash_of(error: BaseException, folder: Path | None) -> Crash:
    """Return the CRASH for an exception of loading a plugin: the reason, and where in the plugin's own files."""
    lasts = isinstance(error, _LASTING)
    text = _own_frames(error, folder) if lasts else "".join(traceback.format_exception(_without_import_frames(error)))
    reason = str(error) if isinstance(error, PluginError) else describe(error)
    return Crash(error=well_formed(reason), traceback=well_formed(text[-_MAX_TRACEBACK_CHARS:]), lasts=lasts)


def _own_frames(error: BaseException, folder: Path | None) -> str:
    """Format the last frames of the plugin's own files, and the line of a SyntaxError; "" where there is neither."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_internal(frame.filename)]
    if not frames:
        return "".join(traceback.format_exception_only(error)) if isinstance(error, SyntaxError) else ""
    root = (folder or Path(frames[0].filename).parent).resolve()

    def is_own(file: Path) -> bool:
        return file.is_relative_to(root) and not {"site-packages", "dist-packages"}.intersection(file.relative_to(root).parts)

    own = [frame for frame in frames if is_own(Path(frame.filename).resolve())][-_MAX_TRACEBACK_FRAMES:]
    return "".join([*traceback.format_list(own), *traceback.format_exception_only(error)])


def _without_import_frames(error: BaseException) -> BaseException:
    place = error.__traceback__
    while place is not None and _is_internal(place.tb_frame.f_code.co_filename):
        place = place.tb_next
    return error.with_traceback(place)


def _is_internal(file: str) -> bool:
    return file.startswith(("<frozen importlib", _OWN_FOLDER)) or file == importlib.__file__


class _Worker:
    """The connection to the host, and the plugin behind it."""

    def __init__(self, bootstrap: Bootstrap, watch_fd: int) -> None:
        self._bootstrap = bootstrap
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._watchdog = ParentWatchdog(watch_fd, lambda: self._from_thread(self._finish, None))
        self._connection = MessageConnection(self._receive, self._closed, is_worker=True)
        self._start: asyncio.Future[Start] = self._loop.create_future()
        self._end: asyncio.Future[Stop | None] = self._loop.create_future()
        self._runtime: PluginRuntime | None = None

    async def run(self) -> int:
        """Run the plugin until its end, and return the exit code."""
        self._watchdog.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):  # Windows
                self._loop.add_signal_handler(number, self._finish, Stop())
        code = HOST_GONE_CODE
        if await self._connect():
            code = await self._run_plugin(self._start.result())
            await self._connection.close(within=_DELIVERY_SECONDS)
        _exit_within(_EXIT_SECONDS, code)
        return code

    async def _run_plugin(self, start: Start) -> int:
        logging.basicConfig(handlers=[HostHandler(self._offer_log)], level=start.log_level, force=True)
        self._watchdog.grace = start.grace + _DELIVERY_SECONDS
        runtime = self._load(start)
        if runtime is None:
            return 1
        starting = self._loop.create_task(runtime.start(reason=start.reason, within=start.startup_timeout))
        await _first(starting, self._end)
        code = 0
        if starting.done():
            self.send(starting.result())
            if starting.result().status == "ready" or start.startup_failure != "fail":
                runtime.register_tools()
                await self._end
            else:
                code = 1
        else:
            starting.cancel()
        stop = self._end.result() if self._end.done() else Stop(grace=start.grace)
        if stop is None:
            _logger.warning("The host is gone")
            stop, code = Stop(grace=start.grace), HOST_GONE_CODE
            atexit.register(_kill_group)
        await runtime.stop(reason=stop.reason, drain=stop.drain, grace=stop.grace)
        return code

    async def _connect(self) -> bool:
        """Connect, send the token, and wait for START; return False if there is no host."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._loop.create_unix_connection(lambda: self._connection, self._bootstrap.path)
                self.send(Hello(version=PROTOCOL_VERSION, token=self._bootstrap.token, pid=os.getpid()))
                await _first(self._start, self._end)
        except OSError as error:  # TimeoutError too
            print(f"The plugin host cannot be reached: {describe(error)}", file=sys.stderr)  # noqa: T201
        return self._start.done()

    def _load(self, start: Start) -> PluginRuntime | None:
        """Import and create the plugin; send CRASH and return None where that fails."""
        folder = Path(start.folder) if start.folder else None
        try:
            runtime = PluginRuntime(
                load_class(start.entry, folder),
                plugin_id=start.plugin_id,
                send=self.send,
                offer=self._offer,
                folder=folder,
                config=start.config,
            )
            runtime.make()
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the plugin's code may raise anything)
            self.send(_crash_of(error, folder))
            return None
        self._runtime = runtime
        return runtime

    def send(self, message: Message) -> None:
        """Send a message, from any thread."""
        if threading.get_ident() == self._thread:
            self._connection.send(message)
        else:
            self._from_thread(self._connection.send, message)

    def _offer(self, message: Message) -> bool:
        if threading.get_ident() == self._thread:
            return self._connection.offer(message)
        self._from_thread(self._connection.offer, message)
        return True

    def _offer_log(self, message: Log) -> bool | None:
        return None if self._connection.is_closed else self._offer(message)

    def _receive(self, message: Message) -> None:
        if isinstance(message, Ping):
            self.send(Pong())
        elif isinstance(message, Start):
            if not self._start.done():
                self._start.set_result(message)
        elif isinstance(message, Stop):
            self._finish(message)
        elif self._runtime is not None:
            self._runtime.receive(message)
        else:
            _logger.warning("A %s came before the plugin was loaded", type(message).__name__)

    def _finish(self, stop: Stop | None) -> None:
        if not self._end.done():
            self._end.set_result(stop)

    def _closed(self, error: Exception | None) -> None:
        if error is not None:
            _logger.error("The connection to the host failed: %s", error)
        self._finish(None)

    def _from_thread(self, function: Callable[[Any], object], argument: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, argument)


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def main() -> int:
    """Run the plugin of the host on standard input, and return the exit code."""
    try:
        bootstrap = read_bootstrap(0)
    except PluginError as error:
        print(error, file=sys.stderr)  # noqa: T201  (for a user who started this by hand)
        return 2
    watch_fd = os.dup(0)  # the plugin, and what it starts, read an empty standard input
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    return asyncio.run(_run_worker(bootstrap, watch_fd))


async def _run_worker(bootstrap: Bootstrap, watch_fd: int) -> int:
    return await _Worker(bootstrap, watch_fd).run()


if __name__ == "__main__":
    sys.exit(main())
