"""The tables of one kind of data in a database, with a version: made, brought up to date, and compared with what is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn

_MAKING_TABLES: Final = 0x7061746368626179
"""The key of the advisory lock under which tables are created."""

_versions = sa.Table(
    "patchbay_versions",
    sa.MetaData(),
    sa.Column("name", sa.String(100), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)


@dataclass(frozen=True)
class TablesState:
    """What a database has of tables: their version, None without any; tables and columns (``table.column``) that are missing."""

    version: int | None
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Tables:
    """The tables of one kind of data, its ``name``, and the ``version`` of their meaning.

    A later version may add tables, and columns with a default of the database: older servers go on with the same tables, and
    newer ones add what is missing. What older servers could not go on with has the next version: they refuse the database then.
    """

    name: str
    version: int
    metadata: sa.MetaData

    def make(self, connection: sa.Connection) -> int:
        """Create missing tables and columns, and return the version that is there. Several processes may do this at once."""
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MAKING_TABLES)))
        _versions.create(connection, checkfirst=True)
        self.metadata.create_all(connection)
        for column in self._missing_columns(connection):
            added = CreateColumn(column).compile(dialect=connection.dialect)
            connection.execute(sa.text(f"ALTER TABLE {column.table.name} ADD COLUMN {added}"))
        names = ", ".join(table.name for table in self.metadata.sorted_tables)
        if names and connection.dialect.name == "postgresql":
            # It is refused to a user who may not write to them: now, and not in the middle of the first request.
            connection.execute(sa.text(f"LOCK TABLE {names} IN ROW EXCLUSIVE MODE"))
        there = self._version(connection)
        if there is None:
            connection.execute(_versions.insert().values(name=self.name, version=self.version))
        return self.version if there is None else there

    def state(self, connection: sa.Connection) -> TablesState:
        """Return what is there; changes nothing."""
        inspector = sa.inspect(connection)
        names = set(inspector.get_table_names())
        missing = [table.name for table in self.metadata.sorted_tables if table.name not in names]
        missing += [f"{column.table.name}.{column.name}" for column in self._missing_columns(connection)]
        return TablesState(self._version(connection) if _versions.name in names else None, tuple(missing))

    def _missing_columns(self, connection: sa.Connection) -> list[sa.Column[object]]:
        """Return the columns that are missing in the tables that are there."""
        inspector = sa.inspect(connection)
        there = set(inspector.get_table_names())
        found = []
        for table in self.metadata.sorted_tables:
            if table.name in there:
                names = {each["name"] for each in inspector.get_columns(table.name)}
                found += [column for column in table.columns if column.name not in names]
        return found

    def _version(self, connection: sa.Connection) -> int | None:
        return connection.scalar(sa.select(_versions.c.version).where(_versions.c.name == self.name))
