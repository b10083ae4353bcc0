"""A host as a process: its control socket, its signals, and the order of start and stop.

The control socket takes one line of JSON and answers in lines of JSON. Its folder is the user's own (mode 0700), and so is the
socket (0600): a program that can connect may do everything that the host may.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
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
from patchbay.server.runtime import HeadTimeoutProtocol

_MAX_REQUEST_BYTES: Final = 64 * 1024
_REQUEST_SECONDS: Final = 10.0
_MAX_PATH_BYTES: Final = 103
"""Of a socket's path; some systems allow 107."""
_MAX_NAME_BYTES: Final = len("/plugin-1000000")
_END: Final[dict[str, Any]] = {}
"""The last answer: without it the host ended before it had answered."""
_MAX_QUEUED_LINES: Final = 1000
"""For a slow reader of logs; beyond it, lines are skipped."""


class NoHostError(PatchbayError, ConnectionError):
    """No host runs at this port."""

    code = "no_host"


def folder_of(port: int) -> Path:
    """Return the path of the folder of the host at ``port``."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    above = Path(base) / "patchbay" if base else Path(tempfile.gettempdir()) / f"patchbay-{os.getuid()}"
    return above / str(port)


def make_folder(port: int) -> Path:
    """Create the folder of the host at ``port``. Raises ConfigurationError where it is not this user's alone."""
    folder = folder_of(port)
    if len(os.fsencode(folder)) + _MAX_NAME_BYTES > _MAX_PATH_BYTES:
        raise ConfigurationError(f"{folder} is too long for the path of a socket: set XDG_RUNTIME_DIR to a shorter one.")
    for each in (folder.parent, folder):
        with suppress(FileExistsError):
            each.mkdir(mode=0o700)
        about = each.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise ConfigurationError(f"{each} is not a folder of this user alone (mode 0700): remove it, or set XDG_RUNTIME_DIR.")
    return folder


def socket_path(folder: Path) -> Path:
    """Return the path of the control socket."""
    return folder / "control"


class ControlServer:
    """Serves requests to ``host`` on the socket in ``folder``; ``stop`` is called for a stop of the host itself."""

    def __init__(self, host: PluginHost, folder: Path, *, stop: Any) -> None:
        self._host = host
        self._path = socket_path(folder)
        self._stop = stop
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start listening. A socket left by a killed host is replaced: the port, which is ours, proves that it is dead."""
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, str(self._path), limit=_MAX_REQUEST_BYTES)
        finally:
            os.umask(before)

    async def aclose(self) -> None:
        """Stop listening, and cancel requests in progress."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        if tasks := tuple(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = json.loads(await reader.readline())
            async for answer in self._answers(request, reader):
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
            writer.write(json.dumps(_END).encode() + b"\n")
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            pass  # a malformed request, or a client that has left
        except PatchbayError as error:
            writer.write(json.dumps({"error": str(error)}).encode() + b"\n")
        except asyncio.CancelledError:
            pass  # the host is closed: the client sees the end of the connection
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answers(self, request: Any, reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
        what, plugin = request["do"], request.get("plugin")
        if what == "list":
            for status in self._host.status():
                yield asdict(status)
        elif what == "reload":
            problems = []
            reloads = [
                self._reload(each, config=bool(request.get("config"))) for each in ([plugin] if plugin else self._host.plugins)
            ]
            for done in asyncio.as_completed(reloads):
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
            await asyncio.get_running_loop().create_future()  # until the host is closed, or the client leaves
        elif what == "logs":
            async for line in self._logs(plugin, int(request["lines"]), follow=bool(request.get("follow")), reader=reader):
                yield asdict(line)
        else:
            raise PluginError(f"Unknown request {what!r}.")

    async def _reload(self, plugin: str, *, config: bool) -> tuple[str, str]:
        """Reload one plugin, and return its id and the error: a failure does not stop the others."""
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
        waiting: asyncio.Queue[LogLine | None] = asyncio.Queue(_MAX_QUEUED_LINES)

        def enqueue(line: LogLine) -> None:
            if plugin in (None, line.plugin) and not waiting.full():
                waiting.put_nowait(line)

        async def until_disconnect() -> None:
            await reader.read(1)
            await waiting.put(None)

        end = self._host.book.subscribe(enqueue) if follow else lambda: None
        disconnect = asyncio.create_task(until_disconnect()) if follow else None
        try:
            for line in self._host.book.last(plugin, count):
                yield line
            while disconnect is not None and (new := await waiting.get()) is not None:
                yield new
        finally:
            end()
            if disconnect is not None:
                disconnect.cancel()


def ask(folder: Path, **request: Any) -> Iterator[dict[str, Any]]:
    """Send a request to the host of ``folder``, and yield its answers. Raises NoHostError, and PluginError for a failure.

    NoHostError also where the host ended before it had answered, except for requests that end with it: its stop, and its logs.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(socket_path(folder)))
            connection.sendall(json.dumps(request).encode() + b"\n")
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
    if request["do"] != "logs" and (request["do"] != "stop" or request.get("plugin")):
        raise NoHostError(f"the plugin host at port {folder.name} ended before it had answered.")


_LAST_ANSWERS = 5
"""Seconds for writing the last answers."""


async def run_host(
    specs: Iterable[PluginSpec],
    listener: socket.socket,
    *,
    server: str,
    plugins: Path | None = None,
    policy: HostPolicy | None = None,
    env: Mapping[str, str] | None = None,
    token: Callable[[], str | None] = lambda: None,
    watch: bool = False,
    on_line: Callable[[LogLine], None] = lambda _line: None,
    registered: Registered = lambda _plugin_id, _names, _roles: None,
    ready: Callable[[PluginHost], None] = lambda _host: None,
    stopping: Callable[[], None] = lambda: None,
    must_start: bool = False,
    callback: str = "",
    instance: str = "",
) -> None:
    """Run plugins until SIGTERM, SIGINT, or a stop by the control socket; the second signal does not wait for calls.

    ``listener`` accepts the server's calls, ``callback`` is its address for servers on other machines, and ``instance`` the
    host's name as a replica. ``env`` is added to the plugins' environment. ``on_line`` is called with each line of a plugin,
    ``registered`` as in PluginHost, ``ready`` when calls are accepted, ``stopping`` when the stop begins; none of them
    may block. Raises ConfigurationError where the folder of the control socket cannot be used, and with ``must_start`` where no
    plugin can be loaded (its lines are left out then).
    """
    host = make_host(
        specs,
        listener,
        server=server,
        plugins=plugins,
        policy=policy,
        env=env,
        token=token,
        registered=registered,
        callback=callback,
        instance=instance,
    )
    first_start = _FirstStart(host)
    host.book.subscribe(lambda line: None if must_start and first_start.repeats(line) else on_line(line))
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    with _signal_handlers(on_signal):
        async with serve_host(host, listener, stop=stop.set) as serving:
            if watch:
                await host.watch()
            ready(host)
            await _first(stop.wait(), asyncio.shield(serving), *([first_start.failed()] if must_start else []))
            stopping()
            await _first(host.aclose(), hurry.wait())


def make_host(specs: Iterable[PluginSpec], listener: socket.socket, *, callback: str = "", **options: Any) -> PluginHost:
    """Return a host whose calls come to ``listener``; ``options`` are those of PluginHost."""
    port = listener.getsockname()[1]
    return PluginHost(specs, callback=callback or f"http://127.0.0.1:{port}", folder=folder_of(port), **options)


@asynccontextmanager
async def serve_host(
    host: PluginHost, listener: socket.socket, *, stop: Callable[[], object]
) -> AsyncIterator[asyncio.Task[None]]:
    """Run a host during the block, with its control socket; close it at the end of the block, or its calls are cut off.

    Yields the task that serves its calls. ``stop`` is called for a stop by the control socket. Raises ConfigurationError where
    the folder of that cannot be used.
    """
    port = listener.getsockname()[1]
    folder = make_folder(port)
    for old in folder.iterdir():  # left by a killed host
        old.unlink()
    control = ControlServer(host, folder, stop=stop)
    web = _callback_server(host)
    serving = asyncio.create_task(web.serve(sockets=[listener]))
    try:
        await control.start()
        await host.start()
        yield serving
    finally:
        await host.kill()  # after an orderly stop nothing is left; else this answers the calls in flight
        web.should_exit = True
        await serving
        await control.aclose()  # the client that requested the stop waits for this
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


@contextmanager
def _signal_handlers(handler: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _callback_server(host: PluginHost) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            host.app,
            log_config=None,
            access_log=False,
            lifespan="off",
            interface="asgi3",
            http=HeadTimeoutProtocol,
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_LAST_ANSWERS,
        )
    )


class _FirstStart:
    """Whether any plugin could be loaded at the start of the host."""

    def __init__(self, host: PluginHost) -> None:
        self._host = host
        self._is_over = False

    def repeats(self, line: LogLine) -> bool:
        """Whether a line repeats the error that ``failed`` raises."""
        return not self._is_over and line.stream == "host" and self._are_broken()

    async def failed(self) -> None:
        """Raise ConfigurationError when all plugins have failed to load; else wait for ever."""
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
    """Await the first to finish, cancel the others, and raise what it raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    if others:
        await asyncio.wait(others)
    for each in done:
        each.result()


class _Server(uvicorn.Server):
    """A uvicorn that leaves the signals to the host: the callback's port is closed last, not first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
