"""The plugin host: all plugins, their shared services, and the reload of plugins whose files change."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from patchbay._redaction import protect, secret_values
from patchbay.errors import ConfigurationError
from patchbay.loopback import is_this_machine
from patchbay.plugins.errors import PluginError
from patchbay.plugins.host.callback import PREFIX, CallbackApp, Target
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.host.process import LogBook
from patchbay.plugins.host.registrar import Registered, Registrar
from patchbay.plugins.host.server_api import HttpToolsApi, ToolsApi
from patchbay.plugins.host.supervisor import HostServices, PluginState, PluginSupervisor
from patchbay.plugins.manifest import FILE_NAME, PluginSpec, find_plugins, read_spec
from patchbay.plugins.protocol import DEFAULT_TIMEOUT, LlmToolState, ToolStateName

SUFFIXES: Final = frozenset({".py", ".toml", ".json", ".yaml", ".yml"})
_IGNORED: Final = frozenset({"__pycache__", "node_modules", "venv"})
_MOST_FILES: Final = 5000

Look = frozenset[tuple[str, int, int]]
"""The sources of a folder: path, time of change in nanoseconds, and size of each."""


def look_at(folder: Path) -> Look:
    """Return the sources of a folder; hidden folders and caches are skipped."""
    found: set[tuple[str, int, int]] = set()
    waiting = [folder]
    while waiting and len(found) < _MOST_FILES:
        try:
            entries = list(waiting.pop().iterdir())
        except OSError:
            continue  # it is being changed, or is gone
        for entry in entries:
            try:
                if entry.is_dir():
                    if not entry.name.startswith(".") and entry.name not in _IGNORED and not entry.is_symlink():
                        waiting.append(entry)
                elif entry.suffix in SUFFIXES:
                    about = entry.stat()
                    found.add((str(entry), about.st_mtime_ns, about.st_size))
            except OSError:
                continue
    return frozenset(found)


def look_at_all(folders: Mapping[str, Path]) -> dict[str, Look]:
    """Return the sources of several folders, by key."""
    return {key: look_at(folder) for key, folder in folders.items()}


async def watch_folders(
    folders: Callable[[], Mapping[str, Path]],
    changed: Callable[[Mapping[str, set[str]]], object],
    known: dict[str, Look],
    *,
    interval: float = 0.5,
) -> None:
    """Poll all folders each ``interval`` seconds, for ever; call ``changed`` with the files that differ from ``known``, by key.

    Changes in several steps (an editor that saves, a checkout) are reported when two polls in a row see the same.
    """
    unsettled: dict[str, set[str]] = {}
    while True:
        looks = await asyncio.to_thread(lambda: look_at_all(folders()))
        moved = {key for key, look in looks.items() if key in known and known[key] != look}
        settled = {key: files for key, files in sorted(unsettled.items()) if key in looks and key not in moved}
        unsettled = {key: unsettled.get(key, set()) | {path for path, _, _ in looks[key] ^ known[key]} for key in moved}
        known = looks
        if settled:
            changed(settled)
        await asyncio.sleep(interval)


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolStatus:
    """A tool of a plugin, and the state of its registration."""

    name: str
    state: ToolStateName
    reason: str = ""


@dataclass(frozen=True)
class PluginStatus:
    """The state of a plugin: ``calls`` in flight, ``restarts`` after it ended by itself, ``pid`` (0: no process)."""

    id: str
    state: PluginState
    reason: str
    pid: int
    restarts: int
    calls: int
    tools: tuple[ToolStatus, ...]


class PluginHost:
    """Runs the plugins of ``specs`` and registers their tools with the server.

        async with PluginHost(specs, server="http://127.0.0.1:48911", callback="http://127.0.0.1:48916", folder=run) as host:
            ...  # host.app is served at the address ``callback``

    ``server`` is its URL; ``api`` replaces the HTTP client for it, and registers the tools with ``secret``. ``folder`` is for
    sockets: no other user may be able to enter it, and its path must be short (a socket's has about 100 characters). ``reload``
    finds new plugins in the folder ``plugins``. ``token`` returns the server's bearer token. ``env`` is added to the workers'
    environment, which has a few of our variables otherwise (``BASE_ENVIRONMENT``). ``registered`` is called with a plugin's id,
    the names of tools that the server has accepted, and the roles that have them. With ``instance`` the tools are replicas of
    those of other hosts. A ``callback`` that is not on this machine takes signed calls of any machine. For one event loop.
    """

    def __init__(
        self,
        specs: Iterable[PluginSpec] = (),
        *,
        server: str = "",
        api: ToolsApi | None = None,
        secret: str = "",
        callback: str,
        folder: Path,
        plugins: Path | None = None,
        policy: HostPolicy | None = None,
        env: Mapping[str, str] | None = None,
        token: Callable[[], str | None] = lambda: None,
        registered: Registered = lambda _plugin_id, _names, _roles: None,
        instance: str = "",
    ) -> None:
        self.policy = policy or HostPolicy()
        env = env or {}
        protect(*secret_values(env))
        self.book = LogBook(env)
        self._secret = secret or secrets.token_hex(32)
        if api is None:
            timeout = self.policy.server_timeout
            api = HttpToolsApi(server, secret=self._secret, instance=instance, token=token, timeout=timeout)
        self.registrar = Registrar(api, on_state=self._send_state, registered=registered, policy=self.policy)
        name = urlsplit(callback).hostname or ""
        self._remote_name = None if is_this_machine(name) else name
        self.app = CallbackApp(self._find, remote_name=self._remote_name)
        self._plugins_folder = plugins
        self._changes: list[asyncio.Future[None]] = []
        self._watching: set[asyncio.Task[None]] = set()
        self._services = HostServices(
            registrar=self.registrar,
            book=self.book,
            sockets=folder,
            policy=self.policy,
            callback_url=lambda plugin_id, name: f"{callback.rstrip('/')}{PREFIX}{plugin_id}/{name}",
            changed=self._changed,
            starting=asyncio.Semaphore(self.policy.starting_at_once),
            env=env,
        )
        self.plugins: dict[str, PluginSupervisor] = {}
        for spec in specs:
            if spec.id in self.plugins:
                raise ConfigurationError(f"there are two plugins {spec.id!r}.")
            self.plugins[spec.id] = PluginSupervisor(spec, self._services)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Start polling the server, and start all plugins with ``auto_start``; does not wait until they run."""
        self.registrar.start()
        await asyncio.gather(*(each.start() for each in self.plugins.values() if each.spec.auto_start))

    async def start_plugin(self, plugin_id: str) -> None:
        """Start a plugin that does not run. Raises PluginError for an unknown id."""
        await self.plugin(plugin_id).start()

    async def stop_plugin(self, plugin_id: str) -> None:
        """Stop a plugin: tools, calls, hooks, process. Raises PluginError for an unknown id."""
        await self.plugin(plugin_id).stop()

    async def reload(self, plugin_id: str) -> None:
        """Stop a plugin and start it as its ``plugin.toml`` says now, or add it if it is new; does not wait until it runs.

        Raises PluginError for an unknown id, ConfigurationError for an invalid ``plugin.toml``: then it continues.
        """
        plugin = self.plugins.get(plugin_id)
        if plugin is None:
            await self._take_up(plugin_id)
            return
        spec = plugin.spec
        if spec.has_manifest and spec.folder is not None and (spec.folder / FILE_NAME).is_file():
            found = await asyncio.to_thread(read_spec, spec.folder)
            if found is None:
                await plugin.stop()
                raise PluginError(f"Plugin {plugin_id!r} is stopped: its {FILE_NAME} says that it is not enabled.")
            if found.id != plugin_id:
                raise PluginError(f"The plugin in {spec.folder} is called {found.id!r} now: stop the host and run it again.")
            spec = found
        await plugin.reload(spec)

    async def freeze(self, plugin_id: str) -> None:
        """Refuse calls of a plugin until it is unfrozen or stopped; its process stays. Raises PluginError."""
        await self.plugin(plugin_id).freeze()

    async def unfreeze(self, plugin_id: str) -> None:
        """Undo ``freeze``. Raises PluginError."""
        await self.plugin(plugin_id).unfreeze()

    async def came_up(self, plugin_id: str) -> None:
        """Wait while a plugin is starting. Raises PluginError if that failed; it may still be retried."""
        plugin = self.plugin(plugin_id)
        await self.until(lambda: plugin.state != "starting")
        if plugin.state in ("backoff", "failed"):
            raise PluginError(f"Plugin {plugin_id!r} was started and has ended: {plugin.reason}")

    async def change_config(self, plugin_id: str) -> None:
        """Have a running plugin read its configuration again, without a restart. Raises PluginError."""
        await self.plugin(plugin_id).change_config()

    async def watch(self, *, interval: float = 0.5) -> None:
        """Reload each plugin whose files change, from now until the host is closed.

        Where only its configuration has changed and it has the hook, the hook runs instead.
        """
        known = await asyncio.to_thread(look_at_all, self._folders())
        self._while_open(watch_folders(self._folders, self._take_changes, known, interval=interval))

    async def aclose(self) -> None:
        """Stop all plugins, and close everything. Does not raise; calls in flight have their time."""
        if watching := tuple(self._watching):
            for task in watching:
                task.cancel()
            await asyncio.wait(watching)
        await asyncio.gather(*(each.retire() for each in self.plugins.values()))
        await self.registrar.aclose()

    async def kill(self) -> None:
        """Kill all processes; nothing is left when this returns."""
        await asyncio.gather(*(each.kill() for each in self.plugins.values()))
        await self.registrar.aclose()

    def plugin(self, plugin_id: str) -> PluginSupervisor:
        """Return a plugin. Raises PluginError, which names the known ids, for an unknown one."""
        if (plugin := self.plugins.get(plugin_id)) is None:
            raise PluginError(f"There is no plugin {plugin_id!r}; there are: {', '.join(sorted(self.plugins)) or 'none'}.")
        return plugin

    def status(self) -> list[PluginStatus]:
        """Return the state of every plugin."""
        return [self._status(each) for each in self.plugins.values()]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds()`` is true; it is evaluated after every change of a plugin's or a tool's state."""
        while not holds():
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._changes.append(change)
            await change

    async def until_registered(self, plugin_id: str, *names: str) -> None:
        """Wait until a plugin runs and models can call these tools of it, through restarts.

        One whose connection is gone does not count as running, although its end may not have been noticed yet.
        """

        def are() -> bool:
            plugin = self.plugins[plugin_id]
            active = {name for name, (state, _) in plugin.tools.states().items() if state == "active"}
            return plugin.state == "running" and plugin.calls.is_attached and active.issuperset(names)

        await self.until(are)

    def _status(self, plugin: PluginSupervisor) -> PluginStatus:
        tools = tuple(ToolStatus(name, *state) for name, state in sorted(plugin.tools.states().items()))
        return PluginStatus(plugin.spec.id, plugin.state, plugin.reason, plugin.pid, plugin.restarts, len(plugin.calls), tools)

    async def _take_up(self, plugin_id: str) -> None:
        if self._plugins_folder is not None:
            found = await asyncio.to_thread(find_plugins, self._plugins_folder)
            for spec in found.specs:
                if spec.id == plugin_id and plugin_id not in self.plugins:
                    plugin = self.plugins[plugin_id] = PluginSupervisor(spec, self._services)
                    await plugin.start()
                    return
            for problem in found.problems:
                _logger.warning("%s", problem)
        self.plugin(plugin_id)

    def _folders(self) -> dict[str, Path]:
        return {key: each.spec.folder for key, each in tuple(self.plugins.items()) if each.spec.folder is not None}

    def _take_changes(self, changes: Mapping[str, set[str]]) -> None:
        for change in changes.items():
            self._while_open(self._take_change(*change))  # concurrently: one that is slow to stop does not delay the others

    async def _take_change(self, plugin_id: str, files: set[str]) -> None:
        plugin = self.plugins[plugin_id]
        if plugin.state == "stopped":
            return
        try:
            if await self._is_config_alone(plugin, files):
                plugin.note("Its configuration has changed")
                await plugin.change_config()
            else:
                plugin.note("Its files have changed: it is reloaded")
                await self.reload(plugin_id)
        except (ConfigurationError, PluginError, OSError) as error:
            plugin.note(f"It is not reloaded: {error}", level=logging.ERROR)

    def _while_open(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _is_config_alone(self, plugin: PluginSupervisor, files: set[str]) -> bool:
        """Whether only a plugin's own sections of ``plugin.toml`` have changed, and it has the hook for that."""
        folder = plugin.spec.folder
        if folder is None or files != {str(folder / FILE_NAME)} or "config_change" not in plugin.hooks:
            return False
        if plugin.state not in ("running", "frozen") or not (folder / FILE_NAME).is_file():
            return False
        return await asyncio.to_thread(read_spec, folder) == plugin.spec

    async def _find(self, plugin_id: str, name: str) -> Target | None:
        plugin = self.plugins.get(plugin_id)
        if plugin is None:
            return None
        if plugin.is_frozen or not plugin.calls.is_attached:
            # Which answers that it does not run.
            return Target(plugin.calls, DEFAULT_TIMEOUT, self._secret.encode() if self._remote_name is not None else None)
        wanted = await plugin.tools.wanted(name)
        if wanted is None:
            return None
        tool, signed = wanted
        signed = signed or self._remote_name is not None  # else any machine could call it
        return Target(plugin.calls, tool.timeout_seconds, self._secret.encode() if signed else None)

    def _send_state(self, plugin_id: str, state: LlmToolState) -> None:
        if (plugin := self.plugins.get(plugin_id)) is not None:
            plugin.send_state(state)

    def _changed(self) -> None:
        waiting, self._changes = self._changes, []
        for change in waiting:
            if not change.done():
                change.set_result(None)
