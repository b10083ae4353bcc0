"""Servers that accept sessions and fail: reconnects have growing pauses and a limit."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.realtime import ErrorEvent, reconnect

from .peers import Peer, served


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """The maximum of each pause; none is waited for."""
    longest: list[float] = []

    def none(_least: float, most: float) -> float:
        longest.append(most)
        return 0.0

    monkeypatch.setattr(reconnect.random, "uniform", none)
    return longest


@pytest.mark.parametrize("left", ["0s", "3s"])
async def test_server_that_always_leaves_is_retried_with_backoff_and_given_up(pauses, left):
    async def conduct(peer: Peer) -> None:
        await peer.send({"goAway": {"timeLeft": left}})

    async with served(conduct, provider="gemini", reconnects=3, longest_pause=15.0) as (played, peers):
        await played.until(lambda: "closed" in played.states)
        assert 4 == len(peers)
        assert [0.01, 0.02, 0.04] == pauses
        assert "the server is leaving" in str(played.of(ErrorEvent)[-1].error)


async def test_go_away_of_a_server_that_answers_never_ends_the_session(pauses):
    async def conduct(peer: Peer) -> None:
        await peer.until("clientContent")
        await peer.send({"serverContent": {"modelTurn": {"parts": [{"text": "Hello."}]}, "turnComplete": True}})
        await peer.send({"goAway": {"timeLeft": "9s"}})

    async with served(conduct, provider="gemini", reconnects=1, longest_pause=15.0) as (played, peers):
        for number in range(1, 5):
            await played.session.send_text("Hello?")
            await played.until(lambda number=number: len(peers) == number + 1 and played.session.idle)
        assert [] == pauses


async def test_server_that_fails_in_each_answer_is_abandoned(pauses):
    asked: list[int] = []

    async def conduct(peer: Peer) -> None:
        await peer.until("response.create")
        asked.append(peer.number)
        await peer.send({"type": "response.created", "response": {"id": f"r{peer.number}"}})
        peer.kill()

    async with served(conduct, reconnects=3, longest_pause=15.0) as (played, peers):
        await played.session.send_text("Poison.")
        await played.until(lambda: "closed" in played.states)
        assert [1, 2, 3, 4] == asked
        assert [0.01, 0.02, 0.04] == pauses
        assert "closed" == played.states[-1]
        assert 4 == len(peers)


async def test_completed_answer_resets_the_reconnect_count(pauses):
    async def conduct(peer: Peer) -> None:
        await peer.until("response.create")
        response = {"id": f"r{peer.number}", "status": "completed", "output": []}
        await peer.send({"type": "response.created", "response": response}, {"type": "response.done", "response": response})
        await told.wait()
        told.clear()
        peer.kill()

    told = asyncio.Event()
    async with served(conduct, reconnects=1, longest_pause=15.0) as (played, peers):
        for number in range(1, 5):
            await played.session.send_text("Hello?")
            await played.until(lambda number=number: sum(each.type == "response_end" for each in played.events) == number)
            told.set()
            await played.until(lambda number=number: len(peers) == number + 1 and played.session.idle)
        assert [0.01] * 4 == pauses
