"""Plugins that are frozen, or get another configuration while they run."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from patchbay.plugins.errors import PluginError
from plugins.host_rig import write_plugin
from plugins.host_stand import QUICK, registered

HEATER = """
import asyncio

@plugin
class Plugin(PluginBase):
    @lifecycle(id="freeze")
    def cool(self):
        print("cooling")

    @lifecycle(id="unfreeze")
    def warm(self):
        print("warming")

    @llm_tool
    def heat(self):
        return "hot"

    @llm_tool
    async def hang(self):
        print("hanging")
        await asyncio.Event().wait()

    @llm_tool
    async def read(self, path: str):
        print("reading")
        return await asyncio.to_thread(lambda: open(path).read())
"""

CONFIGURED = """
@plugin
class Plugin(PluginBase):
    @lifecycle(id="config_change")
    def changed(self, config, previous):
        print("changed", previous["own"]["units"], config["own"]["units"])
        if config["own"]["units"] == "bad":
            return Err("no such unit")

    @llm_tool
    def units(self):
        return self.config["own.units"]
"""


@pytest.fixture
def heater(tmp_path):
    return write_plugin(tmp_path / "heater", HEATER)


async def test_a_frozen_plugin_has_its_process_and_no_tools_until_it_is_unfrozen(heater):
    async with registered(heater) as (server, stand):
        pid = stand.host.plugins["heater"].pid
        await stand.host.freeze("heater")
        assert set() == server.names()
        refused = await stand.call("heater", "heat")
        assert ("PLUGIN_NOT_RUNNING", {"error": "plugin 'heater' is frozen"}) == (refused["error"], refused["output"])
        await stand.printed("heater", "cooling")
        [status] = stand.host.status()
        assert ("frozen", pid) == (status.state, status.pid)
        assert {("heat", "pending", "the plugin is frozen")} <= {(t.name, t.state, t.reason) for t in status.tools}
        await stand.host.freeze("heater")  # which it is
        await stand.host.unfreeze("heater")
        await stand.registered()
        assert {"heat", "hang", "read"} == server.names()
        assert "hot" == (await stand.call("heater", "heat"))["output"]
        await stand.printed("heater", "warming")
        assert pid == stand.host.plugins["heater"].pid


async def test_a_call_that_does_not_end_is_stopped_before_the_hook_is_run(heater):
    async with registered(heater, policy=replace(QUICK, drain=0.05)) as (_, stand):
        hanging = asyncio.create_task(stand.call("heater", "hang"))
        await stand.printed("heater", "hanging")
        await stand.host.freeze("heater")
        assert "TOOL_CANCELLED" == (await hanging)["error"]


async def test_a_plugin_stays_frozen_through_a_crash_and_a_reload_and_not_through_a_stop(heater):
    async with registered(heater) as (server, stand):
        plugin = stand.host.plugins["heater"]
        await stand.host.freeze("heater")
        pid = plugin.pid
        os.kill(pid, signal.SIGKILL)
        await stand.host.until(lambda: plugin.state == "frozen" and plugin.pid not in (0, pid))
        await stand.host.reload("heater")
        await stand.host.until(lambda: plugin.state == "frozen" and len(plugin.tools.states()) == 3)
        assert "heater' is frozen" in (await stand.call("heater", "heat"))["output"]["error"]
        assert set() == server.names()
        await stand.host.unfreeze("heater")
        await stand.registered()
        await stand.host.freeze("heater")
        await stand.host.stop_plugin("heater")
        assert "is not running" in (await stand.call("heater", "heat"))["output"]["error"]
        await stand.host.reload("heater")
        await stand.registered()


async def test_plugin_unfrozen_while_stopped_returns_with_its_tools(heater):
    async with registered(heater, policy=replace(QUICK, backoff_first=0.3)) as (_, stand):
        plugin = stand.host.plugins["heater"]
        await stand.host.freeze("heater")
        os.kill(plugin.pid, signal.SIGKILL)
        await stand.host.until(lambda: plugin.state == "backoff")
        await stand.host.unfreeze("heater")
        await stand.registered()


async def test_a_tool_that_is_registered_while_the_plugin_is_frozen_waits(tmp_path):
    folder = write_plugin(
        tmp_path / "late",
        """
        class Plugin(PluginBase):
            @lifecycle(id="freeze")
            def cool(self):
                self.register_llm_tool(name="late", description="", parameters={}, handler=lambda: "late")
                self.unregister_llm_tool("gone")

            @llm_tool
            def gone(self):
                return 1
        """,
    )
    async with registered(folder) as (server, stand):
        await stand.host.freeze("late")
        await stand.host.until(lambda: ["late"] == [*stand.host.plugins["late"].tools.states()])
        assert set() == server.names()
        await stand.host.unfreeze("late")
        await stand.host.until_registered("late", "late")
        assert {"late"} == server.names()


async def test_failing_freeze_hook_is_an_error_and_the_plugin_stays_frozen(tmp_path):
    folder = write_plugin(
        tmp_path / "broken",
        """
        class Plugin(PluginBase):
            fails = True

            @lifecycle(id="freeze")
            def cool(self):
                raise OSError("no valve")

            @lifecycle(id="unfreeze")
            def warm(self):
                if self.fails:
                    self.fails = False
                    return Err("no fuel")

            @llm_tool
            def heat(self):
                return "hot"
        """,
    )
    async with registered(folder) as (server, stand):
        with pytest.raises(PluginError, match="is frozen, but its freeze hook failed: OSError: no valve"):
            await stand.host.freeze("broken")
        with pytest.raises(PluginError, match=r"stays frozen: its unfreeze hook failed: .*no fuel"):
            await stand.host.unfreeze("broken")
        assert ("frozen", set()) == (stand.host.plugins["broken"].state, server.names())
        await stand.host.unfreeze("broken")
        await stand.registered()


async def test_plugin_that_dies_in_its_freeze_hook_is_an_error_at_once(tmp_path):
    folder = write_plugin(
        tmp_path / "dies",
        """
        import os
        class Plugin(PluginBase):
            @lifecycle(id="freeze")
            def cool(self):
                os._exit(3)

            @llm_tool
            def heat(self):
                return "hot"
        """,
    )
    async with registered(folder, policy=replace(QUICK, grace=60)) as (_, stand):
        with pytest.raises(PluginError, match="ended before it answered"):
            await stand.host.freeze("dies")


async def test_invalid_freeze_and_unfreeze_are_errors(heater):
    async with registered(heater) as (_, stand):
        with pytest.raises(PluginError, match="is not frozen: it is running"):
            await stand.host.unfreeze("heater")
        await stand.host.stop_plugin("heater")
        for asked in (stand.host.freeze, stand.host.change_config):
            with pytest.raises(PluginError, match="is stopped"):
                await asked("heater")
        with pytest.raises(PluginError, match="There is no plugin 'nobody'; there are: heater"):
            await stand.host.freeze("nobody")


# -- configuration


def configure(folder, units, more=""):
    write_plugin(folder, CONFIGURED, f'{more}[own]\nunits = "{units}"\n')


async def test_a_new_configuration_reaches_a_plugin_as_it_runs(tmp_path):
    folder = tmp_path / "p"
    configure(folder, "C")
    async with registered(folder) as (_, stand):
        pid = stand.host.plugins["p"].pid
        await stand.host.change_config("p")  # nothing is new
        configure(folder, "F")
        await stand.host.change_config("p")
        assert "F" == (await stand.call("p", "units"))["output"]
        configure(folder, "bad")
        with pytest.raises(PluginError, match=r"did not take its new configuration well: .*no such unit"):
            await stand.host.change_config("p")
        (folder / "plugin.toml").write_text("[[[")
        with pytest.raises(PluginError, match=r"plugin\.toml"):
            await stand.host.change_config("p")
        await stand.printed("p", "changed F bad")
        assert ["changed C F", "changed F bad"] == [text for stream, text in stand.lines("p") if stream == "stdout"]
        assert pid == stand.host.plugins["p"].pid


async def test_watch_delivers_configuration_and_reloads_for_other_changes(tmp_path):
    folder = tmp_path / "p"
    configure(folder, "C")
    async with registered(folder) as (_, stand):
        plugin = stand.host.plugins["p"]
        pid = plugin.pid
        changing = asyncio.create_task(stand.printed("p", "changed C F"))
        await stand.host.watch(interval=0.05)
        number = 0
        while not changing.done():  # the first look may come after the first change
            number += 1
            (folder / "plugin.toml").write_text(f'[plugin]\nentry = "main:Plugin"\n[own]\nunits = "F"\nn = {number}\n')
            await asyncio.wait({changing}, timeout=1)
        assert (pid, "F") == (plugin.pid, (await stand.call("p", "units"))["output"])
        configure(folder, "F", "[plugin_runtime]\ntimeout = 20\n")
        await stand.host.until(lambda: plugin.pid not in (0, pid) and plugin.state == "running")
        assert 20 == plugin.spec.startup_timeout
