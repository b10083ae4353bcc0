"""Runs a plugin in the test's process, with the protocol of the host but without a socket."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchbay.plugins.connection import encode
from patchbay.plugins.errors import PluginError
from patchbay.plugins.protocol import (
    ENTRY_PREFIX,
    CancelRun,
    ConfigUpdate,
    Freeze,
    LlmToolRegister,
    LlmToolState,
    LlmToolUnregister,
    Message,
    Progress,
    Result,
    Trigger,
    Unfreeze,
)
from patchbay.plugins.runtime import PluginRuntime
from patchbay.plugins.sdk import NekoPluginBase


@dataclass(frozen=True)
class PluginResult:
    """The response to a tool's callback.

    ``output`` is that of the result or the error; ``error`` is the error's short name and ``code`` its code for programs,
    None and "" on success. ``progress`` are the reported texts, fractions and data. ``body`` is the whole response.
    """

    output: Any
    is_error: bool
    error: str | None
    code: str
    progress: tuple[Any, ...]
    body: Mapping[str, Any]


class RunningPlugin:
    """A running plugin: ``plugin`` is the object itself, ``tools`` are those offered to models, by name."""

    def __init__(self, plugin_class: type[NekoPluginBase], plugin_id: str, folder: Path | None, config: Any) -> None:
        self.tools: dict[str, LlmToolRegister] = {}
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[Result]] = {}
        self._progress: dict[str, list[Any]] = {}
        self._ids = itertools.count(1)
        self._runtime = PluginRuntime(plugin_class, plugin_id=plugin_id, send=self._receive, folder=folder, config=config)
        self.plugin: Any = self._runtime.make()
        """The instance of the plugin's class."""

    async def call(self, name: str, /, **arguments: Any) -> PluginResult:
        """Call a tool as a model would. Errors are in the result, not raised. Cancelling this cancels the call."""
        return await self.call_json(name, json.dumps(arguments))

    async def call_json(self, name: str, arguments: str, *, within: float | None = None, call_id: str = "") -> PluginResult:
        """Call a tool with the arguments' JSON text, valid or not.

        ``within`` is the caller's deadline in seconds, None for the tool's own.
        """
        req_id = f"req_{next(self._ids)}"
        self._progress[req_id] = []
        trigger = Trigger(req_id=req_id, entry_id=ENTRY_PREFIX + name, args=arguments, timeout=within, call_id=call_id)
        try:
            result = await self._ask(req_id, trigger)
        except asyncio.CancelledError:
            self._runtime.receive(CancelRun(run_id=req_id))
            raise
        finally:
            progress = tuple(self._progress.pop(req_id))
        return _read(result, progress)

    async def change_config(self, config: Mapping[str, Any] | None = None) -> PluginResult:
        """Give the plugin another configuration (None: what its ``plugin.toml`` says now), and return the result of its hook."""
        req_id = f"req_{next(self._ids)}"
        return _read(await self._ask(req_id, ConfigUpdate(req_id=req_id, config=None if config is None else dict(config))))

    async def freeze(self) -> PluginResult:
        """Freeze the plugin, and return the result of its hook."""
        req_id = f"req_{next(self._ids)}"
        return _read(await self._ask(req_id, Freeze(req_id=req_id)))

    async def unfreeze(self) -> PluginResult:
        """Undo ``freeze``."""
        req_id = f"req_{next(self._ids)}"
        return _read(await self._ask(req_id, Unfreeze(req_id=req_id)))

    async def _start(self, within: float) -> None:
        if failures := self._runtime.context.failures:
            raise failures[0]
        started = await self._runtime.start(within=within)
        if started.status == "failed":
            raise PluginError(f"The startup failed: {started.startup_error}")
        self._runtime.register_tools()
        await asyncio.sleep(0)  # so that the tools are registered

    async def _stop(self) -> None:
        await self._runtime.stop()

    async def _ask(self, req_id: str, message: Message) -> Result:
        answer: asyncio.Future[Result] = self._loop.create_future()
        self._waiting[req_id] = answer
        try:
            encode(message)
            self._runtime.receive(message)
            return await answer
        finally:
            del self._waiting[req_id]

    def _receive(self, message: Message) -> None:
        """Receive a message of the plugin, in any thread."""
        encode(message)
        self._loop.call_soon_threadsafe(self._handle, message)

    def _handle(self, message: Message) -> None:
        if isinstance(message, Result):
            answer = self._waiting.get(message.req_id)
            if answer is not None and not answer.done():
                answer.set_result(message)
        elif isinstance(message, Progress):
            if (items := self._progress.get(message.req_id)) is not None:
                items.extend(_progress_items(message))
        elif isinstance(message, LlmToolRegister):
            self.tools[message.name] = message
            self._runtime.receive(LlmToolState(name=message.name, state="active", registration=message.registration))
        elif isinstance(message, LlmToolUnregister):
            self.tools.pop(message.name, None)


@asynccontextmanager
async def run_plugin(
    plugin_class: type[NekoPluginBase],
    *,
    plugin_id: str = "test",
    folder: Path | None = None,
    config: Mapping[str, Any] | None = None,
    startup_timeout: float = 10.0,
) -> AsyncIterator[RunningPlugin]:
    """Run a plugin, including its startup and shutdown hooks, for the duration of the block.

        async with run_plugin(WeatherPlugin) as plugin:
            result = await plugin.call("get_weather", city="Rome")
            assert result.output == {"city": "Rome", "temp_c": 22}

    ``config`` stands for the plugin's sections of ``plugin.toml``; without it they are read from ``folder``, if there is one.
    Raises what the plugin's ``__init__`` raises, the error of a tool that cannot be registered, and PluginError for a startup
    that fails.
    """
    running = RunningPlugin(plugin_class, plugin_id, folder, config)
    try:
        await running._start(startup_timeout)  # noqa: SLF001  (private to this module)
        yield running
    finally:
        await running._stop()  # noqa: SLF001


def _progress_items(progress: Progress) -> list[Any]:
    items: list[Any] = [each for each in (progress.message, progress.fraction) if each is not None]
    return items if progress.data is None else [*items, json.loads(progress.data)]


def _read(result: Result, progress: tuple[Any, ...] = ()) -> PluginResult:
    body = json.loads(result.data)
    return PluginResult(
        output=body.get("output"),
        is_error=body["is_error"],
        error=body.get("error"),
        code=body.get("code", ""),
        progress=progress,
        body=body,
    )
