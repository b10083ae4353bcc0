"""The registry's table of registrations, and the permissions to change them."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from patchbay.errors import ToolFailed
from patchbay.tools.context import ToolContext
from patchbay.tools.registry.registration import Key, Registration
from patchbay.tools.tool import Tool


class Undispatched(Tool):
    """A remote tool without a dispatcher: every call fails."""

    def __init__(self, registration: Registration) -> None:
        super().__init__(registration.name, registration.description, parameters=registration.parameters)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:  # noqa: ARG002  (it has no handler)
        """Raise ToolFailed."""
        raise ToolFailed(f"tool {self.name!r} is remote but no dispatcher is bound", tool_name=self.name)


BUILTIN: Final = "builtin"
"""The source of the program's own tools. Only code of the program registers or removes them."""

MCP_SOURCES: Final = "mcp:*"
"""The sources of the tools of MCP servers that this program has mounted."""

RESERVED: Final = (BUILTIN, MCP_SOURCES, "plugin:*")
"""Sources that only trusted callers may claim; a final ``*`` matches anything."""


@dataclass(frozen=True)
class Permissions:
    """The permissions of a caller.

    ``inside`` is code of this program, which may do anything. ``trusted`` is a caller with the token, who may change all but the
    builtins. Other callers may not change reserved sources, nor, with ``needs_secret``, registrations with another ``secret``.
    """

    trusted: bool
    inside: bool
    secret: str | None
    needs_secret: bool
    reserved: tuple[str, ...]

    def may_claim(self, source: str) -> bool:
        """Whether the caller may register and clear tools as ``source``."""
        if self.inside:
            return True
        return source != BUILTIN and (self.trusted or not self._is_reserved(source))

    def may_touch(self, registration: Registration) -> bool:
        """Whether the caller may replace or remove this registration."""
        return self.may_claim(registration.source) and (not self._lacks_secret(registration))

    def _lacks_secret(self, registration: Registration) -> bool:
        if self.inside or self.trusted or not self.needs_secret or registration.secret is None:
            return False
        return not hmac.compare_digest(_bytes(self.secret or ""), _bytes(registration.secret))

    def _is_reserved(self, source: str) -> bool:
        return any(source.startswith(each[:-1]) if each.endswith("*") else source == each for each in self.reserved)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, eq=False)
class Entry:
    """A registration with the tool that runs its calls. ``is_elsewhere``: its callback is at loopback of another machine."""

    registration: Registration
    tool: Tool
    hidden: bool = False
    is_elsewhere: bool = False

    @property
    def key(self) -> Key:
        """The registration's key."""
        return self.registration.key


class RegistrationTable:
    """The registrations. Not thread-safe."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[str | None, dict[str, Entry]]] = {}
        self._next_place = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter([entry for name in self._by_name for entry in self.entries_named(name)])

    def get(self, key: Key) -> Entry | None:
        """Return the entry of a key."""
        return self._by_name.get(key.name, {}).get(key.role, {}).get(key.instance)

    def entries_named(self, name: str) -> list[Entry]:
        """Return the entries of a name, of all roles and instances."""
        return [entry for entries in self._by_name.get(name, {}).values() for entry in entries.values()]

    def visible_entries(self, role: str, name: str) -> list[Entry]:
        """Return the entries of this name that are visible to the role: one, or replicas of one tool in order."""
        return _visible(self._by_name.get(name, {}), role)

    def visible_tools(self, role: str) -> tuple[list[Entry], dict[str, list[Entry]]]:
        """Return the first entry of each tool that is visible to the role, in order, and all of those that have instances."""
        first: list[Entry] = []
        replicas: dict[str, list[Entry]] = {}
        for name, by_role in self._by_name.items():
            common = by_role.get(None)
            if len(by_role) == 1 and common is not None and (alone := common.get("")) is not None and len(common) == 1:
                if alone.registration.reaches(role):  # most tools; the rest is for the others
                    first.append(alone)
            elif entries := _visible(by_role, role):
                first.append(entries[0])
                if entries[0].registration.instance:
                    replicas[name] = entries
        return in_order(first), replicas

    def displaced_by(self, registration: Registration) -> list[Entry]:
        """Return the entries that ``registration`` would replace or restrict: its own older version first."""
        role = registration.role
        others = (
            entry
            for entry in self.entries_named(registration.name)
            if role is None or entry.registration.role == role or entry.registration.reaches(role)
            if not registration.instance
            or not registration.is_replica_of(entry.registration)
            or _is_outdated(entry, registration)
        )
        return sorted(others, key=lambda entry: entry.registration.role != role)

    def replicas_of(self, registration: Registration) -> list[Entry]:
        """Return the entries of other instances of a tool."""
        if not registration.instance:
            return []
        return [entry for entry in self.entries_named(registration.name) if registration.is_replica_of(entry.registration)]

    def replace_with(self, entry: Entry) -> list[Key]:
        """Add an entry, remove or restrict those that it displaces, and return the keys of all changed entries."""
        registration = entry.registration
        displaced = self.displaced_by(registration)
        here = self.get(entry.key)
        if here is not None and len(displaced) == 1 and here.registration == registration and here.hidden == entry.hidden:
            return []  # no change
        for other in displaced:
            self.remove_from(other, registration.role)
        place = here.registration.place if here is not None else _first_place(displaced or self.replicas_of(registration))
        if place is None:
            place = self._next_place
        self._set(replace(entry, registration=replace(registration, place=place)))
        return [entry.key, *(other.key for other in displaced if other.key != entry.key)]

    def remove_from(self, entry: Entry, role: str | None) -> None:
        """Remove an entry from a role, or (None) from all."""
        registration = entry.registration
        if role is None or registration.role == role:
            self._drop(entry.key)
        else:
            self._set(replace(entry, registration=replace(registration, excluded=registration.excluded | {role})))

    def remove_exclusion(self, entry: Entry, role: str) -> None:
        """Remove a role from the exclusions of an entry."""
        registration = entry.registration
        self._set(replace(entry, registration=replace(registration, excluded=registration.excluded - {role})))

    def restore(self, entries: Iterable[Entry]) -> tuple[list[Entry], list[Key]]:
        """Add stored entries with their places and exclusions, as if they were older than all present ones.

        Returns the added entries, and the keys of stored ones that differ now: a present entry replaces or restricts them.
        """
        older = list(entries)
        there = {entry.key.name: self.entries_named(entry.key.name) for entry in older}
        came, differ = [], []
        for entry in older:
            key = entry.key
            newer = [
                each
                for each in there[key.name]
                if each.key == key or (key.role and each.registration.reaches(key.role))
                if not each.registration.is_replica_of(entry.registration)
            ]
            if newer:
                if entry.registration not in [each.registration for each in newer]:
                    differ.append(key)
                continue
            place = entry.registration.place if entry.registration.place is not None else self._next_place
            self._set(replace(entry, registration=replace(entry.registration, place=place)))
            came.append(key)
        for key in [key for key in came if key.role is None]:
            own = {entry.key.role for entry in self.entries_named(key.name) if entry.key.role is not None}
            entry = self._by_name[key.name][None][key.instance]
            if not own <= (excluded := entry.registration.excluded):
                self._set(replace(entry, registration=replace(entry.registration, excluded=excluded | own)))
                differ.append(key)
        return [self._by_name[key.name][key.role][key.instance] for key in came], differ

    def put(self, key: Key, entry: Entry | None) -> None:
        """Set what is under a key; None for nothing."""
        if entry is not None:
            self._set(entry)
        elif self.get(key) is not None:
            self._drop(key)

    def set_hidden(self, entry: Entry, *, hidden: bool) -> None:
        """Set whether an entry is hidden."""
        self._set(replace(entry, hidden=hidden))

    def _set(self, entry: Entry) -> None:
        key = entry.key
        self._by_name.setdefault(key.name, {}).setdefault(key.role, {})[key.instance] = entry
        if entry.registration.place is not None:
            self._next_place = max(self._next_place, entry.registration.place + 1)

    def _drop(self, key: Key) -> None:
        by_role = self._by_name[key.name]
        del by_role[key.role][key.instance]
        if not by_role[key.role]:
            del by_role[key.role]
        if not by_role:
            del self._by_name[key.name]


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Sort entries by their order in lists."""
    return sorted(entries, key=lambda entry: entry.registration.order)


def _visible(by_role: Mapping[str | None, Mapping[str, Entry]], role: str) -> list[Entry]:
    """Return the entries of a name that are visible to the role: one, or replicas of one tool in order."""
    if (own := by_role.get(role)) is not None:
        found = [*own.values()]
    else:
        found = [entry for entry in by_role.get(None, {}).values() if entry.registration.reaches(role)]
    if len(found) < 2:
        return found
    # A tool of this process may be beside replicas that other servers have stored: it stays.
    alone = [entry for entry in found if not entry.registration.instance]
    return alone or sorted(found, key=lambda entry: (entry.registration.order, entry.registration.instance))


def _is_outdated(entry: Entry, registration: Registration) -> bool:
    """Whether an entry is declared otherwise than a new replica, and cannot be called any more."""
    return entry.hidden and not entry.is_elsewhere and entry.registration.declaration != registration.declaration


def _first_place(entries: Iterable[Entry]) -> int | None:
    places = [entry.registration.place for entry in entries if entry.registration.place is not None]
    return min(places, default=None)
