"""Connections to SQLite files: private to their owner, in WAL mode, and with explicit transactions."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

BUSY_SECONDS: Final = 30.0
"""Seconds that a transaction waits for one of another process before it fails."""

WRITES: Final = "patchbay_writes"
"""The execution option of a connection that says whether its transaction writes."""


def sqlite_engine(url: URL) -> Engine:
    """Return an engine with one connection, which any one thread at a time may use."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(
        url,
        poolclass=sqlalchemy.pool.StaticPool,
        connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
        hide_parameters=True,  # errors are logged, and contents are not for logs
    )
    sqlalchemy.event.listen(engine, "connect", _prepare)
    sqlalchemy.event.listen(engine, "begin", _begin)
    if url.database:
        sqlalchemy.event.listen(engine, "do_connect", _make_private)
    return engine


_making_private = threading.Lock()


def _make_private(_dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
    """Create a SQLite file before SQLite does, so that others can never read it, nor the files beside it."""
    if options.get("uri"):
        return  # not necessarily a file
    # Only a new file is opened, and no other object connects to it meanwhile: closing any handle of a file ends the locks that
    # SQLite has on it in this process, and the next process to close the file deletes the log that this one still writes.
    with _making_private, contextlib.suppress(OSError):  # where it cannot be made, opening it says why
        os.close(os.open(os.path.realpath(arguments[0]), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _prepare(connection: Any, _record: Any) -> None:
    # Only explicit transactions: the driver's own begin too late.
    connection.isolation_level = None
    cursor = connection.cursor()
    try:
        # Readers and a writer do not wait for each other. A commit survives the process at once, and a power failure a moment
        # later: waiting for the disk with every event would make a turn many times as long.
        _use_wal(cursor)
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.execute("PRAGMA foreign_keys=ON")
    finally:
        cursor.close()


def _use_wal(cursor: Any) -> None:
    # SQLite waits for other processes everywhere but here: a process that has read that a new file is not in WAL mode yet, and
    # finds another one writing to it, gets an error at once.
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            # The low byte is the kind of an error, the rest says more of it.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311  (so that two do not collide again)
        else:
            return


def _begin(connection: Connection) -> None:
    # A write that begins as a read fails where another process wrote in between.
    writes = connection.get_execution_options().get(WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
