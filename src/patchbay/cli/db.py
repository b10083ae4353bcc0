"""``patchbay db``: the tables of a server's database."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from patchbay.cli.options import CONTEXT, Json, store_option
from patchbay.cli.terminal import print_json
from patchbay.database import Database, reason_of
from patchbay.errors import ConfigurationError

if TYPE_CHECKING:
    from patchbay.database_tables import Tables, TablesState

_MODULES: Final = (
    "patchbay.registrations",
    "patchbay.approvals.store",
    "patchbay.audit.log",
    "patchbay.agents.sessions.database",
    "patchbay.agents.chat_history_database",
    "patchbay.server.response_database",
    "patchbay.server.chat.hidden_turn_database",
    "patchbay.server.live_sessions.histories",
    "patchbay.server.turn_archive",
    "patchbay.agents.durable.servers",
)
"""Those that have ``TABLES``."""

Store = Annotated[str, store_option("Database: sqlite:///tools.db, postgresql://host/name.", show_default=False)]

db = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich", no_args_is_help=True)


@db.callback(context_settings=CONTEXT)
def _group() -> None:
    """Check the tables of a server's database, or make and upgrade them.

    A server makes what is missing when it starts, so neither is needed; use them where you want to see it before, or where
    servers may not change tables. Tables and columns are only added: servers of the last version go on with them.
    """


@db.command(context_settings=CONTEXT)
def check(store: Store, as_json: Json = False) -> None:
    """Say which tables a database has, and whether this version can use them; changes nothing.

    Those of DBOS are left out where durable runs have not been used.

    Exit status: 0 all tables are as this version has them, 1 some are missing, older or newer, 2 usage error or no database.

    [bold]Examples[/bold]

      patchbay db check --store postgresql://patchbay@db/patchbay

      patchbay db check --store sqlite:///tools.db --json
    """
    _show(asyncio.run(_states(store)), as_json=as_json)


@db.command(context_settings=CONTEXT)
def upgrade(store: Store, as_json: Json = False) -> None:
    """Make the tables and columns that are missing, while servers run; those of DBOS too, where it is installed.

    Exit status: 0 all tables are there, 1 some are of a newer version, 2 usage error or no database.

    [bold]Examples[/bold]

      patchbay db upgrade --store postgresql://patchbay@db/patchbay
    """
    _show(asyncio.run(_states(store, upgrade=True)), as_json=as_json)


async def _states(store: str, *, upgrade: bool = False) -> list[tuple[Tables, TablesState]]:
    found: list[tuple[Tables, TablesState]] = []
    for name in _MODULES:
        database = Database(store, import_module(name).TABLES)
        if not upgrade and database.file is not None and not database.file.exists():
            raise ConfigurationError(f"There is no file {database.file}: a server, or patchbay db upgrade, makes it.")
        if upgrade and ((await database.state()).version or 0) <= database.tables.version:
            await database.read(lambda _connection: None)
        found.append((database.tables, await database.state()))
        await database.close()
    if find_spec("dbos") is not None:
        try:
            tables, state = _dbos_state(database, upgrade=upgrade)
        except Exception as error:
            raise ConfigurationError(f"DBOS cannot use {database.display_url}: {reason_of(error)}") from error
        if state.version is not None:
            found.append((tables, state))
    return found


def _dbos_state(database: Database, *, upgrade: bool) -> tuple[Tables, TablesState]:
    """Return the state of the tables of DBOS, which has one version for all of them, and goes on with a newer one."""
    import sqlalchemy as sa
    from dbos import DBOS
    from dbos._migration import get_migration_versions, get_sqlite_migration_versions  # it has no public way to ask

    from patchbay.database_tables import Tables, TablesState

    logging.getLogger("dbos").addHandler(logging.NullHandler())  # else it writes to stderr by itself
    engine = sa.create_engine(database.url)
    try:
        if upgrade:
            DBOS.migrate(database.url.set(drivername=database.url.get_backend_name()).render_as_string(hide_password=False))
        if database.is_postgres:
            with engine.connect() as connection:
                if connection.exec_driver_sql("SELECT 1 FROM pg_namespace WHERE nspname = 'dbos'").scalar():
                    connection.exec_driver_sql("SELECT FROM dbos.dbos_migrations")  # DBOS says 0 where this is not allowed
        there, newest = (
            get_migration_versions(engine, "dbos", use_listen_notify=True)
            if database.is_postgres
            else get_sqlite_migration_versions(engine)
        )
    finally:
        engine.dispose()
    return Tables("steps of durable runs", newest, sa.MetaData()), TablesState(min(there, newest) or None, ())


def _show(found: list[tuple[Tables, TablesState]], *, as_json: bool) -> None:
    """Print the states; exit with 1 where they are not those of this version."""
    problems = [_problem(tables, state) for tables, state in found]
    if as_json:
        rows: list[dict[str, Any]] = [
            {"name": tables.name, "newest": tables.version, **asdict(state), "problem": problem}
            for (tables, state), problem in zip(found, problems, strict=True)
        ]
        print_json({"ok": not any(problems), "tables": rows})
    else:
        width = max(len(tables.name) for tables, _ in found)
        for (tables, _), problem in zip(found, problems, strict=True):
            typer.echo(f"{tables.name:{width}}  version {tables.version}  {problem or 'ok'}")
    if any(problems):
        raise typer.Exit(1)


def _problem(tables: Tables, state: TablesState) -> str:
    """Return what differs from this version's tables, "" where nothing does."""
    if state.version is not None and state.version > tables.version:
        return f"the database has version {state.version}: update Patchbay"
    if state.version is None and len(state.missing) == len(tables.metadata.sorted_tables):
        return "not there yet: patchbay db upgrade, or the next start of a server"
    if state.missing or state.version != tables.version:
        return f"{', '.join(state.missing) or 'changes'} missing: patchbay db upgrade, or the next start of a server"
    return ""
