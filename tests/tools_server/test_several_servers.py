"""Several servers on one PostgreSQL database: a change by one is seen by the others, and where two change one name, one wins."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import threading
import time
from collections.abc import Iterator

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from agents.databases import execute
from patchbay.registrations import RegistrationStore
from patchbay.server import registrations
from patchbay.server.callbacks import CallbackEndpoint, CallbackHealth
from patchbay.server.settings import ToolsSettings
from patchbay.tools.registry import Registration
from registry.registering import registry_of, remote
from tools_server.rig import BOUND, Server, poll_until, serving

TOKEN = "a-token-of-all-servers-0123456789"


@contextlib.contextmanager
def servers(store: str, count: int) -> Iterator[list[Server]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(serving(store=store)) for _ in range(count)]


def test_a_change_is_seen_by_all_servers_at_once(new_postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "RETRY_SECONDS", 600.0)  # by notification alone
    waits = []
    with servers(new_postgres, 3) as (first, *others):
        for number in range(20):
            assert first.register(f"t{number}")["stored"]
            began = time.monotonic()
            poll_until(lambda: all(f"t{number}" in each.tools() for each in others))  # noqa: B023
            waits.append(time.monotonic() - began)
        assert others[0].post("unregister", name="t0").json["removed"]
        poll_until(lambda: all("t0" not in each.tools() for each in (first, *others)))
        assert others[0].post("clear", source="external").json["removed"] == 2 * 19
        poll_until(lambda: not first.tools())
    assert statistics.median(waits) < 0.5  # 5 ms on a quiet machine


def test_a_change_is_seen_where_its_notification_was_lost(new_postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(*_: object) -> None: ...

    monkeypatch.setattr(registrations, "listen", deaf)
    monkeypatch.setattr(registrations, "RETRY_SECONDS", 0.05)
    with servers(new_postgres, 2) as (first, second):
        first.register("a")
        poll_until(lambda: "a" in second.tools())


def test_what_one_server_has_stored_can_be_removed_at_another_before_that_has_heard_of_it(
    new_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(*_: object) -> None: ...

    monkeypatch.setattr(registrations, "listen", deaf)
    monkeypatch.setattr(registrations, "RETRY_SECONDS", 600.0)
    with servers(new_postgres, 2) as (first, second):
        first.register("a")
        first.register("b")
        assert second.post("unregister", name="a").json["removed"]
        assert second.post("clear", source="external").json["removed"] == 2  # of two roles
        assert not second.tools()


def test_a_server_that_starts_later_has_everything_and_one_that_ends_takes_nothing_away(new_postgres: str) -> None:
    with serving(store=new_postgres) as first:
        first.register("a")
        with serving(store=new_postgres) as second:
            assert {"a"} == set(second.tools())
            second.register("b")
        poll_until(lambda: {"a", "b"} == set(first.tools()))


def test_one_of_two_sources_that_register_a_name_at_the_same_time_gets_it_on_all_servers(new_postgres: str) -> None:
    answers: dict[tuple[str, str], int] = {}

    def register(server: Server, source: str) -> None:
        for number in range(20):
            name, body = f"t{number}", {"parameters": {}, "source": source, "callback_url": "http://127.0.0.1:9/call"}
            answer = server.post("register", name=name, **body)
            is_kept = answer.status == 200 and answer.json["ok"] and answer.json["stored"]
            answers[name, source] = is_kept
            if not is_kept:
                failed = answer.json["failed_roles"][0]["code"] if answer.status == 200 else answer.json["error_code"]
                assert failed in ("registration_conflict", "source_conflict"), answer.json

    with servers(new_postgres, 2) as both:
        for each in both:
            each.post("unregister", name="none")  # FastAPI makes the models of its routes then, in one thread at a time
        threads = [threading.Thread(target=register, args=(each, f"s{number}")) for number, each in enumerate(both)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        winners = {name: source for (name, source), is_kept in answers.items() if is_kept}
        assert 20 == len(winners) == sum(answers.values())
        for each in both:
            poll_until(lambda: winners == {name: tool["source"] for name, tool in each.tools().items()}, shown=winners)  # noqa: B023


def test_servers_that_change_much_at_the_same_time_have_the_same_in_the_end(new_postgres: str) -> None:
    def change(server: Server, own: str) -> None:
        for number in range(10):
            role = ("", "ann")[number % 2]
            answer = server.register(f"{own}{number // 2}", role=role)  # all roles, then an exception for one
            assert answer["ok"]
            assert answer["stored"]
        assert server.post("unregister", name=f"{own}0").json["stored"]

    with servers(new_postgres, 3) as all_three:
        for each in all_three:
            each.post("unregister", name="none")
        threads = [threading.Thread(target=change, args=(each, f"c{number}_")) for number, each in enumerate(all_three * 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        names = {f"c{client}_{number}" for client in range(6) for number in range(1, 5)}
        poll_until(lambda: all(names == set(each.tools()) for each in all_three))
        listings = [each.ask("GET", "/api/tools") for each in all_three]
        assert listings[0].json == listings[1].json == listings[2].json
        assert 1 == len({each.headers["etag"] for each in listings})


async def test_names_that_both_have_changed_are_those_of_the_first_to_commit(new_postgres: str) -> None:
    async with RegistrationStore(new_postgres) as ours, RegistrationStore(new_postgres) as theirs:
        here, there = registry_of(), registry_of()
        await theirs.save(there, there.register(remote("t", "x", role=None)))
        assert set() == await ours.exchange(here)
        assert ["x"] == [each.source for each in here.registrations()]
        await theirs.save(there, there.register(remote("t", "x", role="ann", description="theirs")))
        ours.mark_unsaved(here.unregister("t", "ben").keys)
        ours.mark_unsaved(here.register(remote("u")).keys)
        assert {"t"} == await ours.exchange(here)
        assert {("t", None, frozenset({"ann"})), ("t", "ann", frozenset()), ("u", None, frozenset())} == rows(
            here.registrations()
        )
        await theirs.exchange(there)
        assert rows(here.registrations()) == rows(there.registrations())
        assert [] == ours.unsaved


async def test_a_commit_whose_answer_was_lost_is_no_conflict_with_itself(new_postgres: str) -> None:
    async with RegistrationStore(new_postgres) as store:
        registry = registry_of()
        await store.exchange(registry)
        change = registry.register(remote("t"))
        await store.save(registry, change)
        store.mark_unsaved(change.keys)
        assert set() == await store.exchange(registry)
        assert [] == store.unsaved


async def test_a_server_that_is_far_behind_or_ahead_of_a_restored_copy_catches_up(new_postgres: str, monkeypatch) -> None:
    monkeypatch.setattr("patchbay.registrations.KEPT_REMOVALS", 3)
    async with RegistrationStore(new_postgres) as ours, RegistrationStore(new_postgres) as theirs:
        here, there = registry_of(), registry_of()
        await theirs.save(there, there.register(remote("gone")))
        await ours.exchange(here)
        await theirs.save(there, there.unregister("gone"))
        for number in range(6):
            await theirs.save(there, there.register(remote(f"t{number}")))
        await ours.exchange(here)
        assert rows(there.registrations()) == rows(here.registrations())
        engine = ours.database.connect()
        with engine.begin():
            engine.exec_driver_sql("UPDATE patchbay_registry SET revision = 2")
            engine.exec_driver_sql("DELETE FROM patchbay_registrations WHERE name <> '\"t0\"'")
        engine.close()
        await ours.exchange(here)
        await ours.exchange(here)
        assert {f"t{number}" for number in range(6)} == {each.name for each in await theirs.load()}


def rows(found: list[Registration]) -> set[tuple[str, str | None, frozenset[str]]]:
    return {(each.name, each.role, each.excluded) for each in found}


async def test_a_change_that_comes_while_the_others_are_read_is_not_lost_in_silence(new_postgres: str, monkeypatch) -> None:
    async with RegistrationStore(new_postgres) as ours, RegistrationStore(new_postgres) as theirs:
        here, there = registry_of(), registry_of()
        await ours.load()
        await theirs.save(there, there.register(remote("t", "theirs")))
        read = ours.database.read

        async def read_slowly(work):
            found = await read(work)
            await asyncio.sleep(0)
            if isinstance(found, tuple):
                ours.mark_unsaved(here.register(remote("t", "ours")).keys)
            return found

        monkeypatch.setattr(ours.database, "read", read_slowly)
        assert set() == await ours.exchange(here)
        assert {"t"} == await ours.exchange(here)
        assert ["theirs"] == [each.source for each in here.registrations()]


def test_a_list_is_the_same_on_all_servers(new_postgres: str) -> None:
    with servers(new_postgres, 2) as both:
        registered = both[0].register("a")
        poll_until(lambda: "a" in both[1].tools())
        listings = [each.ask("GET", "/api/tools") for each in both]
        assert listings[0].json == listings[1].json
        assert (registered["instance_id"], registered["revision"]) == (
            listings[1].json["instance_id"],
            listings[1].json["revision"],
        )
        assert 304 == both[1].ask("GET", "/api/tools", if_none_match=listings[0].headers["etag"]).status


def test_what_one_server_cannot_reach_is_hidden_there_and_stays_for_the_others(new_postgres: str) -> None:
    endpoint = CallbackEndpoint("plugin:p", "http://127.0.0.1:9")
    with servers(new_postgres, 2) as (first, second):
        first.register("a", source="plugin:p")
        poll_until(lambda: "a" in second.tools())
        health = CallbackHealth(ToolsSettings(lease=60.0))
        health.registry, health.is_shared = second.app.registry, True
        for _ in range(10):
            health.failed(endpoint)
        second.register("b")
        poll_until(lambda: "b" in first.tools())
        assert ("hidden", "active") == (second.tools()["a"]["state"], first.tools()["a"]["state"])
        first.register("a", source="plugin:p", description="again")
        poll_until(lambda: second.tools()["a"]["description"] == "again")
        assert "hidden" == second.tools()["a"]["state"]


def test_a_server_is_ready_while_the_shared_database_is_away(new_postgres: str, postgres_url: str) -> None:
    name = new_postgres.partition("@/")[2].partition("?")[0]
    with serving(store=new_postgres) as server:
        execute(postgres_url, f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        execute(postgres_url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        try:
            assert not server.register("a")["stored"]
            assert "degraded" == server.ask("GET", "/health").json["status"]
            assert ("", {"a"}) == (server.app.problem(), set(server.tools()))
        finally:
            execute(postgres_url, f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
        poll_until(lambda: server.ask("GET", "/health").json["status"] == "ok")


def test_an_mcp_session_and_a_sign_in_count_on_all_servers(new_postgres: str) -> None:
    class RoundRobin(httpx2.AsyncHTTPTransport):
        """A load balancer that sends each request to the next server."""

        def __init__(self, ports: list[int]) -> None:
            super().__init__()
            self.ports = itertools.cycle(ports)

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            request.url = request.url.copy_with(port=next(self.ports))
            return await super().handle_async_request(request)

    async def use_mcp(ports: list[int]) -> None:
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(transport=RoundRobin(ports), headers=headers, timeout=BOUND) as http:
            transport = streamable_http_client("http://127.0.0.1:1/mcp", http_client=http)
            async with Client(transport, mode="legacy") as client:
                for _ in range(4):
                    assert ["a"] == [each.name for each in (await client.list_tools()).tools]

    with contextlib.ExitStack() as stack:
        all_three = [stack.enter_context(serving(store=new_postgres, token=TOKEN)) for _ in range(3)]
        trusted = {"authorization": f"Bearer {TOKEN}"}
        answer = all_three[0].ask(
            "POST", "/api/tools/register", {"name": "a", "callback_url": "http://127.0.0.1:9/call"}, **trusted
        )
        assert 200 == answer.status
        poll_until(lambda: all(each.ask("GET", "/api/tools", **trusted).json["tools_by_role"]["ann"] for each in all_three))
        asyncio.run(use_mcp([each.port for each in all_three]))
        signed_in = all_three[0].ask("POST", "/api/console/session", {"token": TOKEN})
        cookie = signed_in.headers["set-cookie"].partition("=")[2].partition(";")[0]
        for each in all_three:
            assert 200 == each.ask("GET", "/api/turns", cookie=f"patchbay_console_{each.port}={cookie}").status
            assert 401 == each.ask("GET", "/api/turns", cookie=f"patchbay_console_{each.port}={cookie}0").status
