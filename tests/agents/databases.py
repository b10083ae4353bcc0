"""A PostgreSQL server for tests (in a folder, on a socket, without port and password), and SQL helpers."""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

NOBODY_IS_ROOT = "postgres"  # the server refuses to run as root; Debian's package brings this user


def execute(url: Any, statement: str) -> Any:
    """Run one statement outside of what is tested; the first value of its result, if it has rows."""
    made = sa.make_url(str(url) if "://" in str(url) else f"sqlite:///{url}")
    engine = sa.create_engine(made.set(drivername="postgresql+psycopg") if made.drivername == "postgresql" else made)
    try:
        with engine.begin() as connection:
            result = connection.exec_driver_sql(statement)
            return result.scalar() if result.returns_rows else None
    finally:
        engine.dispose()


def postgres_programs() -> Path | None:
    """The folder with ``initdb`` and ``pg_ctl``; Debian has it outside of PATH, by version."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None)


def why_no_postgres() -> str | None:
    """The reason to skip; never in CI."""
    if os.environ.get("CI") == "true":
        return None
    return "PostgreSQL's server is not installed (Debian: postgresql)" if postgres_programs() is None else None


def _owner() -> str | None:
    return NOBODY_IS_ROOT if os.geteuid() == 0 else None


def _run(folder: Path, *command: str) -> None:
    programs = postgres_programs()
    assert programs is not None, "PostgreSQL's server is not installed"
    with (folder / "output").open("w+") as output:  # not a pipe, which the server would keep open
        line = [str(programs / command[0]), *command[1:]]
        status = subprocess.run(line, user=_owner(), cwd=folder, stdout=output, stderr=output, timeout=60).returncode
        output.seek(0)
        assert 0 == status, output.read()


def restart_postgres(url: str, *, away: float = 0.0) -> None:
    """Restart the server of ``url`` as after a crash, ``away`` seconds after its end."""
    host = sa.make_url(url).query["host"]
    assert isinstance(host, str)
    run = functools.partial(_run, Path(host), "pg_ctl", "-D", f"{host}/data", "-w")
    run("-m", "immediate", "stop")
    time.sleep(away)
    run("-l", f"{host}/log", "start")


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server, and give the URL of its database."""
    # Not the test's own folder: a socket's path must be short, and another user's way to it open.
    folder = Path(tempfile.mkdtemp(prefix="patchbay-pg-"))
    try:
        if (owner := _owner()) is not None:
            os.chown(folder, pwd.getpwnam(owner).pw_uid, -1)
        data = folder / "data"
        run = functools.partial(_run, folder)
        run("initdb", "-D", str(data), "-U", "patchbay", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        with (data / "postgresql.conf").open("a") as settings:
            settings.write(f"listen_addresses = ''\nunix_socket_directories = '{folder}'\nfsync = off\n")
        run("pg_ctl", "-D", str(data), "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"postgresql://patchbay@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
