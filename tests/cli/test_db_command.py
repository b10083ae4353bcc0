"""``patchbay db``: what it says of a database, and what it makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agents.databases import execute
from support.cli import run_cli


def states(url: str, command: str = "check") -> tuple[int, dict[str, Any]]:
    """The exit status, and the tables by name."""
    done = run_cli("db", command, "--store", url, "--json")
    return done.returncode, {each["name"]: each for each in json.loads(done.stdout)["tables"]}


def test_tables_are_made_and_upgraded_and_a_newer_version_is_refused(url: str, tmp_path: Path) -> None:
    assert 0 == run_cli("db", "upgrade", "--store", url).returncode
    assert 0 == states(url)[0]
    execute(url, "DROP TABLE patchbay_hidden_turns")
    execute(url, "ALTER TABLE patchbay_registry DROP COLUMN secret")
    status, found = states(url)
    assert 1 == status
    assert [["patchbay_registry.secret"], ["patchbay_hidden_turns"], []] == [
        found[name]["missing"] for name in ("registrations", "hidden turns", "audit")
    ]
    assert 0 == states(url, "upgrade")[0]
    execute(url, "UPDATE patchbay_versions SET version = 2 WHERE name = 'responses'")
    for command in ("check", "upgrade"):
        status, found = states(url, command)
        assert (1, "the database has version 2: update Patchbay") == (status, found["responses"]["problem"])
    config = tmp_path / "hooks.json"
    config.write_text("{}")
    for flags in (("serve", "--mcp-config", "none"), ("proxy", "--config", str(config))):
        done = run_cli(*flags, "--port", "0", "--upstream", "http://127.0.0.1:9/v1", "--store", url)
        assert (2, "") == (done.returncode, done.stdout)
        assert f"The responses in {url} were written by a newer version" in done.stderr


def test_tables_of_durable_runs_that_are_missing_or_old_are_made(url: str) -> None:
    name = "steps of durable runs"
    assert 0 == states(url, "upgrade")[0]
    execute(url, f"UPDATE {'' if url.startswith('sqlite') else 'dbos.'}dbos_migrations SET version = version - 1")
    status, found = states(url)
    assert (1, "changes missing: patchbay db upgrade, or the next start of a server") == (status, found[name]["problem"])


def test_an_agent_that_is_not_there_is_named_as_the_command_has_it() -> None:
    done = run_cli("worker", "nope:agent")
    assert (2, "patchbay: MODULE:AGENT nope:agent: No module named 'nope'.\n") == (done.returncode, done.stderr)


def test_a_database_that_is_not_there_is_an_error(url: str) -> None:
    missing = url + "_missing" if url.startswith("sqlite") else url.replace("/kept_", "/missing_")
    done = run_cli("db", "check", "--store", missing)
    assert 2 == done.returncode
    assert missing.rpartition("/")[2].partition("?")[0] in done.stderr
