"""``--callback-hosts``: callbacks on other machines, checked when they are registered and when they are called."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from patchbay.errors import ConfigurationError
from patchbay.server.callback_hosts import CallbackHosts
from patchbay.server.callback_tool import CallbackDispatcher, CallbackError
from patchbay.server.callbacks import CallbackUrlError, read_callback_url
from patchbay.server.settings import ToolsSettings
from patchbay.tools.context import ToolContext
from registry.registering import registry_of, remote
from tools_server.rig import calling_back, json_response, serving

HOSTS = ("tools.test", "10.0.0.0/8", "192.0.2.7", "fd00::/8", "169.254.1.1", "0.0.0.0/1")


@pytest.mark.parametrize(
    "host", ["tools.test", "TOOLS.test.", "10.1.2.3", "192.0.2.7", "[fd00::5]", "169.254.1.1", "[::ffff:10.0.0.1]", "localhost"]
)
def test_named_hosts_and_addresses_of_a_network_are_allowed(host: str) -> None:
    read_callback_url(f"http://{host}:9/call", CallbackHosts(HOSTS))


@pytest.mark.parametrize(
    "host",
    [
        "other.test", "sub.tools.test", "192.0.2.8", "169.254.169.254", "[fe80::1]", "[fe80::1%25eth0]", "[fd00:ec2::254]",
        "100.100.100.200", "2130706433", "0x0a000001", "10.1", "[::ffff:169.254.169.254]",
    ],
)  # fmt: skip
def test_others_and_the_addresses_of_link_local_and_metadata_are_refused(host: str) -> None:
    with pytest.raises(CallbackUrlError, match="--callback-hosts"):
        read_callback_url(f"http://{host}:9/call", CallbackHosts(HOSTS))


@pytest.mark.parametrize("host", ["http://a", "a:80", "10.0.0.1/8", "*.a.test", "a b", "1.2.3", ""])
def test_what_is_neither_a_name_nor_a_network_is_refused_at_the_start(host: str) -> None:
    with pytest.raises(ConfigurationError, match="neither a host name nor a network"):
        ToolsSettings(callback_hosts=(host,))


def test_a_registration_is_refused_with_the_way_out_and_the_document_says_what_is_allowed() -> None:
    with serving(callback_hosts=("192.0.2.7",)) as server:
        assert server.register(callback_url="http://192.0.2.7:9/call")["ok"]
        assert server.register("b", callback_url=f"http://192.0.2.7:{server.port}/call")["ok"]  # no port of this machine
        refused = server.post("register", name="c", callback_url="http://192.0.2.8:9/call")
        assert (422, True) == (refused.status, "--callback-hosts" in refused.json["detail"][0]["msg"])
        document = server.ask("GET", "/openapi.json").json
        assert "pattern" not in document["components"]["schemas"]["RegisterBody"]["properties"]["callback_url"]


ALLOWED: list[tuple[tuple[str, ...], str]] = [(("tools.test", "127.0.0.0/8"), "127.0.0.1")]
REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("tools.test",), "127.0.0.1"),
    (("tools.test",), "169.254.169.254"),
    (("tools.test", "10.0.0.0/8"), "192.0.2.1"),
]


async def called(hosts: tuple[str, ...], address: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call a tool at a name that has this address when it is called."""
    with calling_back(json_response({"output": "called"})) as callback:
        found = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, callback.port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: [found])
        dispatcher = CallbackDispatcher(ToolsSettings(callback_hosts=hosts))
        dispatcher.health.registry = registry_of()
        tool = dispatcher.tool(remote("a", callback_url=f"http://tools.test:{callback.port}/"))
        try:
            return await tool.run({}, ToolContext(call_id="c", name="a"))
        finally:
            await dispatcher.close()


@pytest.mark.parametrize(("hosts", "address"), ALLOWED)
async def test_a_name_is_called_at_allowed_addresses(hosts: Any, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "called" == await called(hosts, address, monkeypatch)


@pytest.mark.parametrize(("hosts", "address"), REFUSED)
async def test_a_name_that_has_another_address_is_not_called(hosts: Any, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CallbackError, match=f"tools.test has the address {address}, which --callback-hosts") as raised:
        await called(hosts, address, monkeypatch)
    assert "no" == raised.value.ran
