"""Bounds of a session: events, history, and calls of tools."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from patchbay.errors import ConfigurationError
from patchbay.loop import TextEvent
from patchbay.realtime import (
    AudioEvent,
    ConnectionEvent,
    DroppedEvent,
    InterruptedEvent,
    RealtimeEvent,
    TranscriptEvent,
)
from patchbay.realtime.event_queue import MAX_JOINED_AUDIO, MAX_JOINED_TEXT, EventQueue, EventReader
from patchbay.realtime.history import Transcript
from patchbay.realtime.response_state import MAX_BUFFERED_CHARS, TextBuffer
from support.running import run

CLOSED = ConnectionEvent("closed", "x")


def read(feed: EventQueue) -> list[object]:
    async def all_of_it() -> list[object]:
        return [event async for event in feed.read()]

    return run(all_of_it())


def read_late(most: int, *events: RealtimeEvent) -> list[object]:
    """Put events into a queue of this size, close it, and return what is read."""
    feed = EventQueue(most)
    for event in events:
        feed.put(event)
    feed.close(CLOSED)
    return read(feed)


def test_oldest_unread_events_are_dropped_with_a_count():
    assert [DroppedEvent("events", count=2), InterruptedEvent(), CLOSED] == read_late(2, *[InterruptedEvent()] * 3)


def test_nothing_follows_the_end_event():
    feed = EventQueue(10)
    feed.close(CLOSED)
    feed.put(InterruptedEvent())
    assert [CLOSED] == read(feed)
    assert [] == read(feed)


async def test_one_reader_at_a_time_and_the_next_resumes():
    feed = EventQueue(10)
    feed.put(InterruptedEvent())
    feed.put(ConnectionEvent("open"))
    async for event in feed.read():
        assert InterruptedEvent() == event
        break
    second = feed.read()  # without a tick in between: the first reader has not been finalised
    assert ConnectionEvent("open") == await anext(second)
    waiting = asyncio.ensure_future(anext(second))
    await asyncio.sleep(0)
    with pytest.raises(ConfigurationError, match="one reader"):
        await anext(feed.read())
    waiting.cancel()  # a cancelled reader frees the queue at once
    third = asyncio.ensure_future(anext(feed.read()))
    await asyncio.sleep(0)
    feed.put(InterruptedEvent())
    assert InterruptedEvent() == await third
    feed.close(ConnectionEvent("closed"))
    assert [ConnectionEvent("closed")] == [event async for event in second]
    assert waiting.cancelled()


async def test_closed_reader_reads_and_consumes_nothing():
    feed = EventQueue(10)
    feed.put(InterruptedEvent())
    async with aclosing(feed.read()) as events:
        pass
    events.wake()
    assert (None, False) == (events.now(), await events.wait())
    assert [] == [event async for event in events]
    assert InterruptedEvent() == await anext(feed.read())


async def test_waiting_events_are_taken_without_blocking_and_none_is_not_the_end():
    feed = EventQueue(2)
    events = feed.read()
    for state in ("open", "lost", "open"):
        feed.put(ConnectionEvent(state))
    assert [DroppedEvent("events"), ConnectionEvent("lost"), ConnectionEvent("open")] == [events.now() for _ in range(3)]
    assert events.now() is None
    feed.close(ConnectionEvent("closed"))
    assert await events.wait()
    assert ConnectionEvent("closed") == events.now()
    assert events.now() is None
    assert not await events.wait()


async def test_wake_ends_a_wait_but_not_a_read():
    feed = EventQueue(10)
    feed.open()
    events = feed.read()
    events.wake()  # without a waiter a wake-up is not remembered
    waiting = asyncio.ensure_future(events.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    events.wake()
    assert await waiting
    assert events.now() is None
    reading = asyncio.ensure_future(anext(events))
    for _ in range(3):
        await asyncio.sleep(0)
        events.wake()
    feed.put(InterruptedEvent())
    assert InterruptedEvent() == await reading


async def test_nowait_read_before_open_or_beside_a_waiting_reader_is_refused():
    async def refused(reader: EventReader, match: str) -> None:
        with pytest.raises(ConfigurationError, match=match):
            reader.now()
        with pytest.raises(ConfigurationError, match=match):
            await reader.wait()

    feed = EventQueue(10)
    first, second = feed.read(), feed.read()
    await refused(first, "not open")
    feed.open()
    waiting = asyncio.ensure_future(first.wait())
    await asyncio.sleep(0)
    await refused(second, "one reader")
    waiting.cancel()  # it frees the queue at once
    assert second.now() is None
    await asyncio.wait([waiting])


def test_transcript_keeps_the_last_lines_within_its_limits():
    kept = Transcript(3, 10)
    for text in ("aaaa", "bb", "cc", "dddd"):
        kept.add("user", text)
    assert ["bb", "cc", "dddd"] == [line.text for line in kept.lines()]
    kept.add("user", "e" * 50)
    assert ["e" * 10] == [line.text for line in kept.lines()]
    kept = Transcript(3, 2000)
    kept.add("user", "head " + "x" * 5000 + " tail")
    (line,) = kept.lines()
    assert len(line.text) <= 2000
    assert (True, True) == (line.text.startswith("head "), line.text.endswith(" tail"))
    off = Transcript(0, 10)
    off.add("user", "a")
    assert () == off.lines()


def test_text_buffer_is_bounded_and_empty_after_drain():
    text = TextBuffer()
    for _ in range(5):
        text.add("a" * (MAX_BUFFERED_CHARS // 2))
    assert "a" * MAX_BUFFERED_CHARS == text.drain()
    assert "" == text.drain()
    text.add("c")
    assert "c" == text.drain()


def test_waiting_deltas_are_joined_without_loss():
    pieces: list[RealtimeEvent] = []
    for number in range(3_000):
        pieces.append(AudioEvent(number.to_bytes(2, "big"), 24_000))
        pieces += [TranscriptEvent("assistant", text, whole=False) for text in (f"{number} ", "...")]
    got = read_late(40, *pieces)
    received = b"".join(event.audio for event in got if isinstance(event, AudioEvent))
    assert b"".join(number.to_bytes(2, "big") for number in range(3_000)) == received
    reply = [event.text for event in got if isinstance(event, TranscriptEvent)]
    assert "".join(f"{number} ..." for number in range(3_000)) == "".join(reply)
    assert 40 >= len(got)
    assert 1 < len(reply)
    assert all(len(text) <= MAX_JOINED_TEXT for text in reply)
    assert CLOSED == got[-1]


OPEN, LOST, CUT = ConnectionEvent("open"), ConnectionEvent("lost"), InterruptedEvent()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (AudioEvent(b"12", 24_000), AudioEvent(b"34", 16_000)),
        (AudioEvent(bytes(MAX_JOINED_AUDIO), 24_000), AudioEvent(b"34", 24_000)),
        (TextEvent("a" * MAX_JOINED_TEXT), TextEvent("b")),
        (TranscriptEvent("user", "a", whole=False), TranscriptEvent("assistant", "b", whole=False)),
        (TranscriptEvent("user", "a", whole=False), TranscriptEvent("user", "a", whole=True)),
        (TranscriptEvent("user", "a", whole=True), TranscriptEvent("user", "a", whole=True)),
        (CUT, CUT),
    ],
    ids=lambda event: event.type,
)
def test_deltas_of_different_items_are_not_joined(one, other):
    assert [DroppedEvent("events"), LOST, one, other] == read_late(4, OPEN, LOST, one, other)[:4]


@pytest.mark.parametrize(
    ("most", "events"),
    [(10, [TextEvent(each) for each in "abcde"]), (6, [OPEN, LOST, TextEvent("a"), CUT, TextEvent("b")])],
)
def test_deltas_are_joined_only_under_pressure_and_only_if_adjacent(most, events):
    assert [*events, CLOSED] == read_late(most, *events)


def test_interruption_drops_unread_audio():
    texts, received = [AudioEvent(b"12", 24_000), TextEvent("so"), AudioEvent(b"34", 24_000)], AudioEvent(b"56", 24_000)
    assert [TextEvent("so"), CUT, received, CLOSED] == read_late(10, *texts, CUT, received)
