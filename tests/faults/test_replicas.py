"""kill -9 of one of several plugin hosts, and of one of several servers with plugins: the tools stay, and nothing dead is called."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from faults.rig import BOUND, Service, poll_until
from patchbay.registrations import RegistrationStore
from patchbay.tools.registry import Registration
from plugins.host_rig import write_plugin

PLUGIN = """
import os

@neko_plugin
class Plugin(NekoPluginBase):
    @llm_tool
    async def host(self):
        return os.getppid()
"""
TOKEN = "0123456789abcdef-token"


def own_address() -> str:
    """An address of this machine that is not loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has only loopback")
        return str(probe.getsockname()[0])


def request(port: int, path: str, body: Any = None, *, host: str = "127.0.0.1") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(host, port, timeout=BOUND)
    with contextlib.closing(connection):
        headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
        connection.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def call(server: Service) -> Any:
    """The process whose plugin answers a call, None for an error."""
    return request(server.port, "/api/tools/call", {"name": "host", "arguments": {}})[1]["output"]


async def stored(url: str) -> list[Registration]:
    async with RegistrationStore(url) as store:
        return await store.load()


@pytest.fixture
def plugins(tmp_path: Path) -> str:
    write_plugin(tmp_path / "plugins" / "p", PLUGIN)
    return str(tmp_path / "plugins")


def test_calls_go_on_when_one_of_two_hosts_is_killed_of_which_one_is_at_an_address_of_the_network(
    plugins: str, tmp_path: Path
) -> None:
    address, token = own_address(), tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    store = f"sqlite:///{tmp_path / 'tools.db'}"
    options = ("--callback-hosts", address, "--mcp-config", "none", "--token-file", str(token))
    options += ("--host", "0.0.0.0", "--proxy", address)
    server = Service("patchbay serve", "serve", "--store", store, *options)
    run = ("plugins", "run", plugins, "--token-file", str(token), "--server")
    near = Service("the near host", *run, server.url, "--instance", "near")
    there = ("--instance", "far", "--host", "0.0.0.0", "--advertise", address)
    far = Service("the far host", *run, f"http://{address}:{server.port}", *there)
    with contextlib.ExitStack() as stack:
        for each in (server, near, far):
            each.start()
            stack.callback(each.stop)

        def hosts() -> bool:
            return {call(server) for _ in range(2)} == {near.child.pid, far.child.pid}

        poll_until(hosts, what="both hosts")
        [tool] = request(server.port, "/api/tools")[1]["tools_by_role"]["default"]
        callbacks = {each["instance"]: each["callback_url"].partition("/api")[0] for each in tool["instances"]}
        assert {"near": near.url, "far": f"http://{address}:{far.port}"} == callbacks
        path = "/api/llm-tools/callback/p/host"
        assert 403 == request(far.port, path, {"arguments": {}}, host=address)[0]  # not signed
        for killed, other in ((near, far), (far, near)):
            killed.kill()
            assert {other.child.pid} == {call(server) for _ in range(20)}
            killed.start()
            poll_until(hosts, what="the killed host", within=10.0)


def test_each_server_on_one_database_has_plugins_of_its_own_and_one_that_is_killed_takes_nothing(
    plugins: str, new_postgres: str
) -> None:
    options = ("--store", new_postgres, "--plugins", plugins, "--plugins-port", "0", "--mcp-config", "none")
    servers = [Service(f"server {number}", "serve", *options) for number in range(2)]
    with contextlib.ExitStack() as stack:
        for each in servers:
            each.start()
            stack.callback(each.stop)
        for each in servers:
            poll_until(lambda: call(each) == each.child.pid, what="its own plugin")  # noqa: B023
        assert [] == asyncio.run(stored(new_postgres))
        servers[0].kill()
        began = time.monotonic()
        assert {servers[1].child.pid} == {call(servers[1]) for _ in range(10)}
        assert time.monotonic() - began < 5
        servers[0].start()
        for each in servers:
            poll_until(lambda: call(each) == each.child.pid, what="its own plugin")  # noqa: B023
