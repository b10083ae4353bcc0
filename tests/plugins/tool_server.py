"""A small tool server over real HTTP (spec 1.3), which can be stopped, be slow, lose its tools, and refuse."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import uuid
from contextlib import nullcontext
from typing import Any, Self

import uvicorn

from patchbay.server.http_client import HttpClient
from patchbay.server.origin import Origin
from ports import held_port


class QuietServer(uvicorn.Server):
    """A uvicorn that leaves signals alone."""

    def capture_signals(self) -> Any:
        return nullcontext()


class Served:
    """Serves an ASGI application on a port that is its own until ``close``, also while it is stopped."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.port, self._holder = held_port()

    async def start(self) -> None:
        listener = self._listener = socket.create_server(("127.0.0.1", self.port))
        config = uvicorn.Config(
            self.app, log_config=None, access_log=False, lifespan="off", interface="asgi3", ws="none", proxy_headers=False
        )
        self._server = QuietServer(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:
            assert not self._task.done(), self._task
            await asyncio.sleep(0)

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._task
        self._listener.close()

    async def close(self) -> None:
        await self.stop()
        self._holder.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class ToolServer:
    """``tools`` is by role and name, as the listing shows them. ``seed``: without the keys that only Patchbay's server has."""

    def __init__(self, roles: tuple[str, ...] = ("ann", "ben"), *, seed: bool = False) -> None:
        self.roles = roles
        self.seed = seed
        self.instance = uuid.uuid4().hex
        self.revision = 0
        self.tools: dict[str, dict[str, dict[str, Any]]] = {role: {} for role in roles}
        self.requests: list[tuple[str, Any]] = []
        self.listed = 0
        self.unchanged = 0
        self.refuse: dict[str, str] = {}
        self.fail: set[str] = set()
        self.hold: asyncio.Event | None = None
        self.held_answers: asyncio.Event | None = None
        self.token: str | None = None
        self.reserved = False
        self.secrets: dict[str, str] = {}
        self._news = asyncio.Event()
        self._served = Served(self._app)

    async def __aenter__(self) -> Self:
        await self._served.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._served.close()

    async def stop(self) -> None:
        await self._served.stop()

    async def restart(self) -> None:
        """Come up again on the same port, as another run that remembers nothing."""
        self.instance = uuid.uuid4().hex
        self.tools = {role: {} for role in self.roles}
        self.changed()
        await self._served.start()

    @property
    def url(self) -> str:
        return self._served.url

    def changed(self) -> None:
        self.revision += 1
        self._news.set()

    def names(self, role: str = "ann") -> set[str]:
        return set(self.tools[role])

    async def until(self, holds: Any) -> None:
        """Wait until something is so; asked after each request."""
        while not holds():
            self._news.clear()
            await self._news.wait()

    async def call(self, name: str, arguments: Any = None, *, role: str = "ann", headers: Any = ()) -> Any:
        """Call a tool as the server does, and return the body of the answer."""
        body = {"name": name, "arguments": arguments or {}}
        return await post(self.tools[role][name]["callback_url"], body, headers=headers, secret=self.secrets.get(name))

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = dict(scope["headers"])
        method, path = scope["method"], scope["path"]
        if self.hold is not None:
            await self.hold.wait()
        extra: list[Any] = []
        if self.token is not None and headers.get(b"authorization") != b"Bearer " + self.token.encode():
            status, answer = 401, {"detail": "Unauthorized"}
        elif method == "GET":
            etag = f'"{self.instance}.{self.revision}"'.encode()
            self.listed += 1
            extra = [] if self.seed else [(b"etag", etag)]
            if not self.seed and headers.get(b"if-none-match") == etag:
                self.unchanged += 1
                status, answer = 304, None
            else:
                status, answer = 200, {"ok": True, "tools_by_role": {r: list(t.values()) for r, t in self.tools.items()}}
        else:
            asked = json.loads(body)
            self.requests.append((path.rpartition("/")[2], asked))
            status, answer = getattr(self, path.rpartition("/")[2])(asked)
            if self.held_answers is not None:
                await self.held_answers.wait()
        if not self.seed and answer is not None:
            answer |= {"instance_id": self.instance, "revision": self.revision}
        data = b"" if answer is None else json.dumps(answer).encode()
        length = [] if answer is None else [(b"content-length", str(len(data)).encode())]
        kind = (b"content-type", b"application/json")
        await send({"type": "http.response.start", "status": status, "headers": [kind, *length, *extra]})
        await send({"type": "http.response.body", "body": data})
        self._news.set()

    def register(self, asked: Any) -> tuple[int, Any]:
        name, role = asked["name"], asked["role"]
        if name in self.fail:
            return 503, {"detail": "not now"}
        if role and role not in self.tools:
            return 404, {"detail": f"unknown role: {role}"}
        if self.reserved:
            failed = [
                {"role": r, "error": f"the source {asked['source']!r} is reserved", "code": "source_reserved"} for r in self.tools
            ]
            return 200, {"ok": False, "registered": name, "affected_roles": [], "failed_roles": failed}
        if name in self.refuse:
            failed = [{"role": r, "error": self.refuse[name], "code": "source_conflict"} for r in self.tools]
            return 200, {"ok": False, "registered": name, "affected_roles": [], "failed_roles": failed}
        keys = ("name", "description", "source", "callback_url")
        more = () if self.seed else ("parameters", "timeout_seconds", "role")
        row = {key: asked[key] for key in (*keys, *more)} | {"is_remote": True}
        if not self.seed:
            row["annotations"] = asked.get("annotations", {})
        affected = [role] if role else list(self.tools)
        for each in affected:
            self.tools[each][name] = dict(row)
        self.changed()
        answer = {"ok": True, "registered": name, "affected_roles": affected, "failed_roles": []}
        if "secret" in asked and not self.seed:
            self.secrets[name] = answer["secret"] = asked["secret"]
        return 200, answer

    def unregister(self, asked: Any) -> tuple[int, Any]:
        removed = []
        for role, tools in self.tools.items():
            row = tools.get(asked["name"])
            if row and asked["role"] in (None, role) and asked["expected_source"] in (None, row["source"]):
                del tools[asked["name"]]
                removed.append(role)
        self.changed()
        return 200, {"ok": True, "removed": bool(removed), "name": asked["name"], "affected_roles": removed, "failed_roles": []}

    def clear(self, asked: Any) -> tuple[int, Any]:
        count = 0
        for tools in self.tools.values():
            for name in [n for n, row in tools.items() if row["source"] == asked["source"]]:
                del tools[name]
                count += 1
        if count:
            self.changed()
        return 200, {"ok": True, "removed": count, "source": asked["source"], "affected_roles": [], "failed_roles": []}


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
