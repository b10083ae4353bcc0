"""Starts and mounts the hooks of a configuration, and replaces them when it changes."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from patchbay.errors import ConfigurationError
from patchbay.hooks.config.settings import BuiltinSpec, HooksConfig, ProcessSettings
from patchbay.hooks.manager import HookManager, close_hook
from patchbay.hooks.process.child import HookProcessError
from patchbay.hooks.process.client import ProcessHook
from patchbay.hooks.registered import IN_PROCESS, PROCESS
from patchbay.hooks.types import NoHookError, methods_of

BuiltinFactory: TypeAlias = Callable[[BuiltinSpec], Awaitable[object] | object]
"""Makes the hook of an entry of ``hooks.builtins``; may be async."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MountedHook:
    """The result of mounting a configured hook; ``problem`` is empty if it was mounted."""

    name: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Ready:
    """A hook that has started and is not mounted yet."""

    settings: BuiltinSpec | ProcessSettings
    hook: object


class ConfiguredHooks:
    """The hooks of a configuration on a manager; made by ``mount_configured``. ``outcomes`` has the result for each."""

    def __init__(self, manager: HookManager, builtins: Mapping[str, BuiltinFactory], media_dir: Path | None = None) -> None:
        self.outcomes: tuple[MountedHook, ...] = ()
        self._manager = manager
        self._media_dir = media_dir
        self._builtins = builtins
        self._mounted: dict[str, object] = {}
        self._lock = asyncio.Lock()

    async def reload(self, config: HooksConfig) -> None:
        """Replace the mounted hooks with those of ``config``. Raises ConfigurationError.

        The new ones start first, so that there is always an approver. If one that is required does not start, or one that
        would replace a mounted hook of its name, nothing changes; others are left out until the next reload. A running turn
        keeps its hooks, but processes that were replaced are no longer called.
        """
        async with self._lock:
            for note in config.notes:
                _logger.warning("%s", note)
            ready, outcomes = await _started(config, self._builtins, self._media_dir, self._mounted.keys())
            manager = self._manager
            manager.policy, manager.timeouts = config.policy, config.timeouts
            hooks = {each.settings.name: each.hook for each in ready}
            for each in ready:
                _mount(manager, each)
            self._unmount(self._mounted.keys() - hooks.keys())
            self._mounted, self.outcomes = hooks, outcomes

    async def aclose(self) -> None:
        """Unmount these hooks and end their processes."""
        async with self._lock:
            self._unmount(self._mounted)
            hooks, self._mounted = self._mounted.values(), {}
            await asyncio.gather(*(hook.aclose() for hook in hooks if isinstance(hook, ProcessHook)))

    def _unmount(self, names: Collection[str]) -> None:
        """Unmount these hooks, unless the program has mounted another one under the name."""
        for each in self._manager.mounted:
            if each.name in names and each.hook is self._mounted[each.name]:
                self._manager.unmount(each.name)


async def mount_configured(
    manager: HookManager,
    config: HooksConfig,
    *,
    builtins: Mapping[str, BuiltinFactory] | None = None,
    media_dir: Path | None = None,
) -> ConfiguredHooks:
    """Start the hooks of a configuration concurrently and mount them; set the manager's policy and timeouts.

    ``builtins`` are the factories for ``hooks.builtins``, by name. ``media_dir`` is where processes may leave files; a media
    store must accept them from there (``MediaStore.media_dir``). A hook that does not start is logged, reported in
    ``outcomes`` and left out, unless it is required. Raises ConfigurationError for one that is, and for a name without a
    factory; then nothing is mounted, and no process is left.
    """
    configured = ConfiguredHooks(manager, builtins or {}, media_dir)
    await configured.reload(config)
    return configured


async def _started(
    config: HooksConfig, builtins: Mapping[str, BuiltinFactory], media_dir: Path | None, mounted: Collection[str]
) -> tuple[list[_Ready], tuple[MountedHook, ...]]:
    if not config.enabled:
        return [], ()
    for each in config.builtins:
        if each.name not in builtins:
            known = f"there are {', '.join(sorted(builtins))}" if builtins else "there are none here"
            raise ConfigurationError(f"hooks.builtins.{each.name}: unknown builtin hook; {known}.")
    wanted: list[BuiltinSpec | ProcessSettings] = [*config.builtins, *config.processes]
    starting = [asyncio.ensure_future(_start(each, builtins, media_dir)) for each in wanted]
    try:
        if starting:
            await asyncio.wait(starting)
    except asyncio.CancelledError:
        for task in starting:
            task.cancel()
        await asyncio.wait(starting)
        await _close(task.result() for task in starting if not task.cancelled())
        raise
    results = [task.result() for task in starting]
    ready = [each for each in results if isinstance(each, _Ready)]
    outcomes = []
    for settings, result in zip(wanted, results, strict=True):
        problem = "" if isinstance(result, _Ready) else result
        outcomes.append(MountedHook(settings.name, problem))
        if problem and (settings.required or settings.name in mounted):
            await _close(ready)
            why = (
                "The one that is mounted stays; to have it taken down, take it out of the file, or disable it."
                if settings.name in mounted
                else 'It is required: with "required": false it would be left out.'
            )
            section = "processes" if isinstance(settings, ProcessSettings) else "builtins"
            raise ConfigurationError(f"hooks.{section}.{settings.name} does not start: {problem}. {why}")
        if problem:
            _logger.error("The hook %r is left out: %s", settings.name, problem)
    return ready, tuple(outcomes)


async def _start(
    settings: BuiltinSpec | ProcessSettings, builtins: Mapping[str, BuiltinFactory], media_dir: Path | None
) -> _Ready | str:
    """Return the started hook, or why it does not start."""
    if isinstance(settings, ProcessSettings):
        hook = ProcessHook(replace(settings.spec, media_folder=media_dir))
        try:
            await hook.start()
        except HookProcessError as error:
            return str(error)
        return _Ready(settings, hook)
    try:
        made = builtins[settings.name](settings)
        made = await made if inspect.isawaitable(made) else made
        methods = methods_of(made)
        if settings.tools and {"before_tool", "after_tool", "approve_tool"}.isdisjoint(methods):
            return f"it is for the calls of {', '.join(settings.tools)}, and has no method that is asked about calls"
        return _Ready(settings, made)
    except NoHookError as error:
        return str(error).rstrip(".")
    except Exception as error:  # noqa: BLE001  (a factory may raise anything)
        return f"{type(error).__name__}: {error}"


def _mount(manager: HookManager, ready: _Ready) -> None:
    settings, hook = ready.settings, ready.hook
    group, methods = (PROCESS, hook.methods) if isinstance(hook, ProcessHook) else (IN_PROCESS, None)
    manager.mount(
        settings.name,
        hook,
        priority=settings.priority,
        timeouts=settings.timeouts,
        fail_closed=settings.fail_closed if isinstance(settings, BuiltinSpec) else settings.spec.fail_closed,
        group=group,
        methods=methods,
        tools=settings.tools,
    )


async def _close(ready: Iterable[_Ready | str]) -> None:
    """Close hooks that are not mounted."""
    await asyncio.gather(*(close_hook(each.hook) for each in ready if isinstance(each, _Ready)))
