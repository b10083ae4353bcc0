"""Runs that are stopped, and servers that are killed, at every step of the way of a request; and two servers on one database.

Nothing is lost, nothing is doubled, and a yes is for one run at most: for none where the server dies in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from patchbay.approvals import State
from support.served import BOUND

from .approval_calls import Files, call_of, decided, executor_of, running_calls, service_at, waiting
from .serving import Server, ran, serving


@pytest.fixture
def database(url):
    """A database of its own, for any number of servers."""
    return url


def wait_for_exit(server: Server) -> None:
    """Wait until the server was killed."""
    assert server.process.wait(BOUND) < 0
    server.ended()


def all_requests(server: Server) -> list[dict]:
    return server.ask("GET", "/api/approvals?all=1")[1]["approvals"]


def approved_where_it_is_asked_for(server: Server, path: str = "/a") -> int:
    """Make the call, approving each request; return the number of approvals."""
    outcomes: list[str] = []
    server.run(path, outcomes)
    yes = 0
    until = time.monotonic() + BOUND
    while server.runs[-1].is_alive():
        assert time.monotonic() < until
        for each in server.ask("GET", "/api/approvals")[1]["approvals"]:
            yes += server.decide(each["id"], "approve")[0] == 200
        server.runs[-1].join(0.01)
    assert [f"deleted {path}"] == outcomes
    return yes


# The moment of the kill, the runs of the tool by then, and the approvals that the call's next run needs.
MOMENTS = [
    ("before open", 0, 1),
    ("after open", 0, 1),
    ("before decide", 0, 1),
    ("after decide", 0, 0),
    ("before use_decision", 0, 0),
    ("after use_decision", 0, 1),
    ("before tool", 0, 1),
    ("after tool", 1, 1),
]


@pytest.mark.parametrize(("moment", "had_run", "asked"), MOMENTS)
def test_approval_is_stored_and_used_once_despite_a_kill_at_any_step(database, tmp_path, moment, had_run, asked):
    with serving(tmp_path, database=database, dies=moment) as server:
        server.run("/a")
        if "open" not in moment:
            [request] = server.pending()
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):  # it may die before it answers
                server.decide(request["id"], "approve", by="ann")
        wait_for_exit(server)
    assert had_run == len(ran(tmp_path))
    with serving(tmp_path, database=database) as server:
        before = all_requests(server)
        assert (moment != "before open") == len(before)
        assert asked == approved_where_it_is_asked_for(server)
        assert had_run + 1 == len(ran(tmp_path))
        # The call that was left waiting was taken up again; one whose yes was used up was asked about anew.
        used_up = moment in ("after use_decision", "before tool", "after tool", "before open")
        assert len(before) + used_up == len(all_requests(server))
        assert all(each["used"] is not None for each in all_requests(server))
        assert 1 == approved_where_it_is_asked_for(server)
    assert had_run + 2 == len(ran(tmp_path))


@pytest.mark.parametrize(("moment", "left"), [("before withdraw", "pending"), ("after withdraw", "withdrawn")])
def test_kill_while_a_run_stops_leaves_its_request_pending_or_withdrawn(database, tmp_path, moment, left):
    with serving(tmp_path, database=database, dies=moment) as server:
        server.run("/a")
        server.pending()
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            server.ask("POST", "/stop", {})
        wait_for_exit(server)
    with serving(tmp_path, database=database) as server:
        assert [left] == [each["state"] for each in all_requests(server)]
        assert 1 == approved_where_it_is_asked_for(server)
    assert ["/a"] == ran(tmp_path)


@pytest.mark.parametrize("moment", ["before open", "after open", "before get", "after get", "before use_decision"])
async def test_run_stopped_at_any_step_leaves_no_pending_or_approved_request(url, moment):
    when, name = moment.split()

    files = Files()
    async with service_at(url) as service:
        method = getattr(service.store, name)

        async def stopping(*arguments, **options):
            setattr(service.store, name, method)  # once
            if when == "before":
                task.cancel()
            found = await method(*arguments, **options)
            if when == "after":
                task.cancel()
            return found

        setattr(service.store, name, stopping)
        task = running_calls(executor_of(service, files), call_of())
        if name == "use_decision":
            [request] = await waiting(service)
            await service.store.decide(replace(request, state=State.APPROVED, by="ann"), now=time.time())
            service.wake()
        await asyncio.wait([task])
        left = await service.pending(), list(service.waiting), list(files.deleted)
        assert all(each.used is not None or each.state is State.WITHDRAWN for each in await service.recent())
        await decided(service, "approve", files=files)
        assert (([], [], []), ["/a"]) == (left, files.deleted)


def test_request_pending_in_one_server_is_decided_in_another(database, tmp_path):
    with serving(tmp_path, database=database) as here, serving(tmp_path, database=database) as there:
        outcomes: list[str] = []
        here.run("/a", outcomes)
        [request] = there.pending()
        assert 200 == there.decide(request["id"], "approve", by="ann")[0]
        here.ended()
        assert ["deleted /a"] == outcomes
        assert 409 == here.decide(request["id"], "deny")[0]
    assert ["/a"] == ran(tmp_path)


RUNS = 4
"""Runs of one call at the same time."""


def test_equal_calls_of_two_servers_each_need_a_decision(database, tmp_path):
    """All of the same session, decided in both servers at the same time."""
    with serving(tmp_path, database=database) as here, serving(tmp_path, database=database) as there:
        servers = (here, there)
        outcomes: list[str] = []
        for n in range(RUNS):
            servers[n % 2].run("/a", outcomes)

        def deciding(server: Server, verdict: str) -> int:
            """Decide all requests while a run waits; return the number of decisions that counted."""
            count = 0
            until = time.monotonic() + BOUND
            while under_way := [run for each in servers for run in each.runs if run.is_alive()]:
                assert time.monotonic() < until
                under_way[0].join(0.01)
                for each in server.ask("GET", "/api/approvals")[1]["approvals"]:
                    count += server.decide(each["id"], verdict)[0] == 200
            return count

        with ThreadPoolExecutor(4) as pool:
            work = [pool.submit(deciding, server, verdict) for server in servers for verdict in ("approve", "deny")]
            yes, no = (sum(work[n].result() for n in numbers) for numbers in ((0, 2), (1, 3)))
        for each in servers:
            each.ended()
        requests = all_requests(here)
    assert (RUNS, RUNS, RUNS) == (yes + no, len(outcomes), len(requests))
    assert yes == len(ran(tmp_path)) == outcomes.count("deleted /a")
    assert all(each["used"] is not None for each in requests)
