"""Callbacks that are gone, and come back."""

from __future__ import annotations

import asyncio
import queue
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from patchbay.server import callbacks
from patchbay.server.app import create_tools_app
from patchbay.server.callbacks import CallbackEndpoint, CallbackHealth, is_reachable
from patchbay.server.settings import ToolsSettings
from patchbay.tools import Tool
from patchbay.tools.registry import Registration
from ports import kept_port
from registry.registering import registry_of, remote
from tools_server.rig import BOUND, calling_back, json_response, no_response, raw_response, serving


def plugin(server: Any, name: str, port: int, source: str = "plugin:p", role: str | None = None) -> None:
    assert server.register(name, f"http://127.0.0.1:{port}/{name}", source=source, role=role)["ok"]


def states(server: Any, role: str = "ann") -> dict[str, str]:
    return {name: tool["state"] for name, tool in server.tools(role).items()}


def test_first_failed_connection_hides_only_the_tools_of_that_callback(server: Any) -> None:
    gone = kept_port()
    with calling_back(json_response("done")) as there:
        plugin(server, "a", gone)
        plugin(server, "b", gone, role="ben")
        plugin(server, "c", gone, source="other")
        plugin(server, "d", there.port)
        server.call("a")
        assert {"a": "hidden", "c": "active", "d": "active"} == states(server)
        assert {"a": "hidden", "c": "active", "d": "active", "b": "hidden"} == states(server, "ben")
        answer = server.call("a")
        assert ("tool_hidden", False) == (answer["code"], answer["ok"])  # not offered and not callable
        assert "its callback or server does not answer" in answer["content"]
        assert "done" == server.call("d")["output"]


def test_a_health_check_closes_its_connection() -> None:
    async def main(listener: socket.socket) -> bytes:
        assert await is_reachable(f"http://127.0.0.1:{listener.getsockname()[1]}/", 5)
        accepted, _ = await asyncio.to_thread(listener.accept)
        with accepted:
            accepted.settimeout(5)
            return await asyncio.to_thread(accepted.recv, 1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert b"" == asyncio.run(main(listener))


def test_the_third_in_a_row_drops_a_plugins_tools_from_every_role(server: Any) -> None:
    gone = kept_port()
    plugin(server, "a", gone)
    plugin(server, "b", gone, role="ben")
    plugin(server, "mine", gone, source="my_plugin")
    before = server.app.registry.snapshot("ann").tools
    with server.awaiting("clear"):
        for _ in range(3):
            fail(server, before["a"])
    assert (["mine"], ["mine"]) == (list(server.tools("ann")), list(server.tools("ben")))


def test_tools_of_other_sources_are_hidden_and_never_dropped(server: Any) -> None:
    plugin(server, "a", kept_port(), source="my_plugin")
    tool = server.app.registry.snapshot("ann").tools["a"]
    for _ in range(5):
        fail(server, tool)
    assert {"a": "hidden"} == states(server)


def call_as_before(server: Any, tool: Any, role: str = "ann") -> Any:
    """Call a tool that a turn took before it was hidden."""

    class Turn(Tool):
        async def run(self, arguments: Any, context: Any) -> Any:
            return await tool.run({}, context)

    server.app.managers[role].register_tool(Turn("turn"))
    answer = server.call("turn", role=role)
    server.app.managers[role].unregister_tool("turn")
    return answer


def fail(server: Any, tool: Any) -> None:
    assert "Connection refused" in call_as_before(server, tool)["content"]


@pytest.mark.parametrize(
    "script",
    [json_response({"is_error": True, "error": "x"}), json_response(b"", status="500 Oops"), json_response(b"", status="404 Not Found")],
)  # fmt: skip
def test_any_response_resets_the_failure_count(server: Any, script: Any) -> None:
    port = kept_port()
    plugin(server, "a", port)
    tool = server.app.registry.snapshot("ann").tools["a"]
    for _ in range(2):
        fail(server, tool)
        fail(server, tool)
        assert {"a": "hidden"} == states(server)
        with calling_back(script, port=port), server.awaiting("show"):
            call_as_before(server, tool)
        assert {"a": "active"} == states(server)


@pytest.mark.parametrize("script", [no_response, raw_response(b""), raw_response(b"nonsense\r\n\r\n")])
def test_callback_that_accepts_connections_is_not_hidden(server: Any, script: Any) -> None:
    with calling_back(script) as callback:
        server.register("a", callback.url, source="plugin:p", timeout_seconds=0.05)
        for _ in range(4):
            assert not server.call("a")["ok"]
        assert {"a": "active"} == states(server)


def test_repeated_registration_resets_the_failure_count(server: Any) -> None:
    port = kept_port()
    plugin(server, "a", port)
    tool = server.app.registry.snapshot("ann").tools["a"]
    for _ in range(2):
        fail(server, tool)
    plugin(server, "a", port)
    assert "active" == states(server)["a"]
    fail(server, tool)
    assert "hidden" == states(server)["a"]


def test_periodic_check_hides_lost_tools_and_shows_returned_ones() -> None:
    with serving(lease=0.02) as server, ExitStack() as callbacks:
        callback = callbacks.enter_context(calling_back(json_response("done"), port=kept_port()))
        server.register("a", callback.url, source="my_plugin")
        assert {"a": "active"} == states(server)
        with server.awaiting("hide"):
            callbacks.close()
        assert "tool_hidden" == server.call("a")["code"]
        with server.awaiting("show"):
            callbacks.enter_context(calling_back(json_response("done"), port=callback.port))
        assert "done" == server.call("a")["output"]


def test_a_plugin_that_stays_away_is_dropped() -> None:
    with serving(lease=0.01) as server, server.awaiting("clear"):
        plugin(server, "a", kept_port())


def test_without_a_lease_a_tool_is_hidden_for_a_while_only(server: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(callbacks, "HIDDEN_SECONDS", 0.05)
    port = kept_port()
    plugin(server, "a", port, source="my_plugin")
    for _ in range(2):
        with server.awaiting("show"):
            assert "Connection refused" in server.call("a")["content"]
    with calling_back(json_response("done"), port=port):
        assert "done" == server.call("a")["output"]


def test_dead_origins_are_probed_in_turn_and_hidden_once(monkeypatch: Any) -> None:
    probed: list[str] = []
    answers = callbacks.is_reachable

    async def counted(url: str, *more: Any) -> bool:
        probed.append(url)
        return await answers(url, *more)

    monkeypatch.setattr(callbacks, "is_reachable", counted)
    app = create_tools_app(("ann",), settings=ToolsSettings(lease=60.0))
    health = CallbackHealth(ToolsSettings(lease=60.0))
    registry = health.registry = app.registry
    hidden: list[Any] = []
    hide = registry.hide
    monkeypatch.setattr(registry, "hide", lambda *args, **options: hidden.append(args) or hide(*args, **options))
    port = kept_port()
    urls = [f"http://127.0.{n // 200}.{1 + n % 200}:{port}/" for n in range(300)]
    for number, url in enumerate(urls):
        registry.register(Registration(f"t{number}", source="s", callback_url=url))

    async def main(looks: int) -> list[int]:
        counts = []
        for _ in range(looks):
            before = len(probed)
            await health.check()
            counts.append(len(probed) - before)
        return counts

    assert [300, 100, 100, 100, 100] == asyncio.run(main(5))
    assert set(urls) == set(probed[300:600])
    assert (300, 3 * 300) == (len(hidden), sum(asyncio.run(main(9))))

    async def back() -> bool:
        health.renewed(CallbackEndpoint("s", f"http://127.0.0.1:{port}"))
        probed.clear()
        await health.check()
        return urls[0] in probed

    assert asyncio.run(back()), "who registers again is looked after at once"


def test_an_instance_that_is_gone_for_a_day_is_removed_if_another_one_can_be_reached(monkeypatch: Any) -> None:
    monkeypatch.setattr(callbacks, "GONE_SECONDS", 0.0)
    health = CallbackHealth(ToolsSettings(lease=60.0))
    gone = f"http://127.0.0.1:{kept_port()}/"
    with calling_back(json_response("done")) as there:
        health.registry = registry = registry_of(
            remote("a", instance="gone", callback_url=gone),
            remote("a", instance="elsewhere", callback_url=gone, machine="another"),
            remote("a", instance="here", callback_url=there.url),
            remote("b", instance="gone", callback_url=gone),
            remote("c", callback_url=gone),
        )
        asyncio.run(health.check())
    left = [(each.name, each.instance) for each in registry.registrations()]
    assert [("a", "elsewhere"), ("a", "here"), ("b", "gone"), ("c", "")] == left


class Session:
    """A live session that records its tools."""

    def __init__(self) -> None:
        self.received: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    async def use_tools(self, snapshot: Any) -> None:
        self.received.put(list(snapshot.tools))


def test_sessions_get_tool_changes_of_the_callback_health(server: Any) -> None:
    session = server.app.managers["ann"].active = Session()
    with calling_back(json_response("done"), port=kept_port()) as callback:
        server.register("a", callback.url, source="plugin:p")
        assert ["a"] == session.received.get(timeout=BOUND)
        tool = server.app.registry.snapshot("ann").tools["a"]
    call_as_before(server, tool, "ben")
    assert [] == session.received.get(timeout=BOUND)  # hidden
    with calling_back(json_response("done"), port=callback.port):
        call_as_before(server, tool, "ben")
        assert ["a"] == session.received.get(timeout=BOUND)  # shown
    for _ in range(3):
        call_as_before(server, tool, "ben")
    assert [] == session.received.get(timeout=BOUND)
    assert "a" not in server.app.registry.snapshot("ann").registrations  # dropped
