"""One process of a plugin, from its start to its end: started, heard, asked for a sign of life, ended.

What lives here: what becomes of the messages of one process, and how it is known that it is over. What does not: the process
itself (``process``), and what comes before and after it (``supervisor``).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchbay.plugins.connection import Connection
from patchbay.plugins.errors import PluginError
from patchbay.plugins.host.asking import Asking
from patchbay.plugins.host.calls import Calls
from patchbay.plugins.host.logs import LogBook
from patchbay.plugins.host.plugin_tools import PluginTools
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.host.process import PluginProcess
from patchbay.plugins.host.reconciler import Reconciler
from patchbay.plugins.host.spec import PluginSpec
from patchbay.plugins.messages import (
    Crash,
    LlmToolRegister,
    LlmToolUnregister,
    Log,
    Message,
    Ping,
    Progress,
    Result,
    Start,
    StartReason,
    StartupResult,
    Stop,
    StopReason,
)

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Surroundings:
    """What all plugins of a host share.

    ``sockets`` is a folder that nobody else can enter, ``slots`` bounds how many come up at a time. ``callback_url`` makes the
    address of a tool of a plugin; ``changed`` is called when something has changed.
    """

    reconciler: Reconciler
    book: LogBook
    sockets: Path
    policy: HostPolicy
    callback_url: Callable[[str, str], str]
    changed: Callable[[], None]
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(8))


class Life:
    """``begin`` it, wait for its ``end``, and ``close`` it in any case. Belongs to one event loop.

    ``calls`` and ``tools`` are the plugin's, and outlive it.
    """

    def __init__(self, spec: PluginSpec, reason: StartReason, around: Surroundings, *, calls: Calls, tools: PluginTools) -> None:
        self._spec = spec
        self._around = around
        self._policy = around.policy
        self._calls = calls
        self._asking = Asking(spec.id)
        self._tools = tools
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[StartupResult] = self._loop.create_future()
        self._cut: asyncio.Future[None] = self._loop.create_future()
        self._ending: asyncio.Task[bool] | None = None
        self._crash = ""
        self._is_broken = False
        self._process = PluginProcess(
            Start(
                plugin_id=spec.id,
                entry=spec.entry,
                folder="" if spec.folder is None else str(spec.folder),
                reason=reason,
                startup_timeout=spec.startup_timeout,
                startup_failure=spec.startup_failure,
                grace=self._policy.grace,
            ),
            socket=around.sockets / f"plugin-{next(_numbers)}",
            on_message=self._receive,
            on_closed=self._lost,
            on_line=lambda stream, line: around.book.add(spec.id, "stderr" if stream == "stderr" else "stdout", line),
        )

    @property
    def pid(self) -> int:
        """Its process, 0 where it is gone or not there yet."""
        return self._process.pid if self._process.is_running else 0

    @property
    def is_broken(self) -> bool:
        """Whether it could not be loaded for a reason that lasts as long as the plugin's files are as they are."""
        return self._is_broken

    @property
    def has_started(self) -> bool:
        """Whether it has said what its startup came to; that may be late."""
        return self._started.done()

    @property
    def hooks(self) -> frozenset[str]:
        """The lifecycle ids that it has hooks for; none before it has said so."""
        return frozenset(self._started.result().hooks) if self.has_started else frozenset()

    def tell(self, message: Message) -> None:
        """Say something that is not answered, if there is somebody to hear it."""
        if self._process.connection is not None:
            self._process.connection.send(message)

    async def ask(self, message: Callable[[str], Message], *, drain: float = 0.0) -> str:
        """Ask for what a hook does; return what went wrong, "" for nothing. Raises PluginError where there is no answer."""
        within = drain + self._policy.grace + self._policy.exit_margin
        return await self._asking.ask(self._process.connection, message, within=within)

    async def begin(self) -> StartupResult:
        """Start it, and wait for what its startup comes to. Raises PluginError where it ended before.

        A startup that does not end in its time has failed, also where it blocks the whole process, which then cannot say so.
        """
        spec, policy = self._spec, self._policy
        try:
            async with self._around.slots:
                connection = await self._process.open(within=policy.hello_timeout)
        except OSError as error:
            raise PluginError(f"its socket cannot be made: {error}") from None
        self._calls.attach(connection)
        ending = self._ending = self._loop.create_task(self._process.ended())
        limit = spec.startup_timeout + policy.startup_margin
        watched: tuple[asyncio.Future[Any], ...] = (self._started, ending)
        await asyncio.wait(watched, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if self._started.done():
            return self._started.result()
        if self._process.is_running:
            return StartupResult(status="failed", startup_error=f"it did not end within {spec.startup_timeout:g} s")
        raise PluginError(self._crash or self._process.how_it_ended())

    async def end(self) -> str:
        """Wait until it has ended, or must be ended since it does not read what it is sent, and return why."""
        assert self._ending is not None
        assert self._process.connection is not None
        why = await self._watch(self._process.connection, self._ending)
        return why or self._crash or self._process.how_it_ended()

    async def ended(self, *, within: float) -> bool:
        """Wait until its process is gone, ``within`` seconds, and say whether it is."""
        return await self._process.ended(within=within)

    async def stop(self, reason: StopReason) -> bool:
        """Tell it to end, wait until it has, for as long as it may take, and say whether it has."""
        policy, connection = self._policy, self._process.connection
        if connection is None or not self._process.is_running:
            return True
        drain = policy.drain if self.has_started else 0.0  # before that there are no calls
        connection.send(Stop(reason=reason, drain=drain, grace=policy.grace))
        return await self.ended(within=drain + policy.grace + policy.exit_margin)

    async def close(self) -> None:
        """End what is left of it. No call of it waits any more when this returns."""
        if self._ending is not None:
            self._ending.cancel()
        await self._process.close()
        if self._process.connection is not None:
            self._calls.detach(self._process.connection)

    async def _watch(self, connection: Connection, ending: asyncio.Task[bool]) -> str:
        """Wait for the end of the process; return why it must be ended, where it does not read what it is sent."""
        number, since = 0, self._loop.time()
        while not ending.done():
            if connection.is_closed:
                # The process has the time of its own end, and no more: nothing can be asked of it.
                await asyncio.wait({ending}, timeout=self._policy.exit_margin)
                return "" if ending.done() else "its connection is gone"
            if connection.acknowledged >= number:
                number, since = connection.send(Ping()), self._loop.time()
            elif self._loop.time() - since > self._policy.stuck_after:
                return f"it has not read anything for {self._policy.stuck_after:g} s"
            watched: tuple[asyncio.Future[Any], ...] = (ending, self._cut)
            await asyncio.wait(watched, timeout=self._policy.ping_interval, return_when=asyncio.FIRST_COMPLETED)
        return ""

    def _lost(self, connection: Connection) -> None:
        self._calls.detach(connection)
        self._asking.give_up()
        if not self._cut.done():
            self._cut.set_result(None)

    def _receive(self, message: Message) -> None:
        """Take what the plugin says."""
        if isinstance(message, Result):
            if not self._asking.settle(message):
                self._calls.settle(message)
        elif isinstance(message, Progress):
            self._calls.progress(message)
        elif isinstance(message, Log):
            dropped = f" ({message.dropped} before it were dropped)" if message.dropped else ""
            for line in f"{message.message}{dropped}".splitlines() or [""]:
                self._around.book.add(self._spec.id, "log", line, level=message.level, created=message.created)
        elif isinstance(message, LlmToolRegister):
            self._tools.register(message)
            self._around.changed()
        elif isinstance(message, LlmToolUnregister):
            self._tools.unregister(message)
            self._around.changed()
        elif isinstance(message, StartupResult):
            if not self._started.done():
                self._started.set_result(message)
        elif isinstance(message, Crash):
            self._crash, self._is_broken = message.error, message.lasts
            for line in message.traceback.splitlines():
                self._around.book.add(self._spec.id, "host", line, level=logging.ERROR)
