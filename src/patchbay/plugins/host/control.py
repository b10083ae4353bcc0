"""A host as a process: the control socket, the signals, and the order of start and stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import uvicorn

from patchbay.errors import ConfigurationError, PatchbayError
from patchbay.plugins.errors import PluginError
from patchbay.plugins.host.host import PluginHost
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.host.process import LogLine
from patchbay.plugins.host.registrar import Registered
from patchbay.plugins.manifest import PluginSpec
from patchbay.server.http_protocol import BoundedHeads

_MOST_BYTES: Final = 64 * 1024
_ASK_SECONDS: Final = 10.0
_LONGEST_PATH: Final = 103
"""Of a socket, in bytes; some systems allow 107."""
_LONGEST_NAME: Final = len("/plugin-1000000")
_END: Final[dict[str, Any]] = {}
"""The last answer. Without it the host was gone before it had said all."""
_WAITING_LINES: Final = 1000
"""How many lines wait for a reader of logs that is slow; then it misses some."""


class NoHostError(PatchbayError, ConnectionError):
    """No host runs there."""

    code = "no_host"


def folder_of(port: int) -> Path:
    """Return where the folder of the host at ``port`` is, if there is one."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    above = Path(base) / "patchbay" if base else Path(tempfile.gettempdir()) / f"patchbay-{os.getuid()}"
    return above / str(port)


def make_folder(port: int) -> Path:
    """Make the folder of the host at ``port``, and return it. Raises ConfigurationError where it is not this user's alone."""
    folder = folder_of(port)
    if len(os.fsencode(folder)) + _LONGEST_NAME > _LONGEST_PATH:
        raise ConfigurationError(f"{folder} is too long for the path of a socket: set XDG_RUNTIME_DIR to a shorter one.")
    for each in (folder.parent, folder):
        with suppress(FileExistsError):
            each.mkdir(mode=0o700)
        about = each.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise ConfigurationError(f"{each} is not a folder of this user alone (mode 0700): remove it, or set XDG_RUNTIME_DIR.")
    return folder


def socket_path(folder: Path) -> Path:
    """Return where the control socket is."""
    return folder / "control"


class ControlServer:
    """Listens in ``folder`` for what is asked of ``host``; ``stop`` is called when the host itself is to stop."""

    def __init__(self, host: PluginHost, folder: Path, *, stop: Any) -> None:
        self._host = host
        self._path = socket_path(folder)
        self._stop = stop
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to listen. A socket that a host left behind that was killed is replaced: the port, which is ours, says so."""
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, str(self._path), limit=_MOST_BYTES)
        finally:
            os.umask(before)

    async def aclose(self) -> None:
        """Stop listening, and end what is under way."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        tasks = tuple(self._open)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                asked = json.loads(await reader.readline())
            async for answer in self._answers(asked, reader):
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
            writer.write(json.dumps(_END).encode() + b"\n")
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            pass  # who asks in another way, or has left, is not answered
        except PatchbayError as error:
            writer.write(json.dumps({"error": str(error)}).encode() + b"\n")
        except asyncio.CancelledError:
            pass  # the host is closed: the one who asks sees the end of the connection
        finally:
            self._open.discard(task)
            writer.close()

    async def _answers(self, asked: Any, reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
        what, plugin = asked["do"], asked.get("plugin")
        if what == "list":
            for status in self._host.status():
                yield asdict(status)
        elif what == "reload":
            problems = []
            doing = [
                self._reload(each, config=bool(asked.get("config"))) for each in ([plugin] if plugin else self._host.plugins)
            ]
            for done in asyncio.as_completed(doing):
                each, problem = await done
                if problem:
                    problems.append(problem)
                else:
                    yield {"done": each}
            if problems:
                raise PluginError("; ".join(problems))
        elif what in ("freeze", "unfreeze"):
            await (self._host.freeze if what == "freeze" else self._host.unfreeze)(plugin)
            yield {"done": plugin}
        elif what == "stop" and plugin:
            await self._host.stop_plugin(plugin)
            yield {"done": plugin}
        elif what == "stop":
            yield {"done": ""}
            self._stop()
            await asyncio.get_running_loop().create_future()  # until the host is closed, or who asks has no more patience
        elif what == "logs":
            async for line in self._logs(plugin, int(asked["lines"]), follow=bool(asked.get("follow")), reader=reader):
                yield asdict(line)
        else:
            raise PluginError(f"A host does not know {what!r}.")

    async def _reload(self, plugin: str, *, config: bool) -> tuple[str, str]:
        """Reload one, and return its id and what went wrong: one that fails keeps no other from being reloaded."""
        try:
            if config:
                await self._host.change_config(plugin)
            else:
                await self._host.reload(plugin)
                await self._host.came_up(plugin)
        except (PatchbayError, OSError) as error:
            return plugin, str(error)
        return plugin, ""

    async def _logs(
        self, plugin: str | None, count: int, *, follow: bool, reader: asyncio.StreamReader
    ) -> AsyncIterator[LogLine]:
        if plugin is not None:
            self._host.plugin(plugin)
        waiting: asyncio.Queue[LogLine | None] = asyncio.Queue(_WAITING_LINES)

        def take(line: LogLine) -> None:
            if plugin in (None, line.plugin) and not waiting.full():
                waiting.put_nowait(line)

        async def until_left() -> None:
            await reader.read(1)
            await waiting.put(None)

        end = self._host.book.subscribe(take) if follow else lambda: None
        leaving = asyncio.create_task(until_left()) if follow else None
        try:
            for line in self._host.book.last(plugin, count):
                yield line
            while leaving is not None and (new := await waiting.get()) is not None:
                yield new
        finally:
            end()
            if leaving is not None:
                leaving.cancel()


def ask(folder: Path, **asked: Any) -> Iterator[dict[str, Any]]:
    """Ask the host of ``folder``, and yield its answers. Raises NoHostError, and PluginError for what it says cannot be done.

    NoHostError also where it ended before it had answered, but for what ends with it: a stop of the host, and its logs.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(socket_path(folder)))
            connection.sendall(json.dumps(asked).encode() + b"\n")
        except OSError:
            raise NoHostError(
                f"no plugin host runs at port {folder.name}: start one with 'patchbay plugins run', or name its port with --port."
            ) from None
        with suppress(ConnectionError), connection.makefile("rb") as lines:
            for line in lines:
                answer = json.loads(line)
                if answer == _END:
                    return
                if "error" in answer and len(answer) == 1:
                    raise PluginError(answer["error"])
                yield answer
    if asked["do"] != "logs" and (asked["do"] != "stop" or asked.get("plugin")):
        raise NoHostError(f"the plugin host at port {folder.name} ended before it had answered.")


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
