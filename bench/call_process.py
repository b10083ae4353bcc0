"""One way of a tool call, measured in a process of its own: ``python -m bench.call_process WAY WARM ONE_BY_ONE TOGETHER FOLDER``.

It is the caller, and reads the clocks of all processes that take part. It writes its figures to ``found.json`` in the folder. It runs
in the peers' environments too: beyond the standard library each way imports what it needs. ``WAY`` may be ``serve``: the tool as a
server of the official MCP SDK over stdio, which two of the ways start.
"""

# No "from __future__ import annotations" here: the tool's annotations are to be types, as every framework can read them.

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

from bench.places import ROOT
from bench.processes import cpu_clock, tree

AT_ONCE = 16
FOUND = "found.json"
NAME = "echo"
_SERVE = ["-m", "bench.call_process", "serve"]
_SETTLE = 0.05
"""Seconds between the last answer and the second reading: acknowledgements and the like come after the answer."""
_LIMIT = 60.0
"""Seconds for the calls of one kind."""
_PLUGIN = {
    "plugin.toml": '[plugin]\nid = "bench"\nentry = "main:Bench"\n',
    "main.py": '''\
from patchbay.plugins import PluginBase, llm_tool, plugin


@plugin
class Bench(PluginBase):
    @llm_tool
    async def echo(self, index: int, text: str, limit: float = 1.0):
        """Say the words again."""
        return f"{index}: {text}"
''',
}


async def echo(index: int, text: str, limit: float = 1.0) -> str:  # noqa: ARG001
    """Say the words again."""
    return f"{index}: {text}"


def arguments(number: int) -> dict[str, Any]:
    """The arguments of a call; ``limit`` is left to its default."""
    return {"index": number, "text": "some words"}


def arguments_text(number: int) -> str:
    """The same as a model writes it."""
    return f'{{"index": {number}, "text": "some words"}}'


def expected(number: int) -> str:
    """The result of a call."""
    return f"{number}: some words"


@dataclass(frozen=True)
class Opened:
    """An open way to the tool. ``call`` makes the call of a number and returns its result.

    ``pids`` are the other processes that take part, by their names.
    """

    call: Callable[[int], Awaitable[object]]
    pids: Mapping[str, int] = field(default_factory=dict)


Way = Callable[[Path], AbstractAsyncContextManager[Opened]]
"""Opens a way, and closes it with all its processes; the path is a folder for files."""


@asynccontextmanager
async def same_process(_folder: Path) -> AsyncIterator[Opened]:
    """A function, registered for a role, and called through the executor over the role's snapshot."""
    from patchbay import ToolCall, tool
    from patchbay.executor import Executor
    from patchbay.tools.manager import LLMSessionManager
    from patchbay.tools.registry import DEFAULT_ROLE, ToolRegistry

    manager = LLMSessionManager(DEFAULT_ROLE, ToolRegistry([DEFAULT_ROLE]))
    manager.register_tool(tool(echo))
    executor = Executor(manager.snapshot().tools.values())

    async def call(number: int) -> object:
        [execution] = await executor.run([ToolCall(f"c{number}", NAME, arguments_text(number))])
        return execution.content

    yield Opened(call)


@asynccontextmanager
async def plugin(folder: Path) -> AsyncIterator[Opened]:
    """A plugin's tool, from a real host: the socket, the plugin's process, its executor, and back."""
    from patchbay.plugins.host.host import PluginHost
    from patchbay.plugins.host.server_api import Accepted
    from patchbay.plugins.manifest import find_plugins

    source = folder / "plugins" / "bench"
    source.mkdir(parents=True)
    for name, text in _PLUGIN.items():
        (source / name).write_text(text, encoding="utf-8")
    specs = find_plugins(source.parent).specs
    # The registration of the tool is no part of its call: this tool server accepts everything.
    server = AsyncMock(**{"listing.return_value": None, "register.return_value": Accepted()})
    with tempfile.TemporaryDirectory(prefix="pb") as sockets:  # a socket's path has to be short
        async with PluginHost(specs, api=server, callback="http://127.0.0.1:9", folder=Path(sockets)) as host:
            await host.until_registered("bench", NAME)
            calls = host.plugins["bench"].calls

            async def call(number: int) -> object:
                answer = await calls.call(NAME, arguments_text(number), within=30.0, call_id=f"c{number}")
                return json.loads(answer)["output"]

            yield Opened(call, {"plugin": host.plugins["bench"].pid})


@asynccontextmanager
async def mcp_mounted(_folder: Path) -> AsyncIterator[Opened]:
    """A mounted MCP server over stdio: the executor, our transport, the official SDK's client."""
    from patchbay import ToolCall
    from patchbay.executor import Executor
    from patchbay.mcp import McpHost, McpServer
    from patchbay.tools.registry import DEFAULT_ROLE, ToolRegistry

    host = McpHost([McpServer(name="bench", command=sys.executable, args=tuple(_SERVE), cwd=str(ROOT))], ToolRegistry())
    try:
        await host.start()
        _, server = tree(os.getpid())
        (tool,) = host.registry.snapshot(DEFAULT_ROLE).tools.values()
        executor = Executor([tool])

        async def call(number: int) -> object:
            [execution] = await executor.run([ToolCall(f"c{number}", tool.name, arguments_text(number))])
            return execution.value["result"]

        yield Opened(call, {"server": server})
    finally:
        await host.aclose()


@asynccontextmanager
async def mcp_sdk(_folder: Path) -> AsyncIterator[Opened]:
    """The same server over stdio by the official SDK's client alone."""
    from mcp import Client, StdioServerParameters

    async with Client(StdioServerParameters(command=sys.executable, args=_SERVE, cwd=ROOT)) as client:
        _, server = tree(os.getpid())

        async def call(number: int) -> object:
            return (await client.call_tool(NAME, arguments(number))).content[0].text

        yield Opened(call, {"server": server})


WAYS: dict[str, Way] = {each.__name__: each for each in (same_process, plugin, mcp_mounted, mcp_sdk)}
WITHOUT_UVLOOP = (plugin,)
"""``patchbay plugins run`` has the event loop of asyncio; the others run on uvloop, as ``patchbay serve`` does."""


async def measure(way: Way, folder: Path, *, warm: int, one_by_one: int, together: int) -> dict[str, Any]:
    """CPU microseconds of each process for a call, one after the other and 16 at once.

    Raises RuntimeError for a call with another result than its own.
    """
    numbers = iter(range(sys.maxsize))
    async with way(folder) as opened:
        for width in (1, AT_ONCE) if warm else ():
            await _make(opened, numbers, warm // 2, width)
        blocks = (("one_by_one", one_by_one, 1), ("together", together, AT_ONCE))
        return {name: await _block(opened, numbers, count, width) for name, count, width in blocks}


async def _block(opened: Opened, numbers: Iterator[int], count: int, width: int) -> dict[str, float]:
    gc.collect()  # the collector stays on: users have it on
    before = _clocks(opened)
    await _make(opened, numbers, count, width)
    await asyncio.sleep(_SETTLE)
    return {name: (after - before[name]) / count * 1e6 for name, after in _clocks(opened).items()}


def _clocks(opened: Opened) -> dict[str, float]:
    """Seconds of CPU so far, of the caller first; threads are counted, children are not."""
    return {"caller": time.process_time(), **{name: cpu_clock(pid) for name, pid in opened.pids.items()}}


async def _make(opened: Opened, numbers: Iterator[int], count: int, width: int) -> None:
    """Make ``count`` calls, ``width`` at a time."""
    left = iter(range(count))

    async def caller() -> None:
        for _ in left:
            number = next(numbers)
            result = await opened.call(number)
            if result != expected(number):
                raise RuntimeError(f"the result of call {number} is {result!r}")

    async with asyncio.timeout(_LIMIT):
        await asyncio.gather(*(caller() for _ in range(width)))


def serve() -> None:
    """Serve the tool over stdio by the official MCP SDK."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("bench", log_level="ERROR")
    server.add_tool(echo)
    server.run("stdio")


def main() -> None:
    """Measure one way, or serve the tool."""
    logging.disable(logging.CRITICAL)
    if sys.argv[1] == "serve":
        serve()
        return
    way, warm, one_by_one, together = WAYS[sys.argv[1]], *map(int, sys.argv[2:5])
    folder = Path(sys.argv[5])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that every process of the way is stopped
    factory = None
    if way not in WITHOUT_UVLOOP:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        found = runner.run(measure(way, folder, warm=warm, one_by_one=one_by_one, together=together))
    (folder / FOUND).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
