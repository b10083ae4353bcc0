"""The tool server over real HTTP, which can be stopped, be slow, lose its tools, and refuse."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Self

import uvicorn

from patchbay.server.app import ToolsApp, create_tools_app
from patchbay.server.http_client import HttpClient
from patchbay.server.origin import Origin
from patchbay.server.settings import ToolsSettings
from patchbay.tools.registry import Key, Registration, ToolRegistry
from ports import held_port


class QuietServer(uvicorn.Server):
    """A uvicorn that leaves signals alone."""

    def capture_signals(self) -> Any:
        return nullcontext()


class Served:
    """Serves an ASGI application on a port that is its own until ``close``, also while it is stopped."""

    def __init__(self, app: Any, *, lifespan: Any = "off") -> None:
        self.app = app
        self.lifespan = lifespan
        self.port, self._holder = held_port()

    async def start(self) -> None:
        listener = self._listener = socket.create_server(("127.0.0.1", self.port))
        config = uvicorn.Config(
            self.app, log_config=None, access_log=False, lifespan=self.lifespan, interface="asgi3", ws="none", proxy_headers=False
        )
        self._server = QuietServer(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:
            assert not self._task.done(), self._task
            await asyncio.sleep(0)

    async def stop(self) -> None:
        self._server.should_exit = True
        try:
            await self._task
        finally:  # also where it is cancelled: uvicorn does not close its sockets then
            self._listener.close()

    async def close(self) -> None:
        try:
            await self.stop()
        finally:
            self._holder.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class ToolServer:
    """The tool server of Patchbay with faults: it is stopped, slow, forgets, and refuses. ``seed``: it says only what the seed says.

    ``fail`` are tools whose registration is answered with 503, ``rewrite`` fields that are changed in each registration.
    ``hold`` delays requests, ``held_answers`` the answers of registrations. ``reserved`` refuses sources, ``token`` is wanted.
    """

    def __init__(self, *, seed: bool = False) -> None:
        self.seed = seed
        self.app = _new_app()
        self.requests: list[Any] = []
        self.listed = 0
        self.unchanged = 0
        self.fail: set[str] = set()
        self.rewrite: dict[str, Any] = {}
        self.hold: asyncio.Event | None = None
        self.held_answers: asyncio.Event | None = None
        self.token: str | None = None
        self.reserved = False
        self._news = asyncio.Event()
        self._served = Served(self._serve, lifespan="on")

    async def __aenter__(self) -> Self:
        await self._served.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._served.close()

    async def stop(self) -> None:
        await self._served.stop()

    async def restart(self) -> None:
        """Come up again on the same port, as another run that remembers nothing."""
        self.app = _new_app()
        await self._served.start()

    @property
    def url(self) -> str:
        return self._served.url

    @property
    def registry(self) -> ToolRegistry:
        return self.app.registry

    def names(self, role: str = "ann") -> set[str]:
        return set(self.registry.snapshot(role).registrations)

    def secret(self, name: str) -> str | None:
        """Return what calls of a tool are signed with."""
        found = self.registry.get(Key(None, name))
        return found and found.secret

    def put(self, name: str, source: str) -> None:
        """Register a tool of this source, from inside."""
        self.registry.register(Registration(name, source=source, callback_url="http://127.0.0.1:9/"), inside=True)

    def edit(self, name: str, **fields: Any) -> None:
        """Change fields of a registered tool."""
        self.registry.register(replace(self.registry.get(Key(None, name)), **fields), inside=True)

    async def until(self, holds: Any) -> None:
        """Wait until something is so; asked after each request."""
        while not holds():
            self._news.clear()
            await self._news.wait()

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        if self.hold is not None:
            await self.hold.wait()
        asked = json.loads(body) if body else None
        if asked is not None:
            self.requests.append(asked)
            if self.seed:
                asked.pop("secret", None)
            asked |= self.rewrite
        status, headers, answer = self._refusal(scope, asked) or await self._answer(scope, asked)
        self._news.set()
        if scope["method"] == "GET":
            self.listed += 1
            self.unchanged += status == 304
        elif self.held_answers is not None:
            await self.held_answers.wait()
        if self.seed:
            headers = [each for each in headers if each[0] != b"etag"]
            answer = _as_in_the_seed(answer)
        data = b"" if answer is None else json.dumps(answer).encode()
        headers = [*(each for each in headers if each[0] != b"content-length"), (b"content-length", str(len(data)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers[:-1] if status == 304 else headers})
        await send({"type": "http.response.body", "body": data})
        self._news.set()

    def _refusal(self, scope: Any, asked: Any) -> tuple[int, list[Any], Any] | None:
        if self.token is not None and dict(scope["headers"]).get(b"authorization") != b"Bearer " + self.token.encode():
            return 401, [], {"detail": "Unauthorized"}
        if asked is not None and asked.get("name") in self.fail:
            return 503, [], {"detail": "not now"}
        if asked is not None and self.reserved:
            failed = {"role": "ann", "error": f"the source {asked['source']!r} is reserved", "code": "source_reserved"}
            return 200, [], {"ok": False, "registered": asked["name"], "affected_roles": [], "failed_roles": [failed]}
        return None

    async def _answer(self, scope: Any, asked: Any) -> tuple[int, list[Any], Any]:
        """Ask the real server."""
        sent: list[Any] = []
        body = b"" if asked is None else json.dumps(asked).encode()

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [each for each in scope["headers"] if each[0] != b"content-length"]
        await self.app({**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}, receive, send)
        data = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], list(sent[0]["headers"]), json.loads(data) if data else None


def _new_app() -> ToolsApp:
    return create_tools_app(("ann", "ben"), settings=ToolsSettings(lease=0.0))


def _as_in_the_seed(answer: Any) -> Any:
    """Return an answer without the keys that only Patchbay's server has."""
    kept = {key: value for key, value in answer.items() if key not in ("instance_id", "revision", "revisions")}
    if "tools_by_role" in kept:
        keys = ("name", "description", "source", "callback_url", "is_remote")
        kept["tools_by_role"] = {
            role: [{key: row[key] for key in keys} for row in rows] for role, rows in kept["tools_by_role"].items()
        }
    return kept


async def post(
    url: str, body: Any, *, headers: Any = (), raw: bytes | None = None, method: bytes = b"POST", secret: str | None = None
) -> Any:
    """POST JSON and return the answer's, with its status where that is not 200."""
    origin, path = url[: url.index("/", 8)], url[url.index("/", 8) :]
    client = HttpClient(Origin(origin), connect_timeout=5)
    try:
        data = json.dumps(body).encode() if raw is None else raw
        sent = [*headers]
        if not any(name == b"Content-Type" for name, _ in headers):
            sent.append((b"Content-Type", b"application/json"))
        if secret is not None:
            sent.append((b"X-Patchbay-Signature", b"sha256=" + hmac.new(secret.encode(), data, "sha256").hexdigest().encode()))
        answer = await client.request(method, path.encode(), sent, data)
        text = b""
        while piece := await answer.read():
            text += piece
        answer.close()
        return json.loads(text) if answer.status == 200 else (answer.status, json.loads(text) if text else None)
    finally:
        await client.close()
