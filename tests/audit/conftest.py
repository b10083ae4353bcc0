"""The databases that an audit is kept in: a SQLite file, and a PostgreSQL server with a database for each test."""

from __future__ import annotations

import itertools

import pytest
import sqlalchemy as sa

from agents.databases import postgres_server, why_no_postgres

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres():
    if (reason := why_no_postgres()) is not None:
        pytest.skip(reason)
    with postgres_server() as url:
        yield sa.make_url(url).set(drivername="postgresql+psycopg")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'audit.db'}"
    server = request.getfixturevalue("postgres")
    name = f"audit_{next(_numbers)}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return server.set(database=name, drivername="postgresql").render_as_string()
