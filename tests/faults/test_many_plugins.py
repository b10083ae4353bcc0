"""Many plugins with many tools: how long it takes until models can call them all.

The promise is 1,000 tools of 50 plugins within 5 s on two cores that have nothing else to do:

    PATCHBAY_MANY_PLUGINS=50 pytest -s tests/faults/test_many_plugins.py
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from faults.rig import PATIENCE, Deployment, poll_until
from plugins.host_rig import write_plugin

PLUGINS = int(os.environ.get("PATCHBAY_MANY_PLUGINS", "2"))
TOOLS = 20
WITHIN = max(60.0, PLUGINS * 0.4) * PATIENCE
"""Seconds, many times the promise: other tests run on these cores too. What it took is printed."""

PARAMETERS = {"type": "object", "properties": {"x": {"type": "string", "description": "What."}}, "required": ["x"]}


def plugin(number: int, kind: str) -> str:
    """A plugin whose tools tell their parameters, or have them read from their signatures (for which pydantic is loaded)."""
    lines = ["@neko_plugin", "class Plugin(NekoPluginBase):"]
    for tool in range(TOOLS):
        options = f", parameters={PARAMETERS!r}" if kind == "declared" else ""
        lines += [f"    @llm_tool(name='p{number}_t{tool}'{options})", f"    async def t{tool}(self, x: str):"]
        lines += ['        """Say it.', "", "        :param x: What.", '        """', f"        return x + '{number}.{tool}'"]
    return "\n".join(lines) + "\n"


def cpu_seconds(pid: int) -> float:
    """What a process and its threads have used until now; 0 where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.timeout((120 + 2 * PLUGINS) * PATIENCE)
@pytest.mark.parametrize("kind", ["declared", "inferred"])
def test_the_tools_of_many_plugins_are_soon_registered(tmp_path, kind):
    deployment = Deployment(tmp_path)
    for number in range(PLUGINS):
        write_plugin(deployment.plugins / f"p{number}", plugin(number, kind))
    deployment.server.start()
    used = cpu_seconds(deployment.server.child.pid)
    began = time.monotonic()
    try:
        deployment.host.start()

        def active() -> bool:
            tools = [tool for status in deployment.ask(do="list") for tool in status["tools"]]
            return sum(tool["state"] == "active" for tool in tools) == PLUGINS * TOOLS

        poll_until(active, within=WITHIN, every=0.1, what="the last tool")
        seconds = time.monotonic() - began
        plugins = [cpu_seconds(status["pid"]) for status in deployment.ask(do="list")]
        assert [f"p{number}" for number in range(PLUGINS)] == sorted(
            (s["id"] for s in deployment.ask(do="list")), key=lambda i: int(i[1:])
        )
        assert PLUGINS * TOOLS == len(set(deployment.names())) == len(deployment.rows())
        last = PLUGINS - 1
        assert f"a{last}.{TOOLS - 1}" == deployment.call(f"p{last}_t{TOOLS - 1}", x="a")["output"]
        sys.stdout.write(
            f"\n{PLUGINS} plugins, {PLUGINS * TOOLS} tools, {kind}: {seconds:.2f} s; CPU seconds: plugins {sum(plugins):.2f} "
            f"({max(plugins):.2f} at most), host {cpu_seconds(deployment.host.child.pid):.2f}, "
            f"server {cpu_seconds(deployment.server.child.pid) - used:.2f}\n"
        )
    finally:
        deployment.host.stop()
        deployment.server.stop()
