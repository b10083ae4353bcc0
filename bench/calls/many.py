"""Fifty plugins of twenty tools: from the start of their host until models can call all 1,000, and once more after a restart of
the server, which has no store. Wall time, since that is the delay that users see, and the CPU time of all processes.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.calls import plugin_folder, servers
from bench.places import UnavailableError
from bench.processes import Running, free_port, last_words

PLUGINS = 50
TOOLS = 20
_LIMIT = 120.0
_EVERY = 0.05
"""Seconds between two looks at the server's list; the figures are no finer."""


@dataclass(frozen=True)
class Many:
    """Seconds from the start of the host, and again from the first answer of a server that was started anew.

    ``cpu`` is the seconds of CPU time that went by in the first of them, by what the processes are.
    """

    first: float
    again: float
    cpu: dict[str, float]


def measure(folder: Path, kind: str, *, plugins: int = PLUGINS, tools: int = TOOLS) -> Many:
    """Start a server, and a host with so many plugins of a kind (``plugin_folder.KINDS``). Raises UnavailableError where their tools do not come."""
    written = plugin_folder.write_many(folder / "many", kind, plugins=plugins, tools=tools)
    port = free_port()
    with ExitStack() as serving:
        server = serving.enter_context(servers.patchbay_serve(folder, store="memory", port=port))
        began, used = time.perf_counter(), server.cpu_seconds()
        with servers.patchbay_plugins(written, folder, server_port=port) as host:
            _until_all(port, plugins * tools, host, folder)
            first = time.perf_counter() - began
            family = Running(host.pid, port, 0.0)
            cpu = {"server": server.cpu_seconds() - used, "host and plugins": family.cpu_seconds()}
            serving.close()
            serving.enter_context(servers.patchbay_serve(folder, store="memory", port=port))
            began = time.perf_counter()
            _until_all(port, plugins * tools, host, folder)
            return Many(first, time.perf_counter() - began, cpu)


def _until_all(port: int, count: int, host: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.perf_counter() + _LIMIT
    while (there := _count(port)) < count:
        if host.poll() is not None:
            raise UnavailableError(f"the host of plugins ended: {last_words(folder / 'plugins.log')}")
        if time.perf_counter() > end:
            raise UnavailableError(f"{there} of {count} tools were there after {_LIMIT:.0f} s")
        time.sleep(_EVERY)


def _count(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/api/tools")
        tools = json.load(connection.getresponse())["tools_by_role"]["default"]
        return sum(tool["state"] == "active" for tool in tools)
    finally:
        connection.close()
