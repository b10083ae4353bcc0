"""Of lines of others, so many are logged, and how many were not is said."""

from __future__ import annotations

from patchbay.valve import BURST, PER_SECOND, Valve


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_so_many_lines_are_logged_at_once_and_the_others_are_counted():
    clock, logged = _Clock(), []
    valve = Valve(logged.append, clock)
    for number in range(BURST + 30):
        valve.put(str(number))
    assert [str(number) for number in range(BURST)] == logged
    clock.now = 1 / PER_SECOND
    valve.put("later")
    assert ["... (30 lines left out)", "later"] == logged[BURST:]


def test_in_the_long_run_so_many_lines_a_second_are_logged():
    clock, logged = _Clock(), []
    valve = Valve(logged.append, clock)
    for _ in range(640):
        clock.now += 1 / 64
        valve.put("again")
    assert 0 <= BURST + 10 * PER_SECOND - logged.count("again") <= 1


def test_what_was_left_out_last_is_told_at_the_end():
    logged: list[str] = []
    valve = Valve(logged.append, _Clock())
    for _ in range(BURST + 1):
        valve.put("x")
    valve.close()
    valve.close()
    assert ["... (1 lines left out)"] == logged[BURST:]
