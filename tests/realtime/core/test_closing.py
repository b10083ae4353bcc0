"""A session can be closed at any moment, and leaves nothing behind: no task, no tool, no unread error."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings

import pytest
from websockets.asyncio.server import ServerConnection

from patchbay.errors import ConfigurationError, UpstreamError
from patchbay.executor import ToolExecution
from patchbay.loop import TextEvent
from patchbay.realtime import RealtimeSession, RealtimeSettings, connection
from patchbay.realtime.connection import SEND_BUFFER_LIMIT, WebSocketConnection
from patchbay.realtime.providers.event_providers import OpenAIDialect
from patchbay.testing.realtime import Call, FakeOpenAI, Quote, Say
from support.realtime_fakes import FakeGemini

from .peers import Peer, connected_to, content, served, serving
from .playing import Played, bounded, limits, named, playing


def session_at(url: str, *tools: object, **fields: object) -> RealtimeSession:
    settings = RealtimeSettings(model="m", url=url, api_key="a-secret-key", output="text", limits=limits(**fields))
    return RealtimeSession(settings, tools=tools, dialect=OpenAIDialect)


@pytest.fixture(autouse=True)
def complaints():
    """Errors reported to the event loop's or the garbage collector's hooks."""
    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield texts
        gc.collect()
    assert [] == texts


def complaining(said: list[str]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, about: said.append(str(about)))


async def slow() -> str:
    await asyncio.sleep(30)
    return "late"


@pytest.mark.parametrize("steps", range(0, 60, 3))
async def test_close_after_any_number_of_steps_leaves_nothing(steps, complaints):
    complaining(complaints)
    with FakeOpenAI([[Say("One moment."), Call("slow"), Call("slow")], Quote()]) as fake:
        session = session_at(fake.url, slow)
        played = Played(session)

        async def use() -> None:
            await session.connect()
            await session.send_text("Go.")

        using = asyncio.ensure_future(use())
        for _ in range(steps):
            await asyncio.sleep(0.001 if steps > 30 else 0)
        await bounded(session.close())
        (error,) = await asyncio.gather(using, return_exceptions=True)
        assert error is None or isinstance(error, UpstreamError | ConfigurationError)
        await bounded(played.read())
        assert "closed" == played.states[-1]
        assert [] == fake.violations


@pytest.mark.parametrize("steps", range(0, 40, 4))
async def test_connecting_can_be_cancelled_at_any_step(steps, complaints):
    complaining(complaints)
    with FakeOpenAI() as fake:
        session = session_at(fake.url)
        connecting = asyncio.ensure_future(session.connect())
        for _ in range(steps):
            await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        await bounded(session.close())


async def test_a_tool_can_close_the_session_that_called_it():
    async def hang_up() -> None:
        await session.close()

    with FakeOpenAI([Call("hang_up"), Quote()]) as fake:
        session = session_at(fake.url, hang_up)
        await session.connect()
        await session.send_text("Bye.")
        assert "closed" == [event async for event in session.events()][-1].state
        await bounded(session.close())


async def test_turns_calls_and_reconnects_leave_nothing_behind(complaints):

    complaining(complaints)
    with FakeGemini([step for _ in range(60) for step in (Call("quick"), Say("Good."))]) as fake:
        async with playing(fake, named("quick")) as played:
            remains = set()
            for number in range(30):
                await played.session.send_text("Go.")
                await played.until(lambda: played.session.idle and fake.remaining <= 120 - 2 * (number + 1))  # noqa: B023
                if number % 3 == 2:
                    played.events.clear()
                    fake.drop()
                    await played.until(lambda: played.states == ["lost", "open"])
                played.events.clear()
                gc.collect()
                kept = sum(type(each) is ToolExecution for each in gc.get_objects())
                remains.add((kept, len(asyncio.all_tasks())))
            assert {True} == {executions <= 1 for executions, _ in remains}, remains  # at most the last turn's
            assert 1 == len({tasks for _, tasks in remains}), remains


# The connection alone


async def test_audio_waits_for_a_server_that_does_not_read_and_control_frames_do_not():
    async def deaf(socket) -> None:
        socket.transport.pause_reading()
        await socket.wait_closed()

    async with connected_to(deaf, close_timeout=0.1) as connection:
        piece, poured, before = {"audio": "x" * 65_536}, 0, -1

        async def pour() -> None:
            nonlocal poured
            while True:
                await connection.wait_for_space()
                connection.send([piece])
                poured += 1

        pouring = asyncio.ensure_future(pour())
        while before != poured:  # until it waits
            before = poured
            await asyncio.sleep(0.05)
        assert poured < SEND_BUFFER_LIMIT // 65_536
        connection.send([{"type": "control"}])  # at once
        pouring.cancel()
        for _ in range(SEND_BUFFER_LIMIT // 65_536 + 1):  # a server that never reads is given up
            connection.send([piece])
        with pytest.raises(EOFError, match="stopped reading"):
            await bounded(connection.receive())


async def test_a_redirect_is_not_followed():
    asked: list[str] = []

    def elsewhere(socket, request):
        asked.append(request.path)
        answer = socket.respond(307, "elsewhere")
        answer.headers["Location"] = "/other"
        return answer

    async with serving(Peer.listen, process_request=elsewhere) as (url, _):
        with pytest.raises(UpstreamError, match="307"):
            await WebSocketConnection.open(f"{url}here", {"Authorization": "Bearer k"}, seconds=5, max_frame=1000)
    assert ["/here"] == asked


@pytest.mark.parametrize(("count", "length"), [(300, 10), (50, 10_000)])
async def test_output_before_the_confirmation_is_bounded(count, length, monkeypatch):
    monkeypatch.setattr(connection, "SEND_BUFFER_LIMIT", 100_000)

    async def talkative(peer: Peer) -> None:
        text = {"type": "response.output_text.delta", "response_id": "r", "delta": "x" * length}
        await peer.send({"type": "session.created"}, *[text] * count)
        await peer.socket.wait_closed()

    async with serving(talkative) as (url, _):
        with pytest.raises(UpstreamError, match="before it confirmed"):
            await bounded(session_at(url, connect=15.0).connect())


async def test_invalid_json_of_a_server_is_logged_once(caplog):
    async def odd(socket) -> None:
        for _ in range(20):
            await socket.send("{nonsense")
        await socket.send(json.dumps({"fine": True}))
        await socket.wait_closed()

    async with connected_to(odd) as connection:
        assert {"fine": True} == await bounded(connection.receive())
    assert 1 == caplog.text.count("not JSON")


async def test_pending_frames_are_delivered_before_an_orderly_close():
    came: list[str] = []
    codes: list[int | None] = []

    async def handle(socket: ServerConnection) -> None:
        await asyncio.sleep(0.05)  # so that more waits than fits on the way
        came.extend([json.loads(data)["number"] async for data in socket])
        codes.append(socket.close_code)

    async with connected_to(handle, max_size=None) as connection:
        connection.send([{"number": number, "filler": "x" * 100_000} for number in range(100)])
        connection.finish_sending("another one is opened")
        connection.send([{"number": 100}])
    assert [*range(100)] == came
    assert [1000] == codes
    assert "another one is opened" == connection.reason


async def test_unacknowledged_close_does_not_delay_the_next_connection(monkeypatch):
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", 0.1)

    async def conduct(peer: Peer) -> None:
        if peer.number == 1:
            peer.socket.transport.pause_reading()
            await peer.send(content(turnComplete=True), {"goAway": {"timeLeft": "0s"}})
            await peer.socket.wait_closed()
        await peer.until("clientContent")
        await peer.send(content(modelTurn={"parts": [{"text": "Yes."}]}), content(turnComplete=True))

    async with served(conduct, provider="gemini") as (played, _peers):
        await played.until(lambda: "lost" in played.states)
        await played.session.send_text("Hello.")
        await played.until(lambda: bool(played.of(TextEvent)))
