"""Progress of a plugin's tool from end to end: plugin, socket, host, HTTP, server, executor."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from patchbay import ToolCall
from patchbay.executor import Executor
from patchbay.server.callback_tool import CallbackDispatcher
from patchbay.server.settings import ToolsSettings
from patchbay.tools import Progress
from patchbay.tools.registry import Key, ToolRegistry
from plugins.host_rig import run, write_plugin
from plugins.host_stand import Stand
from tools_server.rig import BOUND, serving

PLUGIN = """
@plugin
class Plugin(PluginBase):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.go_on = asyncio.Event()

    @llm_tool
    async def search(self, query: str):
        yield "asking two libraries"
        await self.go_on.wait()
        yield Progress("one has answered", fraction=0.5, data={"books": 3})
        yield Ok({"query": query, "books": 3})

    @llm_tool
    async def release(self):
        self.go_on.set()
"""


def test_progress_of_a_plugin_reaches_the_executor_while_its_tool_runs(tmp_path):
    folder = write_plugin(tmp_path / "books", "import asyncio\n" + PLUGIN)
    received = []
    first = asyncio.Event()

    def hear(_call, progress):
        received.append(progress)
        first.set()

    async def main(server):
        async with Stand(folder, server=f"http://127.0.0.1:{server.port}") as stand:
            await stand.registered()
            dispatcher = CallbackDispatcher(ToolsSettings(connect_timeout=BOUND))
            registry = dispatcher.health.registry = ToolRegistry(["ann"], dispatcher.tool)
            for name in ("search", "release"):
                registry.register(
                    server.app.registry.get(Key(None, name)), trusted=True
                )  # with the secret that calls are signed with
            executor = Executor(registry.snapshot("ann").tools.values(), on_progress=hear)
            searching = asyncio.create_task(executor.run([ToolCall("c1", "search", '{"query": "whales"}')]))
            await first.wait()
            assert [Progress("asking two libraries")] == received
            await executor.run([ToolCall("c2", "release", "{}")])
            [execution] = await searching
            assert ({"query": "whales", "books": 3}, None) == (execution.value, execution.error)
            assert [Progress("one has answered", 0.5, {"books": 3})] == received[1:]
            again = await asyncio.to_thread(server.call, "search", arguments={"query": "squids"})
            assert {"query": "squids", "books": 3} == again["output"]
            await dispatcher.close()

    with serving() as server:
        run(main(server))


def test_of_the_three_deadlines_that_of_the_tool_is_reported(tmp_path: Path) -> None:
    slow = write_plugin(
        tmp_path / "slow",
        """
        import asyncio
        class Plugin(NekoPluginBase):
            @llm_tool(timeout=4)
            async def wait(self):
                await asyncio.Event().wait()
        """,
    )

    async def main(server: Any) -> Any:
        async with Stand(slow, server=f"http://127.0.0.1:{server.port}") as stand:
            await stand.registered()
            return await asyncio.to_thread(server.call, "wait")

    with serving() as server:
        answer = run(main(server))
    assert (True, "TOOL_TIMEOUT") == (answer["is_error"], answer["error"])
    assert {"error": "tool 'wait' timed out after 4.0s"} == json.loads(answer["content"])
