"""The delays between attempts."""

from __future__ import annotations

from patchbay._backoff import Backoff


def test_delays_double_up_to_the_longest_with_jitter():
    backoff = Backoff(1.0, 8.0)
    delays = [backoff.fail() for _ in range(2000)]
    for delay, longest in zip(delays, (1, 2, 4, 8, *[8] * 2000), strict=False):
        assert 0.75 * longest <= delay <= longest
    assert 1 < len(set(delays[3:]))
    assert not backoff.is_exhausted


def test_it_is_exhausted_by_failures_in_a_row_alone():
    backoff = Backoff(1.0, 8.0, retries=2, healthy_after=5.0)
    seen = []
    for lasted in (0.0, 4.9, 5.0, 0.0, 0.0):
        backoff.fail(lasted=lasted)
        seen.append((backoff.failures, backoff.is_exhausted))
    assert [(1, False), (2, False), (1, False), (2, False), (3, True)] == seen
    backoff.reset()
    assert 1 >= backoff.fail()
