"""The registry beside a model that knows nothing of ledgers: a list of tools for each role, and one for the roles to come.

Whatever is done in whatever order, both have the same tools, say the same of each change, and refuse the same. Beside it stand the
laws of readers: a snapshot never changes, a revision grows when and only when a role sees something else, and what is stored is
enough to have all of it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from patchbay.tools.registry import Change, Registration, Snapshot, ToolRegistry
from support.repeated import examples

ROLES = ["ann", "ben", "eve"]
SOURCES = ["s", "t", "plugin:x"]
roles, maybe_role = st.sampled_from(ROLES), st.sampled_from([*ROLES, None])
sources, names = st.sampled_from(SOURCES), st.sampled_from("abcd")


@dataclass
class Seen:
    """What a role has under a name: whose it is, which one, and whether it is hidden."""

    source: str
    version: int
    hidden: bool = False


class RegistryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.registry = ToolRegistry([])
        self.live: dict[str, dict[str, Seen]] = {}
        self.to_come: dict[str, Seen] = {}  # what a role that is added now has
        self.version = 0
        self.taken: dict[int, tuple[Snapshot, Any]] = {}
        self.changes: list[Change] = []
        self.registry.subscribe(self.changes.append)

    def roles_of(self, role: str | None) -> list[str]:
        return [role] if role is not None else [each for each in self.registry.roles if each in self.live]

    def missing(self, role: str | None) -> bool:
        return role is not None and role not in self.live

    def all_of(self, role: str | None) -> list[dict[str, Seen]]:
        """The lists that something done for a role is about."""
        return [self.live[role]] if role is not None else [*self.live.values(), self.to_come]

    @rule(role=roles)
    def add_role(self, role: str) -> None:
        self.registry.add_role(role)
        self.live.setdefault(role, {name: replace(seen) for name, seen in self.to_come.items()})

    @rule(role=roles)
    def remove_role(self, role: str) -> None:
        if not self.missing(role):
            self.registry.remove_role(role)
            del self.live[role]

    @rule(name=names, source=sources, role=maybe_role, trusted=st.booleans(), same=st.booleans())
    def register(self, name: str, source: str, role: str | None, *, trusted: bool, same: bool) -> None:
        if self.missing(role):
            return
        self.version += not same
        url = "http://127.0.0.1:1/"
        change = self.registry.register(
            Registration(name, str(self.version), source=source, role=role, callback_url=url), trusted=trusted
        )
        reserved = source.startswith("plugin:") and not trusted
        lists = self.all_of(role)
        if not self.live or reserved or any(seen.source != source for each in lists if (seen := each.get(name))):
            assert (False, (), False, ()) == (change.ok, change.affected_roles, change.changed, change.keys)
            assert change.failed_roles or not self.live
            return
        assert (True, self.roles_of(role)) == (change.ok, [*change.affected_roles])
        for each in lists:
            each[name] = Seen(source, self.version)

    @rule(name=names, role=maybe_role, expected=st.sampled_from([*SOURCES, None]), trusted=st.booleans())
    def unregister(self, name: str, role: str | None, expected: str | None, *, trusted: bool) -> None:
        if self.missing(role):
            return

        def allowed(seen: Seen) -> bool:
            return expected in (None, seen.source) and (trusted or not seen.source.startswith("plugin:"))

        had = {each: seen for each in self.roles_of(role) if (seen := self.live[each].get(name)) is not None}
        gone = [each for each, seen in had.items() if allowed(seen)]
        change = self.registry.unregister(name, role, expected_source=expected, trusted=trusted)
        assert (gone, len(gone), True) == ([*change.affected_roles], change.removed, change.ok)
        refused = {(each.role, each.owned_by) for each in change.refused_roles if each.role != "*"}
        assert {(each, seen.source) for each, seen in had.items() if not allowed(seen)} == refused
        for each in self.all_of(role):
            if (seen := each.get(name)) is not None and allowed(seen):
                del each[name]

    @rule(source=sources, role=maybe_role, trusted=st.booleans())
    def clear(self, source: str, role: str | None, *, trusted: bool) -> None:
        if self.missing(role):
            return
        change = self.registry.clear(source, role, trusted=trusted)
        if source.startswith("plugin:") and not trusted:
            assert (self.roles_of(role), 0, False) == (
                [failure.role for failure in change.failed_roles], change.removed, change.changed,
            )  # fmt: skip
            return
        count = {each: sum(seen.source == source for seen in self.live[each].values()) for each in self.roles_of(role)}
        assert ([each for each in count if count[each]], sum(count.values())) == ([*change.affected_roles], change.removed)
        for each in self.all_of(role):
            for name in [name for name, seen in each.items() if seen.source == source]:
                del each[name]

    @rule(source=sources, hidden=st.booleans())
    def hide_or_show(self, source: str, *, hidden: bool) -> None:
        change = self.registry.hide(source) if hidden else self.registry.show(source)
        other = [
            each
            for each in self.roles_of(None)
            if any(s.source == source and s.hidden != hidden for s in self.live[each].values())
        ]
        assert (other, ()) == ([*change.affected_roles], change.keys)
        for each in self.all_of(None):
            for seen in each.values():
                if seen.source == source:
                    seen.hidden = hidden

    @rule()
    def begin_again_from_what_is_stored(self) -> None:
        again = ToolRegistry(self.registry.roles)
        again.restore(self.registry.registrations())
        for role, snapshot in self.registry.snapshots().items():
            assert snapshot.registrations == again.snapshot(role).registrations
            assert [*snapshot.registrations] == [*again.snapshot(role).registrations]
        assert self.registry.registrations() == again.registrations()

    @invariant()
    def both_have_the_same(self) -> None:
        assert {*self.live} == {*self.registry.roles}
        for role, expected in self.live.items():
            snapshot = self.registry.snapshot(role)
            found = {
                name: Seen(each.source, int(each.description), snapshot.state(name) == "hidden")
                for name, each in snapshot.registrations.items()
            }
            assert expected == found
            assert {name for name, seen in expected.items() if not seen.hidden} == {*snapshot.tools}

    @invariant()
    def no_role_sees_two_of_one_name(self) -> None:
        for registration in self.registry.registrations():
            for role in self.live:
                if registration.reaches(role):
                    shown = self.registry.snapshot(role).registrations[registration.name]
                    assert replace(registration, excluded=frozenset()) == shown

    @invariant()
    def snapshots_never_change_and_their_revisions_grow_with_what_is_seen(self) -> None:
        for snapshot in self.registry.snapshots().values():
            content = content_of(snapshot)
            before = self.taken.setdefault(hash((snapshot.role, snapshot.revision)), (snapshot, content))
            assert (snapshot, content) == before  # the very same object: nothing is made again for nothing
        for snapshot, content in self.taken.values():
            assert content == content_of(snapshot)
        newest: dict[str, int] = {}
        for snapshot, _ in self.taken.values():
            assert newest.get(snapshot.role, -1) < snapshot.revision <= self.registry.revision
            newest[snapshot.role] = snapshot.revision

    @invariant()
    def what_was_there_before_stays_in_order(self) -> None:
        for role in self.live:
            order = [*self.registry.snapshot(role).registrations]
            places = [self.registry.snapshot(role).registrations[name].place for name in order]
            assert sorted(places) == places
            assert len(places) == len({*places})

    @invariant()
    def every_change_is_published_once_in_order(self) -> None:
        assert [*range(1, self.registry.revision + 1)] == [change.revision for change in self.changes]
        assert all(change.changed for change in self.changes)


def content_of(snapshot: Snapshot) -> Any:
    return [(each.name, each.source, each.description, snapshot.state(each.name)) for each in snapshot.registrations.values()]


@st.composite
def registrations_of(draw: st.DrawFn, source: str) -> list[Registration]:
    wanted = draw(st.lists(st.tuples(st.sampled_from("ab"), maybe_role), max_size=6))
    return [
        Registration(name, f"{source} {number}", source=source, role=role, callback_url="http://127.0.0.1:1/")
        for number, (name, role) in enumerate(wanted)
    ]


@given(registrations_of("old"), st.lists(st.tuples(st.sampled_from("ab"), maybe_role), max_size=3), registrations_of("new"))
def test_restoring_after_a_registration_equals_restoring_before(old, removed, new) -> None:
    before = ToolRegistry(ROLES)
    for each in old:
        before.register(each)
    for name, role in removed:
        before.unregister(name, role)
    stored = before.registrations()
    first, later = ToolRegistry(ROLES), ToolRegistry(ROLES)
    first.restore(stored)
    for registry in (first, later):
        for each in new:
            registry.register(each, inside=True)
    change = later.restore(stored)
    assert {each.key: each for each in first.registrations()} == {each.key: each for each in later.registrations()}
    rows = {each.key: each for each in stored} | {key: later.get(key) for key in change.keys}
    assert all(later.get(key) == row for key, row in rows.items())


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=examples(20), stateful_step_count=30)
