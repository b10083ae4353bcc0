"""The registry: which tools exist, for which role, and from which source; in memory, without I/O or a clock."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
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
    """The listeners, and the changes that they have not been told of yet."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._listeners: tuple[Callable[[Change], object], ...] = ()
        self._untold: deque[Change] = deque()
        self._telling = threading.Lock()
        self._teller: int | None = None

    def add(self, listener: Callable[[Change], object]) -> Callable[[], None]:
        """Tell ``listener`` too; what is returned ends that."""

        def told(change: Change) -> None:
            listener(change)

        def end() -> None:
            with self._guard:
                self._listeners = tuple(each for each in self._listeners if each is not told)

        with self._guard:
            self._listeners = (*self._listeners, told)
        return end

    def queue(self, change: Change) -> None:
        """Put a change behind those before it; the caller holds the lock that puts changes in order."""
        self._untold.append(change)

    def tell(self) -> None:
        """Return when all queued changes were delivered; what a listener changes itself is delivered after that."""
        if self._teller == threading.get_ident():
            return
        with self._telling:
            self._teller = threading.get_ident()
            try:
                while self._untold:
                    self._tell(self._untold.popleft())
            finally:
                self._teller = None

    def _tell(self, change: Change) -> None:
        for listener in self._listeners:
            try:
                listener(change)
            except Exception:
                _logger.exception("A listener of the registry failed")


DEFAULT_ROLE: Final = "default"


class ToolRegistry:
    """Which tools exist, for which role, from which source. Any number of threads may use it.

    ``make_remote`` makes the tool that carries out the calls of a registration with a ``callback_url``; without one each such
    call is answered with an error. What it raises, ``register`` raises. ``reserved`` are the sources that only trusted callers
    may claim. With ``needs_secret`` a registration that has a secret is replaced and removed only by who knows it, or is trusted.

    ``trusted``, ``inside`` and ``secret`` of the methods say who is asking (``Permissions``). ``inside`` is code of this
    program: it may do anything. A ``role`` of None or ``""`` is all roles; one that does not exist raises UnknownRoleError, and
    nothing is changed then.
    """

    def __init__(
        self,
        roles: Iterable[str] = (DEFAULT_ROLE,),
        make_remote: Callable[[Registration], Tool] | None = None,
        *,
        reserved: Iterable[str] = RESERVED,
        needs_secret: bool = False,
    ) -> None:
        self._make_remote = make_remote if make_remote is not None else Undispatched
        self._reserved = tuple(reserved)
        self._needs_secret = needs_secret
        self._lock = threading.Lock()
        self._table = RegistrationTable()
        self._revision = 0
        self._roles: dict[str, int] = {}  # the revision that each last saw
        self._snapshots: dict[str, Snapshot] = {}  # what is missing is made when it is asked for
        self._listeners = Listeners()
        for role in roles:
            self.add_role(role)

    # Reading

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles there are, in the order they came."""
        with self._lock:
            return tuple(self._roles)

    @property
    def revision(self) -> int:
        """It grows with every change, of any role."""
        return self._revision

    def snapshot(self, role: str) -> Snapshot:
        """Return what the role has now."""
        if (found := self._snapshots.get(role)) is not None:
            return found
        with self._lock:
            return self._snapshot(role)

    def snapshots(self, role: str | None = None) -> dict[str, Snapshot]:
        """Return what each role has (or one of them), all of the same moment."""
        with self._lock:
            return {each: self._snapshot(each) for each in self._targets(role)}

    def get(self, key: Key) -> Registration | None:
        """Return what is registered under a key, exclusions and all."""
        with self._lock:
            entry = self._table.get(key)
            return entry.registration if entry is not None else None

    def problem(self, key: Key) -> str | None:
        """Return why no model can be told of what is registered under a key; None where one can, or there is nothing."""
        with self._lock:
            entry = self._table.get(key)
            return entry.tool.problem if entry is not None else None

    def registrations(self) -> list[Registration]:
        """Return all that is registered, also for roles that do not exist (yet), in order."""
        with self._lock:
            return [entry.registration for entry in in_order(self._table)]

    def subscribe(self, listener: Callable[[Change], object]) -> Callable[[], None]:
        """Have ``listener`` called after each change, one after the other in their order; call what is returned to end it.

        It is called in some thread that makes a change, and must not block: a change returns when all have been told of it. What
        it changes itself is delivered later. What it raises is logged.
        """
        return self._listeners.add(listener)

    # Changing

    def add_role(self, role: str) -> Change:
        """Have a role from now on; it inherits what is registered for all roles. One that exists already stays as it is."""
        if not isinstance(role, str) or not role:
            raise ConfigurationError(f"A role's name must be a non-empty string, not {role!r}.")

        def work(change: Changing) -> None:
            if role not in self._roles:
                self._roles[role] = 0
                change.roles[role] = None

        return self._change("add_role", work)

    def remove_role(self, role: str) -> Change:
        """Forget a role: what was registered for it alone, and that it was excluded from anything."""

        def work(change: Changing) -> None:
            self._known(role)
            for entry in self._table:
                if entry.registration.role == role:
                    self._table.take(entry, role)
                    change.keys[entry.key] = None
                elif role in entry.registration.excluded:
                    self._table.give_back(entry, role)
                    change.keys[entry.key] = None
            del self._roles[role]
            self._snapshots.pop(role, None)
            change.roles[role] = None

        return self._change("remove_role", work)

    def register(
        self, registration: Registration, *, trusted: bool = False, inside: bool = False, secret: str | None = None
    ) -> Change:
        """Register a tool, in the place of one of the same name and source.

        Nothing is changed where any role's tool of that name is another source's, or the source is reserved, or there is no
        role at all; ``failed_roles`` says which and why. A registration for all roles takes the place of those for one; one for
        a role excludes that role from the one for all. A hidden tool that is registered again is hidden no longer. Raises
        ConfigurationError for a tool that cannot be made.
        """
        permissions = self._permissions(trusted=trusted, inside=inside, secret=secret)
        with self._lock:
            self._targets(registration.role)  # before the tool is made: the role's error comes first
        entry = self._entry(replace(registration, excluded=frozenset(), place=None))

        def work(change: Changing) -> None:
            targets = self._targets(registration.role)
            change.failed += self._objections(registration, targets, permissions)
            if change.failed or not targets:
                return
            change.affected = targets
            if keys := self._table.put(entry):
                change.keys.update(dict.fromkeys(keys))
                change.roles.update(dict.fromkeys(targets))

        return self._change("register", work)

    def unregister(
        self,
        name: str,
        role: str | None = None,
        *,
        expected_source: str | None = None,
        trusted: bool = False,
        inside: bool = False,
        secret: str | None = None,
    ) -> Change:
        """Take a tool away from a role, or from all. With ``expected_source`` only that source's.

        One that is registered for all roles stays for the others. What the caller may not change is listed in ``refused_roles``.
        """
        permissions = self._permissions(trusted=trusted, inside=inside, secret=secret)

        def work(change: Changing) -> None:
            targets = self._targets(role)
            for entry in self._table.named(name):
                expected = expected_source is None or expected_source == entry.registration.source
                self._take(change, entry, role or None, targets, allowed=expected and permissions.may_touch(entry.registration))

        return self._change("unregister", work)

    def clear(
        self,
        source: str | None = None,
        role: str | None = None,
        *,
        origin: str | None = None,
        trusted: bool = False,
        inside: bool = False,
        secret: str | None = None,
    ) -> Change:
        """Take away all tools of a source (exactly that; None: of any), from a role or from all.

        With ``origin`` only those whose callback is there (``Registration.origin``).
        """
        permissions = self._permissions(trusted=trusted, inside=inside, secret=secret)

        def work(change: Changing) -> None:
            targets = self._targets(role)
            if source is not None and not permissions.may_claim(source):
                change.failed += [_reserved(each, source) for each in targets]
                return
            for entry in in_order(self._table):
                if _matches(entry.registration, source, origin):
                    self._take(change, entry, role or None, targets, allowed=permissions.may_touch(entry.registration))

        return self._change("clear", work)

    def hide(self, source: str | None = None, *, origin: str | None = None) -> Change:
        """Hide the tools of a source, or of an origin, or both, from models until ``show``.

        They stay registered. A tool that is registered meanwhile is not hidden.
        """
        return self._mark("hide", source, origin, hidden=True)

    def show(self, source: str | None = None, *, origin: str | None = None) -> Change:
        """End what ``hide`` did."""
        return self._mark("show", source, origin, hidden=False)

    def restore(self, registrations: Iterable[Registration]) -> Change:
        """Take in what was stored: as it was, whoever's it is, and also for roles that do not exist yet.

        What is registered already stays, as if it had come later. One whose tool cannot be made is left out, and logged.
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

    # What all of them do

    def _entry(self, registration: Registration) -> Entry:
        registration.check()
        return Entry(registration, registration.tool if registration.tool is not None else self._make_remote(registration))

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
        self._listeners.tell()
        return change

    def _mark(self, action: Action, source: str | None, origin: str | None, *, hidden: bool) -> Change:
        if source is None and origin is None:
            raise ConfigurationError(f"{action} needs a source or an origin.")

        def work(change: Changing) -> None:
            for entry in self._table:
                if entry.hidden is not hidden and _matches(entry.registration, source, origin):
                    seen_by = self._seen_by(entry, tuple(self._roles))
                    self._table.mark(entry, hidden=hidden)
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
        self._table.take(entry, role)
        change.keys[entry.key] = None
        change.roles.update(dict.fromkeys(seen_by))
        change.removed += len(seen_by)

    def _objections(self, registration: Registration, targets: tuple[str, ...], permissions: Permissions) -> list[Failure]:
        """Say what stands against a registration: first what roles have, then what stands in the table."""
        source, name = registration.source, registration.name
        if not permissions.may_claim(source):
            return [_reserved(role, source) for role in targets]
        if permissions.inside:
            return []
        seen = {role: entry for role in targets if (entry := self._table.seen(role, name)) is not None}
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
        return others or [
            Failure(entry.registration.role or EVERY_ROLE, "the secret of the registration is needed", "secret_needed")
            for entry in displaced
            if not permissions.may_touch(entry.registration)
        ]

    def _seen_by(self, entry: Entry, roles: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(role for role in roles if self._table.seen(role, entry.key.name) is entry)

    def _targets(self, role: str | None) -> tuple[str, ...]:
        return (self._known(role),) if role else tuple(self._roles)

    def _known(self, role: str) -> str:
        if role not in self._roles:
            raise UnknownRoleError(role)
        return role

    def _snapshot(self, role: str) -> Snapshot:
        if (found := self._snapshots.get(role)) is None:
            self._known(role)
            rows = ((entry.registration, entry.tool, entry.hidden) for entry in self._table.view(role))
            found = self._snapshots[role] = Snapshot.of(role, self._roles[role], rows)
        return found

    def _permissions(self, *, trusted: bool, inside: bool, secret: str | None) -> Permissions:
        return Permissions(trusted, inside, secret, self._needs_secret, self._reserved)


def _reserved(role: str, source: str) -> Failure:
    return Failure(role, f"the source {source!r} is reserved", "source_reserved")


def _matches(registration: Registration, source: str | None, origin: str | None) -> bool:
    return source in (None, registration.source) and origin in (None, registration.origin)
