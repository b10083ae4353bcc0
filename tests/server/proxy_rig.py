"""A scripted upstream in a thread, and a fake exchange, for the proxy's tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from executor.virtual_time import ManualClockLoop
from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.models.encoder import ChatEncoder
from patchbay.models.exchange import Exchange
from patchbay.models.request_record import RequestRecord
from patchbay.proxy import ProxyApp, create_app
from patchbay.server import ProxySettings
from support.http_server import BOUND, serving
from support.processes import Process


@dataclass
class UpstreamRequest:
    """One request as it reached the upstream."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Script = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Upstream:
    """A scripted upstream. Set ``script`` to say how it answers; a handler whose client leaves sets ``left``."""

    script: Script
    port: int = 0
    seen: list[UpstreamRequest] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    left_at: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/up/v1"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            if request.headers.get("x-read-body") != "no":
                seen = UpstreamRequest(request.method, request.raw_path, dict(request.headers), await request.read())
                self.seen.append(seen)
            self.arrived.set()
            return await self.script(request)
        except (asyncio.CancelledError, ConnectionError):
            self.left_at = time.monotonic()
            self.left.set()
            raise


@contextlib.contextmanager
def running_upstream(script: Script) -> Iterator[Upstream]:
    upstream = Upstream(script)
    loop = asyncio.new_event_loop()
    up, stop = threading.Event(), asyncio.Event()

    async def main() -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{tail:.*}", upstream.handle)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, auto_decompress=False, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        upstream.port = runner.addresses[0][1]
        up.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert up.wait(BOUND)
    try:
        yield upstream
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(BOUND)
        assert not thread.is_alive()
        loop.close()


@contextlib.contextmanager
def raw_upstream(answer: bytes, *, hold: bool = False) -> Iterator[str]:
    """An upstream that reads a request's head, writes these bytes and closes (or holds) the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(BOUND)
                with contextlib.suppress(OSError):
                    data = b""
                    while b"\r\n\r\n" not in data:
                        data += connection.recv(65536)
                    connection.sendall(answer)
                    if hold:
                        done.wait(BOUND)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        done.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(BOUND)


class Records(list[RequestRecord]):
    """The records of a proxy, which come from the thread that serves it."""

    def __init__(self) -> None:
        super().__init__()
        self._came = threading.Condition()

    def add(self, record: RequestRecord) -> None:
        with self._came:
            self.append(record)
            self._came.notify()

    def wait(self, count: int = 1) -> list[RequestRecord]:
        """Wait for so many records: a response may be read before its record is made."""
        with self._came:
            assert self._came.wait_for(lambda: len(self) >= count, BOUND)
        return list(self)


def recording(app: ProxyApp) -> Records:
    records = Records()
    app.observers.append(records.add)
    return records


class ManualClock:
    """The clock of a server's event loop, which a test moves on: no silence is as long as the machine is slow."""

    def __init__(self) -> None:
        self.loop = ManualClockLoop()

    def move(self, seconds: float) -> None:
        """Let so many seconds have passed for the server, from any thread."""
        self.loop.call_soon_threadsafe(self._move, seconds)

    def _move(self, seconds: float) -> None:
        self.loop.ahead += seconds


class FakeExchange:
    """Follows the contract of models.exchange with as little meaning as can be: "upstream" becomes "exchange" in each event.

    The request's field "fake" scripts it: {"again": n} asks n times more, {"refuse": true} once after an error status,
    {"fail": "..."} fails at the first event, {"kept": text} is given when a later round fails, {"stop": text} is finished when an event holds that text.
    """

    def __init__(self, body: bytes, _encoder: object = None) -> None:
        try:
            request = json.loads(body)
        except ValueError:
            raise InvalidRequestError("Invalid JSON body.") from None
        if "model" not in request:
            raise InvalidRequestError("'model' is missing.", param="model")
        self.fake = request.get("fake", {})
        self.client_streams = self.upstream_streams = bool(request.get("stream"))
        self.transparent = not request.get("tools")
        self.request = body
        self.finished = self.complete = self.fell_back = False
        self.rounds = 0
        self._rest = b""
        self._encoder = ChatEncoder()

    steps = Exchange.steps
    _encoder = ChatEncoder()
    _needs_description = False
    _logged = None
    model = "m"

    def _supersede(self) -> None:
        pass

    def _log_attempt(self, log: object) -> None:
        pass

    def on_upstream_error(self, status: int, text: str) -> bool:
        if self.fake.pop("refuse", False):
            self.request = self.request.replace(b"upstream", b"contract")
            return True
        return False

    def feed(self, data: bytes) -> bytes:
        if "fail" in self.fake and self.fake.get("fail_at", "").encode() in data:
            from patchbay.errors import UpstreamError

            raise UpstreamError(self.fake["fail"])
        *events, self._rest = (self._rest + data).split(b"\n\n")
        if "stop" in self.fake and any(self.fake["stop"].encode() in event for event in events):
            self.finished = True
        return b"".join(event.replace(b"upstream", b"exchange") + b"\n\n" for event in events)

    def end_attempt(self) -> tuple[bytes, bool]:
        if self.rounds < self.fake.get("again", 0):
            self.rounds += 1
            return b"", True
        return b"data: [DONE]\n\n", False

    def read_whole(self, body: bytes) -> tuple[bytes, bool]:
        if self.rounds < self.fake.get("again", 0):
            self.rounds += 1
            return b"", True
        body = body.replace(b"upstream", b"exchange")
        return (b"data: " + body + b"\n\ndata: [DONE]\n\n" if self.client_streams else body), False

    def fallback_response(self) -> bytes | None:
        return self.fake["kept"].encode() if "kept" in self.fake and self.rounds else None

    def error_event(self, error: PatchbayError) -> bytes:
        return b"data: " + json.dumps({"error": {"message": str(error), "code": error.code}}).encode() + b"\n\n"


def make_proxy(upstream: str, *, make_exchange: Any = FakeExchange, **settings: Any) -> ProxyApp:
    """Return the proxy with a fake exchange, or with None with the real one."""
    if make_exchange is None:
        return create_app(upstream, **settings)
    return ProxyApp(ProxySettings(upstream, **settings), make_exchange)


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "to the upstream"}], "tools": [{}], **fields}


def open_chat(port: int, body: dict[str, Any], *, path: str = "/v1/chat/completions", receive_buffer: int = 0) -> socket.socket:
    """Send a chat request and return the socket, nothing of the answer read."""
    connection = socket.socket()
    connection.settimeout(BOUND)
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect(("127.0.0.1", port))
    data = json.dumps(body).encode()
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return connection


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """Read until the mark came or the other side closed."""
    data = bytearray()
    while mark not in data[-len(mark) - 65536 :]:
        piece = connection.recv(65536)
        if not piece:
            break
        data += piece
    return bytes(data)


async def open_stream(request: web.Request, *pieces: bytes, content_type: str = "text/event-stream") -> web.StreamResponse:
    """Begin a stream with these pieces; to be ended or left by the script."""
    response = web.StreamResponse(headers={"content-type": content_type, "x-request-id": "r1"})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
    return response


def stream_of(*pieces: bytes, content_type: str = "text/event-stream", hangs: bool = False) -> Script:
    """A script that streams these pieces, and ends or hangs."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = await open_stream(request, *pieces, content_type=content_type)
        if hangs:
            await asyncio.Event().wait()
        return response

    return script


@contextlib.contextmanager
def proxied(script: Script, **settings: Any) -> Iterator[tuple[Upstream, int]]:
    """Run a proxy before an upstream with this script; yields the upstream and the proxy's port."""
    with running_upstream(script) as upstream, serving(make_proxy(upstream.url, **settings)) as port:
        yield upstream, port


async def silent(_request: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def json_answer(request: web.Request) -> web.StreamResponse:
    return web.json_response({"id": "1", "said": "upstream"}, headers={"x-request-id": "r1", "x-ratelimit-remaining": "9"})


@contextlib.contextmanager
def running_command(*arguments: str, **environment: str) -> Iterator[tuple[Process, int]]:
    """Run a server command on a free port, killed after a minute; yields the process and its port."""
    process = Process(
        [sys.executable, "-m", "patchbay", *arguments, "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip
    alarm = threading.Timer(2 * BOUND, process.kill)
    alarm.start()
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found, process.communicate()
        yield process, int(found[1])
    finally:
        process.kill()
        process.communicate()
        alarm.cancel()
