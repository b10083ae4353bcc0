"""Who registered what: the one truth that every role's list follows from.

What lives here: the registrations by name and role, and what one displaces of the others. What does not: who may do it
(``reach``), and many threads at once (``registry``).

A role sees the registration for it, else the one for all roles unless it is excluded from that. A registration for all roles
takes the place of those for one; one for a role excludes the role from that for all, so that taking it away again leaves the
role without the tool. The order is that of first insertion, and what replaces a tool stands where that stood.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from patchbay.tools.base import Tool
from patchbay.tools.registry.registration import Key, Registration


@dataclass(frozen=True)
class Entry:
    """A registration with the tool that carries out its calls."""

    registration: Registration
    tool: Tool
    hidden: bool = False

    @property
    def key(self) -> Key:
        """The registration's."""
        return self.registration.key


class Ledger:
    """The registrations. Not for more than one thread at a time."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[str | None, Entry]] = {}
        self._next_place = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter([entry for entries in self._by_name.values() for entry in entries.values()])

    def get(self, key: Key) -> Entry | None:
        """Return what is registered under a key."""
        return self._by_name.get(key.name, {}).get(key.role)

    def named(self, name: str) -> list[Entry]:
        """Return what is registered under a name, whoever for."""
        return list(self._by_name.get(name, {}).values())

    def seen(self, role: str, name: str) -> Entry | None:
        """Return the tool of this name that the role has."""
        entries = self._by_name.get(name, {})
        if (own := entries.get(role)) is not None:
            return own
        common = entries.get(None)
        return common if common is not None and common.registration.reaches(role) else None

    def view(self, role: str) -> list[Entry]:
        """Return all that the role has, in order."""
        seen = (self.seen(role, name) for name in self._by_name)
        return in_order(entry for entry in seen if entry is not None)

    def displaced_by(self, registration: Registration) -> list[Entry]:
        """Return what would be gone, or reach fewer roles, if ``registration`` came in: its own older version first."""
        role = registration.role
        others = (
            entry
            for entry in self.named(registration.name)
            if role is None or entry.registration.role == role or entry.registration.reaches(role)
        )
        return sorted(others, key=lambda entry: entry.registration.role != role)

    def put(self, entry: Entry) -> list[Key]:
        """Take an entry in, with what it displaces, and return the keys of all that is not what it was."""
        registration = entry.registration
        displaced = self.displaced_by(registration)
        here = self.get(entry.key)
        if here is not None and len(displaced) == 1 and here.registration == registration and here.hidden == entry.hidden:
            return []  # it is there just so
        for other in displaced:
            self.take(other, registration.role)
        place = here.registration.place if here is not None else _first_place(displaced)
        if place is None:
            place = self._next_place
        self._set(replace(entry, registration=replace(registration, place=place)))
        return [entry.key, *(other.key for other in displaced if other.key != entry.key)]

    def take(self, entry: Entry, role: str | None) -> None:
        """Take an entry away from a role, or (None) from all."""
        registration = entry.registration
        if role is None or registration.role == role:
            self._drop(entry.key)
        else:
            self._set(replace(entry, registration=replace(registration, excluded=registration.excluded | {role})))

    def give_back(self, entry: Entry, role: str) -> None:
        """Let an entry for all roles reach a role again that was excluded from it."""
        registration = entry.registration
        self._set(replace(entry, registration=replace(registration, excluded=registration.excluded - {role})))

    def restore(self, entries: Iterable[Entry]) -> tuple[list[Entry], list[Key]]:
        """Take in what was stored, places and exclusions too, as if it had come before all that is there already.

        Returns what came in, and the keys of what was stored and is not so here: for what is there takes its place, or excludes
        a role from it.
        """
        older = list(entries)
        there = {entry.key.name: self.named(entry.key.name) for entry in older}
        came, differ = [], []
        for entry in older:
            key = entry.key
            newer = [each for each in there[key.name] if each.key == key or (key.role and each.registration.reaches(key.role))]
            if newer:
                if entry.registration not in [each.registration for each in newer]:
                    differ.append(key)
                continue
            place = entry.registration.place if entry.registration.place is not None else self._next_place
            self._set(replace(entry, registration=replace(entry.registration, place=place)))
            came.append(key)
        for key in [key for key in came if key.role is None]:
            own = {entry.key.role for entry in self.named(key.name) if entry.key.role is not None}
            entry = self._by_name[key.name][None]
            if not own <= (excluded := entry.registration.excluded):
                self._set(replace(entry, registration=replace(entry.registration, excluded=excluded | own)))
                differ.append(key)
        return [self._by_name[key.name][key.role] for key in came], differ

    def mark(self, entry: Entry, *, hidden: bool) -> None:
        """Hide an entry, or show it again."""
        self._set(replace(entry, hidden=hidden))

    def _set(self, entry: Entry) -> None:
        key = entry.key
        self._by_name.setdefault(key.name, {})[key.role] = entry
        if entry.registration.place is not None:
            self._next_place = max(self._next_place, entry.registration.place + 1)

    def _drop(self, key: Key) -> None:
        entries = self._by_name[key.name]
        del entries[key.role]
        if not entries:
            del self._by_name[key.name]


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Sort as lists show them."""
    return sorted(entries, key=lambda entry: entry.registration.order)


def _first_place(entries: Iterable[Entry]) -> int | None:
    places = [entry.registration.place for entry in entries if entry.registration.place is not None]
    return min(places, default=None)
