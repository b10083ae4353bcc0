"""A host as a process: its port, its control socket, its signals, from start to stop.

What lives here: putting it all together, and the order of the end: tools first, then calls, plugins, and at last the port
that the calls come in by. What does not: flags, and what is printed (``patchbay.cli``).
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from patchbay.errors import ConfigurationError
from patchbay.plugins.host.control import ControlServer, folder_of, make_folder
from patchbay.plugins.host.host import PluginHost
from patchbay.plugins.host.logs import LogLine
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.host.reconciler import Registered
from patchbay.plugins.host.spec import PluginSpec
from patchbay.server.http_protocol import BoundedHeads

_LAST_ANSWERS = 5
"""Seconds that the last answers have to be written in."""


async def run_host(
    specs: Iterable[PluginSpec],
    listener: socket.socket,
    *,
    server: str,
    plugins: Path | None = None,
    policy: HostPolicy | None = None,
    token: Callable[[], str | None] = lambda: None,
    watch: bool = False,
    shown: Callable[[LogLine], None] = lambda _line: None,
    registered: Registered = lambda _plugin_id, _names, _roles: None,
    ready: Callable[[PluginHost], None] = lambda _host: None,
    stopping: Callable[[], None] = lambda: None,
    must_start: bool = False,
) -> None:
    """Run plugins until SIGTERM, SIGINT, or a stop by the control socket; the second signal does not wait for calls.

    ``listener`` is where the server's calls come in. ``shown`` is called with each line of a plugin, ``registered`` as PluginHost
    does it, ``ready`` when calls are taken, ``stopping`` when the end begins; none of them may wait for anything. Raises
    ConfigurationError where the folder of the control socket cannot be had, and with ``must_start`` where no plugin can be
    loaded; that is not shown as well.
    """
    loop = asyncio.get_running_loop()
    port = listener.getsockname()[1]
    folder = folder_of(port)
    host = PluginHost(
        specs,
        server=server,
        callback=f"http://127.0.0.1:{port}",
        folder=folder,
        plugins=plugins,
        policy=policy,
        token=token,
        registered=registered,
    )
    make_folder(port)
    for old in folder.iterdir():  # of a host at this port that was killed
        old.unlink()
    first_start = _FirstStart(host)
    host.book.subscribe(lambda line: None if must_start and first_start.tells(line) else shown(line))
    told = asyncio.Event()
    in_haste = asyncio.Event()

    def stop() -> None:
        (in_haste if told.is_set() else told).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    web = _Server(
        uvicorn.Config(
            host.app,
            log_config=None,
            access_log=False,
            lifespan="off",
            interface="asgi3",
            http=BoundedHeads,
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_LAST_ANSWERS,
        )
    )
    serving = asyncio.create_task(web.serve(sockets=[listener]))
    control = ControlServer(host, folder, stop=told.set)
    try:
        await control.start()
        await host.start()
        if watch:
            await host.watch()
        ready(host)
        await _first(told.wait(), asyncio.shield(serving), *([first_start.failed()] if must_start else []))
        stopping()
        await _first(host.aclose(), in_haste.wait())
    finally:
        await host.kill()  # nothing is left to be killed but in haste; then this answers the calls that are under way
        web.should_exit = True
        await serving
        await control.aclose()  # who asked for the stop waits for this
        _remove(folder)
        for number in (signal.SIGTERM, signal.SIGINT):  # not before: a signal would leave things behind
            loop.remove_signal_handler(number)


class _FirstStart:
    """Whether any plugin could be loaded when the host began."""

    def __init__(self, host: PluginHost) -> None:
        self._host = host
        self._is_over = False

    def tells(self, line: LogLine) -> bool:
        """Whether a line says no more than the error that ``failed`` raises."""
        return not self._is_over and line.stream == "host" and self._are_broken()

    async def failed(self) -> None:
        """Raise ConfigurationError when all plugins have failed to load; wait for ever where one did not."""
        await self._host.until(lambda: all(each.state != "starting" for each in self._host.plugins.values()))
        if self._are_broken():
            raise ConfigurationError(
                "; ".join(f"{each.spec.entry} cannot be run: {each.reason}" for each in self._host.plugins.values())
            )
        self._is_over = True
        await asyncio.get_running_loop().create_future()

    def _are_broken(self) -> bool:
        plugins = self._host.plugins.values()
        return bool(plugins) and all(each.is_broken for each in plugins)


async def _first(*work: Any) -> None:
    """Wait until the first is done, and cancel the others; raise what it raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    if others:
        await asyncio.wait(others)
    for each in done:
        each.result()


def _remove(folder: Path) -> None:
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()


class _Server(uvicorn.Server):
    """A uvicorn that leaves the signals to the host: what calls come in by is closed last, and not first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
