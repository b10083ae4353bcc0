"""A plugin's tool, from the host that runs it: ``InFlightCalls.call``, the socket, the plugin's process, its executor, and back.

The host is the real one and the plugin a real child process; only the server is not there: who registers the tool is no part of
a call.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.calls import cases, plugin_folder
from patchbay.plugins.host.host import PluginHost
from patchbay.plugins.host.server_api import Accepted, Listing, WantedTool
from patchbay.plugins.manifest import find_plugins

UVLOOP = False


class _Everything:
    """A server that takes every tool."""

    async def listing(self) -> Listing | None:
        return None

    async def register(self, tool: WantedTool) -> Accepted:  # noqa: ARG002
        return Accepted()

    async def unregister(self, name: str, *, role: str | None, source: str) -> None:
        pass

    async def clear(self, source: str) -> None:
        pass

    async def aclose(self) -> None:
        pass


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[cases.Opened]:
    """Start the host and its plugin."""
    specs = find_plugins(plugin_folder.write(folder / "plugins")).specs
    with tempfile.TemporaryDirectory(prefix="pb") as sockets:  # a socket's path has to be short
        async with PluginHost(specs, api=_Everything(), callback="http://127.0.0.1:9", folder=Path(sockets)) as host:
            await host.until_registered(plugin_folder.ID, cases.NAME)
            calls = host.plugins[plugin_folder.ID].calls

            async def call(number: int) -> object:
                answer = await calls.call(cases.NAME, cases.arguments_text(number), within=30.0, call_id=f"c{number}")
                return json.loads(answer)["output"]

            yield cases.Opened(call, {"plugin": host.plugins[plugin_folder.ID].pid})
