"""The tools that one plugin has, whether they are wanted of the server now or kept from it.

What lives here: what its process has told of them. What does not: what the server knows of them (``reconciler``).
"""

from __future__ import annotations

from collections.abc import Callable

from patchbay.plugins.host.reconciler import Reconciler
from patchbay.plugins.host.server_api import WantedTool
from patchbay.plugins.messages import LlmToolRegister, LlmToolState, LlmToolUnregister

_HELD = "the plugin is frozen"


class PluginTools:
    """The tools of the plugin ``plugin_id``, at most ``most``.

    ``callback_url`` makes the address of a tool of a plugin, ``tell`` tells the plugin what became of one. They are ``closed`` to
    what the plugin says while it is being stopped.
    """

    def __init__(
        self,
        plugin_id: str,
        reconciler: Reconciler,
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
