"""A tool of another process over HTTP: the executor, the server's dispatcher, one signed POST, the callback's answer.

The callback is the server of the row "Starlette": what is dearer here than there is what the dispatcher does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.calls import cases, servers, starlette_server
from patchbay import ToolCall
from patchbay.executor import Executor
from patchbay.server.callback_tool import CallbackDispatcher
from patchbay.server.settings import ToolsSettings
from patchbay.tools.registry import DEFAULT_ROLE, Registration, ToolRegistry

UVLOOP = True


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[cases.Opened]:
    """Register the callback with a registry, as ``patchbay serve`` has it, and call it."""
    dispatcher = CallbackDispatcher(ToolsSettings())
    registry = dispatcher.health.registry = ToolRegistry([DEFAULT_ROLE], dispatcher.tool)
    with servers.starlette(folder) as callback:
        registry.register(
            Registration(
                cases.NAME,
                cases.DESCRIPTION,
                cases.PARAMETERS,
                source="bench",
                secret="a secret",
                callback_url=f"http://127.0.0.1:{callback.port}{starlette_server.PATH}",
            )
        )
        executor = Executor(registry.snapshot(DEFAULT_ROLE).tools.values())

        async def call(number: int) -> object:
            [execution] = await executor.run([ToolCall(f"c{number}", cases.NAME, cases.arguments_text(number))])
            return execution.content

        try:
            yield cases.Opened(call, {"callback": callback.pid})
        finally:
            await dispatcher.close()
