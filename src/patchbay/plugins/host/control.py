"""The socket by which a running host is asked to reload, to stop, or for its logs: one line of JSON there, lines of JSON back.

What lives here: both ends of it, and the folder that it is in. What does not: what the command line prints.

The folder is the user's own (mode 0700), and so is the socket (0600): whoever can connect may do everything that the host may.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from patchbay.errors import ConfigurationError, PatchbayError
from patchbay.plugins.errors import PluginError
from patchbay.plugins.host.host import PluginHost
from patchbay.plugins.host.logs import LogLine

_MOST_BYTES: Final = 64 * 1024
_ASK_SECONDS: Final = 10.0
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
        except (OSError, ValueError, KeyError, TypeError):
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
            for each in [plugin] if plugin else list(self._host.plugins):
                await self._host.reload(each)
                yield {"done": each}
        elif what == "stop" and plugin:
            await self._host.stop_plugin(plugin)
            yield {"done": plugin}
        elif what == "stop":
            yield {"done": ""}
            self._stop()
        elif what == "logs":
            async for line in self._logs(plugin, int(asked["lines"]), follow=bool(asked.get("follow")), reader=reader):
                yield asdict(line)
        else:
            raise PluginError(f"A host does not know {what!r}.")

    async def _logs(
        self, plugin: str | None, count: int, *, follow: bool, reader: asyncio.StreamReader
    ) -> AsyncIterator[LogLine]:
        if plugin is not None and plugin not in self._host.plugins:
            raise PluginError(f"There is no plugin {plugin!r}.")
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
    """Ask the host of ``folder``, and yield its answers. Raises NoHostError, and PluginError for what it says cannot be done."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(socket_path(folder)))
        except OSError:
            raise NoHostError(f"no plugin host runs at port {folder.name}: start one with 'patchbay plugins run'.") from None
        connection.sendall(json.dumps(asked).encode() + b"\n")
        with connection.makefile("rb") as lines:
            for line in lines:
                answer = json.loads(line)
                if "error" in answer and len(answer) == 1:
                    raise PluginError(answer["error"])
                yield answer
