"""Connecting to a server: proxies, connection errors, and buffers for a server that does not read."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

import pytest

from patchbay.errors import UpstreamError
from patchbay.realtime import ErrorEvent, RealtimeSession, connection

from .peers import SECRET, Peer, open_session, served, serving
from .playing import bounded


@pytest.fixture
def environment(monkeypatch):
    """Remove proxies from the environment; returns a function that sets variables."""
    for name in ("ws", "wss", "socks", "http", "https", "all", "no"):
        for spelt in (f"{name}_proxy", f"{name}_proxy".upper()):
            monkeypatch.delenv(spelt, raising=False)
    return monkeypatch.setenv


def session_at(url: str) -> RealtimeSession:
    return RealtimeSession("openai/m", url=url, api_key=SECRET)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.2", "127.255.255.254", "[::1]", "[::ffff:127.0.0.1]", "localhost", "LOCALHOST", "a.localhost"]
)
async def test_loopback_is_reached_without_a_proxy_in_any_spelling(environment, host):
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(1000))
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        environment("http_proxy", f"http://127.0.0.1:{port}")
        with pytest.raises(UpstreamError):
            await bounded(session_at(f"ws://{host}:9/").connect())
        assert [] == asked
        with pytest.raises(UpstreamError):
            await bounded(session_at("ws://model.invalid:9/").connect())
        assert asked[0].startswith(b"CONNECT model.invalid:9 ")


@pytest.mark.parametrize(
    ("name", "proxy", "why"),
    [
        ("socks_proxy", "socks5://ann:pass-word@127.0.0.1:1", "needs the package python-socks"),
        ("http_proxy", "odd://ann:pass-word@127.0.0.1:1", "by an invalid URL"),
        ("http_proxy", "http://ann:pass-word@127.0.0.1:port", "by an invalid URL"),
        ("http_proxy", "http://ann:pass-word/x@127.0.0.1:1", "by an invalid URL"),
        ("http_proxy", "http://ann:pass-word@[127.0.0.1:1", "by an invalid URL"),
        ("http_proxy", "http://pass-word@127.0.0.1:1", "by an invalid URL"),
        ("http_proxy", "http://ann:pass-word%ff@127.0.0.1:1", "by an invalid URL"),
        ("http_proxy", "http://ann:pass-word@127.0.0.1:1", "Connect call failed"),
    ],
)
async def test_unusable_proxy_error_hides_the_password_and_names_the_way_out(environment, monkeypatch, name, proxy, why):
    monkeypatch.setitem(__import__("sys").modules, "python_socks", None)  # not there, wherever this runs
    monkeypatch.setitem(__import__("sys").modules, "python_socks.async_.asyncio", None)
    environment(name, proxy)
    with pytest.raises(UpstreamError, match=why) as raised:
        await bounded(session_at("ws://model.invalid/x").connect())
    assert "pass-word" not in str(raised.value)
    assert ("no_proxy" in str(raised.value)) == ("failed" not in why)


async def test_redaction_precedes_truncation_of_a_server_error(caplog):
    caplog.set_level(logging.DEBUG, "patchbay")
    words = "x" * (500 - len(SECRET) // 2) + SECRET
    refuse = {"process_request": lambda socket, _request: socket.respond(HTTPStatus.UNAUTHORIZED, words)}
    async with serving(Peer.listen, **refuse) as (url, _):
        with pytest.raises(UpstreamError, match="HTTP 401") as raised:
            await bounded(session_at(url).connect())
        assert 401 == raised.value.upstream_status
        assert SECRET[:6] not in f"{raised.value} {raised.value.body}"

    async def conduct(peer: Peer) -> None:
        await peer.socket.send((SECRET * 40)[:-7])
        await peer.send({"type": "error", "error": {"message": "no", "code": f"bad_{SECRET}", "type": "x"}})

    async with served(conduct) as (played, _):
        await played.until(lambda: bool(played.of(ErrorEvent)))
        assert "The model's server says: no (bad_[redacted])" == str(played.of(ErrorEvent)[0].error)
    outcome = [record.getMessage() for record in caplog.records if "not JSON" in record.getMessage()]
    assert 1 == len(outcome)
    assert SECRET[:6] not in outcome[0]


async def test_server_that_pings_without_reading_is_disconnected(monkeypatch):
    monkeypatch.setattr(connection, "SEND_BUFFER_LIMIT", 4_000_000)

    async def handle(peer: Peer) -> None:
        await peer.open()
        transport = peer.socket.transport
        transport.pause_reading()
        pings = (bytes([0x89, 125]) + b"p" * 125) * 500
        while not left.is_set():
            if transport.get_write_buffer_size() < 1_000_000:
                transport.write(pings)
            await asyncio.sleep(0)
        transport.abort()

    left = asyncio.Event()
    async with serving(handle, ping_interval=None) as (url, _), open_session(url, reconnects=0) as played:
        await played.until(lambda: "closed" in played.states)
        left.set()
