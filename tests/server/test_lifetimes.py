"""Who leaves, who is slow, who is silent: the upstream is freed, held back, kept company or given up."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiohttp import web
from proxy_rig import (
    ManualClock,
    chat_body,
    make_proxy,
    open_chat,
    open_stream,
    proxied,
    read_until,
    running_upstream,
    silent,
    stream_of,
)

from support.http_server import BOUND, ask, serving

CHAT = "/v1/chat/completions"


silent_after_one_event = stream_of(b"data: upstream\n\n", hangs=True)


async def endless(request: web.Request) -> web.StreamResponse:
    response = await open_stream(request)
    while True:
        await response.write(b"data: upstream\n\n")
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("tools", [[{}], None], ids=["exchange", "transparent"])
@pytest.mark.parametrize(
    ("script", "stream", "mark"),
    [(endless, True, b"data: "), (silent_after_one_event, True, b"data: "), (silent, True, b""), (silent, False, b"")],
    ids=["mid-stream", "idle mid-stream", "before the first token", "not streaming"],
)
def test_disconnected_client_closes_the_upstream(script: object, stream: bool, mark: bytes, tools: object) -> None:
    with proxied(script) as (upstream, port):
        client = open_chat(port, chat_body(stream=stream, tools=tools))
        assert upstream.arrived.wait(BOUND)
        if mark:
            assert mark in read_until(client, mark)
        client.close()
        assert upstream.left.wait(BOUND)


def test_disconnected_passthrough_client_closes_the_upstream() -> None:
    with proxied(silent) as (upstream, port):
        for request in (
            b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
            b"POST /v1/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}",
        ):
            upstream.arrived.clear()
            upstream.left.clear()
            client = socket.create_connection(("127.0.0.1", port), BOUND)
            client.sendall(request)
            assert upstream.arrived.wait(BOUND)
            client.close()
            assert upstream.left.wait(BOUND)


def test_client_disconnected_during_its_body_is_forgotten() -> None:
    with proxied(silent) as (upstream, port):
        client = socket.create_connection(("127.0.0.1", port), BOUND)
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        client.close()
        assert 200 == ask(port, "GET", "/health").status
        assert [] == upstream.seen


def test_request_task_ends_when_its_client_disconnects() -> None:
    """Nothing of a request outlives it: its task and its listener are gone when the upstream is freed."""
    counts: list[int] = []
    counted = threading.Semaphore(0)

    async def counting(scope: dict, receive: object, send: object) -> None:
        try:
            await proxy(scope, receive, send)
        finally:
            if scope["type"] == "http":
                counts.append(len(asyncio.all_tasks()))
                counted.release()

    with running_upstream(silent) as upstream:
        proxy = make_proxy(upstream.url)
        with serving(counting) as port:
            assert 200 == ask(port, "GET", "/health").status
            assert counted.acquire(timeout=BOUND)  # the answer is there before its own task has ended
            client = open_chat(port, chat_body(stream=True))
            assert upstream.arrived.wait(BOUND)
            client.close()
            assert upstream.left.wait(BOUND)
            assert counted.acquire(timeout=BOUND)
            assert 200 == ask(port, "GET", "/health").status
            assert counted.acquire(timeout=BOUND)
            assert counts[0] == counts[2]


def test_slow_client_applies_backpressure_to_the_upstream() -> None:
    written = 0
    stuck = threading.Event()
    piece = b"data: " + b"u" * 65_000 + b"\n\n"

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal written
        response = await open_stream(request)
        while True:
            try:
                await asyncio.wait_for(response.write(piece), 0.5)
            except TimeoutError:
                stuck.set()
                await asyncio.sleep(60)
            written += len(piece)

    with proxied(flood) as (upstream, port):
        for tools in ([{}], None):
            written = 0
            stuck.clear()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with open_chat(port, chat_body(stream=True, tools=tools), receive_buffer=8192) as client:
                assert stuck.wait(30)
                # Kernel buffers of two connections included; without backpressure this never ends.
                assert written < 40_000_000
                assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000
                assert client.recv(1)
            assert upstream.left.wait(BOUND)
            upstream.left.clear()


@pytest.mark.parametrize("tools", [[{}], None], ids=["exchange", "transparent"])
def test_idle_stream_is_kept_alive_even_before_its_first_event(tools: object) -> None:
    begin, go_on = threading.Event(), threading.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(begin.wait, BOUND)
        response = await open_stream(request, b"data: one\n\n")
        await asyncio.to_thread(go_on.wait, BOUND)
        await response.write(b"data: two\n\n")
        return response

    with (
        proxied(slow, heartbeat=0.03) as (_, port),
        open_chat(port, chat_body(stream=True, tools=tools)) as client,
    ):
        early = read_until(client, b": keep-alive\n\n")
        assert early.startswith(b"HTTP/1.1 200")
        assert b"text/event-stream" in early
        begin.set()
        one = read_until(client, b"data: one\n\n")
        assert b": keep-alive\n\n" in one.partition(b"data: one\n\n")[2] + read_until(client, b": keep-alive\n\n")
        go_on.set()
        assert b"data: two\n\n" in read_until(client, b"\r\n0\r\n\r\n")


def test_no_comment_is_written_into_the_middle_of_an_event() -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = await open_stream(request, b"data: ha")
        await asyncio.sleep(0.2)  # several heartbeats long; there is nothing to wait for where nothing may come
        await response.write(b"lf\n\n")
        return response

    with proxied(half, heartbeat=0.02) as (_, port):
        assert b"data: half\n\n" in ask(port, "POST", CHAT, chat_body(stream=True, tools=None)).body


@pytest.mark.parametrize("tools", [[{}], None], ids=["exchange", "transparent"])
def test_an_error_after_a_heartbeat_is_an_event(tools: object) -> None:
    beaten = threading.Event()

    async def late(request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(beaten.wait, BOUND)
        return web.json_response({"error": {"message": "too late"}}, status=429)

    with (
        proxied(late, heartbeat=0.02) as (_, port),
        open_chat(port, chat_body(stream=True, tools=tools)) as client,
    ):
        assert read_until(client, b": keep-alive\n\n").startswith(b"HTTP/1.1 200")
        beaten.set()
        rest = read_until(client, b"\r\n0\r\n\r\n")
        assert b"The upstream answered HTTP 429: too late" in rest
        assert b"[DONE]" not in rest


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_stays_silent_is_504(stream: bool) -> None:
    clock = ManualClock()
    with (
        running_upstream(silent) as upstream,
        serving(make_proxy(upstream.url, upstream_timeout=50), clock=clock) as port,
        ThreadPoolExecutor(1) as threads,
    ):
        asking = threads.submit(ask, port, "POST", CHAT, chat_body(stream=stream))
        assert upstream.arrived.wait(BOUND)
        clock.move(60)
        answer = asking.result()
        assert (504, "upstream_timeout") == (answer.status, answer.json["error"]["code"])
        assert upstream.left.wait(BOUND)
        upstream.arrived.clear()
        asking = threads.submit(ask, port, "GET", "/v1/models")
        assert upstream.arrived.wait(BOUND)
        clock.move(60)
        assert 504 == asking.result().status


def test_an_upstream_that_falls_silent_in_a_stream_is_an_error_event() -> None:
    with proxied(silent_after_one_event, upstream_timeout=0.1) as (_, port):
        for tools in ([{}], None):
            answer = ask(port, "POST", CHAT, chat_body(stream=True, tools=tools))
            assert b"sent nothing for 0.1 s" in answer.body
            assert b"[DONE]" not in answer.body


def test_a_stream_with_steady_signs_of_life_outlives_the_timeout() -> None:
    clock, go_on = ManualClock(), threading.Semaphore(0)

    async def steady(request: web.Request) -> web.StreamResponse:
        response = await open_stream(request)
        for number in range(12):
            await response.write(b": alive %d\n\n" % number)
            await asyncio.to_thread(go_on.acquire, timeout=BOUND)
        return response

    with (
        running_upstream(steady) as upstream,
        serving(make_proxy(upstream.url, upstream_timeout=50), clock=clock) as port,
        open_chat(port, chat_body(stream=True)) as client,
    ):
        for number in range(12):
            assert b": alive %d\n\n" % number in read_until(client, b": alive %d\n\n" % number)
            clock.move(30)
            go_on.release()
        assert b"[DONE]" in read_until(client, b"\r\n0\r\n\r\n")


def test_slow_client_is_not_an_upstream_timeout() -> None:
    clock, stuck = ManualClock(), threading.Event()
    piece = b"data: " + b"u" * 65_000 + b"\n\n"

    async def much(request: web.Request) -> web.StreamResponse:
        response = await open_stream(request)
        while not stuck.is_set():
            await response.write(piece)
        return response

    async def watched(scope: dict, receive: object, send: Callable[[object], Awaitable[None]]) -> None:
        is_sending = False

        async def noted(message: object) -> None:
            nonlocal is_sending
            is_sending = True
            await send(message)
            is_sending = False

        def look() -> None:
            if is_sending:  # and others run: it waits for the client, which takes nothing before the time has passed
                clock.loop.ahead += 1000
                stuck.set()
            else:
                clock.loop.call_later(0.01, look)

        if scope["type"] == "http":
            look()
        await proxy(scope, receive, noted)

    with running_upstream(much) as upstream:
        proxy = make_proxy(upstream.url, upstream_timeout=50)
        with (
            serving(watched, clock=clock) as port,
            open_chat(port, chat_body(stream=True), receive_buffer=8192) as client,
        ):
            assert stuck.wait(BOUND)
            assert b"[DONE]" in read_until(client, b"[DONE]")
