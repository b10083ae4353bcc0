"""``McpHost``: several MCP servers whose tools are in a registry."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from patchbay._text import plural
from patchbay.errors import ConfigurationError
from patchbay.mcp.config import McpServer, as_servers, checked, unique
from patchbay.mcp.pins import Pins
from patchbay.tools import Tool, Toolset
from patchbay.tools.registry import DEFAULT_ROLE, Change, Registration, ToolRegistry

if TYPE_CHECKING:  # the SDK: 1.9 s
    from patchbay.mcp.connection import McpConnection, State
    from patchbay.mcp.tools import McpTool

EXTRA: Final = "pip install 'patchbay-tools[mcp]'"
PINS_INTERVAL: Final = 2.0
"""Seconds between checks of the file of accepted definitions, while a change waits to be accepted."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The state of a server; ``problem`` says why it is not ready. ``tools`` are the names of its tools in the registry.

    ``changed`` are the own names of tools whose definition has changed since it was accepted; they are not in the registry.
    """

    name: str
    state: State
    problem: str
    tools: tuple[str, ...]
    changed: tuple[str, ...] = ()


class McpHost:
    """Connects ``servers`` and keeps their tools in ``registry``, with the source ``mcp:NAME``.

    A server's tools appear when it has listed them and follow its changes; they are hidden while it is not connected. A name that
    another source has already is left out, and logged. With ``pins`` a definition that changes after it was accepted is not used
    before that is accepted too; without, changes are followed. ``on_change`` gets each change of the registry.

    Disabled servers are ignored. The SDK is imported when the host starts. The connections belong to the event loop in which the
    host was started; when that has ended, ``start`` begins again. Calls may come from any. Raises ConfigurationError for two
    servers of one name.
    """

    def __init__(
        self,
        servers: Iterable[McpServer],
        registry: ToolRegistry,
        *,
        on_change: Callable[[Change], object] | None = None,
        pins: Pins | None = None,
    ) -> None:
        self.servers = tuple(each for each in unique(servers) if not each.disabled)
        self.registry = registry
        self._on_change = on_change
        self._mounts: dict[str, _Mount] = {}
        self.pins = pins
        self._watcher: asyncio.Task[None] | None = None

    async def start(self, *, wait: bool = True) -> None:
        """Connect the servers, once. With ``wait`` return when each is ready, or its first attempt has failed.

        Raises ConfigurationError without the SDK, and for a variable that a server needs and that is not set.
        """
        if not self.servers:
            return
        checked(self.servers)
        if not self._is_running:
            await import_sdk()
        if not self._is_running:  # nor begun by another call meanwhile
            self._mounts = {each.name: _Mount(self, each) for each in self.servers}
            self._watch_pins()
        if wait:
            await asyncio.gather(*(each.connection.wait_started() for each in self._mounts.values()))

    async def update(self, servers: Iterable[McpServer]) -> str:
        """Replace the servers; those that did not change stay connected. Return a summary.

        Raises ConfigurationError, and changes nothing then.
        """
        wanted = {each.name: each for each in checked(servers)}
        if wanted:
            await import_sdk()
        gone = [each for each in self.servers if wanted.get(each.name) != each]
        self.servers = tuple(wanted.values())
        await self._unmount([each.name for each in gone])
        for each in gone:
            self.announce(self.registry.clear(each.source, inside=True))
        for name in wanted.keys() - self._mounts.keys():
            self._mounts[name] = _Mount(self, wanted[name])
        self._watch_pins()
        names = [f"MCP servers {', '.join(wanted)}"] if wanted else []
        removed = [each.name for each in gone if each.name not in wanted]
        return "; ".join([*names, *([f"no more: MCP servers {', '.join(removed)}"] if removed else [])])

    async def _unmount(self, names: Iterable[str]) -> None:
        mounts = [self._mounts.pop(name) for name in names if name in self._mounts]
        await asyncio.gather(*(each.connection.aclose() for each in mounts))

    def _watch_pins(self) -> None:
        if self.pins is not None and self._mounts and (self._watcher is None or self._watcher.done()):
            self._watcher = asyncio.create_task(self._watch(self.pins))

    async def aclose(self) -> None:
        """End the connections and remove the tools."""
        if self._watcher is not None and not self._watcher.get_loop().is_closed():
            self._watcher.cancel()
        self._watcher = None
        await self._unmount(list(self._mounts))
        for each in self.servers:
            self.announce(self.registry.clear(each.source, inside=True))

    @property
    def _is_running(self) -> bool:
        """Whether there are connections: they do not outlive their event loop."""
        return any(each.connection.is_alive for each in self._mounts.values())

    @property
    def status(self) -> tuple[ServerStatus, ...]:
        """The state of each server."""
        return tuple(
            ServerStatus(name, each.connection.state, each.connection.problem, tuple(each.tools), tuple(sorted(each.changed)))
            for name, each in self._mounts.items()
        )

    def changes(self, name: str) -> dict[str, tuple[Any, Any]]:
        """Return the accepted and the new definition of each changed tool of a server; none for an unknown one."""
        server = next((each for each in self.servers if each.name == name), None)
        return self.pins.changed(server) if self.pins is not None and server is not None else {}

    def accept(self, name: str, shown: str) -> None:
        """Accept a server's changed definitions, whose digest a person was shown, and use them (``Pins.accept``).

        Raises ConfigurationError.
        """
        server = next((each for each in self.servers if each.name == name), None)
        if self.pins is None or server is None:
            raise ConfigurationError(f"There are no accepted definitions of {name!r}.")
        self.pins.accept(server, shown)
        if name in self._mounts:
            self._mounts[name].update_again()

    @property
    def restarts(self) -> list[tuple[str, int]]:
        """The servers, with how often each was connected to again."""
        return [(name, each.connection.restarts) for name, each in self._mounts.items()]

    @property
    def running_calls(self) -> int:
        """The number of calls that wait for a server."""
        return sum(each.connection.running_calls for each in self._mounts.values())

    async def _watch(self, pins: Pins) -> None:
        """Register tools again when their changed definitions have been accepted by another process."""
        while True:
            await asyncio.sleep(PINS_INTERVAL)
            if any(each.changed for each in self._mounts.values()) and pins.reload():
                for each in self._mounts.values():
                    each.update_again()

    def announce(self, change: Change) -> None:
        """Pass a change of the registry on."""
        if change.changed and self._on_change is not None:
            self._on_change(change)


async def try_server(server: McpServer) -> tuple[ServerStatus, tuple[Tool, ...]]:
    """Connect to a server, list its tools, and leave it; return its status, and the tools."""
    registry = ToolRegistry()
    host = McpHost([replace(server, roles=(), disabled=False)], registry)
    try:
        await host.start()
        return host.status[0], tuple(registry.snapshot(DEFAULT_ROLE).tools.values())
    finally:
        await host.aclose()


class McpToolset(Toolset):
    """The tools of MCP servers, as an entry of the ``tools`` of a runner or agent.

    ``servers`` are McpServers, the mapping of ``mcpServers``, or the path of a file with it. They are started when the first turn
    begins, which waits until each is ready or has failed. Raises ConfigurationError.
    """

    def __init__(self, *servers: Any) -> None:
        self._host = McpHost(unique(each for given in servers for each in as_servers(given)), ToolRegistry())

    @property
    def status(self) -> tuple[ServerStatus, ...]:
        """The state of each server."""
        return self._host.status

    async def get_tools(self) -> Sequence[Tool]:
        """Return the tools of the servers that are connected. Raises ConfigurationError."""
        await self._host.start()
        return list(self._host.registry.snapshot(DEFAULT_ROLE).tools.values())

    async def aclose(self) -> None:
        """End the servers; the next turn starts them again."""
        await self._host.aclose()


class _Mount:
    """A server of a host: its connection, and its tools in the registry by name."""

    def __init__(self, host: McpHost, server: McpServer) -> None:
        from patchbay.mcp.connection import McpConnection

        self.tools: dict[str, str] = {}  # each with its definition as JSON
        self.changed: set[str] = set()
        self._host = host
        self._server = server
        self._definitions: tuple[Any, ...] = ()
        self._reported: set[str] = set()
        self.connection: McpConnection = McpConnection(
            server, on_tools=self._update, on_down=self._hide, on_invalid=self._leave_out
        )
        self.connection.start_connecting()

    def update_again(self) -> None:
        """Register the tools again with what has been accepted meanwhile."""
        if self._definitions and self.connection.client is not None:
            self._update(self._definitions)

    def _update(self, definitions: tuple[Any, ...]) -> None:
        """Register the server's tools as they are now, and remove those that it no longer has, or has changed unasked."""
        registry, server = self._host.registry, self._server
        self._definitions = definitions
        offered = [each for each in definitions if server.offers(each.name)]
        if (pins := self._host.pins) is not None:
            self.changed = pins.check(server, {each.name: _plain(each) for each in offered})
        found: dict[str, str] = {}
        for definition in offered:
            if definition.name in self.changed:
                why = "its definition has changed, and it is not used before that is accepted"
                self._report(definition.name, f"{why}: patchbay mcp accept {shlex.quote(server.name)}")
                continue
            if (tool := self._make(definition)) is None:
                continue
            if tool.name in found:
                self._report(tool.name, "the server has two tools of this name; the second one is left out")
                continue
            text = _as_json(definition)
            if self.tools.get(tool.name) == text or self._register(tool):
                found[tool.name] = text
        for reader in self._readers():
            found.setdefault(reader.name, "")
            if self.tools.get(reader.name) != "":
                self._register(reader)
        for name in self.tools.keys() - found.keys():
            self._host.announce(registry.unregister(name, expected_source=server.source, inside=True))
        is_new = found.keys() != self.tools.keys()
        self.tools = found
        self._host.announce(registry.show(server.source))
        if is_new:
            _logger.info("The MCP server %r offers %s", server.name, plural(len(found), "tool"))

    def _readers(self) -> Iterator[Tool]:
        """Yield the tools that read the server's resources and prompts, where it has them and its settings ask for that."""
        server, client = self._server, self.connection.client
        if client is None or not (server.resources or server.prompts):
            return
        from patchbay.mcp.resources import GetPrompt, ReadResource

        if server.resources and client.server_capabilities.resources is not None:
            yield ReadResource(server, self.connection.request)
        if server.prompts and client.server_capabilities.prompts is not None:
            yield GetPrompt(server, self.connection.request)

    def _make(self, definition: Any) -> McpTool | None:
        from patchbay.mcp.limits import MAX_DEFINITION
        from patchbay.mcp.tools import McpTool

        name = str(definition.name)[:100]
        try:
            if not definition.name or len(_as_json(definition)) > MAX_DEFINITION:
                raise ConfigurationError(f"it has no name, or its definition has more than {MAX_DEFINITION} characters")  # noqa: TRY301
            tool = McpTool(self._server, definition, self.connection.call)
            tool.check()
        except (ConfigurationError, RecursionError) as error:
            self._leave_out(name, str(error))
            return None
        if tool.problem is not None:
            self._report(name, f"it is not offered to models: {tool.problem}")
        return tool

    def _register(self, tool: Tool) -> bool:
        server, done = self._server, False
        for role in server.roles or (None,):
            registration = Registration.of(tool, source=server.source, role=role)
            try:
                change = self._host.registry.register(registration, trusted=True)
            except ConfigurationError as error:
                self._leave_out(tool.name, str(error))
                return False
            done = done or change.ok
            self._host.announce(change)
            for failure in change.failed_roles:
                self._report(tool.name, f"it is left out for {failure.role!r}: {failure.error}")
        return done

    def _hide(self) -> None:
        self._host.announce(self._host.registry.hide(self._server.source))

    def _leave_out(self, name: str, problem: str) -> None:
        self._report(name, f"it is left out: {problem}")

    def _report(self, name: str, problem: str) -> None:
        """Log a problem once."""
        text = f"The tool {name!r} of the MCP server {self._server.name!r}: {problem}"
        if text not in self._reported and len(self._reported) < 1000:
            self._reported.add(text)
            _logger.warning("%s", text)


def _as_json(definition: Any) -> str:
    """Return a definition as canonical JSON."""
    return json.dumps(_plain(definition), sort_keys=True, separators=(",", ":"))


def _plain(definition: Any) -> dict[str, Any]:
    """Return a definition as JSON data."""
    value: dict[str, Any] = definition.model_dump(by_alias=True, mode="json", exclude_none=True)
    return value


async def import_sdk() -> None:
    """Import the SDK, in a thread. Raises ConfigurationError where it is not installed."""
    try:
        await asyncio.to_thread(__import__, "patchbay.mcp.connection")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in ("mcp", "mcp_types", "httpx2", "anyio"):
            raise ConfigurationError(f"MCP servers need the MCP SDK, which is not installed: {EXTRA}") from None
        raise
