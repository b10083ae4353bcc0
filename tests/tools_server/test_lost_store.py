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

from patchbay import database
from patchbay.registrations import RegistrationStore
from patchbay.server import registrations
from patchbay.server.app import create_tools_app
from patchbay.server.governance import Governance, GovernanceSettings
from patchbay.server.settings import ToolsSettings
from tools_server.rig import poll_until, serving


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


def sessions(store: str, function: str = "") -> list[int]:
    """The PostgreSQL processes of the server's sessions; ``function`` is called with each."""
    statement = (
        f"SELECT pid, {function}(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with admin_connection(store) as connection:
        return [pid for pid, _ in connection.exec_driver_sql(statement)]


def terminate(store: str) -> None:
    sessions(store, "pg_terminate_backend")


def stored(store: str) -> dict[str, str]:
    async def load() -> dict[str, str]:
        async with RegistrationStore(store) as opened:
            return {each.name: each.source for each in await opened.load()}

    return asyncio.run(load())


def test_registrations_go_on_after_the_sessions_of_the_database_are_lost(store: str, caplog: pytest.LogCaptureFixture) -> None:
    with serving(store=store) as server:
        for number in range(5):
            terminate(store)
            assert server.register(f"t{number}")["stored"]
            assert f"t{number}" in stored(store)
    assert "Traceback" not in caplog.text


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
    "without its log": lambda file: file.with_name("tools.db-wal").unlink(),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_nothing_is_said_to_be_stored_where_the_sqlite_file_is_lost(file: Path, lose: Callable[[Path], object]) -> None:
    with serving(store=str(file)) as server:
        server.register("a")
        lose(file)
        assert not server.register("b")["stored"]
        assert "degraded" == server.ask("GET", "/health").json["status"]
        assert {"a", "b"} == set(server.tools())


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
        poll_until(lambda: server.ask("GET", "/health").json["status"] == "degraded")


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


def stop_sessions(store: str) -> list[int]:
    """Let the sessions hang; new ones of the same server would not."""
    hung = sessions(store)
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    return hung


def go_on(hung: list[int]) -> None:
    for pid in hung:
        os.kill(pid, signal.SIGCONT)


def test_a_store_that_hangs_is_waited_for_with_a_limit(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "SAVE_TIMEOUT", 0.2)
    with serving(store=store) as server:
        server.register("a")
        hung = stop_sessions(store)
        try:
            answer = server.register("b")
            assert (True, False, "the store has not answered within 0.2 s") == (
                answer["ok"],
                answer["stored"],
                answer["not_stored"],
            )
            assert "degraded" == server.ask("GET", "/health").json["status"]
        finally:
            go_on(hung)
        poll_until(lambda: server.ask("GET", "/health").json["status"] == "ok")
        assert {"a", "b"} == set(stored(store))


def test_server_with_a_hanging_store_can_be_stopped(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "SAVE_TIMEOUT", 0.2)
    monkeypatch.setattr(database, "CLOSE_SECONDS", 0.2)
    with serving(store=store) as server:
        hung = stop_sessions(store)
        server.register("a")
    go_on(hung)


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
