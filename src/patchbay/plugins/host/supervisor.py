"""Supervises one plugin: starts its worker, restarts it after a crash, stops it in order."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from patchbay.plugins.errors import PluginError
from patchbay.plugins.host.calls import InFlightCalls
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.host.process import LogBook, PluginProcess
from patchbay.plugins.host.registrar import Registrar
from patchbay.plugins.host.server_api import WantedTool
from patchbay.plugins.manifest import PluginSpec
from patchbay.plugins.protocol import (
    Begun,
    ConfigUpdate,
    Connection,
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


class PendingRequests:
    """The requests to the plugin ``plugin_id`` that wait for an answer. Belongs to one event loop."""

    def __init__(self, plugin_id: str) -> None:
        self._plugin_id = plugin_id
        self._waiting: dict[str, asyncio.Future[Result]] = {}
        self._numbers = itertools.count(1)

    def new_id(self) -> str:
        """Return an id that no call has."""
        return f"h{next(self._numbers)}"

    async def ask(self, connection: Connection | None, message: Callable[[str], Message], *, within: float) -> str:
        """Send the message that is made with a new id, wait for the answer, and return what the plugin says went wrong ("").

        Raises PluginError where it does not answer ``within`` seconds, and where it has ended.
        """
        if connection is None or connection.is_closed:
            raise PluginError(f"Plugin {self._plugin_id!r} has no process.")
        req_id = self.new_id()
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[req_id] = answer
        try:
            connection.send(message(req_id))
            async with asyncio.timeout(within):
                result = await answer
        except TimeoutError:
            raise PluginError(f"Plugin {self._plugin_id!r} has not answered within {within:g} s.") from None
        finally:
            del self._waiting[req_id]
        return "" if result.success else _reason(result)

    def settle(self, result: Result) -> bool:
        """Take a RESULT, and say whether it was one of these."""
        answer = self._waiting.get(result.req_id)
        if answer is not None and not answer.done():
            answer.set_result(result)
        return answer is not None

    def give_up(self) -> None:
        """The plugin is gone, and answers nothing any more."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(PluginError(f"Plugin {self._plugin_id!r} ended before it answered."))


def _reason(result: Result) -> str:
    try:
        said = msgspec.json.decode(result.data)["output"]["error"]
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError):
        said = result.error
    return str(said)


_HELD = "the plugin is frozen"


class PluginTools:
    """The tools of the plugin ``plugin_id``, at most ``most``.

    ``callback_url`` makes the address of a tool of a plugin, ``tell`` tells the plugin what became of one. They are ``closed`` to
    what the plugin says while it is being stopped.
    """

    def __init__(
        self,
        plugin_id: str,
        reconciler: Registrar,
        *,
        most: int,
        callback_url: Callable[[str, str], str],
        tell: Callable[[LlmToolState], None],
    ) -> None:
        self.closed = False
        self.is_held = False
        self._plugin_id = plugin_id
        self._reconciler = reconciler
        self._most = most
        self._callback_url = callback_url
        self._tell = tell
        self._tools: dict[str, WantedTool] = {}
        reconciler.manage(plugin_id)

    def register(self, message: LlmToolRegister) -> None:
        """Want a tool; the plugin's id is what the host knows it by, whatever the message says."""
        if self.closed:
            return
        name = message.name
        if name not in self._tools and len(self._tools) >= self._most:
            reason = f"a plugin may have no more than {self._most} tools"
            self._tell(LlmToolState(name=name, state="refused", reason=reason, registration=message.registration))
            return
        tool = self._tools[name] = WantedTool(
            plugin_id=self._plugin_id,
            name=name,
            description=message.description,
            parameters=message.parameters,
            callback_url=self._callback_url(self._plugin_id, name),
            timeout_seconds=message.timeout_seconds,
            role=message.role,
            annotations=message.annotations,
            registration=message.registration,
        )
        if self.is_held:
            self._tell_held(tool)
        else:
            self._reconciler.want(tool)

    def unregister(self, message: LlmToolUnregister) -> None:
        """Want a tool no more, unless it was registered anew since."""
        tool = self._tools.get(message.name)
        if tool is not None and tool.registration == message.registration:
            del self._tools[message.name]
        self._reconciler.unwant(self._plugin_id, message.name, message.registration)

    async def hold(self) -> bool:
        """Take all tools from the server, and want none until ``release``; say whether the server could be told."""
        self.is_held = True
        told = await self._reconciler.clear(self._plugin_id)
        for tool in tuple(self._tools.values()):
            self._tell_held(tool)
        return told

    def release(self) -> None:
        """Undo ``hold``."""
        self.is_held = False
        for tool in tuple(self._tools.values()):
            self._reconciler.want(tool)

    def held(self) -> dict[str, str]:
        """Return the names of the tools that are kept from the server now, and why."""
        return dict.fromkeys(self._tools, _HELD) if self.is_held else {}

    def forget(self) -> None:
        """The process that had them is gone. What the server has of them is not taken away by this."""
        self._tools.clear()

    def _tell_held(self, tool: WantedTool) -> None:
        self._tell(LlmToolState(name=tool.name, state="pending", reason=_HELD, registration=tool.registration))


_numbers = itertools.count(1)


@dataclass(frozen=True)
class Surroundings:
    """What all plugins of a host share.

    ``sockets`` is a folder that nobody else can enter, ``slots`` bounds how many come up at a time. ``callback_url`` makes the
    address of a tool of a plugin; ``changed`` is called when something has changed.
    """

    reconciler: Registrar
    book: LogBook
    sockets: Path
    policy: HostPolicy
    callback_url: Callable[[str, str], str]
    changed: Callable[[], None]
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(8))


class PluginInstance:
    """``begin`` it, wait for its ``end``, and ``close`` it in any case. Belongs to one event loop.

    ``calls`` and ``tools`` are the plugin's, and outlive it.
    """

    def __init__(
        self, spec: PluginSpec, reason: StartReason, around: Surroundings, *, calls: InFlightCalls, tools: PluginTools
    ) -> None:
        self._spec = spec
        self._around = around
        self._policy = around.policy
        self._calls = calls
        self._asking = PendingRequests(spec.id)
        self._tools = tools
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[StartupResult] = self._loop.create_future()
        self._cut: asyncio.Future[None] = self._loop.create_future()
        self._ending: asyncio.Task[bool] | None = None
        self._crash = ""
        self._pong = True
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
        since = self._loop.time()
        self._pong = True
        while not ending.done():
            if connection.is_closed:
                # The process has the time of its own end, and no more: nothing can be asked of it.
                await asyncio.wait({ending}, timeout=self._policy.exit_margin)
                return "" if ending.done() else "its connection is gone"
            if self._pong:
                self._pong, since = False, self._loop.time()
                connection.send(Ping())
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
                self._calls.on_result(message)
        elif isinstance(message, Begun):
            self._calls.on_begun(message.req_id)
        elif isinstance(message, Progress):
            self._calls.on_progress(message)
        elif isinstance(message, Pong):
            self._pong = True
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


PluginState = Literal["stopped", "starting", "running", "frozen", "backoff", "failed", "stopping"]


class PluginSupervisor:
    """Runs the plugin of ``spec``. Belongs to one event loop.

    ``state`` and ``reason`` say how it is, ``restarts`` how often it was started again after it had ended by itself, ``pid`` is
    its process (0: none). ``calls`` are its calls, whichever process is there. ``is_broken``: it has failed since it cannot be
    loaded as its files are.
    """

    def __init__(self, spec: PluginSpec, around: Surroundings) -> None:
        policy = around.policy
        self.spec = spec
        self.state: PluginState = "stopped"
        self.reason = ""
        self.restarts = 0
        self.is_broken = False
        self.calls = InFlightCalls(spec.id, policy)
        self.tools = PluginTools(
            spec.id, around.reconciler, most=policy.tools_most, callback_url=around.callback_url, tell=self.tell
        )
        self._around = around
        self._policy = policy
        self._life: PluginInstance | None = None
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._stopping = False
        self._is_retired = False

    @property
    def pid(self) -> int:
        """The process that runs now, 0 where none does."""
        return 0 if self._life is None else self._life.pid

    @property
    def hooks(self) -> frozenset[str]:
        """The lifecycle ids that its process has hooks for."""
        return frozenset() if self._life is None else self._life.hooks

    @property
    def is_frozen(self) -> bool:
        """Whether the plugin takes no calls until it is unfrozen, whichever process is there."""
        return self.calls.refusing != ""

    async def start(self, reason: StartReason = "start") -> None:
        """Start the plugin, if it does not run; does not wait until it does. Raises PluginError when it was retired."""
        async with self._turn:
            self._begin(reason)

    async def stop(self) -> None:
        """Stop the plugin: its tools first, then its calls, its hooks, its process and all that this has started."""
        async with self._turn:
            await self._end("stop")
            self.calls.refusing = ""
            self.tools.is_held = False

    async def reload(self, spec: PluginSpec | None = None) -> None:
        """Stop the plugin, and start it anew, as ``spec`` says now (None: as before). Raises PluginError when it was retired."""
        async with self._turn:
            await self._end("reload")
            if spec is not None:
                self.spec = spec
            self._begin("reload")

    async def retire(self) -> None:
        """Stop the plugin for good: whoever is about to start it, does not."""
        self._is_retired = True
        await self.stop()

    async def freeze(self) -> None:
        """Take the plugin's tools away and let it take no calls until ``unfreeze``; its process stays.

        Calls under way have ``drain`` seconds to end, then the freeze hook is run. Raises PluginError for a plugin that does not
        run, and for a hook that fails: frozen is the plugin all the same.
        """
        async with self._turn:
            if self.is_frozen:
                return
            if self.state != "running" or self._life is None:
                raise PluginError(f"Plugin {self.spec.id!r} is {self.state}: only one that runs can be frozen.")
            life, drain = self._life, self._policy.drain
            self.calls.refusing = "is frozen"
            self.note("It is frozen")
            self._set("frozen", self.reason)
            if not await self.tools.hold():
                self._note_server_away()
            if wrong := await life.ask(lambda id_: Freeze(req_id=id_, drain=drain), drain=drain):
                raise PluginError(f"Plugin {self.spec.id!r} is frozen, but its freeze hook failed: {wrong}")

    async def unfreeze(self) -> None:
        """Undo ``freeze``. Raises PluginError for a plugin that is not frozen, and for a hook that fails: it stays frozen."""
        async with self._turn:
            if not self.is_frozen:
                raise PluginError(f"Plugin {self.spec.id!r} is not frozen: it is {self.state}.")
            if self.state == "frozen" and self._life is not None:
                if wrong := await self._life.ask(lambda id_: Unfreeze(req_id=id_)):
                    raise PluginError(f"Plugin {self.spec.id!r} stays frozen: its unfreeze hook failed: {wrong}")
                if self.state == "frozen":  # and has not ended over it
                    self._set("running", self.reason)
            self.calls.refusing = ""
            self.note("It is frozen no more")
            self.tools.release()

    async def change_config(self) -> None:
        """Have the plugin read its own sections of ``plugin.toml`` again; its hook is run where they are others now.

        Raises PluginError for a plugin that does not run, and for a file that is wrong or a hook that fails.
        """
        async with self._turn:
            if self.state not in ("running", "frozen") or self._life is None:
                raise PluginError(f"Plugin {self.spec.id!r} is {self.state}: it reads its configuration when it starts.")
            if wrong := await self._life.ask(lambda id_: ConfigUpdate(req_id=id_)):
                raise PluginError(f"Plugin {self.spec.id!r} did not take its new configuration well: {wrong}")

    async def kill(self) -> None:
        """End the plugin's processes now, and do not start it again."""
        self._is_retired = self._stopping = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        self._set("stopped")

    def tell(self, state: LlmToolState) -> None:
        """Tell the plugin what became of one of its tools."""
        if self._life is not None:
            self._life.tell(state)
        self._around.changed()

    def note(self, text: str, *, level: int = logging.INFO) -> None:
        """Write down something about the plugin."""
        self._around.book.add(self.spec.id, "host", text, level=level)

    def _begin(self, reason: StartReason) -> None:
        if self._is_retired:
            raise PluginError(f"Plugin {self.spec.id!r} is not started any more: the host stops.")
        if self._task is None or self._task.done():
            self._stopping = self.tools.closed = self.is_broken = False
            self.restarts = 0
            self._set("starting")
            self._task = asyncio.get_running_loop().create_task(self._run(reason))

    async def _end(self, reason: StopReason) -> None:
        task, life = self._task, self._life
        if task is None or task.done():
            self._set("stopped")
            return
        self._stopping = self.tools.closed = True
        self._set("stopping")
        if not await self._around.reconciler.clear(self.spec.id):
            self._note_server_away()
        if life is not None and not await life.stop(reason):
            self.note("It does not end: its processes are killed", level=logging.WARNING)
        task.cancel()
        await asyncio.wait({task})
        self._set("stopped")

    async def _run(self, reason: StartReason) -> None:
        """Start the plugin, and start it again whenever it ends by itself."""
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            ready_at, why, final = await self._live(reason)
            if self._stopping:
                return
            healthy = ready_at is not None and loop.time() - ready_at >= self._policy.healthy_after
            failures = 1 if healthy else failures + 1
            if self._life is not None and self._life.is_broken:
                self.is_broken = True
                self._set("failed", why)
                self.note(f"It cannot be run as it is: {why}", level=logging.ERROR)
                return
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
        self._set("starting")
        spec = self.spec
        life = self._life = PluginInstance(spec, reason, self._around, calls=self.calls, tools=self.tools)
        try:
            started = await life.begin()
            why = f"the startup failed: {started.startup_error}" if started.status == "failed" else ""
            if why and spec.startup_failure != "ignore":
                self.note(f"The startup failed: {started.startup_error}", level=logging.WARNING)
            if why and spec.startup_failure == "fail":
                if life.has_started:  # else it is stuck, and will not end by itself
                    await life.ended(within=self._policy.grace + self._policy.exit_margin)
                return None, why, True
            ready_at = asyncio.get_running_loop().time()
            if self.is_frozen:
                life.tell(Freeze(req_id=""))
            self._set("frozen" if self.is_frozen else "running", why)
            return ready_at, await life.end(), False
        except PluginError as error:
            return None, str(error), False
        finally:
            # Whatever happened: no tool of it may be shown, no call of it may wait, nothing of it may run.
            if not self._stopping:
                self._around.reconciler.drop(spec.id)
            self.tools.forget()
            await asyncio.shield(life.close())

    def _note_server_away(self) -> None:
        self.note("The server could not be told that its tools are gone", level=logging.WARNING)

    def _set(self, state: PluginState, reason: str = "") -> None:
        if (self.state, self.reason) != (state, reason):
            self.state, self.reason = state, reason
            self._around.changed()
