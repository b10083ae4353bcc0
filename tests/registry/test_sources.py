"""Sources: names belong to one source, reserved sources need a token, and a secret protects registrations."""

from __future__ import annotations

from patchbay.tools import ToolDefinition
from patchbay.tools.registry import Key, Refusal, Registration

from .registering import failures, names, registry_of, remote

LIVE, LEDGER = "cross-source overwrite refused", "cross-source ledger overwrite refused"


def builtin(name: str = "recall") -> Registration:
    return Registration.of(ToolDefinition(name, handler=dict, metadata={"source": "builtin"}))


def test_one_role_does_not_get_it_either():
    change = registry_of(remote("t")).register(remote("t", source="other", role="ann"))
    assert [("ann", LIVE), ("*", LEDGER)] == failures(change)


def test_tool_of_one_role_keeps_its_name_reserved_for_all():
    registry = registry_of(remote("t", role="ben"))
    assert [("ben", LIVE), ("ben", LEDGER)] == failures(registry.register(remote("t", source="other")))
    assert registry.register(remote("t", source="other", role="ann")).ok


def test_name_hidden_from_all_roles_stays_with_its_owner():
    registry = registry_of(remote("t"))
    registry.unregister("t", "ann")
    registry.unregister("t", "ben")
    assert [("*", LEDGER)] == failures(registry.register(remote("t", source="other")))
    assert registry.register(remote("t", source="other", role="ann")).ok  # ann is out of the first one's reach


def test_name_in_a_future_role_stays_with_its_owner():
    registry = registry_of(roles=("ann",))
    registry.restore([remote("t", role="eve")])
    assert [("eve", LEDGER)] == failures(registry.register(remote("t", source="other")))


def test_refusal_for_a_tool_without_roles_is_for_all_roles():
    registry = registry_of(remote("t"), roles=("ann",))
    registry.unregister("t", "ann")
    assert (Refusal("*", "s"),) == registry.unregister("t", expected_source="other").refused_roles
    assert ((Key(None, "t"),), 0) == ((change := registry.unregister("t")).keys, change.removed)


def test_only_the_exact_prefix_is_reserved():
    registry = registry_of()
    for source in ("plugin", "plugins:x", "builtins", "Builtin", ""):
        assert registry.register(remote(f"of {source}", source=source)).ok


def test_a_trusted_caller_may_act_for_plugins_and_not_for_builtins():  # W6
    registry = registry_of(builtin())
    assert registry.register(remote("t", source="plugin:x"), trusted=True).ok
    assert 2 == registry.clear("plugin:x", trusted=True).removed
    assert not registry.register(remote("u", source="builtin"), trusted=True).ok
    assert not registry.clear("builtin", trusted=True).ok
    assert (Refusal("ann", "builtin"), Refusal("ben", "builtin")) == registry.unregister("recall", trusted=True).refused_roles
    assert (Refusal("ann", "builtin"), Refusal("ben", "builtin")) == registry.clear(trusted=True).refused_roles
    assert not registry.register(remote("recall", source="mine"), trusted=True).ok
    assert ["recall"] == names(registry, "ann")


def test_program_code_can_replace_and_remove_any_tool():
    registry = registry_of(builtin(), remote("t", source="plugin:x", secret="x"), needs_secret=True)
    assert registry.register(remote("t", source="mine"), inside=True).ok
    assert (2, 2) == (registry.unregister("recall", inside=True).removed, registry.clear(inside=True).removed)


def test_program_configures_the_reserved_sources():
    registry = registry_of(reserved=("team-*",))
    assert registry.register(remote("t", source="plugin:x")).ok
    assert not registry.register(remote("u", source="team-a")).ok
    assert not registry.register(remote("v", source="builtin")).ok  # that one always is


def test_secrets_do_not_restrict_changes_by_default():
    registry = registry_of(remote("t", secret="x"), remote("u", secret="y"))
    assert registry.register(remote("t", description="newer", secret="z")).ok
    assert (2, 2) == (registry.unregister("t").removed, registry.clear("s").removed)


def test_required_secret_protects_registrations():  # W5
    registry = registry_of(remote("t", secret="x"), remote("u", secret="y"), remote("free"), needs_secret=True)
    for wrong in (None, "", "y", "\ud800"):
        change = registry.register(remote("t", description="newer"), secret=wrong)
        assert [("*", "the secret of the registration is needed")] == failures(change)
        assert (Refusal("ann", "s"), Refusal("ben", "s")) == registry.unregister("t", secret=wrong).refused_roles
    change = registry.clear("s", secret="y")
    assert (4, (Refusal("ann", "s"), Refusal("ben", "s"))) == (change.removed, change.refused_roles)  # u and free went
    assert ["t"] == names(registry, "ann")


def test_secret_is_hidden():
    registration = remote("t", secret="hush")
    assert "hush" not in repr(registration)
    assert "hush" not in repr(registry_of(registration).snapshot("ann").listing)
