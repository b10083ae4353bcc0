"""The stream of events: its readers, the bounds of their queues, and when it observes."""

from __future__ import annotations

import json
import math

import pytest

from patchbay.hooks import Event, HookManager, HookScope, Meta
from patchbay.hooks.events import BUFFER
from patchbay.server import EventStream, event_stream
from patchbay.server.event_stream import NAME, StreamedEvent, TooManyReadersError, encoded
from support.running import run


def event(number: int = 1, kind: str = "agent.test", session: str = "s1", **payload: object) -> Event:
    meta = Meta(turn_id="t1", session_key=session)
    return Event(f"evt-{number}", kind, 1.0, meta, {}, "info", payload or {"number": number}, {})


def numbers(events: list[StreamedEvent | int]) -> list[object]:
    return [each if isinstance(each, int) else f"#{json.loads(each.data)['payload']['number']}" for each in events]


class MountedStream:
    """A stream mounted on a hook manager, and a turn that emits its events."""

    def __init__(self, **options: object) -> None:
        self.manager = HookManager()
        self.stream = EventStream(self.manager, **options)

    @property
    def is_observing(self) -> bool:
        return NAME in [each.name for each in self.manager.mounted]

    async def tell(self, *outcome: int, kind: str = "agent.test", session: str = "s1") -> None:
        turn = self.manager.begin_turn(HookScope(session_key=session))
        for number in outcome:
            if turn is not None:
                turn.emit(kind, "", 1, {"number": number})
        await self.manager.events.flush()


def test_reader_gets_events_from_its_start_on():
    async def work():
        mounted = MountedStream()
        await mounted.tell(1)
        reader = mounted.stream.join()
        await mounted.tell(2, 3)
        first = await reader.read(30)
        await mounted.tell(4)
        return [*numbers(first), *numbers(await reader.read(30))], first[0]

    found, first = run(work())
    assert ["#2", "#3", "#4"] == found
    outcome = json.loads(first.data)
    assert ({"session_key": "s1"}, "agent.test") == (outcome["scope"], outcome["kind"])


async def test_reader_with_filters_gets_matching_events_only():
    mounted = MountedStream()
    some, one, both = (
        mounted.stream.join(kinds=["agent.tool.*", "agent.error"]),
        mounted.stream.join(session="s2"),
        mounted.stream.join(kinds=["agent.turn.end"], session="s1"),
    )
    for number, (kind, session) in enumerate(
        [("agent.tool.exec_end", "s1"), ("agent.error", "s2"), ("agent.turn.end", "s1"), ("agent.turn.end", "s2")]
    ):
        await mounted.tell(number, kind=kind, session=session)
    assert [["#0", "#1"], ["#1", "#3"], ["#2"]] == [numbers(await each.read(30)) for each in (some, one, both)]


def test_slow_reader_does_not_block_others_and_learns_how_many_events_it_missed(monkeypatch):
    monkeypatch.setattr(event_stream, "MAX_QUEUED", 3)

    async def work():
        mounted = MountedStream()
        slow, quick = mounted.stream.join(), mounted.stream.join()
        seen = []
        for number in range(6):
            await mounted.tell(number)
            seen += numbers(await quick.read(30))
        first = numbers(await slow.read(30))
        await mounted.tell(6)
        return seen, first, numbers(await slow.read(30))

    seen, first, then = run(work())
    assert [f"#{number}" for number in range(6)] == seen
    assert (["#0", "#1", "#2", 3], ["#6"]) == (first, then)


async def test_queue_of_a_reader_and_history_are_bounded_in_bytes(monkeypatch):
    size = len(encoded(event(1)))
    monkeypatch.setattr(event_stream, "MAX_QUEUED_BYTES", 3 * size)
    mounted = MountedStream()
    reader = mounted.stream.join()
    for number in range(5):
        await mounted.stream.on_runtime_event(event(number))
    read = await reader.read(30)
    assert ["#0", "#1", "#2", 2] == numbers(read)
    assert [1, "#2", "#3", "#4"] == numbers(await mounted.stream.join(last_id=read[0].id).read(30))


async def test_reader_gets_the_count_of_events_dropped_by_the_dispatcher():
    mounted = MountedStream()
    reader = mounted.stream.join()
    turn = mounted.manager.begin_turn(HookScope())
    for number in range(BUFFER + 10):
        turn.emit("agent.test", "", 1, {"number": number})
    await mounted.manager.events.flush()
    await mounted.tell(99)
    outcome, dropped = [each for each in await reader.read(30) if isinstance(each, int)], mounted.manager.events.dropped
    assert 0 < dropped
    assert [dropped] == outcome


def test_reconnected_reader_receives_missed_events(monkeypatch):
    monkeypatch.setattr(event_stream, "MAX_BUFFERED", 4)

    async def work():
        mounted = MountedStream()
        reader = mounted.stream.join()
        await mounted.tell(*range(3))
        last = (await reader.read(30))[0].id
        reader.close()
        await mounted.tell(3)
        again = mounted.stream.join(last_id=last)
        missed = numbers(await again.read(30))
        await mounted.tell(*range(4, 8))
        later = mounted.stream.join(last_id=last)
        other = mounted.stream.join(last_id="deadbeef-2")
        nonsense = mounted.stream.join(last_id="\u00b2-\u00b2", kinds=["nothing"])
        return missed, numbers(await later.read(30)), numbers(await other.read(30)), await nonsense.read(0.01)

    missed, later, other, nothing = run(work())
    assert ["#1", "#2", "#3"] == missed
    assert [3, "#4", "#5", "#6", "#7"] == later  # 1, 2 and 3 are forgotten
    assert ["#4", "#5", "#6", "#7"] == other  # of a server that was restarted: all of this one is new
    assert [] == nothing


async def test_nothing_is_observed_before_the_first_reader_nor_buffered_long_after_the_last(monkeypatch):
    mounted = MountedStream()
    states = [mounted.is_observing]
    reader = mounted.stream.join()
    states.append(mounted.is_observing)
    await mounted.tell(1)
    last = (await reader.read(30))[0].id
    reader.close()
    reader.close()
    await mounted.tell(2)
    third = mounted.stream.join(last_id=last)
    assert ["#2"] == numbers(await third.read(30))
    monkeypatch.setattr(event_stream, "LINGER_SECONDS", -1.0)
    third.close()
    await mounted.tell(3)
    again = mounted.stream.join(last_id=last)
    await mounted.tell(4)
    assert ([False, True], [2, "#4"]) == (states, numbers(await again.read(30)))


async def test_number_of_readers_is_bounded():
    mounted = MountedStream(most_readers=2)
    first, _ = mounted.stream.join(), mounted.stream.join()
    with pytest.raises(TooManyReadersError, match="There are 2 readers"):
        mounted.stream.join()
    first.close()
    mounted.stream.join()
    assert 2 == mounted.stream.readers


async def test_read_times_out_empty_and_the_end_follows_queued_events():
    mounted = MountedStream()
    reader = mounted.stream.join()
    quiet = await reader.read(0.01)
    await mounted.tell(1)
    mounted.stream.leave()
    with pytest.raises(TooManyReadersError, match="about to stop"):
        mounted.stream.join()
    assert ([], ["#1"], None) == (quiet, numbers(await reader.read(30)), await reader.read(30))


async def test_unmounting_ends_open_streams_and_new_readers_may_join():
    mounted = MountedStream()
    reader = mounted.stream.join()
    await mounted.manager.aclose()
    ended = await reader.read(30)
    again = mounted.stream.join()
    await mounted.tell(1)
    assert (None, ["#1"]) == (ended, numbers(await again.read(30)))


def test_any_event_content_is_json():
    class Odd:
        def __str__(self):
            return "odd"

    outcome = json.loads(encoded(event(a="\ud800\x1b", d=Odd(), e=(1, None, True), f={1: 2.5})))
    assert {"a": "\ud800\x1b", "d": "odd", "e": [1, None, True], "f": {"1": 2.5}} == outcome["payload"]
    assert "attrs" not in outcome or "cut" not in outcome["attrs"]
    outcome = json.loads(encoded(event(a=1, b=math.nan)))
    assert ({"a": 1, "b": "..."}, True) == (outcome["payload"], outcome["attrs"]["cut"])


@pytest.mark.parametrize(
    "flood",
    [
        "x" * 10_000_000,
        ["y"] * 1_000_000,
        [[[1] * 1000] * 1000] * 1000,
        [[[]] * 1000] * 1000,
        {str(number): "z" * 100 for number in range(100_000)},
    ],
)
def test_truncated_event_is_marked(flood):
    data = encoded(event(text="before", flood=flood))
    outcome = json.loads(data)
    assert ("before", True) == (outcome["payload"]["text"], outcome["attrs"]["cut"])
    assert 400_000 > len(data)


def test_an_event_that_has_no_end_of_depth_is_cut():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert json.loads(encoded(event(deep=deep)))["attrs"]["cut"]
