"""A hundred sessions live in one process, and none of them takes a megabyte, although each has a TLS connection."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from patchbay.loop import TextEvent, ToolResultEvent
from patchbay.realtime import RealtimeSession, RealtimeSettings, ResponseEndEvent, connection
from realtime.core.playing import bounded, limits
from support.running import run

MANY = 100
BAR = 1_000_000
"""Bytes of a session; measured in November 2026: 0.32 MB of Python's own memory and of the process, of which asyncio's buffer is a
quarter of a megabyte. Without TLS: 0.06 and 0.16 MB."""


def quick(text: str) -> str:
    return f"done with {text}"


def resident() -> int:
    """The memory of this process, in bytes."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def turn(session: RealtimeSession) -> int:
    """Send a text, read until an answer in text has ended, and return the number of calls before it."""
    await session.send_text("Go.")
    seen: list[object] = []
    events = session.events()
    async for event in events:
        seen.append(event)
        if isinstance(event, ResponseEndEvent) and any(isinstance(each, TextEvent) for each in seen):
            break
    await events.aclose()
    results = [each.execution.content for each in seen if isinstance(each, ToolResultEvent)]
    assert {"done with some words"} >= set(results)
    return len(results)


@pytest.fixture
def certificate(tmp_path, monkeypatch) -> Iterator[Path]:
    """A server's key and certificate, by an authority that this process trusts."""
    authority = trustme.CA()
    file = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(file)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    connection.default_ssl_context.cache_clear()
    mine = tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(mine)
    yield mine
    connection.default_ssl_context.cache_clear()


def test_hundred_sessions_use_and_release_bounded_memory(certificate, record_property):
    server = Path(__file__).with_name("server_process.py")
    command = [sys.executable, str(server), str(MANY), str(certificate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("wss://")

        def session() -> RealtimeSession:
            settings = RealtimeSettings(model="m", url=url, api_key="a-secret-key", output="text", limits=limits())
            return RealtimeSession(settings, tools=[quick])

        async def work() -> None:
            async with session() as first:  # what is loaded and cached once is no session's
                assert first.idle
            gc.collect()
            tracemalloc.start()
            before, rss_before = tracemalloc.get_traced_memory()[0], resident()
            sessions = [session() for _ in range(MANY)]
            await bounded(asyncio.gather(*(each.connect() for each in sessions)))
            assert MANY == sum(await bounded(asyncio.gather(*map(turn, sessions))))
            gc.collect()
            each, rss = (tracemalloc.get_traced_memory()[0] - before) / MANY, (resident() - rss_before) / MANY
            record_property("bytes_a_session", round(each))
            record_property("resident_bytes_a_session", round(rss))
            await bounded(asyncio.gather(*(each.close() for each in sessions)))
            del sessions
            gc.collect()
            left = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            assert max(each, rss) <= BAR
            assert left <= MANY * BAR / 20

        run(work())
        reply, _ = process.communicate("", timeout=60)
        assert f"0 0 {MANY}" == reply.strip()
