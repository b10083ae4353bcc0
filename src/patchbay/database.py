"""A SQLite or PostgreSQL database by URL, opened on first use.

SQLAlchemy Core without its asyncio form: a transaction is one hop to a thread and runs there from BEGIN to COMMIT. On SQLite that
takes a third of the CPU and half the time of a hop for every statement; no cancelled task can leave a transaction half way, and
no connection belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from patchbay._redaction import protect
from patchbay._sqlite import WRITES, sqlite_engine
from patchbay.errors import ConfigurationError
from patchbay.tools.threads import run_in_thread

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.exc import DatabaseError

    from patchbay.database_tables import Tables, TablesState

T = TypeVar("T")

CLOSE_SECONDS = 5.0
"""Seconds that closing waits for transactions under way."""

_POSTGRES_THREADS = 8
_LIVENESS = {"connect_timeout": "5", "keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}
"""Detection of a PostgreSQL server that is gone without closing its connections: seconds, and unanswered probes."""

_POSTGRES_LIMITS = (
    "SET idle_in_transaction_session_timeout = '5s'; SET lock_timeout = '30s'; "
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
)
"""A process that is stopped or cut off in a transaction holds its locks for seconds, and not until the machine's TCP gives up."""

_DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
_WRITING = 0x70617463 << 32
"""The key of the advisory lock of exclusive writers, plus a checksum of the name."""


_Inode: TypeAlias = tuple[int, int] | None


def _inode(path: str | Path) -> _Inode:
    try:
        found = os.stat(path)  # noqa: PTH116  (a fifth of Path's time, with every transaction)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@dataclass
class _Open:
    """The engine and threads of an open database; the path and the inode of a SQLite file, and of its log."""

    engine: Engine
    threads: ThreadPoolExecutor
    file: tuple[str, _Inode] | None = None
    log: tuple[str, _Inode] | None = None
    pid: int = field(default_factory=os.getpid)
    making: threading.Lock = field(default_factory=threading.Lock)
    made: set[str] = field(default_factory=set)
    """The names of the Database objects whose tables were made."""
    users: weakref.WeakSet[Database] = field(default_factory=weakref.WeakSet)
    """The Database objects that use it: all of one PostgreSQL URL."""
    connections: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """The driver's connections to PostgreSQL."""
    is_closing: bool = False

    def finish(self) -> None:
        """Wait for submitted work, and close every connection. A server that hangs is waited for CLOSE_SECONDS."""
        if self.file is None:
            timer = threading.Timer(CLOSE_SECONDS, self._break_off)
            timer.daemon = True
            timer.start()
            self.threads.shutdown(wait=True)
            timer.cancel()
        else:
            self.threads.shutdown(wait=True)
        self.engine.dispose()

    def _break_off(self) -> None:
        """Shut down the connections' sockets: what waits for an answer fails, and does not connect again."""
        self.is_closing = True
        for connection in list(self.connections):
            with contextlib.suppress(Exception), socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
                end.shutdown(socket.SHUT_RDWR)

    def remember(self, file: Path) -> None:
        """Note which file and log are open."""
        log = f"{file.resolve()}-wal"
        self.file, self.log = (str(file.absolute()), _inode(file)), (log, _inode(log))

    @property
    def is_lost(self) -> bool:
        """Whether the SQLite file, or its log, was deleted, moved or replaced."""
        return any(each is not None and _inode(each[0]) != each[1] for each in (self.file, self.log))


def _lost(file: Path | None) -> DatabaseError:
    import sqlalchemy

    why = sqlite3.OperationalError(
        f"the file {file} or its log was deleted, moved or replaced while it was open: put it back, or start the program again"
    )
    return sqlalchemy.exc.OperationalError("COMMIT", None, why)


# A forked child must not touch its parent's connections, and garbage collection would close them.
_kept_for_parent: list[_Open] = []

_logger = logging.getLogger(__name__)


class Database:
    """One database with ``tables``, which are created where they are missing.

    ``url`` is ``sqlite:///file.db`` (four slashes for an absolute path), a plain path of a SQLite file, ``sqlite://`` for a
    database in memory, or ``postgresql://user@host/name``, which needs ``patchbay-tools[postgres]``. A driver in it
    (``+aiosqlite``, ``+asyncpg``) is replaced by ours. A new SQLite file is readable by its owner only; any number of objects in
    any number of processes may use one file. Raises ConfigurationError for
    another kind of URL, and on first use for a database that cannot be opened, or that a newer version of Patchbay has written.
    ``display_url`` is the URL as it was given, without a password.

    Where a SQLite file was deleted, moved or replaced, writes are rolled back and raise OperationalError until it is back.
    """

    def __init__(self, url: str | os.PathLike[str], tables: Tables) -> None:
        self.url, self.display_url = _read_url(url)
        protect(None if self.url.password is None else str(self.url.password))
        self.tables = tables
        self._guard = threading.Lock()
        self._open: _Open | None = None
        _databases.add(self)

    @property
    def is_postgres(self) -> bool:
        """Whether it is PostgreSQL, otherwise SQLite."""
        return self.url.get_backend_name() == "postgresql"

    @property
    def file(self) -> Path | None:
        """The SQLite file, None for other databases."""
        return None if self.is_postgres or not self.url.database else Path(self.url.database)

    @property
    def connect_arguments(self) -> tuple[Any, Any]:
        """The driver's positional and keyword arguments for a PostgreSQL connection of the caller's own."""
        return self.url.get_dialect()().create_connect_args(self._watched_url)

    @property
    def _watched_url(self) -> URL:
        return self.url.update_query_dict({name: value for name, value in _LIVENESS.items() if name not in self.url.query})

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction that sees one moment of the database, and return its result."""
        return await self._run(lambda opened: self._transaction(opened, work, writes=False))

    async def state(self) -> TablesState:
        """Return what the database has of the tables; changes nothing. Raises ConfigurationError as the first use does."""
        import sqlalchemy

        try:
            return await self._run(lambda opened: self._within(opened.engine, self.tables.state, writes=False))
        except sqlalchemy.exc.DatabaseError as error:
            raise self._cannot_be_opened(error) from error

    async def write(self, work: Callable[[Connection], T], *, exclusive: bool = False) -> T:
        """Run ``work`` in a transaction and commit it; an exception rolls all of it back.

        A cancelled caller waits for its end too: what the caller does next comes after it in the database. ``exclusive``: other
        exclusive writers of these tables wait, as all writers do in SQLite.
        """
        return await self._run(lambda opened: self._transaction(opened, work, writes=True, exclusive=exclusive))

    def write_from_thread(self, work: Callable[[Connection], T], *, exclusive: bool = False) -> T:
        """As ``write``, for a thread without an event loop: blocks until the transaction is over."""
        return self._in_thread(work, writes=True, exclusive=exclusive)

    def read_from_thread(self, work: Callable[[Connection], T]) -> T:
        """As ``read``, for a thread without an event loop."""
        return self._in_thread(work, writes=False)

    def _in_thread(self, work: Callable[[Connection], T], *, writes: bool, exclusive: bool = False) -> T:
        with self._guard:
            opened = self._opened()
            job = opened.threads.submit(lambda: self._transaction(opened, work, writes=writes, exclusive=exclusive))
        return job.result()

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in one of its threads, to its end."""
        return await self._run(lambda _opened: work())

    def connect(self) -> Connection:
        """Open a PostgreSQL connection to use inside of ``run``. The caller closes it."""
        with self._guard:
            engine = self._opened().engine
        return engine.connect()

    async def close(self) -> None:
        """Finish running work and close all connections. It may be used again."""
        with self._guard:
            was, self._open = self._open, None
        if was is not None and was.pid == os.getpid() and self._is_last_user(was):
            await run_in_thread(was.finish)

    def _is_last_user(self, opened: _Open) -> bool:
        with _sharing:
            opened.users.discard(self)
            if opened.users:
                return False
            if _servers.get(self.url) is opened:
                del _servers[self.url]
            return True

    def close_for_fork(self) -> None:
        """Close the database, and keep other threads from opening it until ``allow_after_fork``."""
        self._guard.acquire()
        if self._open is not None:
            self._open.finish()
            self._open = None

    def allow_after_fork(self) -> None:
        """Allow opening the database again."""
        self._guard.release()

    async def _run(self, work: Callable[[_Open], T]) -> T:
        with self._guard:
            opened = self._opened()
            job = asyncio.wrap_future(opened.threads.submit(work, opened))
        cancelled: asyncio.CancelledError | None = None
        while not job.done():
            try:
                await asyncio.wait((job,))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            if not job.cancelled():
                job.exception()  # retrieved, since the caller is gone
            raise cancelled
        return job.result()

    def _transaction(self, opened: _Open, work: Callable[[Connection], T], *, writes: bool, exclusive: bool = False) -> T:
        if self.tables.name not in opened.made:
            with opened.making:
                if self.tables.name not in opened.made:
                    self._prepare(opened.engine)
                    if self.file is not None:
                        opened.remember(self.file)
                    opened.made.add(self.tables.name)
        if not writes:
            return self._within(opened.engine, work, writes=False)

        def work_in_place(connection: Connection) -> T:
            if exclusive and self.is_postgres:
                key = _WRITING | zlib.crc32(self.tables.name.encode())
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (key,))
            result = work(connection)
            if opened.is_lost:
                raise _lost(self.file)
            return result

        return self._within(opened.engine, work_in_place, writes=True)

    def _within(self, engine: Engine, work: Callable[[Connection], T], *, writes: bool) -> T:
        options: dict[str, Any] = {WRITES: writes}
        if self.is_postgres and not writes:
            options["isolation_level"] = "REPEATABLE READ"  # the default sees what others commit between two statements
        with engine.connect() as opened:
            connection = opened.execution_options(**options)
            with connection.begin():
                return work(connection)

    def _prepare(self, engine: Engine) -> None:
        """Create the tables. Raises ConfigurationError for a database that cannot be opened, or has newer tables."""
        import sqlalchemy

        try:
            version = self._within(engine, self.tables.make, writes=True)
        except sqlalchemy.exc.DatabaseError as error:  # no file, no password, no right to make tables, no database at all
            raise self._cannot_be_opened(error) from error
        if version > self.tables.version:
            raise ConfigurationError(
                f"The {self.tables.name} in {self.display_url} were written by a newer version of Patchbay (tables of version "
                f"{version}, this one knows {self.tables.version}): update Patchbay, or use another database."
            )

    def _cannot_be_opened(self, error: DatabaseError) -> ConfigurationError:
        """Return the error that says why it cannot be opened, and the way out."""
        problem = reason_of(error)
        if not problem.endswith((".", "?", "!")):
            problem += "."
        if self.is_postgres:
            problem += " See that the server runs, and that it has this database for this user." if _is_away(error) else ""
        elif self.file is not None and not self.file.parent.exists():
            problem = f"there is no folder {self.file.parent}. Make it, or use a file in another one."
        else:
            problem += " See that it is a SQLite file, or none yet, and that it can be written."
        return ConfigurationError(f"The database {self.display_url} cannot be opened: {problem}")

    def _opened(self) -> _Open:
        """Return the open engine, opening it if necessary. The caller holds the guard."""
        if self._open is not None and self._open.pid != os.getpid():
            _kept_for_parent.append(self._open)
            self._open = None
        if self._open is None:
            self._open = self._shared_postgres() if self.is_postgres else self._new_sqlite()
        return self._open

    def _shared_postgres(self) -> _Open:
        """Return this process's connections to the URL: a server has several stores, and PostgreSQL takes 100 of them."""
        with _sharing:
            opened = _servers.get(self.url)
            if opened is None or opened.pid != os.getpid():
                opened = _servers[self.url] = self._new_postgres()
            opened.users.add(self)
        return opened

    def _new_postgres(self) -> _Open:
        import sqlalchemy

        try:
            engine = sqlalchemy.create_engine(
                self._watched_url, pool_size=_POSTGRES_THREADS, pool_pre_ping=True, hide_parameters=True
            )
        except ModuleNotFoundError as error:
            raise ConfigurationError("PostgreSQL needs its driver: pip install 'patchbay-tools[postgres]'.") from error
        opened = _Open(engine, ThreadPoolExecutor(_POSTGRES_THREADS, thread_name_prefix="patchbay-store"))

        def prepare(connection: Any, _record: Any) -> None:
            opened.connections.add(connection)
            connection.execute(_POSTGRES_LIMITS)
            connection.commit()

        def refuse(*_: Any) -> None:
            if opened.is_closing:
                raise OSError("the database is being closed")

        sqlalchemy.event.listen(engine, "connect", prepare)
        sqlalchemy.event.listen(engine, "do_connect", refuse)
        return opened

    def _new_sqlite(self) -> _Open:
        # One thread with one connection: the transactions of this process run one after the other, in the order of the calls.
        return _Open(sqlite_engine(self.url), ThreadPoolExecutor(1, thread_name_prefix="patchbay-store"))


_servers: weakref.WeakValueDictionary[URL, _Open] = weakref.WeakValueDictionary()
_sharing = threading.Lock()

_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_closed_for_fork: list[Database] = []


def _before_fork() -> None:
    """Close SQLite files before the process forks: a child with an open one, even unused, can lose what others write.

    (SQLite tracks the process's locks in memory. The child has a copy of that state, and none of the locks.)
    """
    for database in list(_databases):
        if database.file is not None:
            _closed_for_fork.append(database)
            database.close_for_fork()


def _after_fork() -> None:
    while _closed_for_fork:
        _closed_for_fork.pop().allow_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def prepare_databases() -> None:
    """Make and check the tables of all databases of this process, but of those in memory.

    A PostgreSQL server that is away is left to the first use. Raises ConfigurationError.
    """
    away: set[URL] = set()
    for database in sorted(_databases, key=lambda each: each.tables.name):
        if database.url not in away and (database.is_postgres or database.file):
            try:
                database.read_from_thread(lambda _connection: None)
            except ConfigurationError as error:
                if not database.is_postgres or not _is_away(error.__cause__):
                    raise
                away.add(database.url)


def reason_of(error: BaseException) -> str:
    """Return why a database failed, on one line without statement and link; for a missing right with the way out."""
    cause = getattr(error, "orig", None) or error
    text = getattr(getattr(cause, "diag", None), "message_primary", None) or str(cause)
    reason = " ".join(text.partition("(Background on this error at")[0].split())
    return f"{reason}. {_MISSING_RIGHT}" if getattr(cause, "sqlstate", None) == "42501" else reason


_MISSING_RIGHT = (
    "Run patchbay db upgrade with a user that may make tables, and grant this one SELECT, INSERT, UPDATE and DELETE on them, "
    "for durable runs with USAGE on the schema dbos."
)


def _is_away(error: BaseException | None) -> bool:
    """Whether a PostgreSQL server could not be connected to: what it answers itself has a state."""
    return getattr(getattr(error, "orig", None), "sqlstate", "") is None


def _read_url(url: str | os.PathLike[str]) -> tuple[URL, str]:
    """Return the URL with our driver, and the given one without a password."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    text = os.fspath(url)
    if text in ("", "memory", "memory:"):
        raise ConfigurationError(
            f"{text!r} is not a database: give sqlite:///FILE, postgresql://HOST/NAME, or sqlite:// for one in memory."
        )
    if "://" not in text:
        text = f"sqlite:///{text}"
    try:
        parsed = make_url(text)
    except (ArgumentError, ValueError) as error:
        # Not the text itself: there may be a password in it.
        raise ConfigurationError("The database's URL cannot be read.") from error
    driver = _DRIVERS.get(parsed.drivername.partition("+")[0])
    if driver is None:
        raise ConfigurationError(f"A database is sqlite:///FILE or postgresql://HOST/NAME, not {parsed.drivername}://.")
    shown = parsed.update_query_dict({"password": "hidden"}) if "password" in parsed.query else parsed
    shown = shown.set(drivername=parsed.drivername.partition("+")[0])
    parsed = parsed.set(drivername=driver)
    parsed = parsed.set(database=None) if parsed.database == ":memory:" else parsed
    return parsed, os.fspath(url) if "://" not in os.fspath(url) else shown.render_as_string(hide_password=True)
