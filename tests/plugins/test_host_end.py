"""The end of a host and of its plugins during calls, reloads and requests to its socket."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from patchbay.errors import ConfigurationError
from patchbay.plugins.errors import PluginError
from patchbay.plugins.host import process as process_module
from patchbay.plugins.host.control import ControlServer, NoHostError, ask, make_folder, socket_path
from plugins.host_rig import BOUND, write_plugin
from plugins.host_stand import QUICK, Stand, registered
from plugins.tool_server import ToolServer

WAITING = """
import asyncio, os
from pathlib import Path

class Plugin(PluginBase):
    @llm_tool(timeout=300)
    async def wait_NAME(self, path: str = ""):
        print("waits")
        while not Path(path).exists():
            await asyncio.sleep(0.01)
"""


def waiting(folder):
    return write_plugin(folder, WAITING.replace("NAME", folder.name))


@asynccontextmanager
async def control_socket(stand):
    """The control socket of a stand's host."""
    folder = stand.run_folder
    control = ControlServer(stand.host, folder, stop=lambda: None)
    await control.start()
    try:
        yield folder
    finally:
        await control.aclose()


def control_responses(folder, **what):
    return asyncio.to_thread(lambda: list(ask(folder, **what)))


@pytest.mark.parametrize("end", ["aclose", "kill"])
async def test_a_reload_under_way_starts_nothing_when_the_host_ends(tmp_path, end):
    file = tmp_path / "go"
    async with registered(waiting(tmp_path / "one")) as (_, stand):
        call = asyncio.create_task(stand.call("one", "wait_one", {"path": str(file)}))
        await stand.printed("one", "waits")
        plugin = stand.host.plugins["one"]
        begun = [asyncio.create_task(each) for each in ([stand.host.aclose()] if end == "aclose" else [])]
        reloading = asyncio.create_task(stand.host.reload("one"))
        await stand.host.until(lambda: plugin.state == "stopping")
        await asyncio.sleep(0)
        if end == "aclose":
            file.touch()
        else:
            await stand.host.kill()
        with pytest.raises(PluginError, match="the host stops"):
            await reloading
        await asyncio.gather(*begun, call)
        assert ("stopped", 0) == (plugin.state, plugin.pid)


async def test_slow_stop_of_one_plugin_does_not_block_other_reloads(tmp_path):
    file = tmp_path / "go"
    slow, quick = waiting(tmp_path / "slow"), waiting(tmp_path / "quick")
    async with registered(slow, quick, policy=replace(QUICK, drain=3 * BOUND)) as (_, stand):
        call = asyncio.create_task(stand.call("slow", "wait_slow", {"path": str(file)}))
        await stand.printed("slow", "waits")
        await stand.host.watch(interval=0.05)
        await touch_until(slow, stand, lambda: stand.host.plugins["slow"].state == "stopping")
        await touch_until(quick, stand, lambda: any("is reloaded" in text for _, text in stand.lines("quick")))
        assert "stopping" == stand.host.plugins["slow"].state
        file.touch()
        await call


async def touch_until(folder, stand, holds):
    """Change a file until that was noticed: who has just begun to watch may not know yet how it was before."""
    number = 0
    while not holds():
        number += 1
        (folder / "more.py").write_text("#" * number)
        changed = asyncio.create_task(stand.host.until(holds))
        await asyncio.wait({changed}, timeout=1)
        changed.cancel()


async def test_calls_are_answered_at_once_when_a_plugin_dies_despite_its_child(tmp_path, monkeypatch):
    monkeypatch.setattr(process_module, "PIPES_SECONDS", 10 * BOUND)
    pid_file = tmp_path / "pid"
    folder = write_plugin(
        tmp_path / "parent",
        f"""
        import os, time

        class Plugin(PluginBase):
            @llm_tool
            def fork_and_die(self):
                child = os.fork()
                if child == 0:
                    os.setsid()
                    time.sleep({4 * BOUND})
                    os._exit(0)
                while os.getpgid(child) != child:
                    pass
                with open({str(pid_file)!r}, "w") as file:
                    file.write(str(child))
                os._exit(1)
        """,
    )
    async with registered(folder) as (_, stand):
        try:
            answer = await stand.call("parent", "fork_and_die")
        finally:
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
        assert "PLUGIN_NOT_RUNNING" == answer["error"]


async def test_command_to_an_ending_host_is_an_error():
    with tempfile.TemporaryDirectory(prefix="pb-") as name:
        folder = Path(name)

        async def take(reader, writer):
            await reader.readline()
            writer.close()

        async with await asyncio.start_unix_server(take, str(socket_path(folder))):
            for what in ({"do": "list"}, {"do": "stop", "plugin": "one"}):
                with pytest.raises(NoHostError, match="ended before it had answered"):
                    await control_responses(folder, **what)
            assert [[], []] == [await control_responses(folder, do="stop"), await control_responses(folder, do="logs")]


async def test_failing_reload_does_not_block_the_others(tmp_path):
    bad, good = waiting(tmp_path / "bad"), waiting(tmp_path / "good")
    async with ToolServer() as server, Stand(bad, good, server=server) as stand, control_socket(stand) as folder:
        await stand.registered()
        pid = stand.host.plugins["good"].pid
        (bad / "main.py").write_text("raise RuntimeError('no luck')")
        with pytest.raises(PluginError, match="'bad' was started and has ended: RuntimeError: no luck"):
            await control_responses(folder, do="reload")
        assert "running" == stand.host.plugins["good"].state
        assert pid != stand.host.plugins["good"].pid
        assert [{"done": "good"}] == await control_responses(folder, do="reload", plugin="good")


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", "5", '{"do": "logs", "lines": 1e999}', '{"do": "reload", "plugin": ["a"]}', "{" * 99]
)
async def test_invalid_host_command_closes_the_connection_only(tmp_path, caplog, line):
    async with ToolServer() as server, Stand(waiting(tmp_path / "one"), server=server) as stand, control_socket(stand) as folder:
        reader, writer = await asyncio.open_unix_connection(str(socket_path(folder)))
        writer.write(line.encode() + b"\n")
        assert b"" == await reader.read()
        writer.close()
        assert ["one"] == [each["id"] for each in await control_responses(folder, do="list")]
    assert [] == [record for record in caplog.records if "Unhandled" in record.getMessage()]


def test_folder_with_a_path_too_long_for_a_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * 90)))
    with pytest.raises(ConfigurationError, match="too long"):
        make_folder(48916)
