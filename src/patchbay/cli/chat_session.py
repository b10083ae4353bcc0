"""Chat over a session's WebSocket: terminal views of its frames, and the session itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping
from typing import Any, Final, TextIO
from urllib.parse import urlsplit

from typing_extensions import override
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from patchbay._subprocess import Overlong, read_lines
from patchbay._text import one_line
from patchbay.cli.http import ServerRefusedError, ServerUnavailableError, unreachable
from patchbay.cli.terminal import plain

INTERRUPTED: Final = 130

_ABNORMAL_CLOSURE: Final = 1006

_SECONDS: Final = 15.0
_MAX_FRAME: Final = 16 * 1024 * 1024
_MAX_TEXT: Final = 65_536
_MAX_LINE: Final = 4 * _MAX_TEXT + 4
"""In bytes: more than the longest valid line."""

_NO_SERVER: Final = "The server is not a Patchbay server."
_PROXY: Final = (
    "This is a proxy, or another server with OpenAI's API, which has no live sessions: use a `patchbay serve` with --upstream or "
    "--realtime."
)
_NO_SUCH_SOCKET: Final = "no_such_socket"
_FLAGS: Final = {"?takeover=1": "--takeover", "?realtime=": "--realtime", "?model=": "--model "}
"""Flags for the query parameters that the server's messages suggest."""


PROMPT: Final = "> "

_MAX_NOTE: Final = 200


class View:
    """Shows a chat. By default notes and prompts, which are for people, are not shown."""

    def show(self, frame: Mapping[str, Any]) -> None:
        """Show a frame of the server."""
        raise NotImplementedError

    def note(self, text: str) -> None:
        """Show a remark beside the model's text."""

    def prompt(self) -> None:
        """Ask for input."""

    def input_received(self) -> None:
        """Take into account that the cursor is on a new line."""

    def close(self) -> None:
        """End the current line."""


class JsonView(View):
    """Prints each frame as a line of JSON."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    @override
    def show(self, frame: Mapping[str, Any]) -> None:
        print(json.dumps(frame), file=self._out, flush=True)


class TextView(View):
    """Prints the model's text to ``out``, everything else to ``side``.

    ``prompts``: input comes from a terminal. ``tools`` says which tools the model has, at the start.
    """

    def __init__(self, out: TextIO, side: TextIO, *, prompts: bool, colour: bool, tools: str = "") -> None:
        self._out = out
        self._side = side
        self._prompts = prompts
        self._tools = tools
        self._dim = ("\x1b[2m", "\x1b[0m") if colour else ("", "")
        self._mid_line = False
        self._prompted = False
        self._is_ready = False

    @override
    def show(self, frame: Mapping[str, Any]) -> None:
        """Show a frame, by the method that its type names; other types are ignored."""
        if (handler := getattr(self, f"_on_{frame.get('type')}", None)) is not None:
            handler(frame)

    @override
    def note(self, text: str) -> None:
        self._end_line()
        begin, end = self._dim
        print(f"{begin}  {plain(' '.join(text.split()))}{end}", file=self._side, flush=True)

    @override
    def prompt(self) -> None:
        if self._prompted:
            return
        self._end_line()
        if self._prompts:
            self._prompted = True
            print(PROMPT, end="", file=self._side, flush=True)

    @override
    def close(self) -> None:
        self._end_line()

    @override
    def input_received(self) -> None:
        self._prompted = False

    def _on_ready(self, frame: Mapping[str, Any]) -> None:
        self._is_ready = True
        if self._prompts:
            self.note("; ".join(filter(None, (f"{frame.get('role')} with {frame.get('model')}", self._tools))))

    def _on_text(self, frame: Mapping[str, Any]) -> None:
        self._write(str(frame.get("delta", "")))

    def _on_transcript(self, frame: Mapping[str, Any]) -> None:
        if frame.get("role") == "user":
            if frame.get("whole"):
                self.note(f"you: {frame.get('text')}")
        elif not frame.get("whole"):
            self._write(str(frame.get("text", "")))

    def _on_tool_call(self, frame: Mapping[str, Any]) -> None:
        self.note(one_line(f"{frame.get('name')} {frame.get('raw_arguments')}", _MAX_NOTE))

    def _on_tool_progress(self, frame: Mapping[str, Any]) -> None:
        if frame.get("message"):
            self.note(one_line(f"{frame.get('name')}: {frame.get('message')}", _MAX_NOTE))

    def _on_tool_result(self, frame: Mapping[str, Any]) -> None:
        self.note(one_line(f"{'!!' if frame.get('is_error') else '->'} {frame.get('content')}", _MAX_NOTE))

    def _on_user_output(self, frame: Mapping[str, Any]) -> None:
        media = [str(each.get("path")) for each in frame.get("media") or () if isinstance(each, Mapping)]
        self._write("\n".join(filter(None, [str(frame.get("text") or ""), *media])))
        self._end_line()

    def _on_response_end(self, frame: Mapping[str, Any]) -> None:
        self.close()
        if frame.get("status") != "completed":
            self.note(f"({frame.get('status')})")

    def _on_connection(self, frame: Mapping[str, Any]) -> None:
        if frame.get("state") == "lost" and not frame.get("planned"):
            self.note("(connection to the model lost; reconnecting)")

    def _on_error(self, frame: Mapping[str, Any]) -> None:
        if self._is_ready:  # before, the command reports it when it fails
            self.note(f"error: {error_message(frame)}")

    def _on_dropped(self, frame: Mapping[str, Any]) -> None:
        if reports_dropped_events(frame):
            self.note(f"error: {frame.get('count')} events are missing: the output is incomplete")

    def _write(self, text: str) -> None:
        """Print a piece of the model's text."""
        for number, line in enumerate(text.split("\n")):
            if number:
                print(file=self._out)
                self._mid_line = False
            if line := plain(line):
                self._prompted = False
                self._mid_line = True
                print(line, end="", file=self._out)
        self._out.flush()

    def _end_line(self) -> None:
        if self._mid_line:
            print(file=self._out, flush=True)
            self._mid_line = False
        elif self._prompted:
            print(file=self._side, flush=True)
            self._prompted = False


def error_message(frame: Mapping[str, Any]) -> str:
    """Return the message of an ``error`` frame."""
    error = frame.get("error")
    return str(error.get("message") if isinstance(error, Mapping) else error)


def reports_dropped_events(frame: Mapping[str, Any]) -> bool:
    """Return True if a frame reports dropped events."""
    return frame.get("type") == "dropped" and frame.get("what") == "events"


class ChatSession:
    """A chat over a session's WebSocket. ``interactive``: input comes from a terminal, and may interrupt a response.

    Lines of a pipe are sent one at a time, each after the response to the last.
    """

    def __init__(self, url: str, headers: Mapping[str, str], view: View, *, interactive: bool) -> None:
        self._url = url
        self._headers = headers
        self._view = view
        self._interactive = interactive
        self._socket: ClientConnection | None = None
        self._sent = 0
        self._free = asyncio.Event()
        self._interrupting = False
        self._ends_after_response = False
        self._sending: asyncio.Task[None] | None = None
        self._failed = False
        self._is_ready = False
        self._error = ""
        self._ended = asyncio.Event()

    async def run(self) -> int:
        """Run until the input ends, and return the exit status. Raises ServerUnavailableError, ServerRefusedError."""
        async with contextlib.AsyncExitStack() as stack:
            self._socket = socket = await self._open(stack)
            loop = asyncio.get_running_loop()
            with _on_interrupt(loop, self._interrupt):
                work = [loop.create_task(each) for each in (self._receive(socket), self._send_lines(socket), self._ended.wait())]
                try:
                    await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in work:
                        task.cancel()
                    await asyncio.wait(work)
        receiving, sending = work[:2]
        if sending.cancelled() and not receiving.cancelled():
            receiving.result()
        if not sending.cancelled():
            sending.result()  # all responses are complete: the closing status does not matter
        return INTERRUPTED if self._ended.is_set() else int(self._failed)

    async def _open(self, stack: contextlib.AsyncExitStack) -> ClientConnection:
        opening = connect(
            self._url,
            additional_headers=self._headers,
            open_timeout=_SECONDS,
            close_timeout=2,
            max_size=_MAX_FRAME,
            proxy=None,  # the server is local, or named explicitly
            compression=None,
        )
        try:
            return await stack.enter_async_context(opening)
        except InvalidStatus as error:
            raise _rejection(error, self._url) from None
        except (OSError, TimeoutError, InvalidHandshake) as error:
            number = getattr(error, "errno", None)  # asyncio's text has the address again
            reason = os.strerror(number) if number else str(error) or type(error).__name__
            raise unreachable(self._url.partition("?")[0], reason) from None

    async def _receive(self, socket: ClientConnection) -> None:
        """Show frames until the server closes the connection. Raises ServerRefusedError with its reason."""
        try:
            async for data in socket:
                frame = _decode(data)
                kind = frame.get("type")
                self._is_ready = self._is_ready or kind == "ready"
                self._failed = self._failed or reports_dropped_events(frame)
                if kind == "error":
                    self._failed = True
                    self._error = "" if self._is_ready else error_message(frame)  # complete, whereas a close reason is truncated
                self._view.show(frame)
                if kind == "ready" or (kind == "idle" and frame.get("heard") == self._sent):
                    if self._ends_after_response:
                        self._ended.set()
                        return
                    self._interrupting = False
                    self._free.set()
                    self._view.prompt()
        except ConnectionClosed:
            pass
        default = (
            "connection lost"
            if socket.close_code == _ABNORMAL_CLOSURE
            else f"the server closed the session with {socket.close_code}"
        )
        reason = self._error or socket.close_reason or default
        for query, flag in _FLAGS.items():
            reason = reason.replace(query, flag)
        raise ServerRefusedError(reason, is_transient=False)

    async def _send_lines(self, socket: ClientConnection) -> None:
        """Send line after line, then wait for the last response."""
        await self._free.wait()
        async for each in read_lines(0, _MAX_LINE):
            self._view.input_received()
            line = None if isinstance(each, Overlong) else each.decode("utf-8", "replace").rstrip("\r")
            if line is not None and not line.strip():
                if self._free.is_set():
                    self._view.prompt()
                continue
            if not self._interactive:
                await self._free.wait()
            if line is None or len(line) > _MAX_TEXT:
                self._failed = True
                message = f"the line is longer than {_MAX_TEXT} characters and was not sent"
                self._view.show({"type": "error", "error": {"message": message, "code": "invalid_request"}})
                if self._free.is_set():
                    self._view.prompt()
                continue
            await self._send(socket, {"type": "text", "text": line})
        await self._free.wait()

    async def _send(self, socket: ClientConnection, frame: Mapping[str, Any]) -> None:
        self._sent += 1
        self._interrupting = False
        self._free.clear()
        with contextlib.suppress(ConnectionClosed):  # _receive reports it
            await socket.send(json.dumps(frame))

    def _interrupt(self) -> None:
        """Handle Ctrl-C: interrupt the response, and end the session if input is a pipe, if idle, or at the second Ctrl-C."""
        if self._socket is None or self._free.is_set() or self._interrupting or not self._sent:
            self._ended.set()
            return
        self._interrupting = True
        self._sent += 1
        self._ends_after_response = not self._interactive
        self._view.note("(interrupted)" if self._ends_after_response else "(interrupted; Ctrl-C again ends)")
        self._sending = asyncio.get_running_loop().create_task(self._socket.send('{"type":"interrupt"}'))
        self._sending.add_done_callback(lambda done: done.cancelled() or done.exception())


@contextlib.contextmanager
def _on_interrupt(loop: asyncio.AbstractEventLoop, do: Any) -> Any:
    try:
        loop.add_signal_handler(signal.SIGINT, do)
    except (NotImplementedError, RuntimeError):  # not supported here: Ctrl-C ends the program
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _decode(data: str | bytes) -> dict[str, Any]:
    """Decode a frame. Raises ServerUnavailableError if it is not a JSON object."""
    try:
        frame = json.loads(data) if isinstance(data, str) else None
    except ValueError:
        frame = None
    if not isinstance(frame, dict):
        raise ServerUnavailableError(_NO_SERVER)
    return frame


def _rejection(error: InvalidStatus, url: str) -> ServerRefusedError:
    status = error.response.status_code
    try:
        body = json.loads(error.response.body or b"")
    except ValueError:
        body = None
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        return ServerRefusedError(_PROXY, is_transient=False)
    detail = (body.get("detail") or body.get("error")) if isinstance(body, dict) else None
    if not isinstance(detail, str):
        detail = _NO_SERVER
    elif body.get("error_code") == _NO_SUCH_SOCKET or status == 426:  # below a path where the server has other protocols
        parts = urlsplit(url)
        detail = f"{detail} --server must be the base URL: http{parts.scheme.removeprefix('ws')}://{parts.netloc}"
    elif status == 404:
        detail = "The server has no live sessions: start it with --realtime MODEL, or --upstream URL."
    if status == 401:
        detail += " Use --token-file."
    return ServerRefusedError(detail, is_transient=status >= 500)
