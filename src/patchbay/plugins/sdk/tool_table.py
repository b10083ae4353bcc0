"""The tools of one running plugin, and what became of the registration of each.

What lives here: names, states, and waiting for them. What does not: carrying out calls (``runtime``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.plugins.errors import EntryConflictError, FrameError, RegistrationError
from patchbay.plugins.frames import encode
from patchbay.plugins.messages import LlmToolRegister, LlmToolState, LlmToolUnregister, Message, ToolStateName
from patchbay.plugins.sdk.llm_tool import LlmToolMeta
from patchbay.plugins.sdk.plugin_tool import PluginTool


@dataclass(frozen=True, slots=True)
class ToolState:
    """What became of a registration: "pending", "active", "refused" or "stale"; ``reason`` says why, where there is one."""

    state: ToolStateName = "pending"
    reason: str = ""


class ToolTable:
    """Adds and removes tools, from any thread; ``send`` tells the host of it, once ``open`` was called.

    ``tools`` is replaced and never changed, so a call that has begun sees one list.
    """

    def __init__(self, plugin_id: str, send: Callable[[Message], None]) -> None:
        self.tools: dict[str, PluginTool] = {}
        self._plugin_id = plugin_id
        self._send = send
        self._lock = threading.RLock()
        self._open = False
        self._count = 0
        self._numbers: dict[str, int] = {}
        self._states: dict[str, ToolState] = {}
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def add(self, handler: Callable[..., Any], meta: LlmToolMeta) -> None:
        """Add a tool. Raises EntryConflictError if there is one of this name, ConfigurationError for one that cannot work."""
        if meta.name in self.tools:
            raise EntryConflictError(meta.name)
        tool = PluginTool(handler, meta)
        with self._lock:
            if meta.name in self.tools:  # meanwhile, by another thread
                raise EntryConflictError(meta.name)
            self._count += 1
            message = self._registration(tool, self._count)
            try:
                encode(0, message)
            except FrameError as error:
                raise ConfigurationError(f"Tool {meta.name!r} cannot be registered: {error}") from None
            self._numbers[meta.name] = self._count
            self._states[meta.name] = ToolState()
            self.tools = {**self.tools, meta.name: tool}
            if self._open:
                self._send(message)

    def remove(self, name: str) -> bool:
        """Remove a tool, and say whether there was one."""
        with self._lock:
            tool = self.tools.get(name)
            if tool is None:
                return False
            self.tools = {key: each for key, each in self.tools.items() if key != name}
            number = self._numbers.pop(name)
            del self._states[name]
            if self._open:
                self._send(LlmToolUnregister(plugin_id=self._plugin_id, name=name, role=tool.meta.role, registration=number))
            self._wake()
        return True

    def listed(self) -> list[dict[str, Any]]:
        """Return the tools as plain dicts."""
        return [
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
                "timeout_seconds": tool.limit,
                "role": tool.meta.role,
                "annotations": dict(tool.meta.annotations),
            }
            for tool in self.tools.values()
        ]

    def open(self) -> None:
        """Tell the host of all tools, and of every change from now on."""
        with self._lock:
            self._open = True
            for tool in self.tools.values():
                self._send(self._registration(tool, self._numbers[tool.name]))

    def set_state(self, message: LlmToolState) -> None:
        """Take note of what became of a registration. What is said of an earlier one of the same name is passed over."""
        with self._lock:
            if self._numbers.get(message.name) == message.registration:
                self._states[message.name] = ToolState(message.state, message.reason)
                self._wake()

    def state(self, name: str) -> ToolState:
        """Return what became of a tool. Raises KeyError where there is none of this name."""
        return self._states[name]

    async def registered(self, names: Iterable[str] = ()) -> None:
        """Wait until models can call these tools (none: all there are then). Raises RegistrationError for one that is refused.

        A tool that is removed meanwhile is not waited for; a name that is none raises KeyError.
        """
        with self._lock:
            wanted = {name: self._numbers[name] for name in (tuple(names) or tuple(self.tools))}
        loop = asyncio.get_running_loop()
        while True:
            with self._lock:
                if all(self._is_done(name, number) for name, number in wanted.items()):
                    return
                waiter = loop.create_future()
                self._waiters.append((loop, waiter))
            try:
                await waiter
            finally:
                with self._lock:
                    self._waiters = [each for each in self._waiters if each[1] is not waiter]

    def _is_done(self, name: str, number: int) -> bool:
        """Whether a registration is not to be waited for: models can call it, or it is no more."""
        if self._numbers.get(name) != number:
            return True
        state = self._states[name]
        if state.state == "refused":
            raise RegistrationError(name, reason=state.reason)
        return state.state == "active"

    def _registration(self, tool: PluginTool, number: int) -> LlmToolRegister:
        return LlmToolRegister(
            plugin_id=self._plugin_id,
            name=tool.name,
            description=tool.description,
            parameters=dict(tool.parameters),
            timeout_seconds=tool.limit,
            role=tool.meta.role,
            annotations=dict(tool.meta.annotations),
            registration=number,
        )

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for loop, waiter in waiters:
            try:
                loop.call_soon_threadsafe(_set, waiter)
            except RuntimeError:  # its loop was closed: nobody waits any more
                pass


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
