"""A minimal host: a real socket, a real child process, and every message sent by the test."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import textwrap
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

import patchbay
from patchbay.plugins.connection import MAX_HELLO_BYTES, MessageConnection
from patchbay.plugins.protocol import (
    ENTRY_PREFIX,
    Bootstrap,
    Hello,
    LlmToolRegister,
    LlmToolState,
    Message,
    Result,
    Start,
    StartupResult,
    Trigger,
    child_command,
)
from support.processes import Process

BOUND = 30.0
"""Seconds; no wait is longer."""

M = TypeVar("M")


def write_plugin(folder: Path, source: str, toml: str = "") -> Path:
    """Write a plugin of one module, whose class is called Plugin."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main.py").write_text("from patchbay.plugins import *\n" + textwrap.dedent(source), encoding="utf-8")
    (folder / "plugin.toml").write_text(f'[plugin]\nentry = "main:Plugin"\n{toml}', encoding="utf-8")
    return folder


class RigConnection(MessageConnection):
    """A connection whose transport tests may write to."""

    transport: asyncio.BaseTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = transport


class RigHost:
    """Starts one child, and keeps what it says; ``async with`` stops it.

    ``fresh`` is for a new interpreter; without ``sends_start`` the connection is closed after HELLO.
    """

    def __init__(
        self, folder: Path, *, entry: str = "main:Plugin", fresh: bool = False, sends_start: bool = True, **start: Any
    ) -> None:
        self.start_process = subprocess.Popen if fresh else Process
        self.folder = folder
        self.start = Start(plugin_id=folder.name, folder=str(folder), entry=entry, **start)
        self.token = secrets.token_hex(16)
        self.hello: Hello | None = None
        self.messages: list[Message] = []
        self.closed = asyncio.Event()
        self.sends_start = sends_start
        self.connection: RigConnection
        self.process: Process | subprocess.Popen[bytes]
        self._unread: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._ids = 0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self.connection = RigConnection(self._receive, lambda _error: self.closed.set(), limit=MAX_HELLO_BYTES)
        path = self.folder / "host.sock"
        self._server = await loop.create_unix_server(lambda: self.connection, str(path))
        address = f"unix:{path}"
        self._out = (self.folder / "stdout").open("wb")
        self._err = (self.folder / "stderr").open("wb")
        self.process = self.start_process(
            child_command(),
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(patchbay.__file__).parents[1])},
        )
        assert self.process.stdin is not None
        self.process.stdin.write(Bootstrap(address=address, token=self.token).line())
        self.process.stdin.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        await self.exited()
        self.connection.abort()
        self._server.close()
        self._out.close()
        self._err.close()
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def ready(self) -> StartupResult:
        """Wait for the startup's end."""
        return await self.expect(StartupResult)

    async def register(self, count: int = 1) -> list[LlmToolRegister]:
        """Take so many registrations, and say that models can call the tools."""
        tools = [await self.expect(LlmToolRegister) for _ in range(count)]
        for tool in tools:
            self.send(LlmToolState(name=tool.name, state="active", registration=tool.registration))
        return tools

    def send(self, message: Message) -> None:
        self.connection.send(message)

    def trigger(self, tool: str, **fields: Any) -> str:
        """Send a TRIGGER and return its id; ``arguments`` are any value."""
        self._ids += 1
        arguments = fields.pop("arguments", {})
        req_id = f"r{self._ids}"
        self.send(Trigger(req_id=req_id, entry_id=ENTRY_PREFIX + tool, args=msgspec.json.encode(arguments).decode(), **fields))
        return req_id

    async def call(self, tool: str, **fields: Any) -> Any:
        """Carry out a call and return the body."""
        return await self.answer(self.trigger(tool, **fields))

    async def answer(self, req_id: str) -> Any:
        """Wait for the RESULT of one request and return its body."""
        return msgspec.json.decode((await self.result(req_id)).data)

    async def result(self, req_id: str) -> Result:
        return await self.expect(Result, lambda result: result.req_id == req_id)

    async def expect(self, kind: type[M], fits: Any = lambda _message: True) -> M:
        """Wait for the next message of a kind; what comes before it stays to be asked for."""
        async with asyncio.timeout(BOUND):
            while True:
                for message in self._unread:
                    if isinstance(message, kind) and fits(message):
                        self._unread.remove(message)
                        return message
                if self.closed.is_set():
                    raise AssertionError(f"closed before a {kind.__name__} came: {self.messages}\n{self.stderr}")
                self._arrived.clear()
                await self._arrived.wait()

    async def exited(self) -> int:
        """Wait for the process to end, and return its code."""
        return await asyncio.to_thread(self.process.wait, BOUND)

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def _receive(self, message: Message) -> None:
        if self.hello is None:
            assert isinstance(message, Hello)
            assert self.token == message.token
            self.hello = message
            if not self.sends_start:
                self.connection.abort()
                return
            self.connection.trust()
            self.connection.send(self.start)
            return
        self.messages.append(message)
        self._unread.append(message)
        self._arrived.set()


def run(work: Any) -> Any:
    """Run a test's coroutine, within bounds."""

    async def bounded() -> Any:
        async with asyncio.timeout(3 * BOUND):
            return await work

    return asyncio.run(bounded())


__all__ = ["BOUND", "RigHost", "run", "write_plugin"]
