"""A real ``patchbay serve`` with sessions in front of a fake, and WebSocket clients for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from patchbay.testing import Message
from patchbay.testing.realtime import FakeRealtime
from patchbay.testing.realtime.script import Step, as_answers
from support.processes import listening
from tools_server.rig import BOUND, Server, poll_until

ROLES = ("ann", "ben")


def foreign_scope(**members: Any) -> dict[str, Any]:
    """Return the ASGI scope of a handshake from another machine."""
    headers = [(b"host", b"localhost")]
    return {"type": "websocket", "path": "/api/sessions/ann", "headers": headers, "client": ("10.0.0.1", 1), **members}


def calling(name: str, arguments: str = "{}") -> Message:
    """An answer of an upstream model that calls a tool."""
    call = {"id": "call_9", "type": "function", "function": {"name": name, "arguments": arguments}}
    return Message({"tool_calls": [call]}, finish_reason="tool_calls")


async def never(*_: Any) -> None:
    """An application that must not be reached."""
    raise AssertionError


class Client:
    """A client of a session. Every wait is bounded."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.frames: list[Any] = []
        self.asked = 0

    def say(self, **frame: Any) -> None:
        self.asked += frame["type"] in ("text", "respond", "interrupt")
        self.socket.send(json.dumps(frame))

    def text(self, text: str) -> None:
        self.say(type="text", text=text)

    def next(self) -> Any:
        data = self.socket.recv(timeout=BOUND)
        frame = json.loads(data) if isinstance(data, str) else data
        self.frames.append(frame)
        return frame

    def until(self, kind: str | Callable[[Any], bool]) -> Any:
        """Read up to the next frame of this type, or for which this is true."""
        while True:
            frame = self.next()
            if isinstance(kind, str):
                if isinstance(frame, dict) and frame["type"] == kind:
                    return frame
            elif kind(frame):
                return frame

    def idle(self) -> None:
        """Wait until the session is idle and has handled all input."""
        self.until(lambda frame: isinstance(frame, dict) and frame["type"] == "idle" and frame["heard"] == self.asked)

    def answer(self, text: str) -> str:
        """Send a text, wait until the session is idle, and return the model's text."""
        begin = len(self.frames)
        self.text(text)
        self.idle()
        return transcript(self.frames[begin:])

    def of(self, kind: str) -> list[Any]:
        return [frame for frame in self.frames if isinstance(frame, dict) and frame["type"] == kind]

    def ended(self) -> tuple[int, str]:
        """Read to the end; return its code and reason."""
        with pytest.raises(ConnectionClosed) as closed:
            self.until(lambda _frame: False)
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code, closed.value.rcvd.reason

    def closed(self) -> None:
        """Read to the end after the server has died."""
        with pytest.raises(ConnectionClosed):
            self.until(lambda _frame: False)


def transcript(frames: Sequence[Any]) -> str:
    return "".join(frame["delta"] for frame in frames if isinstance(frame, dict) and frame["type"] == "text")


class Serving:
    """A running server with sessions. ``http`` is its HTTP API."""

    def __init__(self, url: str, pid: int, printed: list[str], fake: FakeRealtime | None = None) -> None:
        self.url = url
        self.pid = pid
        self._fake = fake
        self._seen = 0
        self.printed = printed
        """Lines of its output, including the log; complete once it has ended."""
        self.port = int(url.rpartition(":")[2])
        self.http = Server(self.port, None)  # type: ignore[arg-type]

    @property
    def fake(self) -> FakeRealtime:
        """The fake of its model."""
        assert self._fake is not None
        return self._fake

    def plays(self, *script: Step) -> None:
        """Let the model's next responses be these, in place of what was not played."""
        del self.fake.script[len(self.fake.script) - self.fake.remaining :]
        self.fake.script.extend(as_answers(script))

    def logged(self) -> list[str]:
        """The warnings and errors of its log."""
        return [line.split(" ", 3)[3].strip() for line in self.printed if line.split(" ", 3)[2:3] in (["WARNING"], ["ERROR"])]

    def next_logged(self, text: str) -> str:
        """Wait for the one warning or error with this text, behind those that this has returned before."""
        lines: list[str] = poll_until(lambda: [line for line in self.logged()[self._seen :] if text in line])
        self._seen = len(self.logged())
        (line,) = lines
        return line

    def pending_approval(self) -> Any:
        """Wait for a pending approval."""
        return poll_until(lambda: self.http.ask("GET", "/api/approvals").json["approvals"])[0]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def socket(self, role: str = "ann", query: str = "", **options: Any) -> ClientConnection:
        address = f"ws://127.0.0.1:{self.port}/api/sessions/{role}{'?' if query else ''}{query}"
        return connect(address, **{"open_timeout": BOUND, "close_timeout": BOUND, "proxy": None, **options})

    @contextlib.contextmanager
    def session(self, role: str = "ann", query: str = "output=text", **options: Any) -> Iterator[Client]:
        with self.socket(role, query, **options) as socket:
            client = Client(socket)
            ready = client.next()
            assert "ready" == ready["type"], ready
            yield client

    def refused(self, role: str = "ann", query: str = "", **options: Any) -> tuple[int, str, str]:
        """Return code and reason of the close of a refused session, and the code of its error frame."""
        with self.socket(role, query, **options) as socket:
            client = Client(socket)
            code, reason = client.ended()
            return code, reason, client.of("error")[0]["error"]["code"]

    def turned_away(self, role: str = "ann", query: str = "", **options: Any) -> tuple[int, Any]:
        """Return status and body of a refused handshake."""
        try:
            with self.socket(role, query, **options):
                pass
        except InvalidStatus as error:
            return error.response.status_code, json.loads(error.response.body or b"null")
        raise AssertionError("it was let in")


@contextlib.contextmanager
def serving(fake: FakeRealtime | None = None, *flags: str, upstream: str = "", **environment: str) -> Iterator[Serving]:
    """Run ``patchbay serve`` in front of a fake, an upstream, or both. The lease is off: tools of tests have no callback."""
    command = [sys.executable, "-m", "patchbay", "serve", "--port", "0", "--store", "memory", "--lease", "0"]
    command += ["--roles", ",".join(ROLES), *flags]
    if fake is not None:
        command += ["--realtime", f"{fake.provider}/a-model", "--realtime-url", fake.url, "--realtime-key", "a-secret-key"]
    if upstream:
        command += ["--upstream", upstream]
    keys = dict.fromkeys(("OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"))
    with listening(command, name="patchbay serve", environment={**keys, **environment}) as child:
        yield Serving(child.url, child.pid, child.printed, fake)
