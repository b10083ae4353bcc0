"""Supervises one plugin: starts its worker, restarts it after a crash, stops it in order.

    stopped ── start ──> starting ──> running ── stop ──> stopping ──> stopped
                            ^            │ ended by itself
                            └─ backoff <─┘ ── too often, or a startup that must not fail ──> failed

A frozen plugin is ``frozen`` in place of ``running``: it has its process, no tools and no calls. It stays frozen through a reload
and a crash, until it is unfrozen or stopped.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from patchbay._subprocess import PendingRequests
from patchbay.plugins.connection import MessageConnection
from patchbay.plugins.errors import PluginError
from patchbay.plugins.host.calls import InFlightCalls
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.host.process import LogBook, PluginProcess
from patchbay.plugins.host.registrar import PluginTools, Registrar
from patchbay.plugins.host.server_api import WantedTool
from patchbay.plugins.manifest import PluginSpec
from patchbay.plugins.protocol import (
    Begun,
    ConfigUpdate,
    Crash,
    Freeze,
    LlmToolRegister,
    LlmToolState,
    LlmToolUnregister,
    Log,
    Message,
    Ping,
    Pong,
    Progress,
    Result,
    Start,
    StartReason,
    StartupResult,
    Stop,
    StopReason,
    Unfreeze,
)

PluginState = Literal["stopped", "starting", "running", "frozen", "backoff", "failed", "stopping"]

_REQUEST = "h"
"""Begins the ``req_id`` of a request that is not a call."""

_socket_numbers = itertools.count(1)


@dataclass(frozen=True)
class HostServices:
    """The services that all plugins of a host share.

    ``sockets`` is a folder that no other user can enter, ``starting`` bounds how many workers start at a time. ``callback_url``
    builds the URL of a plugin's tool; ``changed`` is called after every change. ``env`` is added to the workers' environment.
    """

    registrar: Registrar
    book: LogBook
    sockets: Path
    policy: HostPolicy
    callback_url: Callable[[str, str], str]
    changed: Callable[[], None]
    starting: asyncio.Semaphore
    env: Mapping[str, str]


class PluginInstance:
    """One worker process of a plugin: ``start`` it, ``wait_until_ended``, and ``close`` it in any case.

    ``calls`` and ``tools`` belong to the plugin, and outlive the instance.
    """

    def __init__(
        self, spec: PluginSpec, reason: StartReason, services: HostServices, *, calls: InFlightCalls, tools: PluginTools
    ) -> None:
        self.is_broken = False
        """Whether it cannot be loaded as long as the plugin's files are as they are."""
        self._spec = spec
        self._services = services
        self._policy = services.policy
        self._calls = calls
        self._tools = tools
        self._requests: PendingRequests[Result] = PendingRequests()
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[StartupResult] = self._loop.create_future()
        self._disconnected: asyncio.Future[None] = self._loop.create_future()
        self._ending: asyncio.Task[bool] | None = None
        self._crash = ""
        self._has_ponged = True
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
            socket=services.sockets / f"plugin-{next(_socket_numbers)}",
            on_message=self._receive,
            on_closed=self._on_closed,
            on_line=lambda stream, line: services.book.add(spec.id, "stderr" if stream == "stderr" else "stdout", line),
            env=services.env,
        )

    @property
    def pid(self) -> int:
        """The process, 0 where there is none."""
        return self._process.pid if self._process.is_running else 0

    @property
    def has_started(self) -> bool:
        """Whether it has reported the result of its startup, in time or not."""
        return self._started.done()

    @property
    def hooks(self) -> frozenset[str]:
        """The lifecycle ids that it handles; empty before it has started."""
        return frozenset(self._started.result().hooks) if self.has_started else frozenset()

    def send(self, message: Message) -> None:
        """Send a message that is not answered, if there is a connection."""
        if self._process.connection is not None:
            self._process.connection.send(message)

    async def request(self, message: Callable[[str], Message], *, drain: float = 0.0) -> str:
        """Send ``message(req_id)``, and return the error of the hook that it runs ("": none).

        Raises PluginError for a plugin that does not answer, or has ended.
        """
        connection, plugin_id = self._process.connection, self._spec.id
        if connection is None or connection.is_closed:
            raise PluginError(f"Plugin {plugin_id!r} has no process.")
        within = drain + self._policy.grace + self._policy.exit_margin
        number = self._requests.next_number()
        connection.send(message(f"{_REQUEST}{number}"))
        try:
            async with asyncio.timeout(within):
                result = await self._requests.wait_for(number)
        except TimeoutError:
            raise PluginError(f"Plugin {plugin_id!r} has not answered within {within:g} s.") from None
        if result.success:
            return ""
        try:
            return str(msgspec.json.decode(result.data)["output"]["error"])
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError):
            return str(result.error)

    async def start(self) -> StartupResult:
        """Start the process, and wait for the result of its startup. Raises PluginError where it ended before.

        A startup that does not end in its time has failed, also where it blocks the process, which then cannot say so.
        """
        try:
            async with self._services.starting:
                connection = await self._process.open(within=self._policy.hello_timeout)
        except OSError as error:
            raise PluginError(f"its socket cannot be created: {error}") from None
        self._calls.attach(connection)
        ending = self._ending = self._loop.create_task(self._process.ended())
        timeout = self._spec.startup_timeout
        watched: tuple[asyncio.Future[Any], ...] = (self._started, ending)
        await asyncio.wait(watched, timeout=timeout + self._policy.startup_margin, return_when=asyncio.FIRST_COMPLETED)
        if self._started.done():
            return self._started.result()
        if self._process.is_running:
            return StartupResult(status="failed", startup_error=f"it did not end within {timeout:g} s")
        raise PluginError(self._crash or self._process.how_it_ended())

    async def wait_until_ended(self) -> str:
        """Wait until it has ended, or must be killed since it does not answer pings, and return the reason."""
        ending, connection = self._ending, self._process.connection
        assert ending is not None
        assert connection is not None
        pinged = self._loop.time()
        watched: tuple[asyncio.Future[Any], ...] = (ending, self._disconnected)
        while not ending.done():
            if connection.is_closed:
                # Without a connection the process cannot be asked to stop: it only gets the time to exit.
                await asyncio.wait({ending}, timeout=self._policy.exit_margin)
                if not ending.done():
                    return "its connection is gone"
            elif self._has_ponged:
                self._has_ponged, pinged = False, self._loop.time()
                connection.send(Ping())
            elif self._loop.time() - pinged > self._policy.stuck_after:
                return f"it has not read anything for {self._policy.stuck_after:g} s"
            await asyncio.wait(watched, timeout=self._policy.ping_interval, return_when=asyncio.FIRST_COMPLETED)
        return self._crash or self._process.how_it_ended()

    async def ended(self, *, within: float) -> bool:
        """Wait ``within`` seconds until its process is gone, and return whether it is."""
        return await self._process.ended(within=within)

    async def stop(self, reason: StopReason) -> bool:
        """Send STOP, wait as long as stopping may take, and return whether the process is gone."""
        policy, connection = self._policy, self._process.connection
        if connection is None or not self._process.is_running:
            return True
        drain = policy.drain if self.has_started else 0.0  # before that there are no calls
        connection.send(Stop(reason=reason, drain=drain, grace=policy.grace))
        return await self.ended(within=drain + policy.grace + policy.exit_margin)

    async def close(self) -> None:
        """Kill what is left of it. All of its calls are answered when this returns."""
        if self._ending is not None:
            self._ending.cancel()
        await self._process.close()
        if self._process.connection is not None:
            self._calls.detach(self._process.connection)

    def _on_closed(self, connection: MessageConnection) -> None:
        self._calls.detach(connection)
        self._requests.fail_all(lambda: PluginError(f"Plugin {self._spec.id!r} ended before it answered."))
        if not self._disconnected.done():
            self._disconnected.set_result(None)

    def _receive(self, message: Message) -> None:
        book, plugin_id = self._services.book, self._spec.id
        if isinstance(message, Begun):
            self._calls.on_begun(message.req_id)
        elif isinstance(message, Result):
            if message.req_id.startswith(_REQUEST):
                self._requests.resolve(int(message.req_id.removeprefix(_REQUEST)), message)
            else:
                self._calls.on_result(message)
        elif isinstance(message, Progress):
            self._calls.on_progress(message)
        elif isinstance(message, Pong):
            self._has_ponged = True
        elif isinstance(message, Log):
            dropped = f" ({message.dropped} before it were dropped)" if message.dropped else ""
            for line in f"{message.message}{dropped}".splitlines() or [""]:
                book.add(plugin_id, "log", line, level=message.level, created=message.created)
        elif isinstance(message, LlmToolRegister):
            callback_url = self._services.callback_url(plugin_id, message.name)
            sent = msgspec.structs.asdict(message) | {"plugin_id": plugin_id}  # the id is ours, whatever the process sends
            self._tools.want(WantedTool(**sent, callback_url=callback_url))
            self._services.changed()
        elif isinstance(message, LlmToolUnregister):
            self._tools.unwant(message.name, message.registration)
            self._services.changed()
        elif isinstance(message, StartupResult):
            if not self._started.done():
                self._started.set_result(message)
        elif isinstance(message, Crash):
            self._crash, self.is_broken = message.error, message.lasts
            for line in message.traceback.splitlines():
                book.add(plugin_id, "host", line, level=logging.ERROR)


class PluginSupervisor:
    """Runs the plugin of ``spec``. For one event loop.

    ``restarts`` counts restarts after it ended by itself. ``calls`` are its calls, whichever process there is. ``is_broken``: it
    has failed since it cannot be loaded as its files are.
    """

    def __init__(self, spec: PluginSpec, services: HostServices) -> None:
        self.spec = spec
        self.state: PluginState = "stopped"
        self.reason = ""
        self.restarts = 0
        self.is_broken = False
        self.calls = InFlightCalls(spec.id, services.policy)
        self.tools = services.registrar.manage(spec.id)
        self._services = services
        self._policy = services.policy
        self._instance: PluginInstance | None = None
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._stopping = False
        self._is_retired = False

    @property
    def pid(self) -> int:
        """The worker process, 0 where there is none."""
        return 0 if self._instance is None else self._instance.pid

    @property
    def hooks(self) -> frozenset[str]:
        """The lifecycle ids that its process handles."""
        return frozenset() if self._instance is None else self._instance.hooks

    @property
    def is_frozen(self) -> bool:
        """Whether the plugin accepts no calls until it is unfrozen."""
        return self.calls.refusing != ""

    async def start(self, reason: StartReason = "start") -> None:
        """Start the plugin unless it runs, without waiting for it. Raises PluginError when it was retired."""
        async with self._lock:
            self._start(reason)

    async def stop(self) -> None:
        """Stop the plugin: its tools first, then its calls, its hooks, its process and all that this has started."""
        async with self._lock:
            await self._stop("stop")
            self.calls.refusing = ""
            self.tools.is_suspended = False

    async def reload(self, spec: PluginSpec | None = None) -> None:
        """Stop the plugin and start it as ``spec`` says (None: as before). Raises PluginError when it was retired."""
        async with self._lock:
            await self._stop("reload")
            if spec is not None:
                self.spec = spec
            self._start("reload")

    async def retire(self) -> None:
        """Stop the plugin for good: a start that is under way raises."""
        self._is_retired = True
        await self.stop()

    async def freeze(self) -> None:
        """Remove the plugin's tools and refuse its calls until ``unfreeze``; its process stays.

        Calls in flight have ``drain`` seconds, then the freeze hook runs. Raises PluginError for a plugin that does not run, and
        for a hook that fails: the plugin is frozen nevertheless.
        """
        async with self._lock:
            if self.is_frozen:
                return
            if self.state != "running" or self._instance is None:
                raise PluginError(f"Plugin {self.spec.id!r} is {self.state}: only one that runs can be frozen.")
            instance, drain = self._instance, self._policy.drain
            self.calls.refusing = "is frozen"
            self.note("It is frozen")
            self._set("frozen", self.reason)
            if not await self.tools.suspend():
                self._note_server_away()
            if error := await instance.request(lambda id_: Freeze(req_id=id_, drain=drain), drain=drain):
                raise PluginError(f"Plugin {self.spec.id!r} is frozen, but its freeze hook failed: {error}")

    async def unfreeze(self) -> None:
        """Undo ``freeze``. Raises PluginError for a plugin that is not frozen, and for a hook that fails: it stays frozen."""
        async with self._lock:
            if not self.is_frozen:
                raise PluginError(f"Plugin {self.spec.id!r} is not frozen: it is {self.state}.")
            if self.state == "frozen" and self._instance is not None:
                if error := await self._instance.request(lambda id_: Unfreeze(req_id=id_)):
                    raise PluginError(f"Plugin {self.spec.id!r} stays frozen: its unfreeze hook failed: {error}")
                if self.state == "frozen":  # and has not ended meanwhile
                    self._set("running", self.reason)
            self.calls.refusing = ""
            self.note("It is frozen no more")
            self.tools.resume()

    async def change_config(self) -> None:
        """Have the plugin read its sections of ``plugin.toml`` again; its hook runs where they have changed.

        Raises PluginError for a plugin that does not run, a file that is wrong, and a hook that fails.
        """
        async with self._lock:
            if self.state not in ("running", "frozen") or self._instance is None:
                raise PluginError(f"Plugin {self.spec.id!r} is {self.state}: it reads its configuration when it starts.")
            if error := await self._instance.request(lambda id_: ConfigUpdate(req_id=id_)):
                raise PluginError(f"Plugin {self.spec.id!r} did not take its new configuration well: {error}")

    async def kill(self) -> None:
        """Kill the plugin's processes, and do not start it again."""
        self._is_retired = self._stopping = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        self._set("stopped")

    def send_state(self, state: LlmToolState) -> None:
        """Send the plugin the new state of one of its tools."""
        if self._instance is not None:
            self._instance.send(state)
        self._services.changed()

    def note(self, text: str, *, level: int = logging.INFO) -> None:
        """Add a line of the host to the plugin's log."""
        self._services.book.add(self.spec.id, "host", text, level=level)

    def _start(self, reason: StartReason) -> None:
        if self._is_retired:
            raise PluginError(f"Plugin {self.spec.id!r} is not started any more: the host stops.")
        if self._task is None or self._task.done():
            self._stopping = self.tools.closed = self.is_broken = False
            self.restarts = 0
            self._set("starting")
            self._task = asyncio.get_running_loop().create_task(self._run(reason))

    async def _stop(self, reason: StopReason) -> None:
        task, instance = self._task, self._instance
        if task is None or task.done():
            self._set("stopped")
            return
        self._stopping = self.tools.closed = True
        self._set("stopping")
        if not await self.tools.clear():
            self._note_server_away()
        if instance is not None and not await instance.stop(reason):
            self.note("It does not end: its processes are killed", level=logging.WARNING)
        task.cancel()
        await asyncio.wait({task})
        self._set("stopped")

    async def _run(self, reason: StartReason) -> None:
        """Start the plugin, and start it again whenever it ends by itself."""
        backoff = self._policy.restart_backoff()
        loop = asyncio.get_running_loop()
        while True:
            ready_at, why, final = await self._run_once(reason)
            if self._stopping:
                return
            if self._instance is not None and self._instance.is_broken:
                self.is_broken = True
                self._set("failed", why)
                self.note(f"It cannot be run as it is: {why}", level=logging.ERROR)
                return
            delay = backoff.fail(lasted=0.0 if ready_at is None else loop.time() - ready_at)
            if final or backoff.is_exhausted:
                self.note(f"It has failed, and is not started again: {why}", level=logging.ERROR)
                self._set("failed", why)
                return
            self.note(f"It ended by itself: {why}; it is started again in {delay:.1f} s", level=logging.ERROR)
            self._set("backoff", why)
            await asyncio.sleep(delay)
            self.restarts += 1
            reason = "restart"

    async def _run_once(self, reason: StartReason) -> tuple[float | None, str, bool]:
        """Run one process to its end: return when it was ready (None: never), why it ended, and whether for good."""
        self._set("starting")
        spec = self.spec
        instance = self._instance = PluginInstance(spec, reason, self._services, calls=self.calls, tools=self.tools)
        try:
            started = await instance.start()
            why = f"the startup failed: {started.startup_error}" if started.status == "failed" else ""
            if why and spec.startup_failure != "ignore":
                self.note(f"The startup failed: {started.startup_error}", level=logging.WARNING)
            if why and spec.startup_failure == "fail":
                if instance.has_started:  # else it is stuck, and will not end by itself
                    await instance.ended(within=self._policy.grace + self._policy.exit_margin)
                return None, why, True
            ready_at = asyncio.get_running_loop().time()
            if self.is_frozen:
                instance.send(Freeze(req_id=""))
            self._set("frozen" if self.is_frozen else "running", why)
            return ready_at, await instance.wait_until_ended(), False
        except PluginError as error:
            return None, str(error), False
        finally:
            # Whatever happened: no tool of it may be listed, no call of it may wait, nothing of it may run.
            if not self._stopping:
                self.tools.drop()
            await asyncio.shield(instance.close())

    def _note_server_away(self) -> None:
        self.note("Its tools could not be removed from the server", level=logging.WARNING)

    def _set(self, state: PluginState, reason: str = "") -> None:
        if (self.state, self.reason) != (state, reason):
            self.state, self.reason = state, reason
            self._services.changed()
