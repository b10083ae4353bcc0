"""Audit, approvals and registrations in one database, as a server keeps them, with other processes that read it meanwhile."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
import time
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from agents.event_builders import text_event
from patchbay import database as databases
from patchbay.agents.sessions.database import DatabaseSessionService
from patchbay.approvals import ApprovalRequest, ApprovalStore
from patchbay.approvals.request import State
from patchbay.audit import AuditLog, AuditQuery
from patchbay.errors import ConfigurationError
from patchbay.registrations import RegistrationStore
from patchbay.server.registrations import FileLock
from patchbay.tools.registry import Registration, ToolRegistry
from support.running import run

from .recording import ids, record, store_records
from .serving import patchbay

COUNT = 40


async def read_by_another(url: str) -> list[str]:
    """Return the calls that another process finds. It opens the database and closes it again."""
    status, out, err = await asyncio.to_thread(patchbay, "audit", "--store", url, "--json", "-n", "1000")
    assert (0, "") == (status, err)
    return [json.loads(line)["call_id"] for line in out.splitlines()][::-1]


def request(number: int) -> ApprovalRequest:
    now, whose = time.time(), f"s{number}"
    return ApprovalRequest(
        id=str(number), created=now, deadline=now + 600, tool="rm", arguments="{}", digest="sha256:0", session_key=whose
    )


async def test_closing_reader_process_does_not_lose_a_writers_records(url):
    """A process that is the last to leave a SQLite file deletes its log: it must not take itself for the last."""
    seen = []
    async with AuditLog(url) as log:
        for number in range(4):
            log(record(str(number)))
            await log.flush()
            assert 1 == len((await log.query(AuditQuery(limit=1))).entries)
            seen.append(len(await read_by_another(url)))
    assert ([1, 2, 3, 4], ["0", "1", "2", "3"]) == (seen, await read_by_another(url))


async def test_all_stores_of_a_server_can_share_one_database(url):
    async def audited(log: AuditLog) -> None:
        for number in range(COUNT):
            log(record(str(number)))
            await log.flush()

    async def registered(kept: RegistrationStore) -> None:
        registry = ToolRegistry(["ann"])
        for number in range(COUNT):
            await kept.save(registry, registry.register(Registration(f"t{number}", callback_url="http://127.0.0.1:9/")))

    async def approved(approvals: ApprovalStore) -> None:
        for number in range(COUNT):
            await approvals.open(request(number), now=time.time(), decided_since=0, session_since=0)

    async def read() -> list[int]:
        return [len(await read_by_another(url)) for _ in range(3)]

    kept, approvals, log = RegistrationStore(url), ApprovalStore(url), AuditLog(url)
    hold = FileLock(kept.database)
    await hold.acquire()
    log(record("first"))  # the others are opened later, while the first is open
    await log.flush()
    await approvals.pending(now=0)
    *_, seen = await asyncio.gather(audited(log), registered(kept), approved(approvals), read())
    if kept.database.file is not None:
        with pytest.raises(ConfigurationError, match="in use by another server"):
            await FileLock(kept.database).acquire()
    waits = await approvals.pending(now=time.time())
    hold.release()
    for each in (kept.close, approvals.close, log.aclose):
        await each()
    async with RegistrationStore(url) as again:
        registrations = await again.load()
    seen, waits, registrations, calls = (
        seen,
        [each.id for each in waits],
        [each.name for each in registrations],
        await read_by_another(url),
    )
    assert (sorted(seen), True) == (seen, seen[0] >= 1)
    assert [str(number) for number in range(COUNT)] == sorted(waits, key=int)
    assert [f"t{number}" for number in range(COUNT)] == registrations
    assert ["first", *map(str, range(COUNT))] == calls


def test_new_file_is_private_even_behind_a_link(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "audit.db")
    run(store_records(tmp_path / "link.db", record("a")))
    assert "-rw-------" == stat.filemode((tmp_path / "audit.db").stat().st_mode)


def test_existing_file_keeps_its_permissions(tmp_path):
    (tmp_path / "audit.db").touch(0o640)
    run(store_records(tmp_path / "audit.db", record("a")))
    assert "-rw-r-----" == stat.filemode((tmp_path / "audit.db").stat().st_mode)


async def test_no_store_connects_while_another_one_has_the_new_file_in_its_hand(tmp_path, monkeypatch):
    """Closing the new file would release the locks of a store that has connected to it meanwhile."""
    has_made, may_close = threading.Event(), threading.Event()
    close = databases.os.close

    def slow_close(number: int) -> None:
        if not has_made.is_set():
            has_made.set()
            assert may_close.wait(30)
        close(number)

    monkeypatch.setattr(databases.os, "close", slow_close)

    async with AuditLog(tmp_path / "audit.db") as first, AuditLog(tmp_path / "audit.db") as second:
        opening = asyncio.create_task(first.query())
        assert await asyncio.to_thread(has_made.wait, 30)
        also = asyncio.create_task(second.query())
        _, waits = await asyncio.wait([also], timeout=0.2)  # it would be there in a hundredth of that
        may_close.set()
        await asyncio.gather(opening, also)
        assert 1 == len(waits)


async def test_nothing_is_confirmed_that_a_lost_file_would_have(tmp_path):
    """Writes fail until the file is back, and nothing that was tried again is lost."""
    file = tmp_path / "all.db"
    agents = DatabaseSessionService(str(file))
    session = await agents.create_session("app", "user", session_id="s")
    approvals = ApprovalStore(str(file))
    await approvals.open(request(1), now=time.time(), decided_since=0, session_since=0)
    async with AuditLog(str(file)) as log:
        log(record("before"))
        await log.flush()
        file.rename(tmp_path / "moved.db")

        with pytest.raises(OperationalError, match="moved or replaced"):
            await agents.append_event(session, text_event("lost"))
        with pytest.raises(OperationalError, match="moved or replaced"):
            await approvals.decide(replace(request(1), state=State.APPROVED), now=time.time())
        log(record("after"))
        with pytest.raises(RuntimeError, match="moved or replaced"):
            await log.flush()
        (tmp_path / "moved.db").rename(file)
        await log.flush()  # it was tried again
        await agents.append_event(session, text_event("kept"))
    for each in (agents, approvals):
        await each.close()
    assert ["before", "after"] == await read_by_another(str(file))


async def test_relative_file_is_not_lost_where_the_working_directory_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with AuditLog("audit.db") as log:
        log(record("a"))
        await log.flush()
        monkeypatch.chdir("/")
        log(record("b"))
        await log.flush()
    assert ["a", "b"] == await read_by_another(str(tmp_path / "audit.db"))


def test_special_sqlite_names_are_passed_through(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(store_records("sqlite:///file:audit.db?mode=rwc&uri=true", record("a")))
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'audit.db'}")
    with engine.connect() as connection:
        assert 1 == connection.exec_driver_sql("SELECT count(*) FROM patchbay_audit").scalar()
    engine.dispose()


async def test_follow_misses_no_entry_of_concurrent_writers(url):
    """Ids follow the order of commits across writers."""

    async def write(log: AuditLog, name: str) -> None:
        for number in range(60):
            log(record(f"{name}{number}"))
            await log.flush()

    async def follow(log: AuditLog) -> list[str]:
        found, last = [], 0
        while len(found) < 180:
            page = await log.query(AuditQuery(after=last, limit=11))
            found += ids(page)
            last = page.entries[-1].id if page.entries else last
            await asyncio.sleep(0)
        return found

    async with AuditLog(url) as one, AuditLog(url) as two, AuditLog(url) as three, AuditLog(url) as reader:
        found = (await asyncio.gather(follow(reader), write(one, "a"), write(two, "b"), write(three, "c")))[0]
    assert 180 == len(set(found)) == len(found)
