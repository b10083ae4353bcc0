"""``estimate_size``: near the size of plain values, in bounded time, whatever they are."""

from __future__ import annotations

from collections import OrderedDict, deque

import pytest

from patchbay.realtime.event_queue import MAX_SAMPLE, MAX_VISITED, estimate_size


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset, deque, dict.fromkeys, OrderedDict.fromkeys])
@pytest.mark.parametrize("count", [1, MAX_SAMPLE, 50_000])
def test_the_estimate_of_plain_containers_is_near_their_size(kind, count):
    texts = [f"{number:0200}" for number in range(count)]
    assert 240 * count < estimate_size([kind(texts)]) < 450 * count + 1_000
    rows = [{"number": number, "tags": [text, text]} for number, text in enumerate(texts)]
    assert 250 * count < estimate_size([rows]) < 1_000 * count


def test_an_estimate_visits_a_bounded_number_of_values(monkeypatch):
    looked: list[object] = []

    def getsizeof(value: object) -> int:
        looked.append(value)
        return 1

    monkeypatch.setattr("patchbay.realtime.event_queue.getsizeof", getsizeof)
    estimate_size([[[[f"{x} {y} {z}" for z in range(20)] for y in range(100)] for x in range(100)]])
    assert len(looked) == MAX_VISITED


def test_an_estimate_calls_no_method_of_a_value_and_ends_on_cycles():
    class Odd(dict):
        def __len__(self) -> int:
            raise AssertionError

        values = items = __iter__ = __len__

    class Thing:
        def __sizeof__(self) -> int:
            raise AssertionError

        __len__ = __iter__ = __hash__ = __eq__ = __sizeof__

    assert 1_000 < estimate_size([Odd(text="a" * 1_000)]) < 2_000
    assert estimate_size([[Thing()] * MAX_SAMPLE, None, 5]) < 1_000
    ring: list[object] = []
    ring += [ring, [ring]]
    assert estimate_size([ring]) < 1_000
