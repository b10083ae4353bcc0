"""The registry of tools by role and source: in memory, without I/O or a clock."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Final

from patchbay.errors import ConfigurationError, UnknownRoleError
from patchbay.tools.registry.registration import (
    EVERY_ROLE,
    Action,
    Change,
    Changing,
    Failure,
    Key,
    Refusal,
    Registration,
    Snapshot,
)
from patchbay.tools.registry.registration_table import RESERVED, Entry, Permissions, RegistrationTable, Undispatched, in_order
from patchbay.tools.tool import Tool

_logger = logging.getLogger(__name__)


class Listeners:
    """The registry's listeners, and a queue of changes to deliver to them in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[object, Callable[[Change], object]] = {}
        self._queue: deque[Change] = deque()
        self._delivery = threading.Lock()
        self._deliverer: int | None = None

    def add(self, listener: Callable[[Change], object]) -> Callable[[], None]:
        """Add a listener; return a function that removes it."""
        key = object()

        def remove() -> None:
            with self._lock:
                self._listeners.pop(key, None)

        with self._lock:
            self._listeners[key] = listener
        return remove

    def queue(self, change: Change) -> None:
        """Append a change; the caller holds the lock that orders changes."""
        self._queue.append(change)

    def deliver(self) -> None:
        """Deliver all queued changes; those that a listener makes itself are delivered after it."""
        if self._deliverer == threading.get_ident():
            return
        with self._delivery:
            self._deliverer = threading.get_ident()
            try:
                while self._queue:
                    self._notify(self._queue.popleft())
            finally:
                self._deliverer = None

    def _notify(self, change: Change) -> None:
        with self._lock:
            listeners = tuple(self._listeners.values())
        for listener in listeners:
            try:
                listener(change)
            except Exception:
                _logger.exception("A listener of the registry failed")


DEFAULT_ROLE: Final = "default"

_OTHERWISE: Final = (
    "the instance {!r} has registered this tool with another description, parameters, timeout or annotations: unregister that "
    "first, or use another name"
)


class ToolRegistry:
    """The registered tools by role and source. Thread-safe.

    ``make_remote`` makes the tool that runs the calls of a registration with a ``callback_url``; without one each such call
    fails. ``register`` raises what it raises. ``combine`` makes one tool of those of its replicas. Callbacks at loopback of
    another machine than ``machine`` are hidden. ``reserved`` are the sources that only trusted callers may claim. With
    ``needs_secret`` a registration that has a secret can only be replaced or removed with it, or by trusted callers.

    ``trusted``, ``inside`` and ``secret`` are the caller's permissions (``Permissions``); ``inside`` is code of this program,
    which may do anything. A ``role`` of None or ``""`` is all roles; an unknown one raises UnknownRoleError and changes nothing.
    """

    def __init__(
        self,
        roles: Iterable[str] = (DEFAULT_ROLE,),
        make_remote: Callable[[Registration], Tool] | None = None,
        *,
        combine: Callable[[Sequence[Tool]], Tool] = itemgetter(0),
        machine: str = "",
        reserved: Iterable[str] = RESERVED,
        needs_secret: bool = False,
    ) -> None:
        self.machine = machine
        self._make_remote = make_remote if make_remote is not None else Undispatched
        self._combine = combine
        self._reserved = tuple(reserved)
        self._needs_secret = needs_secret
        self._lock = threading.Lock()
        self._table = RegistrationTable()
        self._revision = 0
        self._roles: dict[str, int] = {}  # each with the revision of its last change
        self._snapshots: dict[str, Snapshot] = {}  # a cache
        self._listeners = Listeners()
        for role in roles:
            self.add_role(role)

    # Reading

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles, in the order they were added."""
        with self._lock:
            return tuple(self._roles)

    @property
    def revision(self) -> int:
        """The number of the last change, of any role."""
        return self._revision

    def snapshot(self, role: str) -> Snapshot:
        """Return the role's tools."""
        if (found := self._snapshots.get(role)) is not None:
            return found
        with self._lock:
            return self._snapshot(role)

    def snapshots(self, role: str | None = None) -> dict[str, Snapshot]:
        """Return the tools of each role (or of one), all at the same revision."""
        with self._lock:
            return {each: self._snapshot(each) for each in self._targets(role)}

    def get(self, key: Key) -> Registration | None:
        """Return the registration under a key, with its exclusions."""
        with self._lock:
            entry = self._table.get(key)
            return entry.registration if entry is not None else None

    def problem(self, key: Key) -> str | None:
        """Return why no model can get the tool under a key; None if models can, or there is no such tool."""
        with self._lock:
            entry = self._table.get(key)
            return entry.tool.problem if entry is not None else None

    def registrations(self) -> list[Registration]:
        """Return all registrations in order, also those for roles that do not exist (yet)."""
        with self._lock:
            return [entry.registration for entry in in_order(self._table)]

    def subscribe(self, listener: Callable[[Change], object]) -> Callable[[], None]:
        """Call ``listener`` after each change, in order; return a function that unsubscribes it.

        It is called in a thread that makes a change, which waits for it: it must not block. Changes that it makes itself are
        delivered later. Its exceptions are logged.
        """
        return self._listeners.add(listener)

    # Changing

    def add_role(self, role: str) -> Change:
        """Add a role, which inherits what is registered for all roles; does nothing for one that exists."""
        if not isinstance(role, str) or not role:
            raise ConfigurationError(f"A role's name must be a non-empty string, not {role!r}.")

        def work(change: Changing) -> None:
            if role not in self._roles:
                self._roles[role] = 0
                change.roles[role] = None

        return self._change("add_role", work)

    def remove_role(self, role: str) -> Change:
        """Remove a role, the registrations for it alone, and its exclusions."""

        def work(change: Changing) -> None:
            self._known(role)
            for entry in self._table:
                if entry.registration.role == role:
                    self._table.remove_from(entry, role)
                    change.keys[entry.key] = None
                elif role in entry.registration.excluded:
                    self._table.remove_exclusion(entry, role)
                    change.keys[entry.key] = None
            del self._roles[role]
            self._snapshots.pop(role, None)
            change.roles[role] = None

        return self._change("remove_role", work)

    def register(
        self, registration: Registration, *, trusted: bool = False, inside: bool = False, secret: str | None = None
    ) -> Change:
        """Register a tool, replacing one of the same name and source.

        Nothing is changed if any role's tool of that name is another source's, the source is reserved, another replica that can
        be called is declared otherwise, or there is no role; ``failed_roles`` says which and why. A registration for all roles
        replaces those for one; one for a role excludes that role from the one for all. A hidden tool that is registered again
        becomes visible. Raises ConfigurationError for an invalid tool.
        """
        permissions = self._permissions(trusted=trusted, inside=inside, secret=secret)
        with self._lock:
            self._targets(registration.role)  # the role's error comes before those of making the tool
        entry = self._entry(replace(registration, excluded=frozenset(), place=None))

        def work(change: Changing) -> None:
            targets = self._targets(registration.role)
            change.failed += self._objections(registration, targets, permissions)
            if change.failed or not targets:
                return
            change.affected = targets
            was = self._table.get(entry.key)
            if keys := self._table.replace_with(entry):
                change.keys.update(dict.fromkeys(keys))
                if registration.is_local and not (was is not None and was.registration.is_stored):
                    del change.keys[entry.key]  # the row may be another server's
                change.roles.update(dict.fromkeys(targets))

        return self._change("register", work)

    def unregister(
        self,
        name: str,
        role: str | None = None,
        *,
        expected_source: str | None = None,
        instance: str | None = None,
        trusted: bool = False,
        inside: bool = False,
        secret: str | None = None,
    ) -> Change:
        """Remove a tool from a role, or from all.

        With ``expected_source`` only that source's, with ``instance`` only that replica.
        One that is registered for all roles stays for the others. ``refused_roles`` lists what the caller may not change.
        """
        permissions = self._permissions(trusted=trusted, inside=inside, secret=secret)

        def work(change: Changing) -> None:
            targets = self._targets(role)
            for entry in self._table.entries_named(name):
                if instance not in (None, entry.key.instance):
                    continue
                expected = expected_source is None or expected_source == entry.registration.source
                self._take(change, entry, role or None, targets, allowed=expected and permissions.may_touch(entry.registration))

        return self._change("unregister", work)

    def clear(
        self,
        source: str | None = None,
        role: str | None = None,
        *,
        origin: str | None = None,
        instance: str | None = None,
        trusted: bool = False,
        inside: bool = False,
        secret: str | None = None,
    ) -> Change:
        """Remove all tools of exactly this source (None: any), from a role or from all.

        With ``origin`` only those with a callback there (``Registration.origin``), with ``instance`` only these replicas.
        """
        permissions = self._permissions(trusted=trusted, inside=inside, secret=secret)

        def work(change: Changing) -> None:
            targets = self._targets(role)
            if source is not None and not permissions.may_claim(source):
                change.failed += [_reserved(each, source) for each in targets]
                return
            for entry in in_order(self._table):
                if _matches(entry, source, origin) and instance in (None, entry.key.instance):
                    self._take(change, entry, role or None, targets, allowed=permissions.may_touch(entry.registration))

        return self._change("clear", work)

    def hide(self, source: str | None = None, *, origin: str | None = None) -> Change:
        """Hide the tools of a source, of an origin, or both, from models until ``show``.

        They stay registered. A tool that is registered later is not hidden.
        """
        return self._mark("hide", source, origin, hidden=True)

    def show(self, source: str | None = None, *, origin: str | None = None) -> Change:
        """Make hidden tools visible again."""
        return self._mark("show", source, origin, hidden=False)

    def restore(self, registrations: Iterable[Registration]) -> Change:
        """Add stored registrations unchanged, without checking permissions, also for roles that do not exist yet.

        Present registrations stay, as if they were newer. One whose tool cannot be made is left out, and logged.
        """
        made: list[Entry] = []
        for registration in registrations:
            try:
                made.append(self._entry(registration))
            except Exception:
                _logger.exception("The stored tool %r cannot be used", registration.name)

        def work(change: Changing) -> None:
            came, differ = self._table.restore(made)
            change.keys.update(dict.fromkeys(differ))
            for entry in came:
                change.roles.update(dict.fromkeys(each for each in self._roles if entry.registration.reaches(each)))

        return self._change("restore", work)

    def apply_stored(self, stored: Mapping[Key, Registration | None]) -> Change:
        """Apply what another server has stored under these keys (None: it was removed there), without checking permissions.

        Tools of this process stay, and what comes from where tools are hidden is hidden too. The change has no keys: it is
        stored already.
        """
        made: dict[Key, Entry | None] = {}
        for key, registration in stored.items():
            try:
                made[key] = self._entry(registration) if registration is not None else None
            except Exception:
                _logger.exception("The stored tool %r cannot be used", key.name)
                made[key] = None

        def work(change: Changing) -> None:
            names = {key.name for key in made}
            before = {(role, name): self._table.visible_entries(role, name) for role in self._roles for name in names}
            hidden = {_endpoint(each) for each in self._table if each.hidden and not each.is_elsewhere}
            for key, entry in made.items():
                here = self._table.get(key)
                if here is not None and (not here.registration.is_stored or _is_same(here, entry)):
                    continue
                is_hidden = entry is not None and (entry.is_elsewhere or _endpoint(entry) in hidden)
                self._table.put(key, replace(entry, hidden=is_hidden) if entry is not None else None)
            for (role, name), was in before.items():
                if self._table.visible_entries(role, name) != was:
                    change.roles[role] = None

        return self._change("apply_stored", work)

    # Shared by all changes

    def _entry(self, registration: Registration) -> Entry:
        registration.check()
        tool = registration.tool if registration.tool is not None else self._make_remote(registration)
        is_elsewhere = registration.machine not in ("", self.machine)
        return Entry(registration, tool, hidden=is_elsewhere, is_elsewhere=is_elsewhere)

    def _change(self, action: Action, work: Callable[[Changing], None]) -> Change:
        changing = Changing()
        with self._lock:
            work(changing)
            if changed := bool(changing.roles or changing.keys):
                self._revision += 1
                for role in changing.roles:
                    self._snapshots.pop(role, None)
                    if role in self._roles:
                        self._roles[role] = self._revision
            change = changing.done(action, self._roles, self._revision)
            if changed:
                self._listeners.queue(change)
        self._listeners.deliver()
        return change

    def _mark(self, action: Action, source: str | None, origin: str | None, *, hidden: bool) -> Change:
        if source is None and origin is None:
            raise ConfigurationError(f"{action} needs a source or an origin.")

        def work(change: Changing) -> None:
            for entry in self._table:
                if entry.hidden is not hidden and not entry.is_elsewhere and _matches(entry, source, origin):
                    seen_by = self._seen_by(entry, tuple(self._roles))
                    self._table.set_hidden(entry, hidden=hidden)
                    change.roles.update(dict.fromkeys(seen_by))

        return self._change(action, work)

    def _take(self, change: Changing, entry: Entry, role: str | None, targets: tuple[str, ...], *, allowed: bool) -> None:
        if role is not None and not entry.registration.reaches(role):
            return
        seen_by = self._seen_by(entry, targets)
        if not allowed:
            for each in seen_by or (entry.registration.role or EVERY_ROLE,):
                change.refused[Refusal(each, entry.registration.source)] = None
            return
        self._table.remove_from(entry, role)
        if entry.registration.is_stored:  # else the row may be another server's
            change.keys[entry.key] = None
        change.roles.update(dict.fromkeys(seen_by))
        change.removed += len(seen_by)

    def _objections(self, registration: Registration, targets: tuple[str, ...], permissions: Permissions) -> list[Failure]:
        """Return the reasons to refuse a registration: first those of the roles' tools, then those of the table."""
        source, name = registration.source, registration.name
        if not permissions.may_claim(source):
            return [_reserved(role, source) for role in targets]
        if permissions.inside:
            return []
        seen = {role: entries[0] for role in targets if (entries := self._table.visible_entries(role, name))}
        replicas = self._table.replicas_of(registration)
        displaced = self._table.displaced_by(registration)
        others = [
            *(
                Failure(role, "cross-source overwrite refused", "source_conflict")
                for role in seen
                if seen[role].registration.source != source
            ),
            *(
                Failure(entry.registration.role or EVERY_ROLE, "cross-source ledger overwrite refused", "source_conflict")
                for entry in displaced
                if entry.registration.source != source
            ),
        ]
        others = others or [
            Failure(entry.registration.role or EVERY_ROLE, "the secret of the registration is needed", "secret_needed")
            for entry in (dict.fromkeys([*displaced, *replicas]) if replicas else displaced)
            if not permissions.may_touch(entry.registration)
        ]
        return others or [
            Failure(entry.registration.role or EVERY_ROLE, _OTHERWISE.format(entry.key.instance), "replica_conflict")
            for entry in replicas
            if entry not in displaced
            if entry.registration.declaration != registration.declaration
        ]

    def _seen_by(self, entry: Entry, roles: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(role for role in roles if entry in self._table.visible_entries(role, entry.key.name))

    def _targets(self, role: str | None) -> tuple[str, ...]:
        return (self._known(role),) if role else tuple(self._roles)

    def _known(self, role: str) -> str:
        if role not in self._roles:
            raise UnknownRoleError(role)
        return role

    def _snapshot(self, role: str) -> Snapshot:
        if (found := self._snapshots.get(role)) is None:
            self._known(role)
            tools, replicas = self._table.visible_tools(role)
            rows = (
                self._tool_of(replicas[name])
                if replicas and (name := each.registration.name) in replicas
                else (each.registration, each.tool, each.hidden)
                for each in tools
            )
            instances = {name: [(each.registration, each.hidden) for each in entries] for name, entries in replicas.items()}
            found = self._snapshots[role] = Snapshot.of(role, self._roles[role], rows, instances)
        return found

    def _tool_of(self, replicas: Sequence[Entry]) -> tuple[Registration, Tool, bool]:
        """Return a tool with several callbacks: one that can be called stands for it."""
        here = [each for each in replicas if not each.is_elsewhere] or replicas[:1]
        first = min(here, key=lambda each: each.hidden)
        tool = self._combine([each.tool for each in here]) if len(here) > 1 else first.tool
        return first.registration, tool, first.hidden

    def _permissions(self, *, trusted: bool, inside: bool, secret: str | None) -> Permissions:
        return Permissions(trusted, inside, secret, self._needs_secret, self._reserved)


def _reserved(role: str, source: str) -> Failure:
    return Failure(role, f"the source {source!r} is reserved", "source_reserved")


def _is_same(here: Entry, entry: Entry | None) -> bool:
    if entry is None:
        return False
    return (here.registration, here.registration.place) == (entry.registration, entry.registration.place)


def _matches(entry: Entry, source: str | None, origin: str | None) -> bool:
    """Whether an entry is of this source and, on this machine, of this origin; None: any."""
    registration = entry.registration
    is_there = origin is None or (origin == registration.origin and not entry.is_elsewhere)
    return is_there and source in (None, registration.source)


def _endpoint(entry: Entry) -> tuple[str, str | None]:
    return entry.registration.source, entry.registration.origin
