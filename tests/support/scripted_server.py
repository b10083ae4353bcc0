"""A model's server on a real socket for many tests at once: responses are looked up by model name or path.

``patchbay.testing.script`` defines responses as bytes; here they are queued under a key and sent byte for byte, one write per chunk.
One server serves the whole test run, so that one proxy process can use it for the whole run.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from patchbay.testing import Answer, Raw
from patchbay.testing.script import on_the_wire

PATIENCE = 60.0
"""Seconds after which a wait in these tests has failed."""

Chunk = bytes | threading.Event


@dataclass(frozen=True)
class RecordedRequest:
    """One request as it arrived. ``left`` is set when the client disconnected before the response was complete."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    left: threading.Event = field(default_factory=threading.Event, compare=False)

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)

    def prompt(self) -> str:
        """Return all messages to the model as one text."""
        return json.dumps(self.json["messages"], ensure_ascii=False)


def chunk(model: str, index: int = 0, finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    """One chunk of a chat-completions stream."""
    choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": model, "choices": [choice]}


def completion(model: str, message: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A whole chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 7, "model": model, "choices": [choice], **fields}


def json_body(value: Any) -> Raw:
    """A JSON response."""
    return Raw([json.dumps(value).encode()], content_type="application/json")


class SharedUpstream:
    """A context manager; ``url`` ends in /v1. A chunk that is a threading.Event is waited for before the next one is sent."""

    def __init__(self) -> None:
        self.seen: defaultdict[str, list[RecordedRequest]] = defaultdict(list)
        self._answers: dict[str, list[Answer]] = {}
        self._arrival = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shared-upstream", daemon=True)

    def on(self, key: str, *answers: Answer) -> str:
        """Queue answers for a model's name or a path (its query left out); the last one is given again and again. Returns the key."""
        assert key not in self._answers, f"{key} is scripted twice"
        self._answers[key] = list(answers)
        return key

    def wait_for(self, key: str, *, number: int = 0) -> RecordedRequest:
        """The first request under ``key``, or one after it, waited for."""
        with self._arrival:
            assert self._arrival.wait_for(lambda: len(self.seen[key]) > number, PATIENCE), f"no request for {key}"
        return self.seen[key][number]

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=1 << 24)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            request = await _read_request(reader)
            if request is not None:
                await self._answer(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, request: RecordedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body: Any = {}
        key = request.target.partition("?")[0]
        if key.endswith("/chat/completions"):
            try:
                body = request.json
                key = body["model"]
            except (ValueError, KeyError, TypeError):
                key = "unreadable"
        queue = self._answers.get(key)
        number = len(self.seen[key])
        with self._arrival:
            self.seen[key].append(request)
            self._arrival.notify_all()
        if queue is None:
            answer: Answer = Raw([b'{"error":{"message":"nothing is scripted"}}'], status=500, content_type="application/json")
        else:
            answer = queue[min(number, len(queue) - 1)]
        gone = asyncio.create_task(reader.read(1))
        try:
            await _send(on_the_wire(answer, body, model=key), writer, gone)
        except ConnectionError:  # which a write may notice before ``gone`` does
            request.left.set()
        finally:
            if gone.done():
                request.left.set()
            gone.cancel()


async def _read_request(reader: asyncio.StreamReader) -> RecordedRequest | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = bytearray()
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return RecordedRequest(method, target, headers, bytes(body))
    return RecordedRequest(method, target, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


async def _send(raw: Raw, writer: asyncio.StreamWriter, gone: asyncio.Task[bytes]) -> None:
    given = {name.lower() for name, _ in raw.headers}
    chunked = "content-length" not in given
    headers = [("content-type", raw.content_type), ("connection", "close"), *raw.headers]
    if chunked:
        headers.append(("transfer-encoding", "chunked"))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers if value)
    writer.write(f"HTTP/1.1 {raw.status} Scripted\r\n{head}\r\n".encode("latin-1"))
    await writer.drain()
    chunks: Iterable[Chunk] = raw.chunks
    for chunk in chunks:
        if isinstance(chunk, threading.Event):
            waited = asyncio.get_running_loop().run_in_executor(None, chunk.wait, PATIENCE)
            await asyncio.wait([waited])
            continue
        writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
        await writer.drain()
        # A turn of the loop for each chunk: one chunk, one write.
        await asyncio.sleep(raw.gap)
        if gone.done():
            return
    if raw.end == "hang":
        await asyncio.wait([gone], timeout=PATIENCE)
    elif raw.end == "cut":
        writer.transport.abort()
    elif chunked:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
