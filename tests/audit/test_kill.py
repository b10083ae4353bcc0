"""Records before a ``flush`` that returned outlive a process that is killed at any moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from patchbay.audit import AuditEntry, AuditLog, AuditQuery
from support.processes import Process
from support.running import run

WRITER = Path(__file__).with_name("writer.py")


def killed_after(url: str, acknowledged: int, spins: int) -> int:
    """Kill a writer after it has said so many numbers, and return the last that it said."""
    child = Process([sys.executable, str(WRITER), url], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        for _ in range(acknowledged):
            reply = int(child.stdout.readline())
        for _ in range(spins):
            pass  # it is at an unknown stage
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split("\n")[:-1]
        return int(rest[-1]) if rest else reply
    finally:
        child.kill()
        child.communicate(timeout=30)


async def all_entries(url: str) -> list[AuditEntry]:
    """Return the entries of all pages, newest first: on a busy machine a writer is killed late, and writes more than a page has."""
    async with AuditLog(url) as log:
        page = await log.query(AuditQuery(limit=1000))
        entries = [*page.entries]
        while page.cursor is not None:
            page = await log.query(AuditQuery(limit=1000, before=page.cursor))
            entries += page.entries
        return entries


@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_records_are_stored_without_gaps(url, seed):
    chance = random.Random(seed)
    text = killed_after(url, chance.randint(1, 12), chance.randint(0, 400_000))
    entries = run(all_entries(url))[::-1]
    kept = [int(each.call_id) for each in entries]
    assert list(range(1, len(kept) + 1)) == kept == [each.number for each in entries]
    assert text <= kept[-1]


def test_file_left_by_a_kill_is_complete_and_appendable(tmp_path):
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    first = killed_after(url, 3, 1000)
    second = killed_after(url, 2, 1000)
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        assert "ok" == connection.exec_driver_sql("PRAGMA integrity_check").scalar()
    engine.dispose()
    entries = run(all_entries(url))
    assert 2 == len({each.writer for each in entries})
    assert first + second <= len(entries)
