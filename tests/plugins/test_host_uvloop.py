"""The host on uvloop, as under uvicorn: its transports are not subclasses of asyncio's."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from plugins.host_rig import BOUND, write_plugin
from plugins.host_stand import registered

uvloop = pytest.importorskip("uvloop")

PLUGIN = """
import asyncio

@neko_plugin
class Plugin(NekoPluginBase):
    @llm_tool(timeout=60)
    async def get_weather(self, *, city: str):
        return {"city": city}

    @llm_tool(timeout=60)
    async def hang(self):
        print("began")
        await asyncio.Event().wait()
"""


def test_host_on_uvloop_calls_plugins_and_detects_their_end(tmp_path):
    async def main():
        async with registered(write_plugin(tmp_path / "weather", PLUGIN)) as (_, stand):
            bodies = await asyncio.gather(*(stand.call("weather", "get_weather", {"city": str(n)}) for n in range(16)))
            assert [{"output": {"city": str(n)}, "is_error": False} for n in range(16)] == bodies
            big = "x" * 1_000_000
            assert big == (await stand.call("weather", "get_weather", {"city": big}))["output"]["city"]
            under_way = asyncio.create_task(stand.call("weather", "hang"))
            await stand.printed("weather", "began")
            os.kill(stand.host.plugins["weather"].pid, signal.SIGKILL)
            assert "PLUGIN_NOT_RUNNING" == (await under_way)["error"]
            await stand.registered()
            assert "b" == (await stand.call("weather", "get_weather", {"city": "b"}))["output"]["city"]

    async def bounded():
        async with asyncio.timeout(BOUND):
            await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())
