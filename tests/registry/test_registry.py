"""Registration and removal for all roles and for one; listeners; restored registrations."""

from __future__ import annotations

import threading

import pytest

from patchbay.errors import ConfigurationError, PatchbayError, UnknownRoleError
from patchbay.tools import ToolDefinition
from patchbay.tools.registry import Key, Registration, ToolRegistry

from .registering import names, registry_of, remote


@pytest.mark.parametrize("role", [None, ""])
def test_empty_role_is_refused(role):  # W4
    registry = registry_of(remote("t", role=role))
    assert (Key(None, "t"),) == tuple(each.key for each in registry.registrations())
    assert ("ann", "ben") == registry.unregister("t", role).affected_roles


@pytest.mark.parametrize(
    "make",
    [
        lambda r: r.register(remote("t", role="eve")),
        lambda r: r.unregister("t", "eve"),
        lambda r: r.clear("s", "eve"),
        lambda r: r.snapshot("eve"),
        lambda r: r.snapshots("eve"),
        lambda r: r.remove_role("eve"),
    ],
)
def test_unknown_role_is_an_error_and_changes_nothing(make):
    registry = registry_of(remote("t"))
    before, revision = registry.registrations(), registry.revision
    with pytest.raises(UnknownRoleError, match=r"^unknown role: eve$") as caught:
        make(registry)
    assert (404, "unknown_role", True) == (caught.value.status, caught.value.code, isinstance(caught.value, PatchbayError))
    assert (before, revision) == (registry.registrations(), registry.revision)


def test_unknown_role_error_precedes_an_invalid_tool():
    def make_remote(_registration):
        raise ConfigurationError("no")

    registry = ToolRegistry(["ann"], make_remote)
    with pytest.raises(UnknownRoleError):
        registry.register(remote("t", role="eve"))
    with pytest.raises(ConfigurationError):
        registry.register(remote("t"))
    assert ([], []) == (names(registry, "ann"), registry.registrations())


def test_repeated_registration_succeeds_without_a_change():
    registry = registry_of(remote("t", secret="x"))
    revision = registry.revision
    again = registry.register(remote("t", secret="x"))
    assert (True, ("ann", "ben"), False, ()) == (again.ok, again.affected_roles, again.changed, again.keys)
    assert revision == registry.revision
    assert registry.register(remote("t", secret="y")).changed  # the dispatcher must sign with the new one


def test_repeated_registration_for_all_roles_applies_to_all():
    registry = registry_of(remote("t"))
    registry.unregister("t", "ann")
    assert registry.register(registry.get(Key(None, "t"))).changed  # exclusions of a passed registration are ignored
    assert (["t"], frozenset()) == (names(registry, "ann"), registry.get(Key(None, "t")).excluded)


def test_common_tool_replaces_those_of_roles():
    registry = registry_of(remote("t", role="ann"), remote("u"))
    change = registry.register(remote("t"))
    assert (Key(None, "t"), Key("ann", "t")) == change.keys
    assert [Key(None, "t"), Key(None, "u")] == [each.key for each in registry.registrations()]
    assert ["t", "u"] == names(registry, "ann")


def test_clear_by_origin_removes_the_tools_of_one_address():
    registry = registry_of(
        remote("a", callback_url="http://127.0.0.1:80/x"),
        remote("b", callback_url="http://127.0.0.1/y?z"),
        remote("c", callback_url="http://[::1]:80/"),
        remote("d", source="s2", callback_url="http://127.0.0.1/"),
    )
    assert 4 == registry.clear("s", origin="http://127.0.0.1:80").removed
    assert ["c", "d"] == names(registry, "ann")


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://127.0.0.1:7/x", "http://127.0.0.1:7"),
        ("https://LOCALHOST/x", "https://localhost:443"),
        ("http://[::1]:8/", "http://[::1]:8"),
        ("http://127.0.0.1:99999/", None),
    ],
)
def test_an_origin_is_scheme_host_and_port(url, origin):
    assert origin == remote("t", callback_url=url).origin


def test_tools_are_hidden_by_origin_too():
    registry = registry_of(remote("a", callback_url="http://127.0.0.1:1/"), remote("b", callback_url="http://127.0.0.1:2/"))
    registry.hide(origin="http://127.0.0.1:1")
    assert ["b"] == names(registry, "ann")
    assert not registry.hide("other", origin="http://127.0.0.1:2").changed


def test_hiding_everything_is_refused():
    with pytest.raises(ConfigurationError):
        registry_of().hide()


def test_hidden_tool_keeps_its_name_reserved():
    registry = registry_of(remote("a"))
    registry.hide("s")
    assert not registry.register(remote("a", source="other")).ok


def seen(registry: ToolRegistry, name: str) -> dict[str, str]:
    return {role: snapshot.registrations[name].source for role, snapshot in registry.snapshots().items()}


def test_restored_common_tool_does_not_replace_a_role_tool():
    registry = registry_of(remote("t", "mine", "ann"))
    change = registry.restore([remote("t", "old")])
    assert ({"ann": "mine", "ben": "old"}, ("ben",)) == (seen(registry, "t"), change.affected_roles)
    assert ((Key(None, "t"),), frozenset({"ann"})) == (change.keys, registry.get(Key(None, "t")).excluded)
    assert (1, ("ann",)) == ((gone := registry.unregister("t", "ann")).removed, gone.affected_roles)


def test_restored_role_tool_does_not_replace_a_common_tool():  # W6: a builtin, say
    registry = registry_of(remote("t", "builtin"), roles=("ann", "ben"))
    change = registry.restore([remote("t", "old", "ann"), remote("t", "old", "eve"), remote("u", "old", "ann")])
    assert {"ann": "builtin", "ben": "builtin"} == seen(registry, "t")
    assert {Key("ann", "t"), Key("eve", "t")} == {*change.keys}  # they are removed from a store
    assert ["t", "u"] == names(registry, "ann")


def test_of_two_that_were_stored_by_two_processes_the_roles_own_is_the_roles():
    for order in ((None, "ann"), ("ann", None)):
        registry = registry_of()
        change = registry.restore([remote("t", str(role), role) for role in order])
        assert ({"ann": "ann", "ben": "None"}, (Key(None, "t"),)) == (seen(registry, "t"), change.keys)
        assert 1 == registry.unregister("t", "ann").removed


@pytest.mark.parametrize("parameters", [{1: 2, "a": 3}, {"a": {1}}, {"a": object()}, {"a": float("nan")}, "deep", "cycle"])
def test_non_json_schema_is_refused_and_the_list_stays_readable(parameters):
    if parameters in ("deep", "cycle"):
        inner = parameters = {}
        for _ in range(100_000):
            inner["a"] = inner = {}
        inner["a"] = {} if parameters == "deep" else parameters
    registry = registry_of(remote("fine"))
    with pytest.raises(ConfigurationError, match=r"^parameters of tool 't' are not JSON"):
        registry.register(remote("t", parameters=parameters))
    registry.restore([remote("t", parameters=parameters)])
    assert (["fine"], 32) == (names(registry, "ann"), len(registry.snapshot("ann").etag))


def test_a_stored_tool_that_cannot_be_made_is_left_out_alone(caplog):
    def make_remote(registration):
        if registration.name == "bad":
            raise ConfigurationError("no")
        return ToolDefinition(registration.name, handler=dict)

    registry = ToolRegistry(["ann"], make_remote)
    registry.restore([remote("bad"), remote("good")])
    assert (["good"], True) == (names(registry, "ann"), "bad" in caplog.text)


def test_changes_made_by_a_listener_are_published_in_order():
    registry = registry_of()
    received = []

    def answer(change):
        if change.action == "register" and change.keys[0].name == "a":
            registry.register(remote("b"))
            registry.register(remote("c"))

    registry.subscribe(answer)
    registry.subscribe(lambda change: received.append(change.keys[0].name))
    registry.register(remote("a"))
    assert ["a", "b", "c"] == received


def test_change_returns_after_its_listeners_ran_in_any_thread():
    registry = registry_of()
    received: list[int] = []
    begun, gate = threading.Event(), threading.Event()
    returned: list[list[int]] = []

    def slow(change):
        begun.set()
        assert gate.wait(30)
        received.append(change.revision)

    registry.subscribe(slow)

    def second() -> None:
        registry.register(remote("b"))
        returned.append([*received])

    threads = [threading.Thread(target=registry.register, args=(remote("a"),)), threading.Thread(target=second)]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    threads[1].join(0.2)  # long enough to come back untold, if it does
    gate.set()
    for thread in threads:
        thread.join(30)
    assert [[registry.revision - 1, registry.revision]] == returned


def test_a_listener_that_fails_spares_the_others(caplog):
    registry = registry_of()
    received = []

    def broken(_change):
        raise ValueError("broken")

    registry.subscribe(broken)
    registry.subscribe(received.append)
    assert registry.register(remote("a")).ok
    assert (1, True) == (len(received), "broken" in caplog.text)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": " "},
        {"name": 3},
        {"description": None},
        {"source": None},
        {"role": 3},
        {"callback_url": 3},
        {"parameters": []},
        {"metadata": None},
        {"callback_url": None},
        {"tool": ToolDefinition("t", handler=dict)},
        {"timeout_seconds": None},
        {"timeout_seconds": 0},
        {"timeout_seconds": 300.5},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": float("inf")},
        {"callback_url": None, "tool": ToolDefinition("other", handler=dict)},
    ],
)
def test_uncallable_tool_is_refused(fields):
    with pytest.raises(ConfigurationError):
        Registration(**{"name": "t", "callback_url": "http://127.0.0.1:9/", **fields})


@pytest.mark.parametrize("ask", [ToolRegistry.snapshot, ToolRegistry.remove_role])
def test_operation_on_one_role_refuses_all_roles(ask):
    registry = registry_of(remote("t"))
    with pytest.raises(UnknownRoleError):
        ask(registry, "")
    assert ("ann", "ben") == registry.roles


@pytest.mark.parametrize("role", ["", None])
def test_a_role_needs_a_name(role):
    with pytest.raises(ConfigurationError):
        ToolRegistry([role])
