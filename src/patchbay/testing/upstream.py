"""ScriptedUpstream: an OpenAI-compatible HTTP server that plays a script, and ``python -m patchbay.testing.upstream``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import uvicorn

from patchbay.testing.models import ContractModel
from patchbay.testing.script import Answer, Message, Raw, Script, Text, error, on_the_wire

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class Recorded:
    """A received request.

    ``answered`` is set once its answer was written in full, ``left`` if the client disconnected before that.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    left: threading.Event = field(default_factory=threading.Event, compare=False)
    answered: threading.Event = field(default_factory=threading.Event, compare=False)

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


class ScriptedUpstream:
    """An OpenAI-compatible server whose answers are scripted; a context manager, listening while it is open.

        with ScriptedUpstream(["Hello."]) as upstream:
            client = openai.OpenAI(base_url=upstream.url, api_key="unused")

    ``script`` is a list of answers, one per chat request (then 500), or a function of the request's body. Requests with
    ``tools`` are answered as if they had none ("ignore", as LM Studio does for a model without a template for them), or with
    400 ("refuse", as Ollama does). ``requests`` are all requests, in order of arrival. ``/models`` lists ``model``; any other
    path echoes its request, which shows what a proxy passes through. ``record`` names a file that gets one JSON line per chat
    request.
    """

    def __init__(
        self,
        script: Script,
        *,
        tools: Literal["ignore", "refuse"] = "ignore",
        model: str = "scripted-model",
        port: int = 0,
        record: Path | None = None,
    ) -> None:
        self._script = script
        self._tools = tools
        self._model = model
        self._port = port
        self._record = record
        self._played = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Future[Any]] = set()
        self.requests: list[Recorded] = []

    def __enter__(self) -> Self:
        self._socket = socket.create_server(("127.0.0.1", self._port))
        host, port = self._socket.getsockname()
        self.url = f"http://{host}:{port}/v1"
        # The socket is listening, so a client may connect before the server's thread runs.
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="none",
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
        logging.getLogger("uvicorn.error").addFilter(_is_not_a_cut)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="scripted-upstream", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._release)
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
        self._socket.close()
        if self._thread.is_alive():
            raise RuntimeError("The scripted upstream did not stop.")

    @property
    def chats(self) -> list[Recorded]:
        """The requests to chat/completions."""
        return [request for request in self.requests if request.path.endswith("/chat/completions")]

    async def _app(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self._loop = asyncio.get_running_loop()
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        request = Recorded(
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"].decode(),
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            body=bytes(body),
        )
        self.requests.append(request)
        await self._send(self._answer(request), request, receive, send)

    def _answer(self, request: Recorded) -> Raw:
        if request.path.endswith("/chat/completions"):
            return self._chat(request)
        if request.path.endswith("/models"):
            value: object = {
                "object": "list",
                "data": [{"id": self._model, "object": "model", "owned_by": "patchbay"}],
            }
        else:
            value = {
                "method": request.method,
                "path": request.path,
                "query": request.query,
                "bytes": len(request.body),
            }
        return Raw([json.dumps(value).encode()], content_type="application/json")

    def _chat(self, request: Recorded) -> Raw:
        try:
            body = request.json
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return error(400, "The body is not a JSON object.", kind="invalid_request_error")
        if self._tools == "refuse" and body.get("tools"):
            message = f"{body.get('model', self._model)} does not support tools"
            self._write_record(body, status=400, text=message)
            return error(400, message)
        if callable(self._script):
            answer = self._script(body)
        elif self._played < len(self._script):
            answer = self._script[self._played]
            self._played += 1
        else:
            answer = error(500, f"The script is over: it has {len(self._script)} answers.")
        self._write_record(body, status=200, text=_text_of(answer))
        return on_the_wire(answer, body, model=self._model)

    def _write_record(self, body: Any, *, status: int, text: str) -> None:
        if self._record is not None:
            with self._record.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"request": body, "status": status, "answer": text}) + "\n")

    async def _send(self, raw: Raw, request: Recorded, receive: Receive, send: Send) -> None:
        # After the body, only a disconnect can be received.
        gone = asyncio.ensure_future(receive())
        self._waiting.add(gone)
        try:
            headers = [("content-type", raw.content_type), *raw.headers]
            await send(
                {
                    "type": "http.response.start",
                    "status": raw.status,
                    "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
                }
            )
            for chunk in raw.chunks:
                if gone.done():
                    break
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                # A pause even of 0 lets the loop flush: one chunk, one write.
                await asyncio.wait([gone], timeout=raw.gap)
            else:
                if raw.end == "clean":
                    await send({"type": "http.response.body", "body": b""})
                    request.answered.set()
                    return
                if raw.end == "hang":
                    await asyncio.wait([gone])
            if gone.done():
                request.left.set()
            raise _CutError
        finally:
            self._waiting.discard(gone)
            gone.cancel()

    def _release(self) -> None:
        """End answers that wait for their client, so that the server can stop."""
        for waiting in self._waiting:
            waiting.cancel()


class _CutError(Exception):
    """Raised in the app to make uvicorn close the connection in mid-body, as a crashing server would."""


def _is_not_a_cut(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], _CutError))


def _text_of(answer: Answer) -> str:
    if isinstance(answer, str):
        return answer
    if isinstance(answer, Text):
        return answer.text
    if isinstance(answer, Message):
        return json.dumps(answer.message)
    return "(raw bytes)"


def main() -> None:
    """Serve a ContractModel until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m patchbay.testing.upstream", description=ScriptedUpstream.__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--tools", choices=["ignore", "refuse"], default="ignore")
    parser.add_argument("--record", type=Path, help="append one JSON line per chat request to this file")
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with ScriptedUpstream(ContractModel(), tools=options.tools, port=options.port, record=options.record) as upstream:
        print(f"Scripted text-only upstream on {upstream.url}", flush=True)  # noqa: T201  (a command prints)
        stop.wait()


if __name__ == "__main__":
    main()
