"""One plugin through all of its processes: started, restarted when it ends by itself, stopped in order.

What lives here: its state, and what is asked of it. What does not: one of its processes (``life``), its calls (``calls``), and
its tools (``plugin_tools``).

    stopped ── start ──> starting ──> running ── stop ──> stopping ──> stopped
                            ^            │ ended by itself
                            └─ backoff <─┘ ── too often, or a startup that must not fail ──> failed

A plugin that is frozen is ``frozen`` in the place of ``running``: it has its process, and no tools and no calls. It stays so
through a reload and a crash, until it is unfrozen or stopped.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from patchbay.plugins.errors import PluginError
from patchbay.plugins.host.calls import Calls
from patchbay.plugins.host.life import Life, Surroundings
from patchbay.plugins.host.plugin_tools import PluginTools
from patchbay.plugins.host.spec import PluginSpec
from patchbay.plugins.messages import ConfigUpdate, Freeze, LlmToolState, StartReason, StopReason, Unfreeze

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
        self.calls = Calls(spec.id, most=policy.calls_most, bytes_most=policy.call_bytes_most, repeats=policy.repeats())
        self.tools = PluginTools(
            spec.id, around.reconciler, most=policy.tools_most, callback_url=around.callback_url, tell=self.tell
        )
        self._around = around
        self._policy = policy
        self._life: Life | None = None
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
        life = self._life = Life(spec, reason, self._around, calls=self.calls, tools=self.tools)
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
