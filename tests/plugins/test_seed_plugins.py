"""The examples that the plugins' contract prints (seeds 000 and 001) run as printed, with nothing changed but the import line.

Where a sketch says ``{...}`` it stands for a schema that is left out; those are filled in.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys

import pytest

from patchbay.plugins.protocol import StartupResult
from patchbay.testing import run_plugin
from plugins.host_rig import RigHost, run
from support.seed_lifecycle import LIFECYCLE
from tools_server.rig import serving

ENGLISH = """
from plugin.sdk.plugin import neko_plugin, NekoPluginBase, llm_tool, lifecycle, Ok

@neko_plugin
class WeatherPlugin(NekoPluginBase):
    @lifecycle(id="startup")
    async def startup(self, **_):
        return Ok({"status": "ready"})

    @llm_tool(
        name="get_weather",
        description="Look up the weather in a given city.",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "City name, e.g. 'Beijing'"},
            },
            "required": ["city"],
        },
    )
    async def get_weather(self, *, city: str):
        return {"city": city, "temp_c": 22, "weather": "sunny"}
"""

CHINESE = """
from plugin.sdk.plugin import neko_plugin, NekoPluginBase, llm_tool, lifecycle, Ok
@neko_plugin
class WeatherPlugin(NekoPluginBase):
    @lifecycle(id="startup")
    async def startup(self, **_):
        return Ok({"status": "ready"})
    @llm_tool(
        name="get_weather",
        description="查询指定城市的天气。",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "城市名,如 '北京'"},
            },
            "required": ["city"],
        },
    )
    async def get_weather(self, *, city: str):
        return {"city": city, "temp_c": 22, "weather": "晴"}
"""

PLUGIN = (
    LIFECYCLE
    + """

from plugin.sdk.plugin import NekoPluginBase, plugin

@plugin
class WeatherPlugin(NekoPluginBase):
    async def on_start(self):
        # Register asynchronously so plugin startup doesn't block on it.
        asyncio.create_task(register_with_retry())
        # Also start an HTTP server to receive the callback (FastAPI / aiohttp etc.)
        ...

    async def on_shutdown(self):
        await unregister_on_shutdown()
"""
)

IMPERATIVE = """
from plugin.sdk.plugin import NekoPluginBase, neko_plugin, llm_tool

async def my_async_callable(*, city: str):
    return city

@neko_plugin
class CustomPlugin(NekoPluginBase):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.register_llm_tool(
            name="custom_tool",
            description="...",
            parameters={"type": "object", "properties": {"city": {"type": "string"}}},
            handler=my_async_callable,
            timeout=30.0,
            role=None,
        )

    @llm_tool(name="search", parameters={"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}})
    async def search(self, *, query: str, limit: int = 10):
        return {"output": {"reason": "city not found"}, "is_error": True, "error": "CITY_NOT_FOUND"}
"""


def with_our_import(source: str) -> str:
    assert "from plugin.sdk.plugin import" in source
    return source.replace("from plugin.sdk.plugin import", "from patchbay.plugins import")


@pytest.mark.parametrize(("source", "city", "weather"), [(ENGLISH, "Beijing", "sunny"), (CHINESE, "北京", "晴")])
async def test_the_recommended_plugin_runs_as_printed(tmp_path, source, city, weather):
    (tmp_path / "weather.py").write_text(with_our_import(source), encoding="utf-8")
    async with RigHost(tmp_path, entry="weather:WeatherPlugin") as host:
        assert StartupResult(status="ready", hooks=("startup",)) == await host.ready()
        (tool,) = await host.register()
        assert ("get_weather", 30.0, None, ["city"]) == (
            tool.name,
            tool.timeout_seconds,
            tool.role,
            tool.parameters["required"],
        )
        answer = await host.call("get_weather", arguments={"city": city})
        assert {"output": {"city": city, "temp_c": 22, "weather": weather}, "is_error": False} == answer


def test_the_full_lifecycle_pattern_registers_and_unregisters_by_itself(monkeypatch):
    if importlib.util.find_spec("httpx") is None:  # newer openai clients bring its successor, of the same names
        monkeypatch.setitem(sys.modules, "httpx", importlib.import_module("httpx2"))

    async def main(server, names):
        async with run_plugin(names["WeatherPlugin"]):
            # The example keeps no hold on its task: wait for it.
            await asyncio.gather(*(task for task in asyncio.all_tasks() if "register_with_retry" in repr(task)))
            assert "my_plugin" == (await asyncio.to_thread(server.tools))["get_weather"]["source"]
        assert {} == await asyncio.to_thread(server.tools)

    with serving() as server:
        names: dict[str, object] = {"__name__": "weather"}
        exec(with_our_import(PLUGIN).replace("48911", str(server.port)), names)
        run(main(server, names))


async def test_tools_of_the_imperative_way_and_the_error_shape_are_as_documented():
    names: dict[str, object] = {"__name__": "custom"}
    exec(with_our_import(IMPERATIVE), names)
    async with run_plugin(names["CustomPlugin"]) as plugin:
        assert ["search", "custom_tool"] == [tool["name"] for tool in plugin.plugin.list_llm_tools()]
        assert "Rome" == (await plugin.call("custom_tool", city="Rome")).output
        failed = await plugin.call("search", query="x")
        assert {"output": {"reason": "city not found"}, "is_error": True, "error": "CITY_NOT_FOUND"} == failed.body
