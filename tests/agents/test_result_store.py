"""Long results are stored with their session and stay readable as long as it exists."""

from __future__ import annotations

import json
from typing import Any

import pytest

from patchbay.agents import AgentTool, BaseSessionService, DatabaseSessionService, InMemorySessionService, SequentialAgent
from patchbay.agents.sessions.database import TABLES, DatabaseResults
from patchbay.database import Database
from patchbay.errors import SessionNotFoundError
from patchbay.types import ToolCall
from support.running import run

from .child import read_log
from .turns import Chat, agent, response_of

READ = ToolCall("c1", "read_log")
ADVICE = 'Read them with read_result(result_id="result_1", offset='
PIECE = "[result_1: characters 52890 to 52899 of 98890]\nline 5400"


def reading(result_id: str = "result_1", **arguments: Any) -> ToolCall:
    return ToolCall("c2", "read_result", json.dumps({"result_id": result_id, "find": "line 5400", "length": 9, **arguments}))


def offered(model: Any) -> list[list[str]]:
    """The names of the tools that each request told the model of."""
    return [[spec.name for spec in request.tools] for request in model.requests]


async def test_next_turn_can_read_the_rest_of_a_truncated_result(service, session_id):
    one = agent([READ, "read", reading(), "done", "nothing to do"], read_log)
    chat = Chat(one, service, session_id=session_id)
    await chat.say("read")
    events = await chat.say("go on")
    await chat.say("thanks")
    assert PIECE == response_of(events, "read_result")["result"]
    assert ADVICE in one.model.requests[2].messages[2]["content"]
    # From the turn after its first use the tool is offered from the start, so that the tools of a request stay the same.
    assert [["read_log"], *[["read_log", "read_result"]] * 4] == offered(one.model)
    assert one.model.requests[1].tools == one.model.requests[2].tools == one.model.requests[4].tools


async def test_a_session_without_long_results_is_offered_no_reader(service, session_id):
    one = agent(["a", "b"], read_log)
    chat = Chat(one, service, session_id=session_id)
    await chat.say()
    await chat.say()
    assert (await chat.session()).has_results is False
    assert [["read_log"]] * 2 == offered(one.model)


async def test_stored_results_survive_reopening_the_database(database_url, session_id):
    one = agent([READ, "read", reading(), "done"], read_log)
    for message in ("read", "go on"):
        async with DatabaseSessionService(database_url) as service:
            events = await Chat(one, service, session_id=session_id).say(message)
    assert PIECE == response_of(events, "read_result")["result"]


def test_the_next_agent_of_the_same_run_can_read_it_too(service, session_id):
    first, second = agent([READ, "read"], read_log, name="first"), agent([reading(), "done"], name="second")
    chat = Chat(SequentialAgent(name="both", sub_agents=[first, second]), service, session_id=session_id)
    assert PIECE == response_of(run(chat.say()), "read_result")["result"]


async def test_results_stored_by_an_agent_tool_are_its_own(service, session_id):
    inner = agent([READ, reading(), "short", "again"], read_log, name="inner")
    outer = agent([ToolCall("c1", "inner", '{"request": "x"}'), "a", ToolCall("c2", "inner", '{"request": "y"}'), "b"])
    outer.tools = [AgentTool(inner)]
    chat = Chat(outer, service, session_id=session_id)
    await chat.say()
    await chat.say()
    assert (await chat.session()).has_results is False
    assert PIECE == inner.model.requests[2].messages[-1]["content"]
    # Asked again it has a new session.
    assert [["read_log"], ["read_log", "read_result"], ["read_log", "read_result"], ["read_log"]] == offered(inner.model)
    assert [["inner"]] * 4 == offered(outer.model)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_text_is_stored_before_its_excerpt_despite_a_kill_at_any_moment(database_url, session_id, spawn, moment):
    child = spawn(database_url, session_id, "halt", moment)
    assert f"{moment}\n" == child.stdout.readline()
    child.kill()
    one = agent([reading(), "done"], read_log)

    async def main() -> Any:
        async with DatabaseSessionService(database_url) as service:
            return await Chat(one, service, session_id=session_id).say("go on")

    assert PIECE == response_of(run(main()), "read_result")["result"]
    assert (moment == "after") == any(ADVICE in str(message["content"]) for message in one.model.requests[0].messages)


async def test_results_are_deleted_with_their_session(service, session_id):
    session = await service.create_session("app", "u", session_id=session_id)
    other = await service.create_session("app", "v", session_id=session_id)
    for each in (session, other):
        assert "result_1" == await service.results(each).keep(f"text of {each.user_id}")
    await service.delete_session("app", "u", session_id)
    store = service.results(session)
    assert await store.read("result_1") is None
    with pytest.raises(SessionNotFoundError):
        await store.keep("more")
    anew = await service.create_session("app", "u", session_id=session_id)
    assert (False, None) == (anew.has_results, await service.results(anew).read("result_1"))
    assert "result_1" == await service.results(anew).keep("another")
    assert "text of v" == await service.results(other).read("result_1")
    assert (await service.get_session("app", "v", session_id)).has_results


@pytest.mark.parametrize("text", ["", "é\x00\ud800\U0001f600", "x" * 100])
async def test_any_text_round_trips(service, session_id, text):
    session = await service.create_session("app", "u", session_id=session_id)
    kept = await service.results(session).keep(text)
    assert kept == await service.results(session).keep(text)
    assert text == await service.results(session).read(kept)


UNKNOWN = [
    "result_2",
    "result_0",
    "result_01",
    "result_-1",
    "result_",
    "",
    "result_1 ",
    "result_1\n",
    "result_٣",
    "1",
    "result_" + "9" * 30,
]


@pytest.mark.parametrize("result_id", UNKNOWN)
async def test_unknown_result_id_is_not_found(service, session_id, result_id):
    session = await service.create_session("app", "u", session_id=session_id)
    assert await service.results(session).read("result_1") is None
    await service.results(session).keep("text")
    assert await service.results(session).read(result_id) is None


async def test_newest_results_of_a_session_are_kept_and_ids_are_not_reused(database_url, session_id):
    async with DatabaseSessionService(database_url) as service:
        session = await service.create_session("app", "u", session_id=session_id)
        other = await service.create_session("app", "v", session_id=session_id)
    database = Database(database_url, TABLES)
    store, others = (DatabaseResults(database, each, max_chars=10) for each in (session, other))
    await others.keep("of another")
    kept, ids = [], []
    for text in ("aaaa", "bbbb", "aaaa", "éé", "cccc", "d" * 50, "aaaa"):
        ids.append(await store.keep(text))
        found = {number: await store.read(f"result_{number}") for number in range(1, 7)}
        kept.append({number: text for number, text in found.items() if text is not None})
    assert ["result_1", "result_2", "result_1", "result_3", "result_4", "result_5", "result_6"] == ids
    assert [
        {1: "aaaa"},
        {1: "aaaa", 2: "bbbb"},
        {1: "aaaa", 2: "bbbb"},
        {1: "aaaa", 2: "bbbb", 3: "éé"},
        {2: "bbbb", 3: "éé", 4: "cccc"},
        {5: "d" * 50},
        {6: "aaaa"},
    ] == kept
    assert "of another" == await others.read("result_1")
    await database.close()


def test_two_processes_store_each_text_once_under_unique_ids(database_url, session_id, spawn):
    texts = {name: [f"{name}{number}" if number % 2 else f"both{number}" for number in range(20)] for name in ("a", "b")}

    async def begin() -> None:
        async with DatabaseSessionService(database_url) as service:
            await service.create_session("app", "u", session_id=session_id)

    run(begin())
    children = {name: spawn(database_url, session_id, "keep", *mine) for name, mine in texts.items()}
    ids = {name: child.communicate(timeout=60)[0].split() for name, child in children.items()}
    found = {(text, kept) for name in texts for text, kept in zip(texts[name], ids[name], strict=True)}
    assert {f"result_{number}" for number in range(1, 31)} == {kept for _, kept in found}
    assert 30 == len(found)

    async def read() -> dict[str, str | None]:
        async with DatabaseSessionService(database_url) as service:
            session = await service.get_session("app", "u", session_id)
            return {kept: await service.results(session).read(kept) for _, kept in found}

    assert {kept: text for text, kept in found} == run(read())


async def test_results_live_for_the_run_without_a_storing_service(session_id):
    class Elsewhere(InMemorySessionService):
        results = BaseSessionService.results

    one = agent([READ, reading(), "done", "later"], read_log)
    chat = Chat(one, Elsewhere(), session_id=session_id)
    events = await chat.say("read")
    await chat.say("go on")
    assert PIECE == response_of(events, "read_result")["result"]
    assert [["read_log"], ["read_log", "read_result"], ["read_log", "read_result"], ["read_log"]] == offered(one.model)
