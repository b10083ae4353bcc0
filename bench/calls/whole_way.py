"""The whole way of a plugin's tool: a program asks ``patchbay serve``, which calls back the host, which asks the plugin.

All three are the real commands, each a process of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.calls import cases, plugin_folder, post, servers
from bench.places import UnavailableError
from bench.processes import tree

UVLOOP = True
_LIMIT = 30.0


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[cases.Opened]:
    """Start the server and the host, and wait until the plugin's tool can be called."""
    plugins = plugin_folder.write(folder / "plugins")
    with (
        servers.patchbay_serve(folder, store=f"sqlite:///{folder / 'tools.db'}") as server,
        servers.patchbay_plugins(plugins, folder, server_port=server.port) as host,
    ):
        async with post.posting(server.port) as send:

            async def call(number: int) -> object:
                message = {"name": cases.NAME, "arguments": cases.arguments(number), "call_id": f"c{number}"}
                answer = await send("/api/tools/call", message)
                return answer["output"] if answer["ok"] else answer["error"]

            async with asyncio.timeout(_LIMIT):
                while (came := await call(0)) != cases.expected(0):
                    if host.poll() is not None:
                        raise UnavailableError(f"the host of plugins ended: {came}")
                    await asyncio.sleep(0.02)
            _, plugin = tree(host.pid)
            yield cases.Opened(call, {"server": server.pid, "host": host.pid, "plugin": plugin})
