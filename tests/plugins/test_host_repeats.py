"""Calls that are repeated with their idempotency key: they run once, and each is answered."""

from __future__ import annotations

import asyncio
import json

import pytest

from patchbay.plugins.host.calls import IdempotencyCache, InFlightCalls, KeyReusedError
from patchbay.plugins.protocol import CancelRun, Result, Trigger
from plugins.test_host_callback import connected, served
from plugins.tool_server import post

DONE = {"output": 1, "is_error": False}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ask(calls, key="k", args="{}", name="t"):
    return asyncio.create_task(calls.call(name, args, within=30, idempotency_key=key))


class CountedCalls(InFlightCalls):
    """Counts the callers that wait for an answer."""

    callers = 0

    async def call(self, *arguments, **options):
        self.callers += 1
        try:
            return await super().call(*arguments, **options)
        finally:
            self.callers -= 1

    async def until(self, callers):
        while self.callers != callers:
            await asyncio.sleep(0)


async def test_concurrent_calls_of_one_key_are_one_call(tmp_path):
    async with connected(tmp_path) as (plugin, calls):
        asking = [ask(calls) for _ in range(5)]
        [trigger] = await plugin.receive(Trigger)
        assert ("k", 1) == (trigger.idempotency_key, len(calls))
        await plugin.answer(trigger, 1)
        assert [DONE] * 5 == [json.loads(body) for body in await asyncio.gather(*asking)]
        assert 1 == len([each for each in plugin.received if isinstance(each, Trigger)])


async def test_finished_call_is_answered_again_without_running(tmp_path):
    async with connected(tmp_path) as (plugin, calls):
        first = ask(calls)
        [trigger] = await plugin.receive(Trigger)
        await plugin.answer(trigger, 1)
        assert await first == await ask(calls)
    assert DONE == json.loads(await ask(calls)), "also when the plugin is gone"


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("other", [{"args": '{"a": 1}'}, {"name": "u"}])
async def test_different_call_under_a_used_key_is_refused(tmp_path, over, other):
    async with connected(tmp_path) as (plugin, calls):
        first = ask(calls)
        [trigger] = await plugin.receive(Trigger)
        if over:
            await plugin.answer(trigger, 1)
            await first
        refused = json.loads(await ask(calls, **other))
        assert ("IDEMPOTENCY_KEY_REUSED", "idempotency_key_reused") == (refused["error"], refused["code"])
        assert "did not run" in refused["output"]["error"]
        if not over:
            await plugin.answer(trigger, 1)
        assert DONE == json.loads(await first), "the one that has the key is none the worse for it"
        assert 1 == len([each for each in plugin.received if isinstance(each, Trigger)])


async def test_calls_without_a_key_and_calls_of_other_keys_are_calls_of_their_own(tmp_path):
    async with connected(tmp_path) as (plugin, calls):
        asking = [ask(calls, key) for key in ("", "", "a", "b")]
        triggers = await plugin.receive(Trigger, 4)
        assert ["", "", "a", "b"] == [each.idempotency_key for each in triggers]
        for each in triggers:
            await plugin.answer(each, 1)
        await asyncio.gather(*asking)


async def test_call_whose_plugin_died_is_not_run_again_under_its_key(tmp_path):
    async with connected(tmp_path) as (plugin, calls):
        first = ask(calls)
        await plugin.receive(Trigger)
        await plugin.until_begun()
    text = json.loads(await first)
    assert "PLUGIN_NOT_RUNNING" == text["error"]
    assert "may have run" in text["output"]["error"]
    (tmp_path / "s").unlink(missing_ok=True)  # Python 3.13 removes it
    async with connected(tmp_path, calls) as (plugin, _):
        assert text == json.loads(await ask(calls))
        assert [] == plugin.received


async def test_call_that_reached_no_handler_runs_when_repeated(tmp_path):
    calls = InFlightCalls("p")
    assert "PLUGIN_NOT_RUNNING" == json.loads(await ask(calls))["error"]
    async with connected(tmp_path, calls) as (plugin, _):
        second = ask(calls)
        [trigger] = await plugin.receive(Trigger)
        plugin.connection.send(Result(req_id=trigger.req_id, success=False, data=b'"frozen"', error="X", ran=False))
        assert b'"frozen"' == await second
        third = ask(calls)
        [_, trigger] = await plugin.receive(Trigger, 2)
        await plugin.answer(trigger, 1)
        assert DONE == json.loads(await third)


async def test_call_stops_when_its_last_caller_leaves_and_its_outcome_is_stored(tmp_path):
    async with connected(tmp_path, CountedCalls("p")) as (plugin, calls), served(calls) as url:
        headers = [(b"Idempotency-Key", b"k")]
        one, other = (asyncio.create_task(post(url, {}, headers=headers)) for _ in range(2))
        [trigger] = await plugin.receive(Trigger)
        await calls.until(callers=2)
        one.cancel()
        await calls.until(callers=1)
        assert [] == [each for each in plugin.received if isinstance(each, CancelRun)]
        other.cancel()
        [cancel] = await plugin.receive(CancelRun)
        assert trigger.run_id == cancel.run_id
        again = asyncio.create_task(post(url, {}, headers=headers))
        await calls.until(callers=1)
        await plugin.answer(trigger, 1)
        assert DONE == await again
        assert 1 == len([each for each in plugin.received if isinstance(each, Trigger)])


async def test_call_without_a_caller_continues_for_its_grace_and_stores_its_result(tmp_path):
    async with connected(tmp_path, CountedCalls("p")) as (plugin, calls), served(calls) as url:
        headers = [(b"Idempotency-Key", b"k"), (b"X-Patchbay-Grace", b"60")]
        lost = asyncio.create_task(post(url, {}, headers=headers))
        [trigger] = await plugin.receive(Trigger)
        lost.cancel()
        await calls.until(callers=0)
        await plugin.until_begun()
        await plugin.answer(trigger, 1)
        while calls:
            await asyncio.sleep(0)
        assert DONE == await post(url, {}, headers=headers)
        assert [trigger] == plugin.received, "it was not stopped, and not made again"


async def test_call_is_stopped_after_its_grace_unless_its_caller_returns(tmp_path):
    async with connected(tmp_path, CountedCalls("p")) as (plugin, calls):
        lost = [asyncio.create_task(calls.call("t", "{}", within=30, idempotency_key=key, grace=0.01)) for key in "ab"]
        triggers = await plugin.receive(Trigger, 2)
        for each in lost:
            each.cancel()
        await calls.until(callers=0)
        again = ask(calls, "a")
        [cancel] = await plugin.receive(CancelRun)
        assert triggers[1].run_id == cancel.run_id
        await plugin.answer(triggers[0], 1)
        assert DONE == json.loads(await again)


async def test_timeout_is_stored(tmp_path):
    async with connected(tmp_path) as (plugin, calls):
        first = json.loads(await calls.call("t", "{}", within=0.05, idempotency_key="k"))
        assert ("TOOL_TIMEOUT", first) == (first["error"], json.loads(await ask(calls)))
        assert 1 == len(await plugin.receive(Trigger))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"Idempotency-Key", b"k" * 257)], 400),
        ([(b"Idempotency-Key", b"k"), (b"Idempotency-Key", b"k")], 400),
    ],
)
async def test_overlong_or_repeated_key_is_refused(headers, status):
    async with served(InFlightCalls("p")) as url:
        assert status == (await post(url, {}, headers=headers))[0]


# What is kept, and how long.


def finish(cache, key, body):
    cache.add_call(key, b"d", f"r-{key}")
    cache.add_answer(key, body)


def test_answers_are_kept_for_a_time_and_a_number_and_dropped_for_their_size():
    clock = Clock()
    cache = IdempotencyCache(most=3, bytes_most=10, seconds=60.0, clock=clock)
    for key, body in (("0", b"x"), ("a", b"12345678"), ("b", b"1234"), ("huge", b"12345678901")):
        finish(cache, key, body)
    assert (3, None, b"1234") == (len(cache), cache.find("0", b"d"), cache.find("b", b"d"))
    for key in ("a", "huge"):
        text = json.loads(cache.find(key, b"d"))
        assert ("ANSWER_NOT_KEPT", "answer_not_kept") == (text["error"], text["code"])
    clock.now = 59.9
    finish(cache, "c", b"2")
    clock.now = 60.1
    assert (None, b"2", 1) == (cache.find("b", b"d"), cache.find("c", b"d"), len(cache))


def test_a_running_call_is_found_after_any_time_and_one_that_did_not_run_is_not_kept():
    clock = Clock()
    cache = IdempotencyCache(most=1, bytes_most=1, seconds=1.0, clock=clock)
    cache.add_call("a", b"d", "r1")
    clock.now = 1000.0
    finish(cache, "b", b"x")
    finish(cache, "c", b"x")
    assert "r1" == cache.find("a", b"d")
    with pytest.raises(KeyReusedError):
        cache.find("a", b"e")
    cache.add_answer("a", None)
    assert None is cache.find("a", b"e")
