"""Replicas: registrations of one name with several instances are one tool with several callbacks."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from patchbay.registrations import RegistrationStore
from patchbay.tools.registry import Registration
from registry.registering import failures, names, registry_of, remote
from tools_server.rig import Callback, Script, Server, calling_back, json_response, poll_until, serving
from tools_server.test_several_servers import servers


@contextlib.contextmanager
def replicas(server: Server, *scripts: Script, **fields: Any) -> Iterator[list[Callback]]:
    """Callbacks that are registered as the instances "0", "1", ... of the tool "a"."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(calling_back(script)) for script in scripts]
        for number, each in enumerate(found):
            assert server.register(callback_url=each.url, instance=f"{number}", **fields)["ok"]
        yield found


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(lease=600.0) as server:
        yield server


def instances(server: Server) -> dict[str, str]:
    return {each["instance"]: each["state"] for each in server.tools()["a"]["instances"]}


def test_replicas_are_one_tool_and_a_call_goes_to_the_one_with_the_fewest_calls_under_way(server: Server) -> None:
    go = threading.Event()

    def slow(connection: socket.socket, _end: threading.Event) -> None:
        assert go.wait(30)
        json_response({"output": "slow"})(connection, _end)

    with replicas(server, slow, json_response({"output": "fast"})) as (first, second):
        assert ["a"] == [*server.tools()]
        assert {"0": "active", "1": "active"} == instances(server)
        waiting = threading.Thread(target=server.call)
        waiting.start()
        poll_until(lambda: first.calls or second.calls)
        if second.calls:  # it went to the other first, and is done
            waiting.join()
            waiting = threading.Thread(target=server.call)
            waiting.start()
            poll_until(lambda: first.calls)
        assert ["fast"] * 5 == [server.call()["output"] for _ in range(5)]
        assert 1 == len(first.calls)
        go.set()
        waiting.join()
        assert {"slow", "fast"} == {server.call()["output"] for _ in range(2)}  # in turn, where both are free


def test_a_call_goes_to_another_replica_only_where_it_did_not_run(server: Server) -> None:
    def hang_up(_connection: socket.socket, _end: threading.Event) -> None: ...

    refuses = json_response({"is_error": True, "error": "full", "ran": "no"})
    with replicas(server, refuses, json_response({"output": "here"})) as (busy, free):
        assert ["here"] * 4 == [server.call()["output"] for _ in range(4)]
        assert busy.calls
        assert 4 == len(free.calls)
        server.register(instance="0")  # nothing listens there
        assert ["here"] * 4 == [server.call()["output"] for _ in range(4)]
        assert {"0": "hidden", "1": "active"} == instances(server)
        server.post("clear", source="external")
    with replicas(server, hang_up, hang_up) as both:
        assert "unknown" == server.call()["ran"]
        assert 1 == sum(len(each.calls) for each in both)
        server.post("clear", source="external", instance="1")
    assert "no" == server.call()["ran"]


def test_a_call_with_a_key_of_its_caller_goes_to_the_same_replica(server: Server) -> None:
    answers = [json_response({"output": str(number)}) for number in range(3)]
    with replicas(server, *answers):
        found = {key: {server.call(idempotency_key=key)["output"] for _ in range(4)} for key in map(str, range(20))}
    assert {1} == {len(each) for each in found.values()}
    assert {"0", "1", "2"} == {each for outputs in found.values() for each in outputs}


def test_replicas_are_removed_one_by_one_and_replaced_by_a_registration_without_an_instance(server: Server) -> None:
    for each in "xyz":
        server.register(instance=each)
    assert server.post("unregister", name="a", instance="x").json["removed"]
    assert not server.post("unregister", name="a", instance="x").json["removed"]
    assert ["y", "z"] == [*instances(server)]
    assert 2 == server.post("clear", source="external", instance="y").json["removed"]  # in two roles
    server.register()
    assert "instances" not in server.tools()["a"]
    server.register(instance="x")
    assert ["x"] == [*instances(server)]


def test_a_replica_that_is_declared_otherwise_is_refused_while_another_can_be_called(server: Server) -> None:
    server.register(instance="x", description="old")
    server.register(instance="x", description="changed")  # the only one
    refused = server.register(instance="y", description="new")
    assert (False, "replica_conflict") == (refused["ok"], refused["failed_roles"][0]["code"])
    assert "'x'" in refused["failed_roles"][0]["error"]
    assert server.register(instance="y", description="changed")["ok"]
    server.app.registry.hide(origin="http://127.0.0.1:9")
    assert server.register(instance="z", description="new")["ok"]
    assert ["z"] == [*instances(server)]


def test_joining_a_tool_needs_its_secret() -> None:
    registry = registry_of(remote("a", instance="x", secret="s1"), needs_secret=True)
    assert [("*", "the secret of the registration is needed")] == failures(registry.register(remote("a", instance="y")))
    assert registry.register(remote("a", instance="y", secret="s1"), secret="s1").ok


def test_replicas_survive_a_restart_and_are_shared(url: str) -> None:
    with serving(store=url) as first:
        first.register(instance="x", secret="s1")
        first.register(instance="y", role="ann")
        first.register(instance="x", role="ann")
        before = first.tools("ann"), first.tools("ben")
    with serving(store=url) as again:
        assert before == (again.tools("ann"), again.tools("ben"))
        assert ["x", "y"] == [*instances(again)]


def test_replicas_that_register_with_different_servers_are_one_tool_on_both(new_postgres: str) -> None:
    with servers(new_postgres, 2) as (first, second), calling_back(json_response({"output": 1})) as callback:
        assert first.register(instance="x", callback_url=callback.url)["stored"]
        poll_until(lambda: "a" in second.tools())
        assert second.register(instance="y")["stored"]
        poll_until(lambda: len(instances(first)) == 2)
        assert [1, 1, 1, 1] == [each.call()["output"] for each in (first, second) * 2]
        assert "replica_conflict" == second.register(instance="z", description="other")["failed_roles"][0]["code"]
        assert first.post("clear", source="external", instance="y").json["stored"]
        poll_until(lambda: [*instances(second)] == ["x"])


async def test_a_callback_at_loopback_of_another_machine_is_hidden_and_never_called(new_postgres: str) -> None:
    async with RegistrationStore(new_postgres) as ours, RegistrationStore(new_postgres) as theirs:
        here, there = registry_of(machine="m1"), registry_of(machine="m2")
        await ours.load()
        change = there.register(remote("a", instance="x", machine="m2"))
        await theirs.save(there, change, there.register(remote("b", machine="m2")))
        await ours.exchange(here)
        here.register(remote("a", instance="y", machine="m1"))
        here.show("s")
        snapshot = here.snapshot("ann")
        assert ["a"] == names(here, "ann")
        assert [("x", True), ("y", False)] == [(each.instance, hidden) for each, hidden in snapshot.replicas["a"]]
        assert "y" == snapshot.registrations["a"].instance
        here.hide(origin="http://127.0.0.1:9")
        assert ("y",) == tuple(key.instance for key in here.clear(origin="http://127.0.0.1:9").keys)  # of this machine alone
        assert ["a", "b"] == [each.name for each in here.registrations()]


def test_a_local_registration_is_not_stored_and_a_stored_one_of_another_server_does_not_replace_it() -> None:
    local = Registration("a", callback_url="http://127.0.0.1:1/", source="s", is_local=True)
    registry = registry_of()
    assert () == registry.register(local).keys
    registry.apply_stored({remote("a").key: remote("a")})
    assert ["http://127.0.0.1:1/"] == [each.callback_url for each in registry.registrations()]
    registry.apply_stored({remote("a", instance="x").key: remote("a", instance="x", place=-1)})
    assert "http://127.0.0.1:1/" == registry.snapshot("ann").registrations["a"].callback_url
    registry.apply_stored({remote("a", instance="x").key: None})
    assert () == registry.clear("s").keys
    registry.register(remote("a"))
    assert [remote("a").key] == [*registry.register(local).keys]  # which was stored
