"""A server whose PostgreSQL session ends or hangs, or whose SQLite file is lost: nothing is said to be stored that is not, and nothing is lost for good."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from patchbay.errors import ConfigurationError
from patchbay.registrations import RegistrationStore
from patchbay.server import registrations
from patchbay.server.app import create_tools_app
from patchbay.server.governance import Governance, GovernanceSettings
from patchbay.server.registrations import StoreLock
from patchbay.server.settings import ToolsSettings
from tools_server.rig import poll_until, serving

LOCKS = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"  # fmt: skip


@pytest.fixture
def store(new_postgres: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(registrations, "RETRY_SECONDS", 0.05)
    return new_postgres


@contextmanager
def admin_connection(store: str) -> Iterator[sa.Connection]:
    """A connection of the test's own."""
    engine = sa.create_engine(sa.make_url(store).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def holder(store: str) -> int:
    """The PostgreSQL process whose session has the lock, 0 for none."""
    with admin_connection(store) as connection:
        return connection.exec_driver_sql(LOCKS).scalar() or 0


def terminate(store: str) -> None:
    with admin_connection(store) as connection:
        assert connection.exec_driver_sql(f"SELECT pg_terminate_backend({holder(store)})").scalar()


def stored(store: str) -> dict[str, str]:
    async def load() -> dict[str, str]:
        async with RegistrationStore(store) as opened:
            return {each.name: each.source for each in await opened.load()}

    return asyncio.run(load())


def test_lost_database_session_is_detected_and_the_lock_reacquired(store: str, caplog: pytest.LogCaptureFixture) -> None:
    with serving(store=store) as server:
        assert server.register("a")["stored"]
        was = holder(store)
        terminate(store)
        poll_until(lambda: holder(store) not in (0, was))
        assert server.register("b")["stored"]
        assert {"a": "external", "b": "external"} == stored(store)
        with pytest.raises(ConfigurationError, match="in use by another server"):
            asyncio.run(StoreLock(RegistrationStore(store).database).acquire())
    assert "Traceback" not in caplog.text


def test_registration_right_after_the_lost_lock_is_stored_or_reported(store: str) -> None:
    with serving(store=store) as server:
        for number in range(5):
            terminate(store)
            assert server.register(f"t{number}")["stored"]
            assert f"t{number}" in stored(store)


def test_registrations_are_not_stored_while_another_server_has_the_lock(
    store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registrations, "RETRY_SECONDS", 600.0)  # the second server is there first
    with serving(store=store) as first:
        first.register("mine", source="first")
        terminate(store)
        with serving(store=store) as second:
            monkeypatch.setattr(registrations, "RETRY_SECONDS", 0.05)
            for _ in range(3):
                answer = first.register("b", source="first")
                assert (True, False) == (answer["ok"], answer["stored"])
                assert "in use by another server" in answer["not_stored"]
            assert {"status": "degraded", "problem": answer["not_stored"]} == first.ask("GET", "/health").json
            assert second.register("b", source="second")["stored"]
            assert "source_conflict" == second.register("mine", source="third")["failed_roles"][0]["code"]
            assert {"mine": "first", "b": "second"} == stored(store)
        poll_until(lambda: first.ask("GET", "/health").json["status"] == "ok")
        assert {"mine": "first", "b": "second"} == {name: tool["source"] for name, tool in first.tools().items()}
        assert first.register("c")["stored"]
    assert {"mine": "first", "b": "second", "c": "external"} == stored(store)
    assert 1 == caplog.text.count("are not stored, and will be tried again")
    assert "Dropped the tool 'b' of 'first'" in caplog.text


def test_changes_from_before_another_server_had_the_store_are_dropped(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "RETRY_SECONDS", 600.0)
    with serving(store=store) as first:
        for name in ("removed", "kept", "gone"):
            first.register(name, source="first")
        terminate(store)
        with serving(store=store) as second:
            assert not first.register("removed", source="first", description="new")["stored"]
            assert not first.register("late", source="first")["stored"]
            assert not first.post("unregister", name="kept", source="first").json["stored"]
            second.post("unregister", name="removed")
        assert first.post("unregister", name="gone", source="first").json["stored"]  # after the other server
        assert first.register("new")["stored"]
        assert {"kept", "new"} == set(first.tools()) == set(stored(store))


def test_server_without_the_lock_can_be_stopped(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "RETRY_SECONDS", 600.0)
    with serving(store=store) as first:
        first.register("a")
        terminate(store)
        with serving(store=store):
            assert not first.register("b")["stored"]
            assert not first.post("unregister", name="a").json["stored"]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registrations, "RETRY_SECONDS", 0.05)
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder" / "tools.db"


def replace_by_another_store(file: Path) -> None:
    with serving(store=str(file.with_name("other.db"))) as other:
        other.register("foreign")
    file.with_name("other.db").rename(file)


def remove_with_log(file: Path) -> None:
    for each in file.parent.glob("tools.db*"):
        each.unlink()


LOSSES = {
    "deleted": Path.unlink,
    "deleted with its log": remove_with_log,
    "moved": lambda file: file.rename(file.with_name("moved.db")),
    "replaced": replace_by_another_store,
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_tools_are_stored_again_where_the_sqlite_file_is_lost(file: Path, lose: Callable[[Path], object]) -> None:
    with serving(store=str(file)) as server:
        server.register("a")
        server.register("b")
        lose(file)
        assert server.register("c")["stored"]
        server.post("unregister", name="b")
        assert {"a", "c"} == set(stored_after_kill(file))
    assert {"a", "c"} == set(stored(str(file)))


def stored_after_kill(file: Path) -> dict[str, str]:
    """What a process would find after a kill of the server: its file and log as they are now."""
    copy = file.with_name("copy.db")
    for each in (file, file.with_name("tools.db-wal")):
        if each.exists():
            shutil.copy(each, each.with_name(each.name.replace("tools", "copy")))
    return stored(str(copy))


def test_lost_sqlite_file_is_noticed_without_a_change(file: Path) -> None:
    with serving(store=str(file)) as server:
        server.register("a")
        file.unlink()
        poll_until(file.exists)
        poll_until(lambda: {"a": "external"} == stored_after_kill(file))
        assert "ok" == server.ask("GET", "/health").json["status"]


def test_nothing_is_said_to_be_stored_without_the_log_of_the_file(file: Path) -> None:
    with serving(store=str(file)) as server:
        server.register("a")
        file.with_name("tools.db-wal").unlink()
        assert not server.register("b")["stored"]
        assert "degraded" == server.ask("GET", "/health").json["status"]
    assert {"a"} == set(stored(str(file)))


def test_nothing_is_said_to_be_stored_while_the_folder_of_the_file_is_away(file: Path) -> None:
    away = file.parent.with_name("away")
    with serving(store=str(file)) as server:
        server.register("a")
        file.parent.rename(away)
        answer = server.register("b")
        assert (True, False) == (answer["ok"], answer["stored"])
        assert "degraded" == server.ask("GET", "/health").json["status"]
        away.rename(file.parent)
        poll_until(lambda: server.ask("GET", "/health").json["status"] == "ok")
        assert {"a", "b"} == set(stored_after_kill(file))


def test_a_store_that_hangs_is_waited_for_with_a_limit(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "SAVE_TIMEOUT", 0.2)
    with serving(store=store) as server:
        server.register("a")
        hung = holder(store)
        os.kill(hung, signal.SIGSTOP)
        try:
            answer = server.register("b")
            assert (True, False, "the store has not answered within 0.2 s") == (
                answer["ok"],
                answer["stored"],
                answer["not_stored"],
            )
            assert "degraded" == server.ask("GET", "/health").json["status"]
        finally:
            os.kill(hung, signal.SIGCONT)
        poll_until(lambda: server.ask("GET", "/health").json["status"] == "ok")
        assert {"a", "b"} == set(stored(store))


def test_server_with_a_hanging_store_can_be_stopped(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "SAVE_TIMEOUT", 0.2)
    with serving(store=store) as server:
        hung = holder(store)
        os.kill(hung, signal.SIGSTOP)
        server.register("a")
    os.kill(hung, signal.SIGCONT)


def test_database_outage_is_one_log_line_and_recovers(store: str, postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    name = sa.make_url(store).database
    governance = Governance(GovernanceSettings(approvals=store))
    app = create_tools_app(("ann",), store=store, settings=ToolsSettings(lease=0.0), governance=governance)
    with serving(app=app) as server, admin_connection(postgres_url) as admin:
        assert 200 == server.ask("GET", "/api/approvals").status
        admin.exec_driver_sql(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        admin.exec_driver_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        answer = server.register("a")
        assert (True, False) == (answer["ok"], answer["stored"])
        assert "not currently accepting connections" in answer["not_stored"]
        refused = server.ask("GET", "/api/approvals")
        assert (503, "database_unavailable") == (refused.status, refused.json["error_code"])
        admin.exec_driver_sql(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
        poll_until(lambda: server.ask("GET", "/health").json["status"] == "ok")
        assert (200, {"a": "external"}) == (server.ask("GET", "/api/approvals").status, stored(store))
    assert (False, 1) == ("Traceback" in caplog.text, caplog.text.count("are not stored, and will be tried again"))
