"""Sessions in a database and several processes: no event lost or duplicated if any is killed."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from patchbay.agents import DatabaseSessionService
from patchbay.agents.content import new_id
from patchbay.errors import ConfigurationError, SessionNotFoundError
from support.processes import Process
from support.running import run

from .child import numbered
from .databases import execute
from .event_builders import text_event, texts_of


@pytest.fixture(params=["sqlite", "postgres"])
def new_database_url(request, tmp_path):
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'new.db'}"
    url = sa.make_url(request.getfixturevalue("postgres_url")).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    name = f"new_{new_id()}"
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return url.set(database=name, drivername="postgresql").render_as_string()


async def load(url: str, session_id: str):
    async with DatabaseSessionService(url) as service:
        return await service.get_session("app", "u", session_id)


async def create(url: str, session_id: str, **fields):
    async with DatabaseSessionService(url) as service:
        return await service.create_session("app", "u", session_id=session_id, **fields)


def test_a_session_outlives_its_process(database_url, session_id, spawn):
    run(create(database_url, session_id, state={"user:name": "Ada"}, title="Hello"))
    child = spawn(database_url, session_id, "write", "w", 1, 3)
    assert ("1\n2\n3\n", 0) == (child.communicate(timeout=60)[0], child.returncode)
    found = run(load(database_url, session_id))
    assert (["1", "2", "3"], "Hello") == (texts_of(found.events), found.title)
    assert {"user:name": "Ada", "w": 3, f"user:{session_id}:w": 3}.items() <= found.state.items()


def kill_after(child: Process, acknowledged: int, rounds: int) -> int:
    """Kill the writer while it goes on, some time after it has said so many numbers; returns the last number it said."""
    said_last = 0
    for _ in range(acknowledged):
        said_last = int(child.stdout.readline())
    for _ in range(rounds):
        pass  # its next append is at an unknown stage
    child.kill()
    rest = child.stdout.read().split("\n")  # not communicate(): it knows nothing of what readline has read ahead
    numbers = [int(line) for line in rest[:-1]]  # what comes after the last line break was not written whole
    return numbers[-1] if numbers else said_last


def test_no_event_is_lost_or_duplicated_by_a_kill_at_any_moment(database_url, session_id, spawn):
    chance = random.Random(4)
    run(create(database_url, session_id))
    done = 0
    for _ in range(12):
        child = spawn(database_url, session_id, "write", "w", done + 1, 10_000)
        last = kill_after(child, chance.randint(1, 6), chance.randint(0, 40_000))

        async def take_up(last=last):
            """Do what a caller does who never heard whether its append was kept: hand the event in again."""
            async with DatabaseSessionService(database_url) as service:
                session = await service.get_session("app", "u", session_id)
                await service.append_event(session, numbered(session_id, "w", last + 1))
                return session, await service.get_session("app", "u", session_id)

        mine, found = run(take_up())
        done = last + 1
        expected = [str(number) for number in range(1, done + 1)]
        assert expected == texts_of(found.events) == texts_of(mine.events)
        assert (done, done, done) == (found.seq, found.state["w"], found.state[f"user:{session_id}:w"])


def test_two_processes_that_write_at_once_get_one_order(database_url, session_id, spawn):
    mine = run(create(database_url, session_id))
    children = [spawn(database_url, session_id, "write", name, 1, 40) for name in ("a", "b")]
    assert ["40"] * 2 == [child.communicate(timeout=60)[0].split()[-1] for child in children]

    async def more():
        async with DatabaseSessionService(database_url) as service:
            await service.append_event(mine, text_event("end"))
            return await service.get_session("app", "u", session_id)

    found = run(more())
    for name in ("a", "b"):
        assert list(range(1, 41)) == [int(event.content.text) for event in found.events if event.author == name]
    assert (81, 40, 40) == (found.seq, found.state["a"], found.state["b"])
    assert mine.events == found.events  # and an idle reader has all events as well


def test_processes_that_make_the_tables_at_once_do_not_hurt_each_other(new_database_url, spawn):
    children = [spawn(new_database_url, f"s{number}", "begin") for number in range(4)]
    assert ["begun\n"] * 4 == [child.communicate(timeout=60)[0] for child in children]

    async def work():
        async with DatabaseSessionService(new_database_url) as service:
            return sorted(session.id for session in await service.list_all_sessions("app", "u"))

    assert ["s0", "s1", "s2", "s3"] == run(work())


def test_run_waits_for_the_run_of_another_process_and_starts_after_its_kill(database_url, session_id, spawn):
    child = spawn(database_url, session_id, "hold")
    assert "held\n" == child.stdout.readline()

    async def wait_for_it():
        async with DatabaseSessionService(database_url) as service:

            async def enter():
                async with service.lock("app", "u", session_id):
                    return "had it"

            task = asyncio.create_task(enter())
            await service.get_session("app", "u", "unknown")
            # Another session's lock is free, and by then this one has been asked for.
            async with service.lock("app", "u", "another"):
                assert not task.done()
            child.kill()
            return await task

    assert "had it" == run(wait_for_it())


def test_two_services_of_one_process_exclude_each_other_too(database_url, session_id):
    async def work():
        async with DatabaseSessionService(database_url) as one, DatabaseSessionService(database_url) as two:
            entered: list[str] = []

            async def enter():
                async with two.lock("app", "u", session_id):
                    entered.append("two")

            async with one.lock("app", "u", session_id):
                task = asyncio.create_task(enter())
                async with two.lock("app", "u", "another"):
                    entered.append("one")
            await task
            return entered

    assert ["one", "two"] == run(work())


def open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_lost_connections_break_neither_the_run_nor_later_locks(postgres_url, session_id):
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = 'patchbay'"

    async def work():
        async with DatabaseSessionService(postgres_url) as service, DatabaseSessionService(postgres_url) as other:
            session = await service.create_session("app", "u", session_id=session_id)
            async with service.lock("app", "u", session_id):
                await asyncio.to_thread(execute, postgres_url, others)
                await service.append_event(session, text_event("1"))
            await asyncio.to_thread(execute, postgres_url, others)
            for one in (service, other):
                async with one.lock("app", "u", session_id):
                    await one.append_event(session, text_event("2"))
            return texts_of(session.events)

    assert ["1", "2", "2"] == run(work())


async def test_a_lock_outlives_the_limit_of_idle_transactions(new_postgres):
    states = "SELECT string_agg(DISTINCT state, ' ') FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    async with DatabaseSessionService(new_postgres) as service, service.lock("app", "u", "s"):
        assert "idle" == await asyncio.to_thread(execute, new_postgres, states)


async def test_released_session_locks_leave_no_open_files(tmp_path):
    async with DatabaseSessionService(tmp_path / "s.db") as service:
        async with service.lock("app", "u", "a"):
            pass
        before = open_files()
        async with service.lock("app", "u", "a"), service.lock("app", "u", "b"):
            pass
        assert open_files() <= before


async def test_a_database_in_memory_works_and_ends_with_its_service():
    service = DatabaseSessionService("sqlite://")
    session = await service.create_session("app", "u")
    await asyncio.gather(*(service.append_event(session, text_event(str(number))) for number in range(10)))
    assert 10 == (await service.get_session("app", "u", session.id)).seq
    async with service.lock("app", "u", session.id):
        pass
    await service.close()
    assert await service.get_session("app", "u", session.id) is None
    await service.close()


@pytest.mark.parametrize("url", ["mysql://host/name", "redis://host", "sqlite+x://://", "://"])
def test_unsupported_url_is_refused_at_construction(url):
    with pytest.raises(ConfigurationError):
        DatabaseSessionService(url)


def test_unopenable_database_is_named_without_its_password(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere/s\.db cannot be opened"):
        run(load(f"sqlite:///{tmp_path}/nowhere/s.db", "one"))
    with pytest.raises(ConfigurationError, match="cannot be opened") as caught:
        run(load(f"postgresql://user:secret@/name?host={tmp_path}", "one"))
    assert "secret" not in str(caught.value)


def test_database_of_a_newer_version_is_not_changed(tmp_path):
    path = tmp_path / "s.db"
    assert run(create(f"sqlite+aiosqlite:///{path}", "one")) == run(load(str(path), "one"))
    execute(path, "UPDATE patchbay_versions SET version = 2")
    with pytest.raises(ConfigurationError, match="newer version"):
        run(load(str(path), "one"))


FORKING = """
import asyncio, os, sys
from patchbay.agents import DatabaseSessionService, Event

service = DatabaseSessionService(sys.argv[1])
session = asyncio.run(service.create_session("app", "u", session_id=sys.argv[2]))
children = []
for number in range(3):
    child = os.fork()
    if not child:
        children = None
        break
    children.append(child)
name = "parent" if children else f"child {number}"
for number in range(5):
    asyncio.run(service.append_event(session, Event(author=name)))
asyncio.run(service.close())
for child in children or ():
    assert 0 == os.waitpid(child, 0)[1]
"""


def test_forked_children_open_the_database_for_themselves(database_url, session_id):
    # In a program of its own: it is no good to fork from here, where there are threads.
    subprocess.run([sys.executable, "-c", FORKING, database_url, session_id], check=True, timeout=100)
    events = run(load(database_url, session_id)).events
    assert dict.fromkeys(["parent", "child 0", "child 1", "child 2"], 5) == Counter(event.author for event in events)


async def test_run_reads_the_end_of_a_long_log_first_and_the_rest_on_access(url, session_id):
    async with DatabaseSessionService(url) as service:
        session = await service.create_session("app", "u", session_id=session_id)
        for number in range(300):
            await service.append_event(session, text_event(f"m{number}"))
        session = await service.get_session_for_run("app", "u", session_id)
        await service.append_event(session, text_event("m300"))
        assert (301, 301) == (session.seq, len(session.events))
        assert [f"m{number}" for number in range(301)] == texts_of(session.events)
        deleted = await service.get_session_for_run("app", "u", session_id)
        await service.delete_session("app", "u", session_id)
        assert ["m300", "m200"] == texts_of([deleted.events[-1], deleted.events[200]])
        with pytest.raises(SessionNotFoundError):
            deleted.events[0]
