"""Real sockets for the tool server's tests: the server under uvicorn in a thread, and scripted callbacks."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from patchbay.server.app import ToolsApp, create_tools_app
from patchbay.server.settings import ToolsSettings
from support.http_server import BOUND, HttpResponse, ask
from support.http_server import serving as serve_app

TOKEN = "0123456789abcdef-token"


@dataclass
class Server:
    """A running tool server."""

    port: int
    app: ToolsApp

    def ask(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str) -> HttpResponse:
        """Make one request on a connection of its own. Headers as keywords: ``content_type``; "" leaves one out."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            sent.setdefault("content-type", "application/json")
        return ask(self.port, method, path, data, headers={name: value for name, value in sent.items() if value})

    def post(self, path: str, **fields: Any) -> HttpResponse:
        return self.ask("POST", f"/api/tools/{path}", fields)

    def register(self, name: str = "a", callback_url: str = "http://127.0.0.1:9/call", **fields: Any) -> Any:
        answer = self.post("register", name=name, callback_url=callback_url, **fields)
        assert 200 == answer.status, answer.body
        return answer.json

    def call(self, name: str = "a", **fields: Any) -> Any:
        answer = self.post("call", name=name, **fields)
        assert 200 == answer.status, answer.body
        return answer.json

    def tools(self, role: str = "ann") -> dict[str, Any]:
        """The role's tools by name."""
        return {tool["name"]: tool for tool in self.ask("GET", f"/api/tools?role={role}").json["tools_by_role"][role]}

    @contextlib.contextmanager
    def awaiting(self, action: str) -> Iterator[None]:
        """Wait, at the end of the block, until the registry was changed in this way within it."""
        done = threading.Event()
        end = self.app.registry.subscribe(lambda change: done.set() if change.action == action and change.changed else None)
        try:
            yield
            assert done.wait(BOUND), f"no {action}"
        finally:
            end()


@contextlib.contextmanager
def serving(
    roles: tuple[str, ...] = ("ann", "ben"), *, app: ToolsApp | None = None, store: str | None = None, **settings: Any
) -> Iterator[Server]:
    """Run a tool server on a free port. The lease is off unless it is asked for."""
    if app is None:
        app = create_tools_app(roles, store=store, settings=ToolsSettings(**{"lease": 0.0, **settings}))
    with serve_app(app) as port:
        yield Server(port, app)


@dataclass
class Call:
    """One call as it reached a callback."""

    head: str
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        for line in self.head.split("\r\n")[1:]:
            found, _, value = line.partition(":")
            if found.lower() == name.lower():
                return value.strip()
        return None


def poll_until(holds: Callable[[], Any], *, shown: Any = "") -> Any:
    """Ask again and again until the answer is true, and return it; ``shown`` says more where it never is."""
    end = time.monotonic() + BOUND
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {BOUND:g} s: {shown}"
        time.sleep(0.01)
    return found


Script = Callable[[socket.socket, threading.Event], None]


@dataclass
class Callback:
    """A callback on a free port; ``script`` writes its answers to the socket, and may wait for the event of its end."""

    script: Script
    port: int
    calls: list[Call] = field(default_factory=list)
    end: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/tool_invoke"


def json_response(body: Any, *, status: str = "200 OK", kind: str = "application/json", more: str = "") -> Script:
    """Answer with a whole body: bytes as they are, all else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    content_type = f"Content-Type: {kind}\r\n" if kind else ""
    head = f"HTTP/1.1 {status}\r\n{content_type}{more}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
    return raw_response(head + data)


def raw_response(data: bytes) -> Script:
    return lambda connection, _end: connection.sendall(data)


def no_response(connection: socket.socket, end: threading.Event) -> None:
    """Take the call, and never answer."""
    end.wait(BOUND)


@contextlib.contextmanager
def calling_back(script: Script, *, port: int = 0) -> Iterator[Callback]:
    listener = socket.create_server(("127.0.0.1", port))
    callback = Callback(script, listener.getsockname()[1])
    end = callback.end
    threads: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(BOUND)
            data = b""
            while b"\r\n\r\n" not in data:
                if not (piece := connection.recv(65536)):
                    return
                data += piece
            head, _, body = data.partition(b"\r\n\r\n")
            call = Call(head.decode("latin-1"), body)
            while len(call.body) < int(call.header("content-length") or 0):
                call.body += connection.recv(65536)
            callback.calls.append(call)
            callback.script(connection, end)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=answer, args=(connection,), daemon=True))
            threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield callback
    finally:
        end.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in [acceptor, *threads]:
            thread.join(BOUND)
