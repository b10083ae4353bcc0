"""A plugin's tools that come and go, and its life, as its author sees them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from patchbay.plugins import (
    EntryConflictError,
    Err,
    NekoPluginBase,
    Ok,
    PluginError,
    RegistrationError,
    lifecycle,
    llm_tool,
)
from patchbay.plugins.protocol import LlmToolState
from patchbay.testing import run_plugin
from plugins.host_rig import BOUND

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Shop(NekoPluginBase):
    @llm_tool(description="Open the shop.", parameters=CITY, timeout=5, role="clerk", annotations={"destructiveHint": True})
    async def open_shop(self, *, city: str):
        return city


async def test_a_plugin_lists_its_tools_as_plain_dicts():
    expected = {
        "name": "open_shop",
        "description": "Open the shop.",
        "parameters": CITY,
        "timeout_seconds": 5.0,
        "role": "clerk",
        "annotations": {"destructive": True},
    }
    async with run_plugin(Shop) as running:
        assert [expected] == running.plugin.list_llm_tools()


async def test_a_tool_may_be_registered_and_unregistered_while_the_plugin_runs():
    async def add(a: int, b: int):
        return a + b

    async with run_plugin(Shop) as running:
        plugin = running.plugin
        schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
        assert plugin.register_llm_tool(name="add", description="Add.", parameters=schema, handler=add, timeout=30.0, role=None)
        assert "pending" == plugin.llm_tool_state("add").state
        await plugin.registered("add", timeout=BOUND)
        assert "active" == plugin.llm_tool_state("add").state
        assert 5 == (await running.call("add", a=2, b=3)).output
        assert plugin.unregister_llm_tool("add")
        assert not plugin.unregister_llm_tool("add")
        await asyncio.sleep(0)
        assert ["open_shop"] == list(running.tools)
        assert "TOOL_NOT_REGISTERED" == (await running.call("add", a=2, b=3)).error
        assert plugin.register_llm_tool("add", "Add.", schema, add)


async def test_taken_name_is_a_conflict_without_changes():
    async with run_plugin(Shop) as running:
        with pytest.raises(EntryConflictError, match="open_shop"):
            running.plugin.register_llm_tool("open_shop", "", {}, lambda: 1)
        assert "Rome" == (await running.call("open_shop", city="Rome")).output


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"handler": None}, TypeError),
        ({"handler": "text"}, TypeError),
        ({"name": "a b"}, ValueError),
        ({"parameters": []}, TypeError),
        ({"parameters": {"type": "no such type"}}, ValueError),
        ({"parameters": {"type": "array"}}, ValueError),
        ({"parameters": {"type": ["object", "null"]}}, ValueError),
        ({"parameters": {"properties": {"x": {"const": {1, 2}}}}}, ValueError),
        ({"parameters": {"properties": {"x": {"maximum": 2**70}}}}, ValueError),
        ({"timeout": 0}, ValueError),
        ({"parameters": CITY, "handler": lambda town: town}, ValueError),
        ({"description": "\ud800"}, ValueError),
    ],
)
async def test_invalid_tool_is_refused_at_registration(options, error):
    async with run_plugin(Shop) as running:
        with pytest.raises(error):
            running.plugin.register_llm_tool(**{"name": "new", "handler": lambda: 1, **options})
        assert ["open_shop"] == [tool["name"] for tool in running.plugin.list_llm_tools()]


async def test_tools_may_be_registered_from_any_thread():
    async with run_plugin(Shop) as running:
        plugin = running.plugin
        names = [f"tool_{n}" for n in range(50)]

        def register(name):
            plugin.register_llm_tool(name, "", None, lambda: name)

        await asyncio.gather(*(asyncio.to_thread(register, name) for name in names))
        await plugin.registered(timeout=BOUND)
        assert sorted([*names, "open_shop"]) == sorted(running.tools)


async def test_waiting_ends_with_the_reason_when_a_tool_is_refused():
    async with run_plugin(Shop) as running:
        plugin, table = running.plugin, running.plugin.ctx.tools
        number = running.tools["open_shop"].registration
        table.set_state(LlmToolState(name="open_shop", state="stale", registration=number))
        waiting = asyncio.create_task(plugin.registered())
        await asyncio.sleep(0)
        table.set_state(LlmToolState(name="open_shop", state="active", registration=number + 1))  # of another one
        with pytest.raises(TimeoutError):
            await plugin.registered(timeout=0)
        table.set_state(LlmToolState(name="open_shop", state="refused", reason="taken", registration=number))
        with pytest.raises(RegistrationError, match="'open_shop' was refused: taken"):
            await waiting
        state = plugin.llm_tool_state("open_shop")
    assert ("refused", "taken") == (state.state, state.reason)


async def test_unregistered_tool_is_not_awaited():
    async with run_plugin(Shop) as running:
        number = running.tools["open_shop"].registration
        running.plugin.ctx.tools.set_state(LlmToolState(name="open_shop", state="pending", registration=number))
        waiting = asyncio.create_task(running.plugin.registered("open_shop"))
        await asyncio.sleep(0)
        running.plugin.unregister_llm_tool("open_shop")
        await waiting
        with pytest.raises(KeyError):
            await running.plugin.registered("open_shop")


async def test_startup_hook_cannot_await_later_steps_but_its_task_can():
    class Plugin(Shop):
        @lifecycle(id="startup")
        async def startup(self, **_):
            self.task = asyncio.create_task(self.registered())
            with pytest.raises(RuntimeError, match="when the startup hook has returned"):
                await self.registered()

    async with run_plugin(Plugin) as running:
        await running.plugin.task


async def test_invalid_plugin_tools_are_logged_and_fail_run_plugin(caplog):
    class Plugin(Shop):
        @llm_tool(parameters={"type": "no such type"})
        def broken(self): ...

        @llm_tool(name="open_shop")
        def zz_again(self): ...

    with pytest.raises(ValueError, match="broken"), caplog.at_level(logging.ERROR):
        async with run_plugin(Plugin):
            pass
    assert ["broken", "open_shop"] == [record.args[0] for record in caplog.records]


# -- the plugin's life


async def test_hooks_are_called_in_order_with_their_parameters():
    texts = []

    class Plugin(NekoPluginBase):
        def on_start(self, reason):
            texts.append(f"start {reason}")
            return Ok(None)

        @lifecycle(id="freeze")
        async def cool(self, **_):
            texts.append("freeze")

        @lifecycle(id="unfreeze")
        def warm(self):
            texts.append("unfreeze")
            return "warm"

        @lifecycle(id="config_change")
        async def changed(self, config, previous):
            texts.append((previous["units"], config["units"], self.config["units"]))

        @lifecycle(id="shutdown")
        async def shutdown(self, **about):
            texts.append(about)

        @llm_tool
        async def ask(self):
            return self.config.get("units")

    async with run_plugin(Plugin, config={"units": "C"}) as running:
        assert not (await running.freeze()).is_error
        refused = await running.call("ask")
        assert ("PLUGIN_NOT_RUNNING", {"error": "plugin 'test' is frozen"}) == (refused.error, refused.output)
        assert "warm" == (await running.unfreeze()).output
        assert "C" == (await running.call("ask")).output
        await running.change_config({"units": "F"})
        assert "F" == (await running.call("ask")).output
    assert ["start start", "freeze", "unfreeze", ("C", "F", "F"), {"reason": "stop"}] == texts


@pytest.mark.parametrize(
    "outcome",
    [
        Err("no key"),
        Ok(Err("no key")),
        RuntimeError("no key"),
        SystemExit("no key"),
        KeyboardInterrupt("no key"),
        asyncio.CancelledError("no key"),
        BaseExceptionGroup("no key", [SystemExit()]),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
async def test_failed_startup_is_a_plugin_error(outcome):
    class Plugin(NekoPluginBase):
        @lifecycle(id="startup")
        async def startup(self, **_):
            if isinstance(outcome, Err | Ok):
                return outcome
            raise outcome

    with pytest.raises(PluginError, match="no key"):
        async with run_plugin(Plugin):
            raise AssertionError("it started")


async def test_startup_timeout_stops_a_hook_that_ignores_cancellation():
    class Plugin(NekoPluginBase):
        @lifecycle(id="startup")
        async def startup(self, **_):
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    pass

    released: asyncio.Event
    released = asyncio.Event()
    try:
        with pytest.raises(PluginError, match=r"longer than 0\.05 s"):
            async with run_plugin(Plugin, startup_timeout=0.05):
                pass
    finally:
        released.set()


@pytest.mark.parametrize("error", [ValueError("too hot"), asyncio.CancelledError("too hot"), SystemExit("too hot")])
async def test_failing_lifecycle_hook_is_reported_and_the_plugin_continues(error):
    class Plugin(Shop):
        @lifecycle(id="freeze")
        async def cool(self):
            raise error

        @lifecycle(id="shutdown")
        async def shutdown(self):
            raise error

    async with run_plugin(Plugin) as running:
        frozen = await running.freeze()
        await running.unfreeze()
        assert ("ValueError" if isinstance(error, ValueError) else "PluginError", "Rome") == (
            frozen.error,
            (await running.call("open_shop", city="Rome")).output,
        )


async def test_init_without_super_call_is_an_error():
    class Plugin(NekoPluginBase):
        def __init__(self, ctx):
            pass

    with pytest.raises(PluginError, match=r"does not call super\(\).__init__"):
        async with run_plugin(Plugin):
            pass
