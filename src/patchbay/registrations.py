"""Registrations in a database: SQLite or PostgreSQL, by URL. They survive the process, however that ends.

Each change is one transaction, so what is loaded is the registry after some change, never half of one. A write stores what the
registry has now, not what the change had: the order of two writers does not matter, and what could not be written is written
with the next change.

In PostgreSQL any number of servers share the registrations. A writing transaction excludes the others, gives its rows the next
revision, and reads first what other servers have stored; where both have changed tools of one name, the first to commit wins.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import uuid
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from patchbay.database import Database
from patchbay.database_tables import Tables
from patchbay.tools.registry import Change, Key, Registration, ToolRegistry

CHANNEL: Final = "patchbay_registrations"
"""Where PostgreSQL notifies of each change."""
KEPT_REMOVALS: Final = 10_000
"""Revisions for which a removed row is kept, so that others learn of it; a server that is further behind reads everything."""
DEFAULT_URL: Final = "sqlite:///tools.db"

_logger = logging.getLogger(__name__)

_metadata = sa.MetaData()
TABLES: Final = Tables("registrations", 1, _metadata)

# Names and roles are JSON text: PostgreSQL's own cannot hold every string that JSON can.
_table = sa.Table(
    "patchbay_registrations",
    _metadata,
    sa.Column("role", sa.Text, primary_key=True),  # of a replica: [role, instance]
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("place", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),  # "" for a removed one
    sa.Column("revision", sa.BigInteger, nullable=False, server_default="0", index=True),
)

_shared = sa.Table(
    "patchbay_registry",
    _metadata,
    sa.Column("one", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("secret", sa.Text, nullable=False, server_default=""),
)
"""One row: the id and the secret of the servers that share the registry in PostgreSQL, and the number of its last change."""

Rows = dict[Key, Registration | None]
"""Registrations by key; None for one that is removed."""


class RegistrationStore:
    """Stores a registry's tools of other processes in the database at ``url`` (see ``patchbay.database.Database``).

    Tools of this process are not stored: they are code. A SQLite file is readable by its owner only, since the secrets of
    registrations are in it. Several processes with registries of their own may use one database, and lose no row of each other.
    Raises ConfigurationError for a URL of another kind, and on first use where the database cannot be opened.
    """

    def __init__(self, url: str | os.PathLike[str] = DEFAULT_URL) -> None:
        self._database = Database(url, TABLES)
        self._insert = postgresql.insert if self._database.is_postgres else sqlite.insert
        self._guard = threading.Lock()
        self._unsaved: dict[Key, int] = {}  # with the number of the latest call that named the key
        self._calls = 0
        self._seen = 0  # the revision up to which the registry has what other servers stored
        self._contested: set[str] = set()  # names that were changed here while the others' change of them was read

    @property
    def database(self) -> Database:
        """The database, for instance to lock it."""
        return self._database

    @property
    def is_shared(self) -> bool:
        """Whether several servers can have it."""
        return self._database.is_postgres

    @property
    def revision(self) -> int:
        """The number of the last change of a shared store that is known here."""
        return self._seen

    async def shared_identity(self) -> tuple[str, bytes]:
        """Return the id and the secret that all servers with a shared store have in common."""

        def read(connection: Connection) -> tuple[str, bytes]:
            found = connection.execute(sa.select(_shared.c.id, _shared.c.secret)).first()
            if found is not None and found.secret:
                return found.id, bytes.fromhex(found.secret)
            shared_id, secret = uuid.uuid4().hex if found is None else found.id, secrets.token_bytes(32)
            if found is None:
                connection.execute(_shared.insert().values(one=1, id=shared_id, revision=0, secret=secret.hex()))
            else:
                connection.execute(_shared.update().values(secret=secret.hex()))
            return shared_id, secret

        return await self._database.write(read, exclusive=True)

    async def load(self) -> list[Registration]:
        """Return the stored registrations in order, for ``ToolRegistry.restore``."""
        rows, self._seen = await self._database.read(lambda connection: (_read_rows(connection), _revision(connection)))
        return sorted(filter(None, rows.values()), key=lambda registration: registration.order)

    async def save(self, registry: ToolRegistry, *changes: Change) -> None:
        """Store what the registry has under the keys of ``changes``, in one transaction that is committed on return.

        Where it raises, nothing was stored; the next call writes that too. A cancelled caller waits for its end.
        """
        self.mark_unsaved(key for change in changes for key in change.keys)
        with self._guard:
            unsaved = dict(self._unsaved)
        if unsaved:
            await self._database.write(lambda connection: self._write(connection, registry, unsaved), exclusive=True)
            self._clear_unsaved(unsaved)

    async def exchange(self, registry: ToolRegistry) -> set[str]:
        """Store what is unsaved, and apply to the registry what other servers have stored since the last call.

        Returns the names whose unsaved changes were dropped, since another server has changed a tool of the name: the registry
        has that server's then. For one task at a time, on the event loop that changes the registry; raises as ``save``.
        """
        database = self._database
        if not self.is_shared:
            if self.unsaved:
                await self.save(registry)
            else:
                await database.write(lambda connection: connection.scalar(sa.select(1)))  # fails where the file is lost
            return set()
        if self.unsaved:
            found = await database.write(lambda connection: self._exchange(connection, registry), exclusive=True)
        elif self._seen == await database.read(_revision):
            return set()
        else:
            found = await database.read(lambda connection: ({}, *self._changes_of_others(connection, registry, ())))
        unsaved, rows, revision = found
        # From here to the end nothing is awaited: a change of this event loop comes before, and is seen below, or after.
        changed = {key.name for key in rows}
        dropped = {key.name for key in unsaved if key.name in changed and rows.get(key) != registry.get(key)}
        with self._guard:
            newer = {key.name for key, call in self._unsaved.items() if unsaved.get(key) != call}
        self._contested = newer & changed
        self._clear_unsaved({key: call for key, call in unsaved.items() if key.name not in self._contested})
        if revision < self._seen:  # a database that has lost its last changes: they are stored again
            self.mark_unsaved(_remote_keys(registry))
        self._seen = revision
        registry.apply_stored({key: each for key, each in rows.items() if key.name not in self._contested})
        return dropped

    def mark_unsaved(self, keys: Iterable[Key]) -> None:
        """Mark these keys for the next ``save``, which writes what the registry has under them then."""
        with self._guard:
            self._calls += 1
            self._unsaved.update((key, self._calls) for key in keys)

    @property
    def unsaved(self) -> list[Key]:
        """The keys that have not been written yet."""
        with self._guard:
            return list(self._unsaved)

    async def close(self) -> None:
        """Finish running work and close the database."""
        await self._database.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def _clear_unsaved(self, calls: Mapping[Key, int]) -> None:
        """Remove the mark of keys that were not marked again since these calls."""
        with self._guard:
            for key, call in calls.items():
                if self._unsaved.get(key) == call:
                    del self._unsaved[key]

    def _exchange(self, connection: Connection, registry: ToolRegistry) -> tuple[dict[Key, int], Rows, int]:
        """Store what is unsaved, but names that others have changed; return it, what others have stored, and the revision."""
        with self._guard:
            unsaved = dict(self._unsaved)
        rows, revision = self._changes_of_others(connection, registry, unsaved)
        changed = {key.name for key in rows}
        if mine := [key for key in unsaved if key.name not in changed]:
            revision = self._write(connection, registry, mine)
        return unsaved, rows, revision

    def _changes_of_others(self, connection: Connection, registry: ToolRegistry, unsaved: Iterable[Key]) -> tuple[Rows, int]:
        """Return what others have stored since the last call, all that there is under unsaved names of it, and the revision."""
        revision = _revision(connection)
        if self._seen > revision:  # see ``exchange``
            known = {key.name for key in _remote_keys(registry)}
            return {key: each for key, each in _read_rows(connection).items() if key.name not in known}, revision
        if self._seen + KEPT_REMOVALS < revision:
            rows = _read_rows(connection)
            return rows | {key: None for key in _remote_keys(registry) if key not in rows and key not in unsaved}, revision
        rows = _read_rows(connection, _table.c.revision > self._seen)
        if both := {key.name for key in unsaved} & ({key.name for key in rows} | self._contested):
            rows |= _read_rows(connection, _table.c.name.in_([json.dumps(name) for name in both]))
            rows |= {key: None for key in _remote_keys(registry) if key not in rows and key.name in both}
        return rows, revision

    def _write(self, connection: Connection, registry: ToolRegistry, keys: Iterable[Key]) -> int:
        """Store what the registry has under the keys, and return the revision, 0 where the store is not shared."""
        revision = self._next_revision(connection) if self.is_shared else 0
        rows = []
        for key in keys:
            registration = registry.get(key)
            body = _body(registration) if registration is not None and registration.is_stored else None
            if registration is not None and body is not None:
                rows.append({**_columns(key), "place": registration.place or 0, "body": body, "revision": revision})
                continue
            here = [_table.c[name] == text for name, text in _columns(key).items()]
            gone = _table.update().values(body="", revision=revision) if revision else _table.delete()
            connection.execute(gone.where(*here))
        if rows:
            insert = self._insert(_table)
            changed = {name: insert.excluded[name] for name in ("place", "body", "revision")}
            connection.execute(insert.on_conflict_do_update(index_elements=["role", "name"], set_=changed), rows)
        return revision

    def _next_revision(self, connection: Connection) -> int:
        """Return the revision of an exclusive transaction's changes, and notify the others at its end."""
        insert = postgresql.insert(_shared).values(one=1, id=uuid.uuid4().hex, revision=1)
        following = insert.on_conflict_do_update(index_elements=["one"], set_={"revision": _shared.c.revision + 1})
        revision = connection.scalar(following.returning(_shared.c.revision))
        assert isinstance(revision, int)
        if revision % KEPT_REMOVALS == 0:
            connection.execute(_table.delete().where(_table.c.body == "", _table.c.revision < revision - KEPT_REMOVALS))
        connection.execute(sa.select(sa.func.pg_notify(CHANNEL, "")))
        return revision


_FIELDS: Final = ("name", "description", "parameters", "source", "role", "timeout_seconds", "callback_url", "metadata", "secret")
_REPLICA_FIELDS: Final = ("instance", "machine")


def _columns(key: Key) -> dict[str, str]:
    role = [key.role, key.instance] if key.instance else key.role
    return {"role": json.dumps(role), "name": json.dumps(key.name)}


def _key(role: Any, name: str) -> Key:
    return Key(role[0], name, role[1]) if isinstance(role, list) else Key(role, name)


def _body(registration: Registration) -> str | None:
    fields = {name: getattr(registration, name) for name in _FIELDS}
    fields |= {name: value for name in _REPLICA_FIELDS if (value := getattr(registration, name))}
    try:
        return json.dumps({**fields, "excluded": sorted(registration.excluded)}, default=json_default)
    except (TypeError, ValueError, RecursionError):
        # Its owner's schema or metadata. The tool works until the process ends; all others are stored.
        _logger.exception("Tool %r cannot be stored", registration.name)
        return None


def json_default(value: Any) -> Any:
    """Return a substitute for a value that JSON does not have: an object for a mapping, else its text."""
    return dict(value) if isinstance(value, Mapping) else str(value)


def _remote_keys(registry: ToolRegistry) -> list[Key]:
    return [each.key for each in registry.registrations() if each.is_stored]


def _revision(connection: Connection) -> int:
    return connection.scalar(sa.select(_shared.c.revision)) or 0


def _read_rows(connection: Connection, *conditions: sa.ColumnElement[bool]) -> Rows:
    """Return the rows, but those that cannot be read."""
    found = connection.execute(sa.select(_table.c.role, _table.c.name, _table.c.place, _table.c.body).where(*conditions))
    rows: Rows = {}
    for role, name, place, body in found:
        key = _key(json.loads(role), json.loads(name))
        try:
            rows[key] = _registration(json.loads(body), place) if body else None
        except (TypeError, ValueError, KeyError):
            _logger.exception("A stored tool cannot be read, and is left out")
            rows[key] = None
    return rows


def _registration(fields: Mapping[str, Any], place: int) -> Registration:
    return Registration(**{**fields, "excluded": frozenset(fields["excluded"]), "place": place})
