"""``patchbay serve`` and ``patchbay plugins run`` as they are run: two processes, real plugins, and the end of each of them.

Kills at random moments are in ``tests/faults``; here each has its moment, and what becomes of it is looked at closely.
"""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from faults.rig import BOUND, Deployment, is_alive, poll_until
from plugins.host_rig import write_plugin

WEATHER = """
import asyncio, os, pathlib, subprocess, time

@neko_plugin
class Plugin(NekoPluginBase):
    @llm_tool(name="get_weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
    async def get_weather(self, *, city):
        return Err("city not found") if city == "Atlantis" else {"city": city, "temp_c": VERSION}

    @llm_tool(name="once", timeout=20)
    async def once(self, wait: bool, tool_context: ToolContext):
        with open(self.ctx.folder / "runs", "a") as runs:
            print(tool_context.idempotency_key, file=runs)
        while wait and not (self.ctx.folder / "go").exists():
            await asyncio.sleep(0.01)
        return tool_context.idempotency_key

    @llm_tool(name="slow", timeout=60)
    def slow(self):
        with open(self.ctx.folder / "runs", "a") as runs:
            print("slow", file=runs)
        while not (self.ctx.folder / "go").exists():
            time.sleep(0.01)
        return "done"

    @llm_tool(name="start_a_process", annotations={"destructiveHint": True, "read_only": False})
    async def start_a_process(self):
        return subprocess.Popen(["sleep", "600"]).pid
"""

NAMES = ["get_weather", "once", "slow", "start_a_process"]


def write(folder: Path, *, version: int = 22) -> Path:
    return write_plugin(folder, WEATHER.replace("VERSION", str(version)))


def recorded_runs(folder: Path) -> list[str]:
    file = folder / "runs"
    return file.read_text().split() if file.exists() else []


@pytest.fixture
def deployment(tmp_path):
    deployment = Deployment(tmp_path, serve=("--lease", "0.2"))
    write(deployment.plugins / "weather")
    with deployment:
        poll_until(lambda: deployment.names() == NAMES, what="the tools")
        yield deployment


def temperature(deployment: Deployment) -> int:
    answer = deployment.call("get_weather", city="Rome")
    return answer["output"]["temp_c"] if answer["ok"] else 0


def test_plugin_tools_are_registered_called_reloaded_and_unregistered(deployment):
    rows = {row["name"]: row for row in deployment.rows()}
    base = f"{deployment.host.url}/api/llm-tools/callback/weather"
    assert {(f"{base}/{name}", "plugin:weather") for name in NAMES} == {
        (row["callback_url"], row["source"]) for row in rows.values()
    }
    text = {name: row["annotations"] for name, row in rows.items()}
    assert {**{name: {} for name in NAMES}, "start_a_process": {"destructive": True, "read_only": False}} == text
    assert ({"city": "北京", "temp_c": 22}, True) == tuple(
        deployment.call("get_weather", city="北京")[key] for key in ("output", "ok")
    )
    assert {"error": "city not found"} == json.loads(deployment.call("get_weather", city="Atlantis")["content"])
    assert (
        "invalid_arguments" in deployment.call("get_weather", town="Rome")["content"] or not deployment.call("get_weather")["ok"]
    )

    old = deployment.status("weather")["pid"]
    write(deployment.plugins / "weather", version=23)
    deployment.ask(do="reload", plugin="weather")
    poll_until(lambda: temperature(deployment) == 23 and deployment.names() == NAMES, what="the new version")
    poll_until(lambda: not is_alive(old))

    deployment.ask(do="stop", plugin="weather")
    assert [] == deployment.rows()
    assert "unknown_tool" == deployment.call("get_weather", city="Rome")["code"]
    deployment.ask(do="reload", plugin="weather")
    poll_until(lambda: deployment.names() == NAMES)

    pid = deployment.status("weather")["pid"]
    deployment.host.stop()
    assert ([], False) == (deployment.rows(), is_alive(pid))


def test_call_survives_a_killed_server_and_its_repetition_gets_the_result(deployment):
    folder = deployment.plugins / "weather"
    with ThreadPoolExecutor(1) as threads:
        lost = threads.submit(deployment.call, "slow", key="k")
        poll_until(lambda: recorded_runs(folder) == ["slow"], what="the call")
        deployment.server.kill()
        assert lost.exception(BOUND) is not None
        (folder / "go").touch()
        deployment.server.start()
        poll_until(lambda: deployment.names() == NAMES, what="the tools")
        assert ("done", ["slow"]) == (deployment.call("slow", key="k")["output"], recorded_runs(folder))


def test_killed_plugin_answers_its_running_calls_and_restarts(deployment):
    folder = deployment.plugins / "weather"
    child = deployment.call("start_a_process")["output"]
    assert is_alive(child)
    with ThreadPoolExecutor(1) as threads:
        lost = threads.submit(deployment.call, "once", key="k", wait=True)
        poll_until(lambda: recorded_runs(folder))
        os.kill(deployment.status("weather")["pid"], signal.SIGKILL)
        assert "may have run" in lost.result(BOUND)["content"]
    poll_until(lambda: not is_alive(child), what="the end of what it had started")
    poll_until(lambda: deployment.names() == NAMES and temperature(deployment) == 22, what="the tools")
    assert 1 == deployment.status("weather")["restarts"]
    assert "may have run" in deployment.call("once", key="k", wait=True)["content"]
    assert ["k"] == recorded_runs(folder)


def test_killed_host_takes_its_plugins_along_and_the_next_one_registers_them_again(deployment):
    folder = deployment.plugins / "weather"
    pid, child = deployment.status("weather")["pid"], deployment.call("start_a_process")["output"]
    with ThreadPoolExecutor(1) as threads:
        lost = threads.submit(deployment.call, "once", key="k", wait=True)
        poll_until(lambda: recorded_runs(folder))
        deployment.host.kill()
        assert "the tool may have run" in lost.result(BOUND)["content"]
    poll_until(lambda: not is_alive(pid) and not is_alive(child), what="the end of the plugin and of what it had started")
    poll_until(lambda: deployment.names() == [], what="that the tools are hidden")
    deployment.host.start()
    poll_until(lambda: deployment.names() == NAMES and temperature(deployment) == 22, what="the tools")
    assert sorted(NAMES) == sorted(row["name"] for row in deployment.rows())
