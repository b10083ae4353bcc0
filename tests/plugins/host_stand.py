"""A whole host before a fake server: real processes, real sockets, real HTTP."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

from patchbay.plugins.host import HostPolicy, PluginHost, PluginSpec
from patchbay.plugins.manifest import read_spec
from plugins.host_rig import BOUND
from plugins.tool_server import Served, ToolServer, post

QUICK = HostPolicy(poll_interval=0.2, poll_retry=0.05, drain=5.0, grace=2.0, backoff_first=0.05, refused_retry=0.3)


class Stand:
    """A host that runs the plugins of these folders, with its callback served, for ``server``."""

    def __init__(self, *folders: Path, server: ToolServer | str, policy: HostPolicy = QUICK, **options: Any) -> None:
        self._folders = folders
        self._server = server
        self._policy = policy
        self._options = options
        self.host: PluginHost

    async def __aenter__(self) -> Self:
        self.run_folder = Path(tempfile.mkdtemp(prefix="pb-"))
        self._served = Served(self._app)
        await self._served.start()
        specs = [spec for folder in self._folders if (spec := read_spec(folder)) is not None]
        self.host = PluginHost(
            specs,
            server=self._server if isinstance(self._server, str) else self._server.url,
            callback=self._served.url,
            folder=self.run_folder,
            policy=self._policy,
            **self._options,
        )
        await self.host.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(asyncio.CancelledError):
            await self.host.aclose()
        await self._served.close()
        shutil.rmtree(self.run_folder)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await self.host.app(scope, receive, send)

    async def call(self, plugin_id: str, name: str, arguments: Any = None, **options: Any) -> Any:
        """Call a tool through the callback, as a server would."""
        secret = None if isinstance(self._server, str) else self._server.secret(name)
        body = {"name": name, "arguments": arguments or {}, "call_id": "c"}
        return await post(self.url(plugin_id, name), body, **{"secret": secret, **options})

    def url(self, plugin_id: str, name: str) -> str:
        return f"{self._served.url}/api/llm-tools/callback/{plugin_id}/{name}"

    def spec(self, plugin_id: str) -> PluginSpec:
        return self.host.plugins[plugin_id].spec

    def lines(self, plugin_id: str) -> list[tuple[str, str]]:
        return [(line.stream, line.text) for line in self.host.book.last(plugin_id)]

    async def registered(self, *plugin_ids: str) -> None:
        """Wait until the tools that stand in the files of these plugins (none: all) can be called."""
        for plugin_id in plugin_ids or self.host.plugins:
            folder = self.spec(plugin_id).folder
            assert folder is not None
            names = re.findall(r"@llm_tool.*\n +(?:async )?def (\w+)", (folder / "main.py").read_text())
            await self.host.until_registered(plugin_id, *names)

    async def printed(self, plugin_id: str, text: str) -> None:
        """Wait until a plugin has printed or logged something."""
        received = asyncio.Event()
        end = self.host.book.subscribe(lambda line: received.set() if line.plugin == plugin_id and text in line.text else None)
        try:
            if not any(text in line for _, line in self.lines(plugin_id)):
                await received.wait()
        finally:
            end()


@asynccontextmanager
async def registered(*folders: Path, policy: HostPolicy = QUICK) -> AsyncIterator[tuple[ToolServer, Stand]]:
    """A server and a host whose plugins have registered all of their tools."""
    async with ToolServer() as server, Stand(*folders, server=server, policy=policy) as stand:
        await stand.registered()
        yield server, stand


__all__ = ["BOUND", "QUICK", "Stand", "registered"]
