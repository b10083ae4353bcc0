"""The pages lose no event of many, and show sessions of many calls; ``make console-load`` does the same for longer, and measures."""

from __future__ import annotations

from playwright.sync_api import expect

from console.browser import BOUND
from console.load import follow_traffic, open_session

expect.set_options(timeout=BOUND)


def test_list_of_turns_gets_every_event_of_a_busy_server(browser):
    found = follow_traffic(browser, seconds=6, events_per_minute=2000)
    assert (2 * found.requests, 0) == (found.events, found.dropped)
    assert found.requests >= 50
    assert found.heap < 200e6


def test_turn_of_many_rounds_is_shown(browser):
    found = open_session(browser, turns=3, calls_of_turn=200)
    assert 300 == found.calls
