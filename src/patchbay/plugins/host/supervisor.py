"""One plugin through all of its processes: started, restarted when it ends by itself, stopped in order.

What lives here: its state, and what becomes of its messages. What does not: one process (``process``), its calls (``calls``), and
what the server knows of its tools (``reconciler``).

    stopped ── start ──> starting ──> running ── stop ──> stopping ──> stopped
                            ^            │ ended by itself
                            └─ backoff <─┘ ── too often, or a startup that must not fail ──> failed
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from patchbay.plugins.connection import Connection
from patchbay.plugins.errors import PluginError
from patchbay.plugins.host.calls import Calls
from patchbay.plugins.host.logs import LogBook
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.host.process import PluginProcess
from patchbay.plugins.host.reconciler import Reconciler
from patchbay.plugins.host.server_api import WantedTool
from patchbay.plugins.host.spec import PluginSpec
from patchbay.plugins.messages import (
    Crash,
    LlmToolRegister,
    LlmToolState,
    LlmToolUnregister,
    Log,
    Message,
    Ping,
    Result,
    Start,
    StartReason,
    StartupResult,
    Stop,
    StopReason,
)

_numbers = itertools.count(1)

PluginState = Literal["stopped", "starting", "running", "backoff", "failed", "stopping"]


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


class PluginSupervisor:
    """Runs the plugin of ``spec``. Belongs to one event loop.

    ``state`` and ``reason`` say how it is, ``restarts`` how often it was started again after it had ended by itself, ``pid`` is
    its process (0: none). ``calls`` are its calls, whichever process is there.
    """

    def __init__(self, spec: PluginSpec, around: Surroundings) -> None:
        policy = around.policy
        self.spec = spec
        self.state: PluginState = "stopped"
        self.reason = ""
        self.restarts = 0
        self.calls = Calls(spec.id, most=policy.calls_most, bytes_most=policy.call_bytes_most)
        self._around = around
        self._policy = policy
        self._process: PluginProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._stopping = False
        self._started: asyncio.Future[StartupResult] | None = None
        self._cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._crash = ""
        self._tools: set[str] = set()
        around.reconciler.manage(spec.id)

    @property
    def pid(self) -> int:
        """The process that runs now, 0 where none does."""
        process = self._process
        return process.pid if process is not None and process.is_running else 0

    async def start(self, reason: StartReason = "start") -> None:
        """Start the plugin, if it does not run; does not wait until it does."""
        async with self._turn:
            self._begin(reason)

    async def stop(self) -> None:
        """Stop the plugin: its tools first, then its calls, its hooks, its process and all that this has started."""
        async with self._turn:
            await self._end("stop")

    async def reload(self, spec: PluginSpec | None = None) -> None:
        """Stop the plugin, and start it anew, as ``spec`` says now (None: as before)."""
        async with self._turn:
            await self._end("reload")
            if spec is not None:
                self.spec = spec
            self._begin("reload")

    async def kill(self) -> None:
        """End the plugin's processes now, and do not start it again."""
        self._stopping = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        self._set("stopped")

    def tell(self, state: LlmToolState) -> None:
        """Tell the plugin what became of one of its tools."""
        process = self._process
        if process is not None and process.connection is not None:
            process.connection.send(state)
        self._around.changed()

    def _begin(self, reason: StartReason) -> None:
        if self._task is None or self._task.done():
            self._stopping = False
            self.restarts = 0
            self._set("starting")
            self._task = asyncio.get_running_loop().create_task(self._run(reason))

    async def _end(self, reason: StopReason) -> None:
        task, process = self._task, self._process
        if task is None or task.done():
            self._set("stopped")
            return
        self._stopping = True
        self._set("stopping")
        if not await self._around.reconciler.clear(self.spec.id):
            self.note("The server could not be told that its tools are gone", level=logging.WARNING)
        if process is not None and process.connection is not None and process.is_running:
            policy = self._policy
            process.connection.send(Stop(reason=reason, drain=policy.drain, grace=policy.grace))
            if not await process.ended(within=policy.drain + policy.grace + policy.exit_margin):
                self.note("It does not end: its processes are killed", level=logging.WARNING)
        task.cancel()
        await asyncio.wait({task})
        self._task = None
        self._set("stopped")

    async def _run(self, reason: StartReason) -> None:
        """Start the plugin, and start it again whenever it ends by itself."""
        failures = 0
        while True:
            loop = asyncio.get_running_loop()
            ready_at, why, final = None, "", False
            try:
                ready_at, why, final = await self._live(reason)
            except PluginError as error:
                why = str(error)
            except OSError as error:
                why = f"its socket cannot be made: {error}"
            if self._stopping:
                return
            healthy = ready_at is not None and loop.time() - ready_at >= self._policy.healthy_after
            failures = 1 if healthy else failures + 1
            if final or failures >= self._policy.failures_most:
                self.note(f"It has failed, and is not started again: {why}", level=logging.ERROR)
                self._set("failed", why)
                return
            delay = self._policy.restart_delay(failures)
            self.note(f"It ended by itself: {why}; it is started again in {delay:.1f} s", level=logging.ERROR)
            self._set("backoff", why)
            await asyncio.sleep(delay)
            self.restarts += 1
            reason = "restart"

    async def _live(self, reason: StartReason) -> tuple[float | None, str, bool]:
        """Be one process from its start to its end: return when it was ready (None: never), why it ended, whether for good."""
        loop = asyncio.get_running_loop()
        spec, policy = self.spec, self._policy
        self._set("starting")
        self._crash = ""
        self._started = started = loop.create_future()
        ready_at = None
        start = Start(
            plugin_id=spec.id,
            entry=spec.entry,
            folder="" if spec.folder is None else str(spec.folder),
            reason=reason,
            startup_timeout=spec.startup_timeout,
            startup_failure=spec.startup_failure,
            grace=policy.grace,
        )
        process = self._process = PluginProcess(
            start,
            socket=self._around.sockets / f"plugin-{next(_numbers)}",
            on_message=self._receive,
            on_closed=self._lost,
            on_line=self._print,
        )
        ending: asyncio.Task[bool] | None = None
        self._cut = loop.create_future()
        try:
            async with self._around.slots:
                connection = await process.open(within=policy.hello_timeout)
            self.calls.attach(connection)
            ending = loop.create_task(process.ended())
            limit = spec.startup_timeout + policy.startup_margin
            await asyncio.wait({started, ending}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not started.done():
                if process.is_running:
                    return None, f"the startup did not end within {limit:g} s", False
                return None, self._crash or process.how_it_ended(), False
            result = started.result()
            failed = result.status == "failed"
            if failed and spec.startup_failure != "ignore":
                self.note(f"The startup failed: {result.startup_error}", level=logging.WARNING)
            if failed and spec.startup_failure == "fail":
                await process.ended(within=policy.grace + policy.exit_margin)
                return None, f"the startup failed: {result.startup_error}", True
            ready_at = loop.time()
            self._set("running", f"the startup failed: {result.startup_error}" if failed else "")
            why = await self._watch(connection, ending)
            return ready_at, why or self._crash or process.how_it_ended(), False
        finally:
            if ending is not None:
                ending.cancel()
            # Whatever happened: no tool of it may be shown, no call of it may wait, nothing of it may run.
            if not self._stopping:
                self._around.reconciler.drop(spec.id)
            self._tools.clear()
            await asyncio.shield(self._close(process))

    async def _watch(self, connection: Connection, ending: asyncio.Task[bool]) -> str:
        """Wait for the end of the process; return why it must be ended, where it does not read what it is sent."""
        loop = asyncio.get_running_loop()
        number, since = 0, loop.time()
        while not ending.done():
            if connection.is_closed:
                # The process has the time of its own end, and no more: nothing can be asked of it.
                await asyncio.wait({ending}, timeout=self._policy.exit_margin)
                return "" if ending.done() else "its connection is gone"
            if connection.acknowledged >= number:
                number, since = connection.send(Ping()), loop.time()
            elif loop.time() - since > self._policy.stuck_after:
                return f"it has not read anything for {self._policy.stuck_after:g} s"
            watched: tuple[asyncio.Future[Any], ...] = (ending, self._cut)
            await asyncio.wait(watched, timeout=self._policy.ping_interval, return_when=asyncio.FIRST_COMPLETED)
        return ""

    async def _close(self, process: PluginProcess) -> None:
        await process.close()
        if process.connection is not None:
            self.calls.detach(process.connection)

    def _lost(self, connection: Connection) -> None:
        self.calls.detach(connection)
        if not self._cut.done():
            self._cut.set_result(None)

    def _receive(self, message: Message) -> None:
        """Take what the plugin says."""
        if isinstance(message, Result):
            self.calls.settle(message)
        elif isinstance(message, Log):
            dropped = f" ({message.dropped} before it were dropped)" if message.dropped else ""
            text = f"{message.message}{dropped}"
            for line in text.splitlines() or [""]:
                self._around.book.add(self.spec.id, "log", line, level=message.level, created=message.created)
        elif isinstance(message, LlmToolRegister):
            self._register(message)
        elif isinstance(message, LlmToolUnregister):
            self._tools.discard(message.name)
            self._around.reconciler.unwant(self.spec.id, message.name, message.registration)
            self._around.changed()
        elif isinstance(message, StartupResult):
            if self._started is not None and not self._started.done():
                self._started.set_result(message)
        elif isinstance(message, Crash):
            self._crash = message.error
            for line in message.traceback.splitlines():
                self.note(line, level=logging.ERROR)

    def _register(self, message: LlmToolRegister) -> None:
        """Want a tool; the plugin's name is what the host knows it by, whatever the message says."""
        if self._stopping:
            return
        if message.name not in self._tools and len(self._tools) >= self._policy.tools_most:
            reason = f"a plugin may have no more than {self._policy.tools_most} tools"
            self.tell(LlmToolState(name=message.name, state="refused", reason=reason, registration=message.registration))
            return
        self._tools.add(message.name)
        self._around.reconciler.want(
            WantedTool(
                plugin_id=self.spec.id,
                name=message.name,
                description=message.description,
                parameters=message.parameters,
                callback_url=self._around.callback_url(self.spec.id, message.name),
                timeout_seconds=message.timeout_seconds,
                role=message.role,
                registration=message.registration,
            )
        )
        self._around.changed()

    def note(self, text: str, *, level: int = logging.INFO) -> None:
        """Write down something about the plugin."""
        self._around.book.add(self.spec.id, "host", text, level=level)

    def _print(self, stream: str, line: str) -> None:
        self._around.book.add(self.spec.id, "stderr" if stream == "stderr" else "stdout", line)

    def _set(self, state: PluginState, reason: str = "") -> None:
        if (self.state, self.reason) != (state, reason):
            self.state, self.reason = state, reason
            self._around.changed()
