"""Servers and workers whose database user may not create tables."""

from __future__ import annotations

import os

import sqlalchemy as sa

from agents.databases import execute
from support.cli import run_cli
from support.served import wait_for

from .children import clean_environment, workers
from .test_http import ask, server

GRANTS = (
    "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public",
    "USAGE ON ALL SEQUENCES IN SCHEMA public",
    "USAGE ON SCHEMA dbos",
    "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dbos",
)
"""As docs/guides/durable.md has them."""


def test_a_user_who_may_not_create_tables_uses_those_that_the_upgrade_has_made(new_postgres: str) -> None:
    made = sa.make_url(new_postgres)
    user = f"user_of_{made.database}"
    limited = made.set(username=user, password="hush").render_as_string(hide_password=False)
    execute(new_postgres, f"CREATE ROLE {user} LOGIN")
    serve = ("serve", "--port", "0", "--mcp-config", "none", "--store", limited)
    work = ("worker", "tests.durable.clerk:agent", "--database", limited)

    def refuse(command: tuple[str, ...], reason: str) -> None:
        done = run_cli(*command)
        assert (2, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n")), done.stderr
        assert "sqlalche.me" not in done.stderr
        assert all(each in done.stderr for each in (reason, limited.replace("hush", "***"), "Run patchbay db upgrade")), (
            done.stderr
        )

    for command in (serve, work, ("db", "upgrade", "--store", limited)):
        refuse(command, "permission denied for schema public")
    assert 1 == run_cli("db", "check", "--store", limited).returncode
    assert 0 == run_cli("db", "upgrade", "--store", new_postgres).returncode
    refuse(serve, "permission denied for table patchbay_")
    execute(new_postgres, "DROP SCHEMA dbos CASCADE")
    for grant in GRANTS[:2]:
        execute(new_postgres, f"GRANT {grant} TO {user}")
    assert 0 == run_cli("db", "check", "--store", limited).returncode
    refuse(work, "permission denied for database")
    assert 0 == run_cli("db", "upgrade", "--store", new_postgres).returncode
    refuse(("db", "check", "--store", limited), "permission denied for schema dbos")
    for grant in GRANTS[2:]:
        execute(new_postgres, f"GRANT {grant} TO {user}")
    assert 0 == run_cli("db", "check", "--store", limited).returncode
    environment = clean_environment(LOG=os.devnull, PAUSE="0")
    with server("store", environment, limited) as base, workers(limited, environment, 1) as (worker,):
        assert worker.wait_for("database")
        for run_id in ("a", "b"):
            assert 202 == ask(f"{base}/clerk/runs", {"message": "pay", "id": run_id})[0]
            wait_for(lambda: "paid" == ask(f"{base}/clerk/runs/{run_id}")[1]["text"])  # noqa: B023
