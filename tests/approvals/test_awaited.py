"""``awaited`` of a request is right wherever requests are listed and decided, in any process that uses the database."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.approvals import State
from patchbay.approvals import service as service_module
from patchbay.approvals import store as store_module
from patchbay.errors import ApprovalConflictError

from .approval_calls import NO_SESSION, SCOPE, Files, ask, call_of, executor_of, running_calls, service_at, stop, waiting
from .serving import ran, serving
from .test_commands import patchbay
from .test_service import SilentTerminal


@pytest.mark.parametrize("scope", [SCOPE, NO_SESSION])
async def test_every_process_sees_when_a_run_waits_and_when_it_stops(url, scope):
    async with service_at(url) as here, service_at(url) as there:
        task = running_calls(executor_of(here, Files()), call_of(), scope=scope)
        [request] = await waiting(there)
        for service in (here, there):
            assert (True, [True]) == ((await service.get(request.id)).awaited, [each.awaited for each in await service.recent()])
        assert (await there.decide(request.id, "approve")).awaited is True
        await task
        assert [False, False] == [(await service.get(request.id)).awaited for service in (here, there)]
        assert 0 == len(here.waiting)


async def test_later_process_sees_a_waiting_run_within_its_heartbeat(tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "HEARTBEAT", 0.05)
    url = str(tmp_path / "approvals.db")

    async with service_at(url) as here:
        task, request = await ask(here, scope=NO_SESSION)
        async with service_at(url) as there:
            [seen] = await waiting(there)
            await there.decide(request.id, "approve")
            await task
            assert seen.awaited is True


async def test_request_without_a_recent_heartbeat_is_not_awaited(tmp_path, monkeypatch):
    """After a crash of the machine or a kill, the row stays."""
    monkeypatch.setattr(service_module, "HEARTBEAT", 3600)
    monkeypatch.setattr(store_module, "ABSENT", 0.0)
    url = str(tmp_path / "approvals.db")

    async with service_at(url) as here, service_at(url) as there:
        tasks = [running_calls(executor_of(here, Files()), call_of(), scope=scope) for scope in (SCOPE, NO_SESSION)]
        await waiting(here, 2)
        [listed] = await there.pending()
        await stop(*tasks)
        assert ("s1", False) == (listed.session_key, listed.awaited)


async def test_heartbeats_end_with_the_waiting_runs_and_outlive_a_database_that_fails(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(service_module, "HEARTBEAT", 0.001)
    async with service_at(str(tmp_path / "approvals.db")) as service:
        before = asyncio.all_tasks()
        still, outcome = service.store.heartbeat, asyncio.Event()
        failures = [OSError("busy")]

        async def sometimes(request_ids):
            if failures:
                raise failures.pop()
            await still(request_ids)
            outcome.set()

        service.store.heartbeat = sometimes
        task, request = await ask(service)
        await outcome.wait()
        await service.decide(request.id, "approve")
        await task
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0)
    assert "Could not record" in caplog.text


async def test_request_of_an_abandoned_run_is_withdrawn_after_a_restart(tmp_path):
    """Its run is gone, and no other can come for it: it is of no session."""
    url = str(tmp_path / "approvals.db")

    files = Files()
    async with service_at(url) as service:
        service.leave()
        task, request = await ask(service, files=files, scope=NO_SESSION)
        await stop(task)
    async with service_at(url, terminal=SilentTerminal()) as service:
        with pytest.raises(ApprovalConflictError, match="withdrawn already"):
            await service.decide(request.id, "approve")
        assert ([], [State.WITHDRAWN], State.WITHDRAWN) == (
            await service.pending(),
            [each.state for each in await service.recent()],
            (await service.get(request.id)).state,
        )


async def test_request_is_not_withdrawn_while_its_run_is_about_to_wait():
    async with service_at() as service:
        opened, hold = asyncio.Event(), asyncio.Event()
        open_ = service.store.open

        async def slowly(*arguments, **options):
            found = await open_(*arguments, **options)
            opened.set()
            await hold.wait()
            return found

        service.store.open = slowly
        task = running_calls(executor_of(service, Files()), call_of(), scope=NO_SESSION)
        await opened.wait()
        [request] = await service.pending()
        hold.set()
        await service.decide(request.id, "approve")
        [execution] = await task
        assert (True, "deleted /a") == (request.awaited, execution.content)


@pytest.mark.parametrize("scope", [SCOPE, NO_SESSION])
async def test_request_opened_during_a_listing_is_listed_as_awaited(scope):
    async with service_at() as service:
        pending, tasks = service.store.pending, []

        async def meanwhile(**options):
            service.store.pending = pending
            tasks.append(running_calls(executor_of(service, Files()), call_of(), scope=scope))
            while not (found := await pending(**options)):
                await asyncio.sleep(0.005)
            return found

        service.store.pending = meanwhile
        [request] = await service.pending()
        await service.decide(request.id, "approve")
        [execution] = await tasks[0]
        assert (True, "deleted /a") == (request.awaited, execution.content)


def test_kill_withdraws_requests_without_a_session_and_keeps_the_others(tmp_path):
    with serving(tmp_path) as server:
        server.run("/none", session="")
        server.run("/some")
        by_path = {each["arguments"]["path"]: each for each in server.pending(2)}
        assert [True, True] == [each["awaited"] for each in by_path.values()]
        server.kill()
    with serving(tmp_path) as server:
        none, some = by_path["/none"]["id"], by_path["/some"]["id"]
        [listed] = server.pending()
        assert (some, False) == (listed["id"], listed["awaited"])
        assert "no run waits for it: a yes is for the same call of this session" in patchbay("list", url=server.url).stdout
        refused = patchbay("approve", none, url=server.url)
        assert (1, "patchbay: The request is withdrawn already.\n") == (refused.returncode, refused.stderr)
        done = patchbay("approve", some, "--by", "root", url=server.url)
        expected = f"{some}  delete  approved by root (no run waits for it: runs when the call comes again in this session)\n"
        assert (0, expected) == (done.returncode, done.stdout)
        assert [] == ran(tmp_path)
        server.run("/some")
        server.ended()
        everything = patchbay("list", "--all", url=server.url).stdout
        assert {f"{some}  delete  approved by root", f"{none}  delete  withdrawn"} == set(everything.splitlines())
    assert ["/some"] == ran(tmp_path)
