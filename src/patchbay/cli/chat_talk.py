"""A talk over the socket of a session: lines in, frames out, Ctrl-C.

What lives here: who waits for whom. What does not: flags (``chat``), and how frames are shown (``chat_shown``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError
from typing import Any, Final
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from patchbay.cli.chat_shown import Shown, error_in, is_missing
from patchbay.cli.server_client import ServerGoneError, ServerRefusedError

INTERRUPTED: Final = 130

_LOST: Final = 1006

_SECONDS: Final = 15.0
_LONGEST_FRAME: Final = 16 * 1024 * 1024
_LONGEST_TEXT: Final = 65_536
_LONGEST_LINE: Final = 4 * _LONGEST_TEXT + 4
"""Bytes that are read of a line: more than any that may be said has."""

_LINES_WAITING: Final = 16
_NO_SERVER: Final = "What answered is no Patchbay server."
_NO_SUCH_SOCKET: Final = "no_such_socket"
_FLAGS: Final = {"?takeover=1": "--takeover", "?realtime=": "--realtime", "?model=": "--model "}
"""What the server's advice is here."""


class Talk:
    """``run`` talks until there is nothing more to be said, and returns the exit status. ``typing``: somebody types.

    Lines of a pipe are said one after the other, each when the last was answered; Ctrl-C ends the answer that is under way, and
    no further line is said. Who types may interrupt an answer by the next.
    """

    def __init__(self, url: str, headers: Mapping[str, str], shown: Shown, *, typing: bool) -> None:
        self._url = url
        self._headers = headers
        self._shown = shown
        self._typing = typing
        self._socket: ClientConnection | None = None
        self._asked = 0
        self._free = asyncio.Event()
        self._interrupting = False
        self._is_last = False  # the answer that is under way
        self._telling: asyncio.Task[None] | None = None
        self._failed = False
        self._is_ready = False
        self._why = ""
        self._ended = asyncio.Event()

    async def run(self) -> int:
        """Talk. Raises ServerGoneError, ServerRefusedError."""
        async with contextlib.AsyncExitStack() as ends:
            self._socket = socket = await self._open(ends)
            loop = asyncio.get_running_loop()
            with _on_interrupt(loop, self._interrupt):
                work = [loop.create_task(each) for each in (self._listen(socket), self._speak(socket), self._ended.wait())]
                try:
                    await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in work:
                        task.cancel()
                    await asyncio.wait(work)
        listening, speaking = work[:2]
        if speaking.cancelled() and not listening.cancelled():
            listening.result()
        if not speaking.cancelled():
            speaking.result()  # all was said and answered: how it ends then is of no interest
        return INTERRUPTED if self._ended.is_set() else int(self._failed)

    async def _open(self, ends: contextlib.AsyncExitStack) -> ClientConnection:
        opening = connect(
            self._url,
            additional_headers=self._headers,
            open_timeout=_SECONDS,
            close_timeout=2,
            max_size=_LONGEST_FRAME,
            proxy=None,  # the server is on this machine, or named on purpose
            compression=None,
        )
        try:
            return await ends.enter_async_context(opening)
        except InvalidStatus as error:
            raise _refused(error, self._url) from None
        except (OSError, TimeoutError, InvalidHandshake) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ServerGoneError(f"No answer from {self._url.partition('?')[0]}: {reason}") from None

    async def _listen(self, socket: ClientConnection) -> None:
        """Show what the server tells, until it ends the talk. Raises ServerRefusedError where it says why."""
        try:
            async for data in socket:
                frame = _read(data)
                kind = frame.get("type")
                self._is_ready = self._is_ready or kind == "ready"
                self._failed = self._failed or is_missing(frame)
                if kind == "error":
                    self._failed = True
                    self._why = "" if self._is_ready else error_in(frame)  # whole, where the end's own reason is cut short
                self._shown.frame(frame)
                if kind == "ready" or (kind == "idle" and frame.get("heard") == self._asked):
                    if self._is_last:
                        self._ended.set()
                        return
                    self._interrupting = False
                    self._free.set()
                    self._shown.prompt()
        except ConnectionClosed:
            pass
        unsaid = "the connection was lost" if socket.close_code == _LOST else "the server has ended the talk"
        why = self._why or socket.close_reason or unsaid
        for query, flag in _FLAGS.items():
            why = why.replace(query, flag)
        raise ServerRefusedError(f"{why} ({socket.close_code})", may_pass=False)

    async def _speak(self, socket: ClientConnection) -> None:
        """Say line after line; wait for the last answer."""
        lines = _Lines(asyncio.get_running_loop())
        await self._free.wait()
        while (line := await lines.next()) is not None:
            self._shown.typed()
            if not line.strip():
                if self._free.is_set():
                    self._shown.prompt()
                continue
            if not self._typing:
                await self._free.wait()
            if len(line) > _LONGEST_TEXT:
                self._failed = True
                message = f"the line is longer than {_LONGEST_TEXT} characters, and was not said"
                self._shown.frame({"type": "error", "error": {"message": message, "code": "invalid_request"}})
                if self._free.is_set():
                    self._shown.prompt()
                continue
            await self._tell(socket, {"type": "text", "text": line})
        await self._free.wait()

    async def _tell(self, socket: ClientConnection, frame: Mapping[str, Any]) -> None:
        self._asked += 1
        self._interrupting = False
        self._free.clear()
        with contextlib.suppress(ConnectionClosed):  # why it is, the other task knows
            await socket.send(json.dumps(frame))

    def _interrupt(self) -> None:
        """Ctrl-C: the answer that is under way ends, and in a pipe the talk with it; where there is none, the talk does at once.

        So it does the second time, where the answer would not end.
        """
        if self._socket is None or self._free.is_set() or self._interrupting or not self._asked:
            self._ended.set()
            return
        self._interrupting = True
        self._asked += 1
        self._is_last = not self._typing
        self._shown.note("(interrupted)" if self._is_last else "(interrupted; Ctrl-C again ends)")
        self._telling = asyncio.get_running_loop().create_task(self._socket.send('{"type":"interrupt"}'))
        self._telling.add_done_callback(lambda done: done.cancelled() or done.exception())


class _Lines:
    """Lines of standard input, read by a thread: it may be a terminal, a pipe or a file. Few of them wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(_LINES_WAITING)
        threading.Thread(target=self._read, name="standard input", daemon=True).start()

    async def next(self) -> str | None:
        """Return the next line, None when there is none."""
        return await self._lines.get()

    def _read(self) -> None:
        # The file descriptor itself: a thread that waits in a buffered file would hold its lock when the program ends.
        rest = b""
        try:
            while data := os.read(0, 65_536):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._put(line)
                rest = rest[:_LONGEST_LINE]  # it is not said: what it goes on with does not matter
            if rest:
                self._put(rest)
            self._put(None)
        except (OSError, RuntimeError, CancelledError):  # there is no standard input, or nobody reads any more
            with contextlib.suppress(RuntimeError):
                self._put(None)

    def _put(self, line: bytes | None) -> None:
        text = None if line is None else line.decode("utf-8", "replace").rstrip("\r")
        waiting = self._lines.put(text)
        try:
            asyncio.run_coroutine_threadsafe(waiting, self._loop).result()
        except RuntimeError:
            waiting.close()
            raise


@contextlib.contextmanager
def _on_interrupt(loop: asyncio.AbstractEventLoop, do: Any) -> Any:
    try:
        loop.add_signal_handler(signal.SIGINT, do)
    except (NotImplementedError, RuntimeError):  # no such thing here: Ctrl-C ends the program as ever
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _read(data: str | bytes) -> dict[str, Any]:
    """Return a frame. Raises ServerGoneError for what is none: audio is not asked for as binary frames."""
    try:
        frame = json.loads(data) if isinstance(data, str) else None
    except ValueError:
        frame = None
    if not isinstance(frame, dict):
        raise ServerGoneError(_NO_SERVER)
    return frame


def _refused(error: InvalidStatus, url: str) -> ServerRefusedError:
    status = error.response.status_code
    try:
        told = json.loads(error.response.body or b"")
    except ValueError:
        told = None
    detail = (told.get("detail") or told.get("error")) if isinstance(told, dict) else None
    if not isinstance(detail, str):
        detail = _NO_SERVER
    elif told.get("error_code") == _NO_SUCH_SOCKET:
        parts = urlsplit(url)
        detail = f"{detail} --server is the server's address alone: http{parts.scheme.removeprefix('ws')}://{parts.netloc}"
    elif status == 404:
        detail = "The server has no live sessions: start it with --realtime MODEL, or --upstream URL."
    if status == 401:
        detail += " Give it by --token-file."
    return ServerRefusedError(f"{detail} (HTTP {status})", may_pass=status >= 500)
