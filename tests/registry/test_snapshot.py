"""Snapshots: one consistent list, with a revision, a digest, and the shapes of providers."""

from __future__ import annotations

import threading

import pytest

from patchbay.errors import ConfigurationError
from patchbay.tools import ToolDefinition
from patchbay.tools.registry import Registration, ToolRegistry

from .registering import registry_of, remote

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def test_a_snapshot_does_not_change():
    registry = registry_of(remote("a"))
    before = registry.snapshot("ann")
    registry.register(remote("b"))
    registry.register(remote("a", description="newer"))
    registry.clear("s")
    assert (["a"], "") == ([*before.tools], before.registrations["a"].description)
    for mapping in (before.tools, before.registrations, before.listing[0]):
        with pytest.raises(TypeError):
            mapping["x"] = 1


def test_listed_tool_has_every_field():
    local = ToolDefinition("b", "in here", SCHEMA, handler=dict, metadata={"source": "builtin"})
    registry = registry_of(remote("a", description="d", parameters=SCHEMA, timeout_seconds=7, role="ann"), Registration.of(local))
    registry.hide("s")
    listed = {
        "name": "a", "description": "d", "source": "s", "callback_url": "http://127.0.0.1:9/call", "is_remote": True,
        "parameters": SCHEMA, "timeout_seconds": 7, "annotations": {}, "role": "ann", "state": "hidden", "problem": None,
    }  # fmt: skip
    inside = {
        "name": "b", "description": "in here", "source": "builtin", "callback_url": None, "is_remote": False,
        "parameters": SCHEMA, "timeout_seconds": None, "annotations": {}, "role": None, "state": "active", "problem": None,
    }  # fmt: skip
    assert [listed, inside] == [dict(each) for each in registry.snapshot("ann").listing]


def test_digest_covers_the_listed_tools():  # W21
    def digest(*registrations: Registration, roles: tuple[str, ...] = ("ann",)) -> str:
        return registry_of(*registrations, roles=roles).snapshot("ann").etag

    first = digest(remote("a"))
    assert first == digest(remote("a"), roles=("ann", "ben"))
    assert first == digest(remote("a", secret="x"))  # a poller must not learn about it
    changed = [
        digest(), digest(remote("b")), digest(remote("a", description="x")), digest(remote("a", source="x")),
        digest(remote("a", parameters=SCHEMA)), digest(remote("a", timeout_seconds=1)), digest(remote("a", role="ann")),
        digest(remote("a", callback_url="http://127.0.0.1:1/")), digest(remote("a"), remote("b")), digest(remote("b"), remote("a")),
    ]  # fmt: skip
    assert 11 == len({first, *changed})
    registry = registry_of(remote("a"), roles=("ann",))
    registry.hide("s")
    assert first != registry.snapshot("ann").etag
    assert digest(remote("\ud800", parameters={"x": "\ud800"})).isalnum()


def test_registered_name_is_kept_for_any_provider():  # W12
    registry = registry_of(remote("weather.now in town"))
    snapshot = registry.snapshot("ann")
    assert ["weather.now in town"] == [*snapshot.tools] == [spec.name for spec in snapshot.specs]


def test_specs_have_the_shape_of_each_provider():
    snapshot = registry_of(remote("t", description="d", parameters=SCHEMA)).snapshot("ann")
    function = {"name": "t", "description": "d", "parameters": SCHEMA}
    assert [{"type": "function", "function": function}] == snapshot.specs_for("openai_chat")
    assert [{"type": "function", **function}] == snapshot.specs_for("openai_realtime")
    (declaration,) = snapshot.specs_for("gemini")
    assert ("t", "d") == (declaration["name"], declaration["description"])
    assert [] == registry_of().snapshot("ann").specs_for("gemini")
    with pytest.raises(ConfigurationError, match="no dialect 'klingon'"):
        snapshot.specs_for("klingon")


def test_readers_see_changes_atomically_under_threads():
    many = [remote(f"t{number}") for number in range(20)]
    registry = registry_of(*many)
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            both = registry.snapshots()
            seen.extend(len(snapshot.tools) for snapshot in both.values())
            assert both["ann"].tools.keys() == both["ben"].tools.keys()
            seen.append(len(registry.snapshot("ann").tools))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(200):
            registry.hide("s")
            registry.show("s")
    finally:
        done.set()
        for reader in readers:
            reader.join(30)
    assert {0, 20} >= {*seen}
    assert seen


def test_concurrent_changes_are_kept_and_published_in_order():
    registry = ToolRegistry(["ann"])
    received: list[int] = []
    registry.subscribe(lambda change: received.append(change.revision))

    def write(source: str) -> None:
        for number in range(100):
            assert registry.register(remote(f"{source}{number}", source=source)).ok
            if number % 3 == 0:
                assert 1 == registry.unregister(f"{source}{number}").removed

    writers = [threading.Thread(target=write, args=(source,)) for source in "abcd"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    expected = {f"{source}{number}" for source in "abcd" for number in range(100) if number % 3}
    assert expected == {*registry.snapshot("ann").tools}
    assert [*range(2, registry.revision + 1)] == received  # 1 was the role's
