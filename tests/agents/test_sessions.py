"""The contract of all session services: in memory, SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from patchbay.agents import Event, EventActions, FunctionResponse, Part
from patchbay.agents.content import Content, new_id
from patchbay.errors import InvalidRequestError, SessionExistsError, SessionNotFoundError
from support.running import run

from .event_builders import call_event, response_event, state_event, text_event, texts_of


class Names:
    """An application, a user and a session of one test's own: PostgreSQL's tests share a database."""

    def __init__(self) -> None:
        self.app, self.user, self.session = f"app-{new_id()}", "user", "session"

    @property
    def all(self) -> tuple[str, str, str]:
        return self.app, self.user, self.session


@pytest.fixture
def names():
    return Names()


async def begin(service, names, **fields):
    return await service.create_session(names.app, names.user, session_id=names.session, **fields)


async def test_session_is_created_found_and_deleted(service, names):
    made = await begin(service, names, agent_name="root", title="Hello", state={"n": 1})
    found = await service.get_session(*names.all)
    assert made == found
    assert ("root", "Hello", "root", {"n": 1}, [], 0) == (
        found.agent_name, found.title, found.last_agent, found.state, found.events, found.seq
    )  # fmt: skip
    assert made.created_at == made.last_update_time > 0
    await service.append_event(made, text_event("hi"))
    await service.delete_session(*names.all)
    await service.delete_session(*names.all)
    assert await service.get_session(*names.all) is None
    with pytest.raises(SessionNotFoundError, match="session"):
        await service.append_event(made, text_event("anyone?"))
    again = await begin(service, names)
    assert ([], {}) == (again.events, again.state)


async def test_ids_are_unique(service, names):
    await begin(service, names, state={"n": 1})
    with pytest.raises(SessionExistsError, match="already"):
        await begin(service, names, state={"n": 2})
    assert {"n": 1} == (await service.get_session(*names.all)).state
    assert (await service.create_session(names.app, names.user)).id != (await service.create_session(names.app, names.user)).id
    # Others may have the same id.
    await service.create_session(names.app, "another user", session_id=names.session)


async def test_event_round_trips(service, names):
    event = call_event("1", text="wait", branch="p.a", invocation_id="run")
    event.content.parts[0].extra_content = {"signature": "x" * 3}
    event.actions = EventActions({"n": [1, {"a": None}]}, {"file": 2}, "other", True, False)
    event.error_code, event.error_message = "CODE", "what \0 went wrong"
    session = await begin(service, names)
    before = event.to_json()
    assert event is await service.append_event(session, event)
    assert before == event.to_json()
    assert event == (await service.get_session(*names.all)).events[0] == session.events[0]


async def test_temporary_keys_live_for_the_run(service, names):
    session = await begin(service, names)
    mark = object()
    event = state_event({"temp:t": mark, "n": 1})
    await service.append_event(session, event)
    assert mark is session.state["temp:t"]
    assert {"temp:t": mark, "n": 1} == event.actions.state_delta
    found = await service.get_session(*names.all)
    assert ({"n": 1}, {"n": 1}) == (found.state, found.events[0].actions.state_delta)


class Colour(enum.Enum):
    RED = "red"


class Model(BaseModel):
    on: dt.date


@dataclass
class Row:
    colour: Colour


class Broken:
    def __repr__(self):
        raise RuntimeError("no")


CYCLE: list = []
CYCLE.append(CYCLE)
ODD = [
    dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), Model(on=dt.date(2026, 1, 1)), Row(Colour.RED),
    {1, 2}, b"\xff\x00", Colour.RED, float("nan"), float("inf"), 1 + 2j, object(), Broken(), {(1, 2): {3: object}}, CYCLE,
    "\ud800 and \0", {"\ud800": 1}, ValueError("x"), lambda: None, range(3), 10**30,
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
async def test_values_without_json_are_stored_as_the_nearest_json_value(service, names, odd):
    response = FunctionResponse("look", {"result": odd, "well": 1}, "1")
    event = Event(content=Content("user", [Part(function_response=response)]), actions=EventActions({"k": odd, "well": 1}))
    session = await begin(service, names, state={"first": odd})
    await service.append_event(session, event)
    await service.append_event(session, text_event("next"))
    found = await service.get_session(*names.all)
    json.dumps(found.state, allow_nan=False)
    kept = found.events[0].get_function_responses()[0].response
    json.dumps(kept, allow_nan=False)
    assert (1, 1) == (kept["well"], found.state["well"])
    assert session.state == found.state
    assert session.events == found.events
    assert odd is response.response["result"]


async def test_dates_and_models_are_stored_readably(service, names):
    session = await begin(service, names)
    await service.append_event(session, state_event({"date": ODD[0], "model": ODD[2], "row": ODD[3], "n": 10**30}))
    expected = {"date": "2026-01-01", "model": {"on": "2026-01-01"}, "row": {"colour": "red"}, "n": 10**30}
    assert expected == (await service.get_session(*names.all)).state


async def test_event_with_a_field_of_the_wrong_type_is_refused_and_stores_nothing(service, names):
    session = await begin(service, names)
    with pytest.raises(InvalidRequestError, match="cannot be stored"):
        await service.append_event(session, Event(content=Content("user", [Part(5)]), actions=EventActions({"n": 1})))  # type: ignore[arg-type]
    await service.append_event(session, text_event("hi"))
    found = await service.get_session(*names.all)
    assert (["hi"], {}) == (texts_of(found.events), found.state)


@pytest.mark.parametrize("odd", ["nul\0", "lone\ud800"])
async def test_unstorable_id_is_refused_by_every_service(service, names, odd):
    with pytest.raises(InvalidRequestError, match="null bytes"):
        await service.create_session(names.app, names.user, session_id=odd)
    session = await begin(service, names, title=f"title {odd}")
    assert session.title.startswith("title ")
    with pytest.raises(InvalidRequestError, match="null bytes"):
        await service.append_event(session, Event(id=odd))


async def test_returned_sessions_are_copies(service, names):
    session = await begin(service, names, state={"list": [1]})
    event = response_event("1")
    event.actions = EventActions({"own": {"a": [1]}})
    await service.append_event(session, event)
    event.content.parts[0].function_response.response["result"] = "forged"
    event.actions.state_delta["own"]["a"].append(2)
    for one in (session, await service.get_session(*names.all)):
        one.events[0].content.parts[0].function_response.response["result"] = "forged"
        one.state["list"].append(2)
        one.state["own"]["a"].append(2)
        one.state["mine"] = 1
    found = await service.get_session(*names.all)
    assert {"result": "1"} == found.events[0].get_function_responses()[0].response
    assert {"list": [1], "own": {"a": [1]}} == found.state


async def test_repeated_event_is_stored_once(service, names):
    session = await begin(service, names, state={"n": 0})
    event = text_event("hi", actions=EventActions({"n": 1}))
    for _ in range(3):
        await service.append_event(session, event)
    await service.append_event(session, state_event({"n": 2}))
    await service.append_event(session, event)
    found = await service.get_session(*names.all)
    assert ({"n": 2}, 2) == (found.state, found.seq)
    assert session.events == found.events


async def test_many_writers_at_once_get_one_order_and_lose_nothing(service, names):
    shared = await begin(service, names)
    own = [await service.get_session(*names.all) for _ in range(4)]

    async def writer(number: int) -> None:
        for step in range(8):
            session = shared if step % 2 else own[number]
            await service.append_event(session, text_event(f"{number}.{step}", actions=EventActions({f"w{number}": step})))

    await asyncio.gather(*map(writer, range(4)))
    found = await service.get_session(*names.all)
    for number in range(4):
        assert [f"{number}.{step}" for step in range(8)] == [text for text in texts_of(found.events) if text[0] == str(number)]
    assert (32, {f"w{number}": 7 for number in range(4)}) == (found.seq, found.state)
    await service.append_event(shared, text_event("end"))
    assert (await service.get_session(*names.all)).events == shared.events


async def test_abandoned_wait_leaves_the_lock_to_the_next_run(service, names):
    async def wait_for_it():
        async with service.lock(*names.all):
            return "had it"

    async with service.lock(*names.all):
        impatient, patient = asyncio.create_task(wait_for_it()), asyncio.create_task(wait_for_it())
        for _ in range(5):
            await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait((impatient,))
        assert impatient.cancelled()
        assert not patient.done()
    assert "had it" == await patient
    assert "had it" == await wait_for_it()


def test_runs_in_event_loops_of_several_threads_are_serialised(service, names):
    run(begin(service, names))

    async def one_run(number):
        for _ in range(5):
            async with service.lock(*names.all):
                session = await service.get_session(*names.all)
                await service.append_event(session, text_event(f"begin {number}"))
                await asyncio.sleep(0)
                await service.append_event(session, text_event(f"end {number}"))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda number: run(one_run(number)), range(3)))
    outcome = [text.split() for text in texts_of(run(service.get_session(*names.all)).events)]
    assert 30 == len(outcome)
    for first, second in zip(outcome[::2], outcome[1::2], strict=True):
        assert ("begin", "end", first[1]) == (first[0], second[0], second[1])


async def test_cancelled_append_is_stored_completely_or_not_at_all(service, names):
    session = await begin(service, names)
    for number in range(10):
        task = asyncio.create_task(service.append_event(session, text_event(f"a{number}", actions=EventActions({"a": number}))))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        await service.append_event(session, text_event(f"b{number}"))
    found = await service.get_session(*names.all)
    assert found.events == session.events
    kept = texts_of(found.events)
    assert [f"b{number}" for number in range(10)] == [text for text in kept if text[0] == "b"]
    assert sorted(set(kept), key=lambda text: (text[1:], text)) == kept
    last = [int(text[1:]) for text in kept if text[0] == "a"][-1:]
    assert last == [found.state[key] for key in ("a",) if key in found.state]


async def test_sessions_are_listed_by_user_and_agent_the_one_used_last_first(service, names):
    first = await service.create_session(names.app, names.user, session_id="1", agent_name="a")
    await service.create_session(names.app, names.user, session_id="2", agent_name="b")
    await service.create_session(names.app, "another", session_id="3", agent_name="a")
    await service.append_event(first, text_event("hi"))
    listed = await service.list_all_sessions(names.app, names.user)
    assert ["1", "2"] == [session.id for session in listed]
    assert ([], {}) == (listed[0].events, listed[0].state)
    assert ["1"] == [session.id for session in await service.list_sessions(names.app, names.user, "a")]
    assert ["1", "2"] == [session.id for session in await service.list_sessions(names.app, names.user)]
    assert [] == await service.list_all_sessions(names.app, "nobody")


async def test_titles_and_the_last_agent_are_updated(service, names):
    await begin(service, names, agent_name="root")
    await service.update_title(*names.all, "New \0title")
    await service.update_last_agent(*names.all, "child")
    found = await service.get_session(*names.all)
    assert ("New \ufffdtitle", "root", "child") == (found.title, found.agent_name, found.last_agent)
    for update in (service.update_title, service.update_last_agent):
        with pytest.raises(SessionNotFoundError):
            await update(names.app, names.user, "unknown", "x")


async def test_long_log_is_read_lazily(service, names):
    session = await begin(service, names)
    for number in range(30):
        await service.append_event(session, text_event(str(number)))
    events = (await service.get_session(*names.all)).events
    assert ("29", ["27", "28"], 30, ["0"]) == (
        events[-1].content.text, texts_of(events[-3:-1]), len(events), texts_of(events[:1])
    )  # fmt: skip
    assert events[5] is events[5]
    with pytest.raises(IndexError):
        events[30]
