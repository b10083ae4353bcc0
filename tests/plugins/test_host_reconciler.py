"""The registrar and the tool server over real HTTP: the server has the tools again, whatever happens to it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import groupby

import pytest

from patchbay.errors import ConfigurationError
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.host.registrar import Registrar
from patchbay.plugins.host.server_api import HttpToolsApi, WantedTool
from plugins.tool_server import ToolServer

QUICK = HostPolicy(poll_interval=0.05, poll_retry=0.01, refused_retry=0.05, clear_timeout=60)


class RecordedStates:
    """Records the tool states sent to plugins, and waits for one."""

    def __init__(self) -> None:
        self.states: list[tuple[str, str, str, str]] = []
        self.lines: list[tuple[str, set[str], tuple[str, ...]]] = []
        self._news = asyncio.Event()

    def __call__(self, plugin_id, message):
        self.states.append((plugin_id, message.name, message.state, message.reason))
        self._news.set()

    def registered(self, plugin_id, names, roles):
        self.lines.append((plugin_id, set(names), tuple(roles)))
        self._news.set()

    async def announced(self):
        while not self.lines:
            self._news.clear()
            await self._news.wait()

    async def until(self, plugin_id, name, state, *, times=1):
        while sum((plugin_id, name, state) == each[:3] for each in self.states) < times:
            self._news.clear()
            await self._news.wait()


@asynccontextmanager
async def reconciling(url, *, policy=QUICK, **options):
    outcome = RecordedStates()
    reconciler = Registrar(HttpToolsApi(url, **options), on_state=outcome, registered=outcome.registered, policy=policy)
    reconciler.start()
    try:
        yield reconciler, outcome
    finally:
        await reconciler.aclose()


def desired_tool(name, *, plugin="p", **fields):
    callback = f"http://127.0.0.1:9/api/llm-tools/callback/{plugin}/{name}"
    given = {"plugin_id": plugin, "name": name, "callback_url": callback, "registration": 1, **fields}
    return WantedTool(**{"description": "", "parameters": {}, "timeout_seconds": 30.0, **given})


def desire(reconciler, tool):
    reconciler.manage(tool.plugin_id).want(tool)


@asynccontextmanager
async def one_active(*, policy=QUICK, seed=False):
    """A server with the tool ``one``, which models can call."""
    async with ToolServer(seed=seed) as server, reconciling(server.url, policy=policy) as (reconciler, outcome):
        desire(reconciler, desired_tool("one"))
        await outcome.until("p", "one", "active")
        yield server, reconciler, outcome


@pytest.mark.parametrize("seed", [False, True])
async def test_a_tool_is_registered_at_once_and_is_back_after_the_server_was_restarted(seed):
    async with one_active(seed=seed) as (server, _, outcome):
        await server.stop()
        await outcome.until("p", "one", "stale")
        await server.restart()
        await outcome.until("p", "one", "active", times=2)
        assert {"one"} == server.names("ann") == server.names("ben")
        assert ["active", "stale", "active"] == [state for state, _ in groupby(state for *_, state, _ in outcome.states)]


async def test_tools_are_registered_once_a_late_server_is_up():
    async with ToolServer() as server:
        await server.stop()
        async with reconciling(server.url) as (reconciler, outcome):
            for n in range(50):
                desire(reconciler, desired_tool(f"t{n}"))
            while "refused" not in reconciler.problem:
                await asyncio.sleep(0)
            assert [] == outcome.states
            await server.restart()
            for n in range(50):
                await outcome.until("p", f"t{n}", "active")
            assert 50 == len(server.names())


async def test_tool_removed_from_one_role_is_not_registered_again():
    async with one_active() as (server, _, outcome):
        server.registry.unregister("one", "ben", trusted=True)
        seen = server.listed
        await server.until(lambda: server.listed > seen + 2)
        assert set() == server.names("ben")
        assert 1 == len(outcome.states)


@pytest.mark.parametrize(
    ("seed", "change"),
    [
        (False, lambda server: server.edit("one", description="another")),
        (False, lambda server: server.edit("one", parameters={"type": "object"})),
        (False, lambda server: server.edit("one", timeout_seconds=1.0)),
        (False, lambda server: server.edit("one", metadata={"annotations": {"read_only": True}})),
        (False, lambda server: server.edit("one", callback_url="http://127.0.0.1:1/")),
        (False, lambda server: server.registry.hide("plugin:p")),
        (True, lambda server: server.registry.unregister("one", "ben", trusted=True)),
    ],
    ids=[
        "description",
        "parameters",
        "timeout",
        "annotations",
        "callback",
        "hidden",
        "a role of the seed's server was recreated",
    ],
)
async def test_tool_that_differs_on_the_server_is_registered_again(seed, change):
    async with ToolServer(seed=seed) as server, reconciling(server.url) as (reconciler, outcome):
        parameters = {"type": "object", "properties": {}}
        tool = desired_tool("one", description="as it is", parameters=parameters, annotations={"destructive": True})
        desire(reconciler, tool)
        await outcome.until("p", "one", "active")
        before = server.registry.snapshot("ben").listing
        change(server)
        await outcome.until("p", "one", "active", times=2)
        assert before == server.registry.snapshot("ben").listing


async def test_a_tool_that_the_server_rewrites_is_registered_again_with_backoff():
    policy = replace(QUICK, poll_interval=0.02, refused_retry=1000)
    async with ToolServer() as server, reconciling(server.url, policy=policy) as (reconciler, outcome):
        server.rewrite = {"description": "what the server made of it"}
        desire(reconciler, desired_tool("one", description="mine"))
        await server.until(lambda: server.listed >= 12)
        assert 2 < len(server.requests) < 7
        assert "active" == outcome.states[-1][2]


CONFLICT = "ann: cross-source overwrite refused; ben: cross-source overwrite refused"


@pytest.mark.parametrize(
    ("role", "spoil", "state", "reason", "repair"),
    [
        (None, lambda server: server.put("one", "x"), "refused", CONFLICT, lambda server: server.registry.clear("x")),
        (None, lambda server: server.fail.add("one"), "pending", "503", lambda server: server.fail.clear()),
        ("eve", lambda _server: None, "refused", "unknown role: eve", lambda server: server.registry.add_role("eve")),
    ],
    ids=["a conflict", "no answer", "no such role"],
)
async def test_a_tool_that_is_not_accepted_is_reported_and_tried_again(role, spoil, state, reason, repair):
    async with ToolServer() as server, reconciling(server.url) as (reconciler, outcome):
        spoil(server)
        desire(reconciler, desired_tool("one", role=role))
        await outcome.until("p", "one", state)
        assert reason in outcome.states[0][3]
        repair(server)
        await outcome.until("p", "one", "active")
        assert {"one"} == server.names(role or "ann")


WANTS_TOKEN = "the server wants a token: --token-file FILE (or PATCHBAY_TOKEN_FILE)"


@pytest.mark.parametrize(
    ("shown", "reserved", "reason"),
    [(None, False, WANTS_TOKEN), ("wrong", False, "the server does not take the token: Unauthorized"), (None, True, WANTS_TOKEN)],
)
async def test_a_server_that_wants_a_token_is_reported_once(caplog, shown, reserved, reason):
    async with ToolServer() as server:
        server.token, server.reserved = (None if reserved else "right"), reserved
        async with reconciling(server.url, token=lambda: shown) as (reconciler, outcome):
            for name in ("one", "two"):
                desire(reconciler, desired_tool(name))
            for name in ("one", "two"):
                await outcome.until("p", name, "refused")
            assert {"one": ("refused", reason), "two": ("refused", reason)} == reconciler.manage("p").states()
            server.token, server.reserved = shown, False
            for name in ("one", "two"):
                await outcome.until("p", name, "active")
    assert [f"No tool can be registered: {reason}"] == [
        each.getMessage() for each in caplog.records if each.levelname == "WARNING"
    ]


async def test_leftovers_of_an_earlier_host_are_removed_and_other_sources_kept():
    async with ToolServer() as server:
        for name, source in (("old", "plugin:p"), ("other", "plugin:px"), ("mine", "my_plugin")):
            server.put(name, source)
        async with reconciling(server.url) as (reconciler, _):
            reconciler.manage("p")
            await server.until(lambda: "old" not in server.names())
            assert {"other", "mine"} == server.names()


async def test_clear_removes_all_tools_of_one_plugin():
    async with ToolServer() as server, reconciling(server.url) as (reconciler, outcome):
        for plugin in ("p", "px"):
            desire(reconciler, desired_tool(f"tool_{plugin}", plugin=plugin))
            await outcome.until(plugin, f"tool_{plugin}", "active")
        assert await reconciler.manage("p").clear()
        assert {"tool_px"} == server.names()
        assert {} == reconciler.manage("p").states()


async def test_clear_reaches_a_restarted_server_before_the_next_poll():
    policy = replace(QUICK, poll_interval=600, poll_retry=600)
    async with one_active(policy=policy) as (server, reconciler, outcome):
        await server.stop()
        desire(reconciler, desired_tool("two"))
        await outcome.until("p", "one", "stale")
        await server.restart()
        assert await reconciler.manage("p").clear()
        assert {"source", "role"} <= server.requests[-1].keys()


@pytest.mark.parametrize("is_away", [True, False], ids=["away", "silent"])
async def test_clear_waits_for_no_server_that_is_away_and_for_a_silent_one_up_to_its_timeout(is_away):
    async with ToolServer() as server:
        if is_away:
            await server.stop()
        hold = server.hold = asyncio.Event()
        policy = QUICK if is_away else replace(QUICK, clear_timeout=0.05)
        async with reconciling(server.url, policy=policy, timeout=60) as (reconciler, _):
            desire(reconciler, desired_tool("one"))
            assert not await reconciler.manage("p").clear()
        hold.set()


async def test_tool_moved_to_another_role_leaves_the_first():
    async with ToolServer() as server, reconciling(server.url) as (reconciler, outcome):
        desire(reconciler, desired_tool("one", role="ann"))
        await outcome.until("p", "one", "active")
        reconciler.manage("p").unwant("one", 1)
        desire(reconciler, desired_tool("one", role="ben", registration=2))
        await server.until(lambda: server.names("ben") == {"one"} and not server.names("ann"))


async def test_taking_back_an_earlier_registration_does_not_touch_a_later_one():
    async with ToolServer() as server, reconciling(server.url) as (reconciler, outcome):
        desire(reconciler, desired_tool("one", registration=2))
        reconciler.manage("p").unwant("one", 1)
        await outcome.until("p", "one", "active")
        assert {"one"} == server.names()


async def test_unchanged_list_is_not_sent_again():
    async with one_active() as (server, _, _):
        await server.until(lambda: server.unchanged > 3)
        assert 1 == len(server.requests)


async def test_many_tools_of_fifty_plugins_are_registered_with_one_request_each():
    async with ToolServer() as server, reconciling(server.url) as (reconciler, outcome):
        for n in range(500):
            desire(reconciler, desired_tool(f"t{n}", plugin=f"p{n % 50}"))
        await server.until(lambda: len(server.names()) == 500)
        await outcome.until("p49", "t499", "active")
        assert 500 == len(server.requests)
        first = [body["source"] for body in server.requests[:200]]
        assert 40 < len(set(first))  # one plugin's many tools do not delay the first ones of another


async def test_tool_waiting_for_a_server_names_the_unreachable_one(caplog):
    async with ToolServer() as server:
        await server.stop()
        async with reconciling(server.url) as (reconciler, _):
            desire(reconciler, desired_tool("one"))
            while "refused" not in reconciler.problem:
                await asyncio.sleep(0)
            state, reason = reconciler.manage("p").states()["one"]
            assert "pending" == state
            assert reason.startswith(f"the server cannot be reached at {server.url}: ")
            assert [f"No tools can be registered: {reason}"] == [each.getMessage() for each in caplog.records]


async def test_tools_registered_together_are_announced_together():
    async with ToolServer() as server, reconciling(server.url) as (reconciler, outcome):
        for name in ("one", "two"):
            desire(reconciler, desired_tool(name))
        await outcome.announced()
        assert [("p", {"one", "two"}, ("ann", "ben"))] == outcome.lines


async def test_a_token_is_read_again_while_it_is_refused_or_cannot_be_read():
    found = iter([OSError("no such file"), ConfigurationError("its mode is 0644"), "wrong", "right"])

    def token():
        if isinstance(each := next(found), str):
            return each
        raise each

    async with ToolServer() as server:
        server.token = "right"
        async with reconciling(server.url, token=token) as (reconciler, outcome):
            desire(reconciler, desired_tool("one"))
            await outcome.until("p", "one", "active")


async def test_two_hosts_with_one_plugin_do_not_alternate_forever():
    policy = replace(QUICK, refused_retry=1000)
    async with ToolServer() as server, reconciling(server.url) as (first, _):
        desire(first, desired_tool("one"))
        await server.until(lambda: server.names())
        async with reconciling(server.url, policy=policy) as (second, outcome):
            desire(second, desired_tool("one", callback_url="http://127.0.0.1:10/one"))
            await outcome.until("p", "one", "refused")
            assert "another host has registered it too: http://127.0.0.1:9/" in outcome.states[-1][3]


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://x:one", "http://[::1", "http://" + "é" * 64])
def test_invalid_address_is_refused(url):
    with pytest.raises(ConfigurationError, match="address"):
        HttpToolsApi(url)


@pytest.mark.parametrize("seed", [False, True])
async def test_whether_calls_are_signed_is_waited_for_while_the_registration_is_answered(seed):
    async with ToolServer(seed=seed) as server, reconciling(server.url, secret="s" * 32) as (reconciler, outcome):
        server.held_answers = asyncio.Event()
        desire(reconciler, desired_tool("one"))
        await server.until(lambda: "one" in server.names())  # which may call it from now on
        asking = asyncio.create_task(reconciler.manage("p").wanted("one"))
        assert not (await asyncio.wait({asking}, timeout=0.05))[0]
        server.held_answers.set()
        assert (desired_tool("one"), not seed) == await asking
        await outcome.until("p", "one", "active")
        assert (desired_tool("one"), not seed) == await reconciler.manage("p").wanted("one")
