"""The host with real plugins: registered, called, killed, restarted, reloaded, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from plugins.host_rig import BOUND, write_plugin
from plugins.host_stand import QUICK, Stand, registered
from plugins.tool_server import ToolServer

WEATHER = """
import asyncio, os

@neko_plugin
class Plugin(NekoPluginBase):
    @lifecycle(id="startup")
    async def startup(self, reason, **_):
        print("startup", reason)
        self.logger.warning("to be logged")

    @lifecycle(id="shutdown")
    async def shutdown(self, reason):
        print("shutdown", reason)

    @llm_tool(timeout=60)
    async def get_weather(self, *, city: str):
        return {"city": city, "temp_c": 22}

    @llm_tool(timeout=60)
    async def hang(self, *, name: str = ""):
        print("began", name)
        try:
            await asyncio.Event().wait()
        finally:
            print("ended", name)
"""


@pytest.fixture
def weather(tmp_path):
    return write_plugin(tmp_path / "weather", WEATHER)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_killed_plugin_answers_every_call_and_its_tools_return(weather):
    async with registered(weather) as (_, stand):
        calls = [asyncio.create_task(stand.call("weather", "hang", {"name": str(n)})) for n in range(20)]
        for n in range(20):
            await stand.printed("weather", f"began {n}")
        plugin = stand.host.plugins["weather"]
        killed = plugin.pid
        os.kill(killed, signal.SIGKILL)
        bodies = await asyncio.gather(*calls)
        assert {("PLUGIN_NOT_RUNNING", "plugin_not_running")} == {(body["error"], body["code"]) for body in bodies}
        assert {"unknown"} == {body["ran"] for body in bodies}
        assert all("with unknown effects" in body["output"]["error"] for body in bodies)
        await stand.host.until(lambda: plugin.restarts == 1)
        await stand.registered()
        assert plugin.pid not in (0, killed)
        assert not (await stand.call("weather", "get_weather", {"city": "Rome"}))["is_error"]
        await stand.printed("weather", "startup restart")
        assert any("ended by SIGKILL" in text for _, text in stand.lines("weather"))


async def test_while_no_server_has_a_tool_its_calls_must_be_signed(weather):
    async with ToolServer() as server:
        server.put("get_weather", "another")
        async with Stand(weather, server=server) as stand:
            states = stand.host.plugins["weather"].tools.states
            await stand.host.until(lambda: states().get("get_weather", ("",))[0] == "refused")
            status, answer = await stand.call("weather", "get_weather", {"city": "Rome"})
            assert (403, True) == (status, "not signed" in answer["detail"])


async def test_call_of_a_stopped_plugin_is_an_error(weather):
    async with registered(weather) as (server, stand):
        await stand.host.stop_plugin("weather")
        assert set() == server.names()
        body = await stand.call("weather", "get_weather", {"city": "Rome"})
        message = {"error": "plugin 'weather' is not running"}
        error = {"error": "PLUGIN_NOT_RUNNING", "code": "plugin_not_running", "ran": "no"}
        assert {"output": message, "is_error": True, **error} == body
        await stand.host.start_plugin("weather")
        await stand.registered()
        assert not (await stand.call("weather", "get_weather", {"city": "Rome"}))["is_error"]


async def test_stop_unregisters_tools_first_and_finishes_calls(tmp_path):
    slow = write_plugin(
        tmp_path / "slow",
        """
        import asyncio, pathlib
        class Plugin(NekoPluginBase):
            @llm_tool(timeout=60)
            async def wait(self):
                print("waiting")
                while not (self.ctx.folder / "go").exists():
                    await asyncio.sleep(0.01)
                return "done"
        """,
    )
    async with registered(slow, policy=replace(QUICK, drain=60)) as (server, stand):
        call = asyncio.create_task(stand.call("slow", "wait"))
        await stand.printed("slow", "waiting")
        stopping = asyncio.create_task(stand.host.stop_plugin("slow"))
        await server.until(lambda: not server.names())
        assert not call.done()
        (slow / "go").touch()
        assert {"output": "done", "is_error": False} == await call
        await stopping
        assert "stopped" == stand.host.plugins["slow"].state


async def test_reload_runs_the_current_files(weather):
    async with registered(weather) as (server, stand):
        write_plugin(weather, WEATHER.replace("get_weather", "get_forecast"))
        await stand.host.reload("weather")
        await stand.registered()
        assert {"get_forecast", "hang"} == server.names()
        assert ("stdout", "shutdown reload") in stand.lines("weather")
        await stand.printed("weather", "startup reload")


async def test_watch_reloads_only_edited_plugins(weather, tmp_path):
    other = write_plugin(tmp_path / "other", WEATHER.replace("get_weather", "get_other").replace("hang", "hang_other"))
    async with registered(weather, other) as (server, stand):
        pids = {key: plugin.pid for key, plugin in stand.host.plugins.items()}
        await stand.host.watch(interval=0.05)
        while "get_forecast" not in server.names():
            write_plugin(weather, WEATHER.replace("get_weather", "get_forecast"))
            waiting = asyncio.create_task(server.until(lambda: "get_forecast" in server.names()))
            await asyncio.wait({waiting}, timeout=10)  # a start takes its time on a busy machine
            waiting.cancel()
        assert pids["other"] == stand.host.plugins["other"].pid
        assert pids["weather"] != stand.host.plugins["weather"].pid


async def test_crash_looping_plugin_is_disabled_and_can_be_repaired(tmp_path):
    broken = write_plugin(tmp_path / "broken", "raise RuntimeError('no such library')")
    policy = replace(QUICK, failures_most=3, backoff_first=0.01)
    async with ToolServer() as server, Stand(broken, server=server, policy=policy) as stand:
        plugin = stand.host.plugins["broken"]
        await stand.host.until(lambda: plugin.state == "failed")
        assert "RuntimeError: no such library" in plugin.reason
        assert 2 == plugin.restarts
        write_plugin(broken, WEATHER)
        await stand.host.reload("broken")
        await stand.registered()


@pytest.mark.parametrize(
    ("source", "reason", "lines"),
    [
        ("class Plugin(NekoPluginBase)", "SyntaxError: expected ':' (main.py, line 2)", 4),
        ("import no_such_library_here", "ModuleNotFoundError: No module named 'no_such_library_here'", 3),
        ("Plugin = 5", "There is no class 'Plugin' in 'main'.", 0),
    ],
)
async def test_broken_plugin_file_is_reported_once_and_restarts_after_a_fix(tmp_path, source, reason, lines):
    broken = write_plugin(tmp_path / "broken", source)
    async with ToolServer() as server, Stand(broken, server=server) as stand:
        plugin = stand.host.plugins["broken"]
        await stand.host.until(lambda: plugin.state == "failed")
        assert (reason, 0, True) == (plugin.reason, plugin.restarts, plugin.is_broken)
        reply = [text for stream, text in stand.lines("broken") if stream == "host"]
        assert (lines, f"It cannot be run as it is: {reason}") == (len(reply[:-1]), reply[-1])
        await stand.host.watch(interval=0.05)
        while plugin.state == "failed":
            write_plugin(broken, WEATHER)
            waiting = asyncio.create_task(stand.host.until(lambda: plugin.state == "running"))
            await asyncio.wait({waiting}, timeout=10)  # a start takes its time on a busy machine
            waiting.cancel()
        await stand.registered()
        assert not plugin.is_broken


BLOCKS = """
import pathlib, time
class Plugin(NekoPluginBase):
    @lifecycle(id="startup")
    async def startup(self):
        while not (self.ctx.folder / "go").exists():
            time.sleep(0.01)  # in the event loop: its process hears and says nothing

    @llm_tool
    def one(self):
        return 1
"""


@pytest.mark.parametrize("policy", ["warn", "fail"])
async def test_a_startup_that_blocks_its_process_beyond_its_time_has_failed_like_any_other(tmp_path, policy):
    folder = write_plugin(tmp_path / "p", BLOCKS, f'[plugin_runtime]\ntimeout = 0.1\nstartup_failure = "{policy}"\n')
    async with ToolServer() as server, Stand(folder, server=server, policy=replace(QUICK, startup_margin=0.1)) as stand:
        plugin = stand.host.plugins["p"]
        await stand.host.until(lambda: plugin.state not in ("starting", "backoff"))
        assert ("failed" if policy == "fail" else "running", "the startup failed: it did not end within 0.1 s", 0) == (
            plugin.state,
            plugin.reason,
            plugin.restarts,
        )
        assert (policy == "fail") == (plugin.pid == 0)
        assert any("did not end within" in text for stream, text in stand.lines("p") if stream == "host")
        (folder / "go").touch()
        if policy != "fail":
            await stand.registered()  # as documented: late, and all the same
            assert {"startup"} == plugin.hooks


@pytest.mark.parametrize(("policy", "state", "tools"), [("warn", "running", 1), ("ignore", "running", 1), ("fail", "failed", 0)])
async def test_a_startup_that_fails_is_handled_as_the_plugin_wants(tmp_path, policy, state, tools):
    folder = write_plugin(
        tmp_path / "p",
        """
        class Plugin(NekoPluginBase):
            @lifecycle(id="startup")
            def startup(self):
                return Err("no network")

            @llm_tool
            def one(self):
                return 1
        """,
        f'[plugin_runtime]\nstartup_failure = "{policy}"\n',
    )
    async with ToolServer() as server, Stand(folder, server=server) as stand:
        plugin = stand.host.plugins["p"]
        await stand.host.until(lambda: plugin.state == state)
        await server.until(lambda: len(server.names()) == tools)
        assert "no network" in plugin.reason
        assert 0 == plugin.restarts
        noted = any(stream == "host" and "no network" in text for stream, text in stand.lines("p"))
        assert (policy != "ignore") == noted


async def test_hanging_startup_does_not_block_other_plugins(tmp_path, weather):
    hangs = write_plugin(
        tmp_path / "hangs",
        """
        import asyncio
        class Plugin(NekoPluginBase):
            @lifecycle(id="startup")
            async def startup(self):
                print("hanging")
                await asyncio.Event().wait()
        """,
        "[plugin_runtime]\ntimeout = 300\n",
    )
    policy = replace(QUICK, starting_at_once=1)
    async with ToolServer() as server, Stand(hangs, weather, server=server, policy=policy) as stand:
        await stand.registered("weather")
        await stand.printed("hangs", "hanging")
        assert "starting" == stand.host.plugins["hangs"].state


async def test_plugin_that_reads_nothing_is_restarted(tmp_path):
    stuck = write_plugin(
        tmp_path / "stuck",
        """
        import os, signal
        class Plugin(NekoPluginBase):
            @llm_tool(timeout=1)
            def sleep(self):
                os.kill(os.getpid(), signal.SIGSTOP)
        """,
    )
    policy = replace(QUICK, ping_interval=0.05, stuck_after=1.5)
    async with registered(stuck, policy=policy) as (_, stand):
        plugin = stand.host.plugins["stuck"]
        body = await stand.call("stuck", "sleep")
        assert ("TOOL_TIMEOUT", {"error": "tool 'sleep' timed out after 1.0s"}) == (body["error"], body["output"])
        await stand.host.until(lambda: plugin.restarts == 1)
        await stand.registered()
        assert any("has not read anything" in text for _, text in stand.lines("stuck"))


async def test_endless_plugin_output_is_bounded_and_blocks_no_other_plugin(tmp_path, weather):
    loud = write_plugin(
        tmp_path / "loud",
        """
        import sys, threading
        class Plugin(NekoPluginBase):
            @lifecycle(id="startup")
            def startup(self):
                def shout():
                    while True:
                        sys.stdout.write("x" * 100_000 + "\\n" + "y\\n" * 10_000)
                threading.Thread(target=shout, daemon=True).start()
        """,
    )
    async with ToolServer() as server, Stand(loud, weather, server=server) as stand:
        await stand.printed("loud", "left out")
        await stand.registered("weather")
        assert not (await stand.call("weather", "get_weather", {"city": "Rome"}))["is_error"]
        lines = stand.host.book.last("loud")
        assert 512 * 1024 >= sum(len(line.text) for line in lines)
        assert 5000 > max(len(line.text) for line in lines)


async def test_blocking_handler_does_not_delay_other_plugins(tmp_path, weather):
    stuck = write_plugin(
        tmp_path / "stuck",
        """
        import time
        class Plugin(NekoPluginBase):
            @llm_tool(timeout=60)
            async def block(self):
                print("blocking", flush=True)
                time.sleep(60)  # in the event loop: nothing in this process runs any more
        """,
    )
    async with registered(stuck, weather) as (_, stand):
        calls = [asyncio.create_task(stand.call("stuck", "block")) for _ in range(64)]
        await stand.printed("stuck", "blocking")
        while stand.host.status()[0].calls < 64:
            await asyncio.sleep(0)
        bodies = await asyncio.gather(*(stand.call("weather", "get_weather", {"city": "Rome"}) for _ in range(20)))
        assert not any(body["is_error"] for body in bodies)
        assert not any(call.done() for call in calls)
        await stand.host.plugins["stuck"].kill()
        assert {"PLUGIN_NOT_RUNNING"} == {body["error"] for body in await asyncio.gather(*calls)}


def test_host_on_uvloop_calls_plugins_and_detects_their_end(weather):
    """Its transports are not subclasses of asyncio's."""
    uvloop = pytest.importorskip("uvloop")

    async def main():
        async with asyncio.timeout(BOUND), registered(weather) as (_, stand):
            big = "x" * 1_000_000
            assert big == (await stand.call("weather", "get_weather", {"city": big}))["output"]["city"]
            under_way = asyncio.create_task(stand.call("weather", "hang"))
            await stand.printed("weather", "began")
            os.kill(stand.host.plugins["weather"].pid, signal.SIGKILL)
            assert "PLUGIN_NOT_RUNNING" == (await under_way)["error"]
            await stand.registered()
            assert "b" == (await stand.call("weather", "get_weather", {"city": "b"}))["output"]["city"]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
