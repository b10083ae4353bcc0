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

from patchbay.plugins.host.control import ControlServer, folder_of, make_folder
from patchbay.plugins.host.host import PluginHost
from patchbay.plugins.host.logs import LogLine
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.host.reconciler import Registered
from patchbay.plugins.host.spec import PluginSpec

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
) -> None:
    """Run plugins until SIGTERM, SIGINT, or a stop by the control socket; the second signal does not wait for calls.

    ``listener`` is where the server's calls come in. ``shown`` is called with each line of a plugin, ``registered`` as PluginHost
    does it, ``ready`` when calls are taken, ``stopping`` when the end begins; none of them may wait for anything. Raises
    ConfigurationError where the folder of the control socket cannot be had.
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
    host.book.subscribe(shown)
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
            http="httptools",
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
        await _first(told.wait(), asyncio.shield(serving))
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
