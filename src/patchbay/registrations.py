"""Registrations in a database: SQLite or PostgreSQL, by URL. They survive the process, however that ends.

Each change is one transaction, so what is loaded is the registry after some change, never half of one. A write stores what the
registry has now, not what the change had: the order of two writers does not matter, and what could not be written is written
with the next change.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from patchbay.database import Database
from patchbay.tools.registry import Change, Key, Registration, ToolRegistry

VERSION: Final = 1
DEFAULT_URL: Final = "sqlite:///tools.db"

_logger = logging.getLogger(__name__)

Write = Callable[[Callable[[Connection], "dict[Key, int]"]], Awaitable["dict[Key, int]"]]

_metadata = sa.MetaData()

# Names and roles are JSON text: PostgreSQL's own cannot hold every string that JSON can.
_table = sa.Table(
    "patchbay_registrations",
    _metadata,
    sa.Column("role", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("place", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)

serving = sa.Table(
    "patchbay_serving", _metadata, sa.Column("one", sa.Integer, primary_key=True), sa.Column("server", sa.Text, nullable=False)
)
"""One row: the server that locked the database last."""


class RegistrationStore:
    """Stores a registry's tools of other processes in the database at ``url`` (see ``patchbay.database.Database``).

    Tools of this process are not stored: they are code. A SQLite file is readable by its owner only, since the secrets of
    registrations are in it. Several processes with registries of their own may use one database, and lose no row of each other.
    Raises ConfigurationError for a URL of another kind, and on first use where the database cannot be opened.
    """

    def __init__(self, url: str | os.PathLike[str] = DEFAULT_URL) -> None:
        self._database = Database(url, _metadata, name="registrations", version=VERSION)
        self._insert = postgresql.insert if self._database.is_postgres else sqlite.insert
        self._guard = threading.Lock()
        self._unsaved: dict[Key, int] = {}  # with the number of the latest call that named the key
        self._calls = 0

    @property
    def database(self) -> Database:
        """The database, for instance to lock it."""
        return self._database

    async def load(self) -> list[Registration]:
        """Return the stored registrations in order, for ``ToolRegistry.restore``."""
        everything = sa.select(_table.c.place, _table.c.body)
        rows = await self._database.read(lambda connection: list(connection.execute(everything)))
        found = (_read(body, place) for place, body in rows)
        return sorted((each for each in found if each is not None), key=lambda registration: registration.order)

    async def save(self, registry: ToolRegistry, *changes: Change, write: Write | None = None) -> None:
        """Store what the registry has under the keys of ``changes``, in one transaction that is committed on return.

        Where it raises, nothing was stored; the next call writes that too. A cancelled caller waits for its end. ``write`` runs
        the transaction instead of the database's own ``write``.
        """
        self.mark_unsaved(key for change in changes for key in change.keys)
        if not self.unsaved:
            return
        write = write if write is not None else partial(self._database.write, exclusive=True)
        written = await write(lambda connection: self._write(connection, registry))
        with self._guard:
            for key, call in written.items():
                if self._unsaved.get(key) == call:
                    del self._unsaved[key]

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

    def _write(self, connection: Connection, registry: ToolRegistry) -> dict[Key, int]:
        with self._guard:
            unsaved = dict(self._unsaved)
        rows = []
        for key in unsaved:
            registration = registry.get(key)
            body = _body(registration) if registration is not None and registration.is_remote else None
            if registration is not None and body is not None:
                rows.append({**_columns(key), "place": registration.place or 0, "body": body})
            else:
                connection.execute(_table.delete().where(*(_table.c[name] == text for name, text in _columns(key).items())))
        if rows:
            insert = self._insert(_table)
            changed = {name: insert.excluded[name] for name in ("place", "body")}
            connection.execute(insert.on_conflict_do_update(index_elements=["role", "name"], set_=changed), rows)
        return unsaved


_FIELDS: Final = ("name", "description", "parameters", "source", "role", "timeout_seconds", "callback_url", "metadata", "secret")


def _columns(key: Key) -> dict[str, str]:
    return {"role": json.dumps(key.role), "name": json.dumps(key.name)}


def _body(registration: Registration) -> str | None:
    fields = {name: getattr(registration, name) for name in _FIELDS}
    try:
        return json.dumps({**fields, "excluded": sorted(registration.excluded)}, default=json_default)
    except (TypeError, ValueError, RecursionError):
        # Its owner's schema or metadata. The tool works until the process ends; all others are stored.
        _logger.exception("Tool %r cannot be stored", registration.name)
        return None


def json_default(value: Any) -> Any:
    """Return a substitute for a value that JSON does not have: an object for a mapping, else its text."""
    return dict(value) if isinstance(value, Mapping) else str(value)


def _read(body: str, place: int) -> Registration | None:
    try:
        fields = json.loads(body)
        return Registration(**{**fields, "excluded": frozenset(fields["excluded"]), "place": place})
    except (TypeError, ValueError, KeyError):
        _logger.exception("A stored tool cannot be read, and is left out")
        return None
