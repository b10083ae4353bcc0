"""The process that runs one plugin: ``python -m patchbay.plugins.child``, started by a host.

What lives here: the process: its socket, its end, its pipes. What does not: what becomes of the messages (``runtime``).

It ends when the host says STOP, when the host is gone (the socket or its standard input is closed), or on SIGTERM; always within
a grace time. What the plugin prints goes to the pipes as it is printed.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from patchbay.plugins.bootstrap import Bootstrap, read_bootstrap
from patchbay.plugins.connection import Connection
from patchbay.plugins.crash import crash_of
from patchbay.plugins.errors import PluginError
from patchbay.plugins.logs import HostHandler
from patchbay.plugins.manifest import load_class
from patchbay.plugins.messages import PROTOCOL_VERSION, Hello, Log, Message, Ping, Start, Stop
from patchbay.plugins.runtime import PluginRuntime
from patchbay.plugins.watch import GONE_CODE, HostWatch, end_group, end_within
from patchbay.tools.results import describe

START_SECONDS = 30.0
"""How long the host has to take the connection and to say START."""

DELIVERY_SECONDS = 2.0
"""How long the last messages have to arrive."""

EXIT_SECONDS = 2.0
"""How long the interpreter has to end, once the plugin has."""

_logger = logging.getLogger(__name__)


def main() -> int:
    """Run the plugin that the host on standard input names, and return the exit code."""
    try:
        bootstrap = read_bootstrap(0)
    except PluginError as error:
        print(error, file=sys.stderr)  # noqa: T201  (whoever started this by hand reads it)
        return 2
    watch_fd = _take_stdin()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    return asyncio.run(_run(bootstrap, watch_fd))


async def _run(bootstrap: Bootstrap, watch_fd: int) -> int:
    return await _Child(bootstrap, watch_fd).run()


def _take_stdin() -> int:
    """Keep the host's pipe for ourselves: what the plugin reads, or hands on to processes of its own, is empty."""
    fd = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return fd


class _Child:
    """The process's one connection, and the plugin behind it."""

    def __init__(self, bootstrap: Bootstrap, watch_fd: int) -> None:
        self._bootstrap = bootstrap
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._watch = HostWatch(watch_fd, self._host_is_gone)
        self._connection = Connection(self._receive, self._closed)
        self._start: asyncio.Future[Start] = self._loop.create_future()
        self._end: asyncio.Future[Stop | None] = self._loop.create_future()
        self._runtime: PluginRuntime | None = None

    async def run(self) -> int:
        """Live until the end, and return the exit code."""
        self._watch.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):  # Windows
                self._loop.add_signal_handler(number, self._finish, Stop())
        code = await self._live()
        end_within(EXIT_SECONDS, code)
        return code

    async def _live(self) -> int:
        if not await self._connect():
            return GONE_CODE
        start = self._start.result()
        logging.basicConfig(handlers=[HostHandler(self._offer_log)], level=start.log_level, force=True)
        self._watch.grace = start.grace + DELIVERY_SECONDS
        runtime = self._load(start)
        if runtime is None:
            return await self._leave(1)
        starting = self._loop.create_task(runtime.start(reason=start.reason, within=start.startup_timeout))
        await _first(starting, self._end)
        code = 0
        if starting.done():
            self.send(starting.result())
            if starting.result().status == "ready" or start.startup_failure != "fail":
                runtime.open()
                await self._end
            else:
                code = 1
        else:
            starting.cancel()
        stop = self._end.result() if self._end.done() else Stop(grace=start.grace)
        if stop is None:
            _logger.warning("The host is gone")
            stop, code = Stop(grace=start.grace), GONE_CODE
            atexit.register(end_group)
        await runtime.stop(reason=stop.reason, drain=stop.drain, grace=stop.grace)
        return await self._leave(code)

    async def _connect(self) -> bool:
        """Connect, show the token, and wait for START; False if there is no host."""
        path = self._bootstrap.path
        try:
            async with asyncio.timeout(START_SECONDS):
                if path is not None:
                    await self._loop.create_unix_connection(lambda: self._connection, path)
                else:
                    await self._loop.create_connection(lambda: self._connection, *self._bootstrap.host_and_port)
                self.send(Hello(version=PROTOCOL_VERSION, token=self._bootstrap.token, pid=os.getpid()))
                await _first(self._start, self._end)
        except OSError as error:  # TimeoutError too
            print(f"The plugin host cannot be reached: {describe(error)}", file=sys.stderr)  # noqa: T201
        return self._start.done()

    def _load(self, start: Start) -> PluginRuntime | None:
        """Import and make the plugin; what goes wrong is the end, and the host is told."""
        folder = Path(start.folder) if start.folder else None
        try:
            runtime = PluginRuntime(
                load_class(start.entry, folder),
                plugin_id=start.plugin_id,
                send=self.send,
                offer=self._connection_offer,
                folder=folder,
                config=start.config,
            )
            runtime.make()
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the plugin's own code, which may do anything)
            self.send(crash_of(error, folder))
            return None
        self._runtime = runtime
        return runtime

    async def _leave(self, code: int) -> int:
        """Let what was said arrive, and close."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DELIVERY_SECONDS):
                await self._connection.delivered()
        self._connection.close()
        return code

    def send(self, message: Message) -> None:
        """Send a message, from any thread."""
        if threading.get_ident() == self._thread:
            self._connection.send(message)
        else:
            with suppress(RuntimeError):  # the loop was closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._connection.send, message)

    def _connection_offer(self, message: Message) -> bool:
        if threading.get_ident() == self._thread:
            return self._connection.offer(message)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._connection.offer, message)
        return True

    def _offer_log(self, message: Log) -> bool | None:
        return None if self._connection.is_closed else self._connection_offer(message)

    def _receive(self, message: Message) -> None:
        if isinstance(message, Start):
            if not self._start.done():
                self._start.set_result(message)
        elif isinstance(message, Stop):
            self._finish(message)
        elif self._runtime is not None:
            self._runtime.receive(message)
        elif not isinstance(message, Ping):
            _logger.warning("A %s came before the plugin was there", type(message).__name__)

    def _finish(self, stop: Stop | None) -> None:
        if not self._end.done():
            self._end.set_result(stop)

    def _closed(self, error: Exception | None) -> None:
        if error is not None:
            _logger.error("The connection to the host failed: %s", error)
        self._finish(None)

    def _host_is_gone(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._finish, None)


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


if __name__ == "__main__":
    sys.exit(main())
