"""Stored responses, with the ``openai`` client against real servers: two that share a database, and one that has none."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import ExitStack, contextmanager

import openai
import pytest
from aiohttp import web
from tests.server.proxy_rig import ManualClock, running_upstream

from patchbay.frontends import StoredResponse
from patchbay.proxy import create_app
from patchbay.server.frontends import _owner
from patchbay.server.response_database import DatabaseResponses
from patchbay.server.response_events import MAX_EVENT_BYTES, EventLog
from patchbay.server.stored_responses import LEASE_SECONDS, RENEW_SECONDS, MemoryResponses
from patchbay.testing import Message, ScriptedUpstream
from support.http_server import BOUND, serving


async def answer(request: web.Request) -> web.StreamResponse:
    """Say how many messages there were; a model called "slow" never answers, one called "broken" fails."""
    body = json.loads(await request.read())
    if body["model"] == "slow":
        await asyncio.Event().wait()
    if body["model"] == "broken":
        return web.json_response({"error": {"message": "No such model."}}, status=404)
    message = {"role": "assistant", "content": f"{len(body['messages'])} messages: {body['messages'][-1]['content']}"}
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    if not body.get("stream"):
        return web.json_response({"id": "x", "created": 1, "model": "m", "choices": [choice], "usage": usage})
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    chunk = {"id": "x", "created": 1, "model": "m", "choices": [{"index": 0, "delta": message, "finish_reason": "stop"}]}
    await response.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())
    return response


@contextmanager
def client_of(app, clock=None):
    with (
        serving(app, clock=clock) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="unused", max_retries=0, timeout=BOUND) as client,
    ):
        yield client


def poll_until_finished(client, response_id):
    """Poll a response; each poll is a request, so there are few."""
    for _ in range(2000):
        response = client.responses.retrieve(response_id)
        if response.status not in ("queued", "in_progress"):
            return response
    raise AssertionError(response.status)


def test_stored_response_is_shared_by_servers_and_survives_both(url):
    with running_upstream(answer) as upstream:
        app = [create_app(upstream.url, response_store=url) for _ in range(3)]
        with client_of(app[0]) as one, client_of(app[1]) as two:
            first = one.responses.create(model="m", input="One.")
            with two.responses.stream(model="m", input="Two.", previous_response_id=first.id) as events:
                second = events.get_final_response()
            assert "3 messages: Two." == second.output_text
            third = one.responses.create(model="m", input="Three.", previous_response_id=second.id, store=False)
            assert "5 messages: Three." == third.output_text
            with pytest.raises(openai.NotFoundError):
                two.responses.retrieve(third.id)
            one.responses.delete(first.id)
            with pytest.raises(openai.NotFoundError):
                two.responses.retrieve(first.id)
        with client_of(app[2]) as later:
            found = later.responses.retrieve(second.id)
            assert (second.output_text, second.created_at) == (found.output_text, found.created_at)
            with pytest.raises(openai.BadRequestError, match="not found"):
                later.responses.create(model="m", input="x", previous_response_id=first.id)


@pytest.mark.parametrize("stored", [True, False], ids=["sqlite", "memory"])
def test_input_items_are_listed_in_pages(stored, tmp_path):
    store = f"sqlite:///{tmp_path / 'kept.db'}" if stored else None
    texts = [f"Item {number}." for number in range(25)]
    items = [{"role": "user", "content": text} for text in texts]
    with running_upstream(answer) as upstream, client_of(create_app(upstream.url, response_store=store)) as client:
        response = client.responses.create(model="m", input=items)
        pages = client.responses.input_items.list
        assert texts[:-6:-1] == [item.content[0].text for item in pages(response.id, limit=5).data]
        listed = list(pages(response.id, order="asc"))  # all pages
        assert texts == [item.content[0].text for item in listed]
        after = pages(response.id, order="asc", after=listed[20].id)
        assert (texts[21:], False) == ([item.content[0].text for item in after.data], after.has_more)
        for wrong in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "other"}):
            with pytest.raises(openai.BadRequestError):
                pages(response.id, **wrong)


def test_background_response_can_be_read_on_any_server(url):
    with running_upstream(answer) as upstream:
        app = [create_app(upstream.url, response_store=url) for _ in range(2)]
        with client_of(app[0]) as one, client_of(app[1]) as two:
            begun = one.responses.create(model="m", input="Hi.", background=True)
            assert ("queued", True, []) == (begun.status, begun.background, begun.output)
            done = poll_until_finished(two, begun.id)
            assert ("completed", "1 messages: Hi.", 7) == (done.status, done.output_text, done.usage.total_tokens)
            gone_on = two.responses.create(model="m", input="And?", previous_response_id=done.id)
            assert "3 messages: And?" == gone_on.output_text
            assert done == one.responses.cancel(done.id)  # too late: nothing changes
            failed = poll_until_finished(one, one.responses.create(model="broken", input="Hi.", background=True).id)
            assert ("failed", True) == (failed.status, "No such model." in failed.error.message)
            with pytest.raises(openai.BadRequestError, match="background"):
                one.responses.cancel(gone_on.id)
            with pytest.raises(openai.BadRequestError, match="background"):
                one.responses.create(model="m", input="Hi.", background=True, store=False)


def test_events_of_a_background_response_can_be_read_live_and_again():
    released = threading.Event()

    async def in_two_parts(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for text, reason in (("One ", None), ("two.", "stop")):
            chunk = {"id": "x", "model": "m", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
            while not released.is_set():
                await asyncio.sleep(0.002)
        return response

    with running_upstream(in_two_parts) as upstream, client_of(create_app(upstream.url)) as client:
        seen = []
        with client.responses.create(model="m", input="Hi.", background=True, stream=True) as events:
            for event in events:
                seen.append(event)
                if event.type == "response.output_text.delta":
                    break  # the client leaves
        response_id, last = seen[0].response.id, seen[-1].sequence_number
        assert [*range(last + 1)] == [event.sequence_number for event in seen]
        with client.responses.retrieve(response_id, stream=True, starting_after=last) as events:
            released.set()
            rest = list(events)
        assert "response.completed" == rest[-1].type
        assert "completed" == client.responses.retrieve(response_id).status
        again = list(client.responses.retrieve(response_id, stream=True))
        assert [event.to_dict() for event in again] == [event.to_dict() for event in [*seen, *rest]]
        assert "One two." == rest[-1].response.output_text == "".join(getattr(event, "delta", "") for event in again)
        assert [] == list(client.responses.retrieve(response_id, stream=True, starting_after=len(again)))
        other = client.responses.create(model="m", input="Hi.", stream=True)
        other_id = list(other)[-1].response.id
        for wrong, match in (((other_id, 0), "no events"), ((response_id, -1), "starting_after")):
            with pytest.raises(openai.BadRequestError, match=match):
                client.responses.retrieve(wrong[0], stream=True, starting_after=wrong[1])


async def test_the_events_of_a_response_have_a_bounded_size():
    log = EventLog()
    for number in range(9):
        log.write(b"data: %d%b\n\n: keep-alive\n\n" % (number, b"x" * (MAX_EVENT_BYTES // 8)))
    *events, last = await log.read(0)
    error = json.loads(last.partition(b"data: ")[2])
    assert (7, 7, "too_many_events") == (len(events), error["sequence_number"], error["code"])
    assert [] == await log.read(8)


@pytest.mark.parametrize("model", ["broken", "slow"])
def test_the_events_of_a_response_in_the_background_end_when_it_fails_or_is_cancelled(model):
    with running_upstream(answer) as upstream, client_of(create_app(upstream.url)) as client:
        if model == "broken":
            *_, last = client.responses.create(model=model, input="Hi.", background=True, stream=True)
            assert ("response.failed", True) == (last.type, "No such model." in last.response.error.message)
            assert "failed" == client.responses.retrieve(last.response.id).status
        else:
            stream = client.responses.create(model=model, input="Hi.", background=True, stream=True)
            begun = next(stream)
            assert upstream.arrived.wait(BOUND)
            assert "cancelled" == client.responses.cancel(begun.response.id).status
            assert ["response.in_progress"] == [event.type for event in stream]
            assert upstream.left.wait(BOUND)


def test_stopping_server_notifies_readers_of_a_background_response():
    with running_upstream(answer) as upstream, ExitStack() as readers:
        with client_of(create_app(upstream.url)) as client:
            reader = readers.enter_context(openai.OpenAI(base_url=client.base_url, api_key="unused", timeout=BOUND))
            events = reader.responses.create(model="slow", input="Hi.", background=True, stream=True)
            assert upstream.arrived.wait(BOUND)
        *_, last = events
    assert ("error", 2, "server_stopping") == (last.type, last.sequence_number, last.code)


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_a_response_that_another_server_makes_is_stopped(end, tmp_path):
    clock, url = ManualClock(), f"sqlite:///{tmp_path / 'kept.db'}"
    with running_upstream(answer) as upstream:
        app = [create_app(upstream.url, response_store=url) for _ in range(2)]
        with client_of(app[0], clock) as one, client_of(app[1]) as two:
            begun = one.responses.create(model="slow", input="Hi.", background=True)
            assert upstream.arrived.wait(BOUND)
            if end == "cancel":
                assert "cancelled" == two.responses.cancel(begun.id).status == one.responses.retrieve(begun.id).status
            else:
                two.responses.delete(begun.id)
            clock.move(RENEW_SECONDS)
            assert upstream.left.wait(BOUND)
            if end == "cancel":
                assert "cancelled" == one.responses.retrieve(begun.id).status


def test_a_response_fails_with_the_server_that_makes_it_and_never_stays_in_progress(url):
    with running_upstream(answer) as upstream:
        app = [create_app(upstream.url, response_store=url) for _ in range(2)]
        with client_of(app[0]) as one:
            begun = one.responses.create(model="slow", input="Hi.", background=True)
            assert upstream.arrived.wait(BOUND)
            with pytest.raises(openai.BadRequestError, match="not complete"):
                one.responses.create(model="m", input="x", previous_response_id=begun.id)
        with client_of(app[1]) as two:
            stopped = two.responses.retrieve(begun.id)
            assert ("failed", True) == (stopped.status, "server stopped" in stopped.error.message)
            killed = {**begun.to_dict(), "id": "resp_killed", "status": "in_progress"}
            owner = _owner({"headers": [(b"authorization", b"Bearer unused")]})
            asyncio.run(put(DatabaseResponses(url, None), StoredResponse(killed, [], lease=1.0, owner=owner)))
            assert "failed" == two.responses.retrieve("resp_killed").status


async def put(store, stored):
    await store.put(stored)
    await store.close()


def test_old_responses_are_forgotten(tmp_path, monkeypatch):
    async def run() -> None:
        now = 1e9
        monkeypatch.setattr("time.time", lambda: now)
        for store in (MemoryResponses(100.0), DatabaseResponses(f"sqlite:///{tmp_path / 'kept.db'}", 100.0)):
            now = 1e9
            old = StoredResponse({"id": "resp_1", "created_at": now, "output": []}, [])
            await store.put(old)
            assert old == await store.get("resp_1")
            now += 101
            assert await store.get("resp_1") is None
            await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("stored", [True, False], ids=["database", "memory"])
def test_finished_response_is_immutable(stored, url):
    async def run() -> None:
        store = DatabaseResponses(url, None) if stored else MemoryResponses(None)
        running = StoredResponse({"id": "r", "created_at": 1e11, "status": "queued", "output": []}, [], lease=1e11)
        await store.put(running)
        assert {"r"} == await store.renew(["r", "other"])
        done = StoredResponse({**running.response, "status": "completed"}, [])
        assert await store.settle(done)
        assert not await store.settle(running)
        assert set() == await store.renew(["r"])
        assert done == await store.get("r")
        assert None is await store.get("\ud800\x00")
        assert [True, False] == [await store.delete("r"), await store.delete("r")]
        assert not await store.settle(done)
        await store.close()

    assert LEASE_SECONDS > 2 * RENEW_SECONDS
    asyncio.run(run())


def test_conversation_is_compacted_and_continued(tmp_path):
    with running_upstream(answer) as upstream, client_of(create_app(upstream.url)) as client:
        first = client.responses.create(model="m", input="One.")
        compacted = client.responses.compact(model="m", input="Two.", previous_response_id=first.id)
        assert "response.compaction" == compacted.object
        assert ["message", "message", "compaction"] == [item.type for item in compacted.output]
        assert ["One.", "Two."] == [item.content[0].text for item in compacted.output[:2]]
        assert 7 == compacted.usage.total_tokens
        items = [item.to_dict(warnings=False) for item in compacted.output]
        client.responses.create(model="m", input=[*items, {"role": "user", "content": "Three."}])
        sent = json.loads(upstream.seen[-1].body)["messages"]
        assert ["One.", "Two.", "Three."] == [message["content"] for message in (*sent[:2], sent[3])]
        assert "A summary of the conversation" in sent[2]["content"]
        assert "4 messages: Write a summary" in sent[2]["content"]
        with pytest.raises(openai.BadRequestError, match="another server"):
            client.responses.create(model="m", input=[{"type": "compaction", "encrypted_content": "gAAAA"}])
        with pytest.raises(openai.BadRequestError, match="nothing to compact"):
            client.responses.compact(model="m")
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            client.responses.create(model="m", input="Hi.", conversation="conv_1")
        with pytest.raises(openai.BadRequestError, match="'instructions' and 'input'"):
            client.responses.create(model="m", prompt={"id": "pmpt_1"})


@pytest.mark.parametrize("stored", [True, False], ids=["sqlite", "memory"])
def test_references_to_items_are_resolved_from_stored_responses(stored, tmp_path):
    store = f"sqlite:///{tmp_path / 'kept.db'}" if stored else None
    asked = []
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}

    def script(body):
        asked.append(body["messages"])
        if len(asked) == 1:
            return Message({"content": "I look.", "tool_calls": [call], "reasoning_content": "Hm."}, finish_reason="tool_calls")
        return "Sunny."

    tools = [
        {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    ]
    question = {"role": "user", "content": "How is it?"}
    with (
        ScriptedUpstream(script) as upstream,
        client_of(create_app(upstream.url, response_store=store, tools="native")) as client,
    ):
        first = client.responses.create(model="m", input=[question], tools=tools)
        referenced = [{"type": "item_reference", "id": item.id} for item in first.output]
        result = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
        client.responses.create(model="m", input=[question, *referenced, result], tools=tools)
        with pytest.raises(openai.NotFoundError, match="Item with id 'msg_other' not found") as caught:
            client.responses.create(model="m", input=[{"type": "item_reference", "id": "msg_other"}])
        assert ("invalid_request_error", "input") == (caught.value.type, caught.value.param)
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="m", input=[question, *referenced, result], tools=tools)
    assert 2 == len(asked)
    answered = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [call]}
    assert [question, answered, {"role": "tool", "tool_call_id": "c1", "content": "sunny"}] == asked[1]


def test_references_are_resolved_up_to_a_size_of_the_conversation(monkeypatch):
    monkeypatch.setattr("patchbay.server.frontends._MOST_ITEM_BYTES", 10_000)
    with ScriptedUpstream(["x" * 4000]) as upstream, client_of(create_app(upstream.url)) as client:
        (item,) = client.responses.create(model="m", input="Hi.").output
        reference = {"type": "item_reference", "id": item.id}
        with pytest.raises(openai.APIStatusError, match="larger than 10000 bytes") as caught:
            client.responses.create(model="m", input=[reference] * 3)
    assert (413, 1) == (caught.value.status_code, len(upstream.requests))
