"""Several workers on one database, that are killed and stopped. ``DURABLE_RUNS=1000`` and ``DURABLE_GONE=10`` are the long form."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter

import pytest
import sqlalchemy as sa

from agents.databases import execute, restart_postgres

from .children import Worker, clean_environment, client, workers

RUNS = int(os.environ.get("DURABLE_RUNS", "30"))
GONE = os.environ.get("DURABLE_GONE", "1.5")
KILLED_EVERY = 5.0
FLAGS = ("--run-concurrency", "10" if RUNS >= 1000 else "2")


@pytest.mark.timeout(4 * RUNS + 300)
def test_runs_of_three_workers_that_are_killed_end_once_each(new_postgres, tmp_path):
    asyncio.run(kill_workers(new_postgres, tmp_path))


async def kill_workers(new_postgres, tmp_path):
    log = tmp_path / "log"
    log.touch()
    environment = clean_environment(LOG=str(log), GONE=GONE, PAUSE="0.5")
    began, kills = time.monotonic(), 0
    async with client(new_postgres) as runs:
        for number in range(RUNS):
            await runs.submit("clerk", "pay", run_id=f"r{number}")
        with workers(new_postgres, environment, 3, *FLAGS) as running:
            while RUNS > len(await ended(runs)):
                assert time.monotonic() - began < 120 + 4 * RUNS
                for each in running:
                    await asyncio.to_thread(each.wait_for, "database")  # until it carries out runs
                await asyncio.sleep(KILLED_EVERY)
                running.pop(0).kill()
                running.append(Worker(new_postgres, environment, *FLAGS))
                kills += 1
        results = [await runs.get(f"r{number}") for number in range(RUNS)]
        sessions = [await runs.sessions.get_session("clerk", "user", each.id) for each in results]
    seconds = time.monotonic() - began
    assert {"completed"} == {each.status for each in results}
    payments = Counter(log.read_text().split())
    assert 1 == max(payments.values())  # never twice
    unknown = [each for each in results if each.text != "paid"]
    assert all("may have run" in str(each.text) for each in unknown)
    assert {each.id for each in results if each.text == "paid"} <= payments.keys()
    answers = Counter(
        sum(event.is_final_response() for event in session.events if event.author == "clerk") for session in sessions
    )
    assert {1: RUNS} == answers
    taken_over = sum(each.attempts > 1 for each in results)
    print(f"{RUNS} runs, {kills} kills, {len(unknown)} unknown, {taken_over} taken over, {seconds:.0f} s")  # noqa: T201


async def ended(runs):
    from dbos import DBOS

    return await asyncio.to_thread(lambda: DBOS.list_workflows(status=["SUCCESS", "ERROR"], load_input=False, load_output=False))


def test_a_worker_that_was_stopped_and_goes_on_writes_nothing(new_postgres, tmp_path):
    asyncio.run(stop_worker(new_postgres, tmp_path))


async def stop_worker(new_postgres, tmp_path):
    log = tmp_path / "log"
    environment = clean_environment(LOG=str(log), GONE=GONE, PAUSE="0.5")
    stopped_for = 3 * float(GONE)
    async with client(new_postgres) as runs:
        with workers(new_postgres, environment, 1) as running:
            await asyncio.to_thread(running[0].wait_for, "database")
            await runs.submit("clerk", "pay", run_id="r")
            await asyncio.to_thread(running[0].wait_for, "begun")
            while not log.exists():  # its tool has begun
                await asyncio.sleep(0.01)
            os.kill(running[0].process.pid, signal.SIGSTOP)
            stopped_at = time.monotonic()
            with workers(new_postgres, environment, 1):
                run = await asyncio.wait_for(runs.wait("r"), 60)
                assert ("completed", 2) == (run.status, run.attempts)
                assert "may have run" in str(run.text)  # the tool, which goes on when the first worker does
                await asyncio.sleep(max(0.0, stopped_for - (time.monotonic() - stopped_at)))
                before = rows(new_postgres)
                os.kill(running[0].process.pid, signal.SIGCONT)
                assert {"event": "lost", "id": "r"} == await asyncio.to_thread(running[0].wait_for, "lost")
                await asyncio.sleep(2)  # the time in which it would write
                assert before == rows(new_postgres)
                assert ["r"] == log.read_text().split()
                # and it takes new runs
                await runs.submit("clerk", "pay", run_id="r2")
                assert "paid" == (await asyncio.wait_for(runs.wait("r2"), 60)).text


def rows(url):
    """Return all that is recorded of runs and sessions."""
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
    tables = ("dbos.operation_outputs", "dbos.workflow_status", "patchbay_sessions", "patchbay_events")
    with engine.connect() as connection:
        found = {table: sorted(map(str, connection.exec_driver_sql(f"SELECT * FROM {table}"))) for table in tables}
    engine.dispose()
    return found


@pytest.mark.parametrize("fault", ["crash", "4 seconds away", "pause"])
def test_a_run_goes_on_in_its_worker_after_a_fault_while_its_tool_runs(fault, new_postgres, tmp_path):
    asyncio.run(disturb_worker(fault, new_postgres, tmp_path))


async def disturb_worker(fault, new_postgres, tmp_path):
    log = tmp_path / "log"
    environment = clean_environment(LOG=str(log), GONE=GONE, PAUSE="1")
    async with client(new_postgres) as runs:
        with workers(new_postgres, environment, 1) as (worker,):
            await asyncio.to_thread(worker.wait_for, "database")
            await runs.submit("clerk", "pay", run_id="r")
            while not log.exists():
                await asyncio.sleep(0.01)
            if fault == "pause":  # for so long that another process has deleted its row
                os.kill(worker.process.pid, signal.SIGSTOP)
                await asyncio.to_thread(execute, new_postgres, "DELETE FROM patchbay_servers")
                os.kill(worker.process.pid, signal.SIGCONT)
            else:
                await asyncio.to_thread(restart_postgres, new_postgres, away=4.0 if "away" in fault else 0.0)
            run = await asyncio.wait_for(runs.wait("r"), 60)
    assert ("completed", ["r"]) == (run.status, log.read_text().split())
