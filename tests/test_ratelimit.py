"""The rate limiter of log lines."""

from __future__ import annotations

from patchbay._ratelimit import BURST, PER_SECOND, LogRateLimiter


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_logged_and_further_lines_are_counted():
    clock, logged = _Clock(), []
    limiter = LogRateLimiter(logged.append, clock)
    for number in range(BURST + 30):
        limiter.log(str(number))
    assert [str(number) for number in range(BURST)] == logged
    clock.now = 1 / PER_SECOND
    limiter.log("later")
    assert ["... (30 lines left out)", "later"] == logged[BURST:]


def test_the_long_term_rate_is_limited():
    clock, logged = _Clock(), []
    limiter = LogRateLimiter(logged.append, clock)
    for _ in range(640):
        clock.now += 1 / 64
        limiter.log("again")
    assert 0 <= BURST + 10 * PER_SECOND - logged.count("again") <= 1


def test_flush_logs_the_number_of_dropped_lines_once():
    logged: list[str] = []
    limiter = LogRateLimiter(logged.append, _Clock())
    for _ in range(BURST + 1):
        limiter.log("x")
    limiter.flush()
    limiter.flush()
    assert ["... (1 lines left out)"] == logged[BURST:]
